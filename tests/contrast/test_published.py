"""Several positives, weighted negatives and the sigmoid loss, on numbers of published code."""

import functools
import json
import pathlib

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax import contrastive_loss, sigmoid_loss

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
ENGINES = ("dense", "tiled")
pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def published(file):
    return golden_cases.marked(file, json.loads(str(np.load(GOLDEN / f"{file}.npz")["index"])))


def fields(file, case):
    arrays = np.load(GOLDEN / f"{file}.npz")
    return lambda name: arrays[f"{case['case']}/{name}"]


def with_gradients(losses, *arguments):
    """Values of each of ``losses``, and the gradients of their mean, as one program."""

    def run(*arguments):
        found = {}
        for name, loss in losses.items():
            values, pull = jax.vjp(loss, *arguments)
            found[name] = values, pull(jnp.full_like(values, 1 / values.size))
        return found

    compiled = jax.jit(run, compiler_options={"xla_backend_optimization_level": 0})
    return compiled(*map(jnp.asarray, arguments))


def assert_norm_close(ours, expected, tolerance):
    assert np.linalg.norm(ours - expected) <= tolerance * np.linalg.norm(expected)


def by_engine(*arguments, **options):
    return {e: functools.partial(contrastive_loss, **options, engine=e) for e in ENGINES}


@pytest.mark.parametrize("case", published("supcon_supcontrast"))
def test_info_nce_with_several_positives_is_supcons_code(case):
    field = fields("supcon_supcontrast", case)
    losses = by_engine(
        loss="info_nce",
        temperature=case["temperature"],
        positives=field("labels"),
        directions="both" if case["mode"] == "all" else "one_way",
    )
    for values, gradients in with_gradients(losses, field("z1"), field("z2")).values():
        np.testing.assert_allclose(values.mean(), field("loss"), rtol=1e-9)
        for gradient, name in zip(gradients, ("g1", "g2"), strict=True):
            assert_norm_close(gradient, field(name), 1e-9)


@pytest.mark.parametrize("summation", ["out", "in"])
@pytest.mark.parametrize("case", published("supcon_google"))
def test_both_readings_and_denominators_are_the_authors(case, summation):
    """Positives and negatives in the denominator is InfoNCE, negatives only is DCL; float32, as the code casts."""
    field = fields("supcon_google", case)
    where = {"out": "outside", "in": "inside"}[summation]
    options = dict(temperature=case["temperature"], positives=field("labels"), summation=summation)
    losses = {
        "all": functools.partial(contrastive_loss, loss="info_nce", **options),
        "only_negatives": functools.partial(contrastive_loss, loss="dcl", **options),
    }
    found = with_gradients(losses, field("z1"), field("z2"))
    for denominator, (values, gradients) in found.items():
        expected = f"{where}.{denominator}"
        np.testing.assert_allclose(
            values.reshape(2, -1).mean(0), field(f"{expected}.per_sample"), rtol=2e-5, atol=2e-6
        )
        for gradient, name in zip(gradients, ("g1", "g2"), strict=True):
            assert_norm_close(gradient, field(f"{expected}.{name}"), 1e-4)


@pytest.mark.parametrize("case", published("hard_negatives_hcl"))
def test_hard_negatives_are_hcls_code(case):
    field = fields("hard_negatives_hcl", case)
    options = {name: case[name] for name in ("temperature", "beta", "tau_plus")}
    for values, gradients in with_gradients(
        by_engine(loss="hard_nce", **options), field("z1"), field("z2")
    ).values():
        np.testing.assert_allclose(values.mean(), field("loss"), rtol=1e-9)
        for gradient, name in zip(gradients, ("g1", "g2"), strict=True):
            assert_norm_close(gradient, field(name), 1e-9)


@pytest.mark.parametrize("case", published("debiased_dcl"))
def test_debiased_is_the_authors_code(case):
    field = fields("debiased_dcl", case)
    losses = by_engine(loss="debiased", temperature=case["temperature"], tau_plus=case["tau_plus"])
    for values, gradients in with_gradients(losses, field("z1"), field("z2")).values():
        np.testing.assert_allclose(values.mean(), field("loss"), rtol=1e-9)
        for gradient, name in zip(gradients, ("g1", "g2"), strict=True):
            assert_norm_close(gradient, field(name), 1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", published("sigmoid_siglip"))
def test_the_sigmoid_loss_is_siglips_code(case, engine):
    field = fields("sigmoid_siglip", case)
    arguments = field("z1"), field("z2"), case["t"], case["b"]
    loss = {"it": lambda a, b, t, bias: sigmoid_loss(a, b, 1 / t, bias, engine=engine)}
    values, gradients = with_gradients(loss, *arguments)["it"]
    np.testing.assert_allclose(values, field("per_sample"), rtol=1e-9)
    for gradient, name in zip(gradients, ("g1", "g2", "gt", "gb"), strict=True):
        assert_norm_close(gradient, field(name), 1e-9)
