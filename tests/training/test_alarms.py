"""Each alarm, provoked; a healthy run, silent."""

import inspect
import json
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from saved_runs import config_of

from contrastive_jax import config as configs
from contrastive_jax import losses
from contrastive_jax import workdir as workdirs
from contrastive_jax.contrast import candidates, diagnostics, margin, negatives, temperature
from contrastive_jax.contrast.comparison import Compare, cosine
from contrastive_jax.contrast.terms import make_term, make_terms
from contrastive_jax.training import alarms, loop
from contrastive_jax.types import Example, Outputs

HEALTHY = {
    "step": 50, "epoch": 5.0, "loss": 3.0, "info_nce": 3.0, "contrast_accuracy": 0.3, "tau": 0.1, "ess": 0.1,
    "negatives": 62.0, "saturated": 0.0, "embedding_std": 0.9, "effective_rank": 8.0,
}  # fmt: skip


def config(loss=None, section=None, **leaves):
    """32 images a batch, 100 steps."""
    made = config_of(**{"train.duration": "100 steps"} | leaves)
    made["loss"] = loss or {"info_nce": {"weight": 1.0}}
    if section:
        made["temperature"] = section
        made = configs.plain(configs.complete(ConfigDict(made)))
    return configs.as_settings(made)


def of_run(settings):
    """What an alarm reads of a run: not every loss of these could be trained."""
    terms = make_terms(
        {name: of.options for name, of in settings.loss.items()}, lambda name: settings.loss[name].function
    )
    return types.SimpleNamespace(
        settings=settings, recipe=types.SimpleNamespace(terms=terms), total_steps=100
    )


ESS = {"name": "ess", "target": 0.3, "target_end": 0.0, "rate": 0.01, "min_tau": 0.005, "max_tau": 10.0}


@pytest.mark.parametrize(
    ("wrong", "loss", "section", "names"),
    [
        ({}, None, None, []),
        ({"embedding_std": 0.05, "effective_rank": 1.0}, None, None, ["collapse"]),
        ({"embedding_std": 0.05, "step": 5, "epoch": 0.5}, None, None, []),  # as a network may begin
        ({"saturated": 0.9, "step": 4, "epoch": 0.4}, None, None, []),  # four steps say nothing
        ({"embedding_std": 0.05}, {"byol": {"weight": 1.0}}, None, ["collapse"]),
        ({"embedding_std": 0.0}, {"cross_entropy": {"weight": 1.0}}, None, []),  # nobody trains the projector
        ({"effective_rank": 1.2}, None, None, ["dimensional_collapse"]),
        ({"saturated": 0.6}, None, None, ["saturation"]),
        ({"saturated": 0.4}, None, None, []),
        ({"saturated": 0.9}, {"flat_nce": {"weight": 1.0}}, None, []),  # its gradient has no such weight
        ({"saturated": 0.9}, {"info_nce": {"weight": 1.0}, "dcl": {"weight": 1.0}}, None, []),
        ({"saturated": 0.9}, {"info_nce": {"weight": 1.0}, "dcl": {"weight": 0.0}}, None, ["saturation"]),
        ({"info_nce": math.log(63), "contrast_accuracy": 0.0}, None, None, ["stuck"]),
        ({"info_nce": math.log(63) + 0.5, "contrast_accuracy": 1 / 63}, None, None, ["stuck"]),
        ({"info_nce": math.log(63), "contrast_accuracy": 0.2}, None, None, []),  # it tells them apart
        ({"info_nce": math.log(63), "contrast_accuracy": 0.0, "step": 15, "epoch": 1.5}, None, None, []),
        ({"info_nce": math.log(63), "contrast_accuracy": 0.0}, {"byol": {"weight": 1.0}}, None, []),
        ({"tau": np.float32(10.0), "ess": 0.9}, None, ESS, ["temperature_clamped"]),
        ({"tau": np.float32(10.0), "ess": 0.2}, None, ESS, ["ess_unreachable"]),
        ({"tau": np.float32(0.005), "ess": 0.9}, None, ESS, ["ess_unreachable"]),
        ({"ess": 0.9}, None, ESS, []),  # on its way
        ({}, None, ESS | {"target": 0.01}, ["ess_unreachable"]),  # 1 / 62 is more
        ({}, None, ESS | {"target": 0.3, "target_end": 0.001}, []),  # not yet
        ({"step": 100, "epoch": 10.0}, None, ESS | {"target": 0.3, "target_end": 0.001}, ["ess_unreachable"]),
        ({"tau": np.float32(0.005)}, None, {"name": "macl_icml"}, ["temperature_clamped"]),
        ({"tau": 0.005}, None, {"name": "fixed", "tau": 0.005}, []),
        ({"embedding_largest": 1e5}, None, None, ["unbounded"]),
        ({"embedding_largest": 2e4}, None, None, []),
    ],
)  # fmt: skip
def test_what_rings(wrong, loss, section, names):
    found = alarms.alarms(HEALTHY | wrong, of_run(config(loss, section)))
    assert list(found) == names
    for sentence in found.values():
        assert sentence.endswith(".") and "nan" not in sentence


def slopes(name, c):
    """The loss, and d loss / dc, of a query at each of c beside one at 0; all contrasts are multiples of one."""
    options = {"eqco": {"alpha": 256.0}, "eqco_estimate": {"alpha": 256.0}}.get(name, {})
    term = make_term(name, {"weight": 1.0} | options)
    known = {"positive": 0.9, "count": 64, "temperature": 0.1, "mean": 0.3}
    read = [quantity for quantity in term.quantities if quantity != "surplus"]  # of one positive: none
    assert set(read) <= set(known), term.quantities

    def value(c):
        contrasts = [jnp.stack([c, 0.0]) * multiple for multiple in term.multiples]
        return term.function(*contrasts, *(jnp.full(2, known[q], jnp.float32) for q in read), **options)[0]

    return [np.asarray(x).tolist() for x in jax.jit(jax.vmap(jax.value_and_grad(value)))(jnp.asarray(c))]


def test_losses_are_listed_as_they_are():
    """Which are constant, and which have a gradient that vanishes with W."""
    family = []
    for name in losses.__all__:
        if inspect.isfunction(getattr(losses, name)):
            try:
                term = make_term(name, {"weight": 1.0} | ({"alpha": 2.0} if "eqco" in name else {}))
            except ValueError:  # no loss: a helper, or an estimate of quantities that a step has not
                continue
            family += [name] if term.multiples and "u" not in term.quantities else []
    assert {"info_nce", "dcl", "flat_nce", "macl", "dual_temperature"} <= set(family)
    found = {name: slopes(name, (-40.0, -20.0, 0.0, 3.0)) for name in family}
    constant = {name for name, (values, _) in found.items() if all(value == 1.0 for value in values)}
    vanishing = {name for name, (_, slope) in found.items() if abs(slope[0]) < 1e-9}
    declared = {name: losses.declaration(getattr(losses, name)) for name in family}
    assert constant == {name for name in family if declared[name].constant}
    # RINCE pulls a positive by q times its value, whatever its c.
    assert vanishing - {"rince"} == {name for name in family if declared[name].vanishing}


def test_bfloat16_gains_nothing_on_a_cpu():
    rounded = config(dtype="bfloat16")
    (note,) = alarms.notes(rounded, "cpu")
    assert note.startswith("dtype=bfloat16 is not faster than float32 on a CPU")
    assert alarms.notes(rounded, "gpu") == alarms.notes(rounded) == alarms.notes(config(), "cpu") == []


def test_options_of_local_views_without_any_are_named():
    given = {"preset": "digits", "size": 8, "local_size": 4}
    (note,) = alarms.notes(configs.as_settings(config().to_dict() | {"augment": given}))
    assert note.startswith("augment.local_size is 4, but augment.local_views is 0")
    given |= {"local_views": 2, "local_crop_max": 0.5}
    assert alarms.notes(configs.as_settings(config().to_dict() | {"augment": given})) == []


def test_views_that_are_much_smaller_than_their_images_are_named():
    settings = configs.as_settings(config().to_dict() | {"augment": {"preset": "digits", "size": 8}})
    (note,) = alarms.notes(settings, example=Example((32, 40, 3), "uint8"))
    assert note.startswith("augment.size is 8, and the images have 32 pixels") and "augment.size=32" in note
    for shape in ((24, 40, 3), (8, 8, 1), (None, None, 3)):
        assert alarms.notes(settings, example=Example(shape, "uint8")) == []
    unchanged = configs.as_settings(config().to_dict() | {"augment": {"preset": "unchanged"}})
    assert alarms.notes(unchanged, example=Example((32, 32, 3), "float32")) == []


def test_a_constant_loss_is_explained_once():
    assert alarms.notes(config()) == []
    (note,) = alarms.notes(config({"flat_nce": {"weight": 1.0}}))
    assert note.startswith("the value of flat_nce is 1 by definition") and "Watch InfoNCE" in note
    (note,) = alarms.notes(config({"flat_nce": {"weight": 1.0}, "uniformity": {"weight": 1.0}}))
    assert "its part of the loss (flat_nce)" in note


# ---------------------------------------------------------------- the numbers that ring, from embeddings


def compared(query, key, tau):
    """The diagnostics of a comparison of two views in which other views are negatives, by compute type."""
    compare = Compare(
        embed=cosine,
        candidates=candidates.both_views(len(query), 2),
        negatives=negatives.all(),
        temperature=temperature.fixed(1, tau=tau),
        margin=margin.none(),
        multiples=(1.0, 2.0),
    )
    prediction = jnp.stack([jnp.asarray(query), jnp.asarray(key)], axis=1)
    group = jnp.arange(len(query))

    @jax.jit
    def found(prediction):
        comparison, _ = compare(prediction, prediction, group, ((), ()), jnp.int32(0), jax.random.key(0))
        outputs = Outputs(prediction, prediction, prediction, prediction[..., :0])
        rest = diagnostics.of_outputs(outputs, jnp.zeros(len(query), int))
        return {
            dtype: diagnostics.of_comparison(comparison, dtype) | rest for dtype in ("float32", "bfloat16")
        }

    return jax.device_get(found(prediction))


def rung(metrics, **leaves):
    return list(alarms.alarms(HEALTHY | metrics, of_run(config(**leaves))))


def test_aligned_orthogonal_embeddings_saturate_bfloat16_at_a_temperature_where_float32_goes_on():
    eye = np.eye(32, dtype=np.float32)
    found = compared(eye, eye, tau=0.09)  # c = log(62) - 1 / 0.09 = -7
    assert found["bfloat16"]["saturated"] == 1.0 and found["float32"]["saturated"] == 0.0
    assert rung(found["bfloat16"]) == ["saturation"] and rung(found["float32"]) == []
    found = compared(eye, eye, tau=0.04)  # c = -21
    assert rung(found["float32"]) == ["saturation"]
    assert rung(compared(eye, eye, tau=0.2)["bfloat16"]) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_threshold_is_where_one_minus_p_is_lost(dtype):
    least = diagnostics.rounds_to_zero(dtype)
    with jax.enable_x64(True):
        p = jnp.asarray([1 - least, 1 - 1.01 * least], jnp.float64).astype(dtype)
    assert (1 - p == 0).tolist() == [True, False]


def test_embeddings_that_say_nothing_of_their_image_ring_stuck():
    random = np.random.default_rng(0)
    found = compared(*random.standard_normal((2, 32, 256)).astype(np.float32), tau=0.1)["float32"]
    assert rung(found) == ["stuck"]


def test_a_point_rings_collapse_and_a_line_dimensional_collapse():
    random = np.random.default_rng(0)
    point = 1 + 1e-3 * random.standard_normal((2, 32, 16)).astype(np.float32)
    assert "collapse" in rung(compared(*point, tau=0.1)["float32"])
    line = np.zeros((32, 16), np.float32) + np.eye(16, dtype=np.float32)[0]
    line[:, 1] = random.uniform(-1, 1, 32)
    found = compared(line, line, tau=0.1)["float32"]
    assert found["effective_rank"] < 1.5 < 16 * found["embedding_std"]
    assert "dimensional_collapse" in rung(found)


@pytest.mark.parametrize("rank", [1, 2, 7, 16])
def test_effective_rank_counts_directions(rank):
    axes = np.eye(16, dtype=np.float32)[:rank]
    z = np.concatenate([axes, -axes])[:, None]
    np.testing.assert_allclose(diagnostics.effective_rank(jnp.asarray(z)), rank, rtol=1e-5)
    random = np.random.default_rng(0).standard_normal((40, 2, 5)).astype(np.float32)
    values = np.linalg.eigvalsh(np.cov(random.reshape(-1, 5).T, bias=True))
    np.testing.assert_allclose(
        diagnostics.effective_rank(jnp.asarray(random)), values.sum() ** 2 / (values**2).sum(), rtol=1e-5
    )
    assert diagnostics.effective_rank(jnp.ones((8, 2, 5))) == 0


# ---------------------------------------------------------------- what is said of them


def test_an_alarm_is_said_when_it_begins_and_when_it_was_quiet_for_a_while():
    watch, bad = alarms.Watch(of_run(config())), {"embedding_std": 0.01}
    said = []
    for step in range(20, 60):
        record = HEALTHY | {"step": step, "epoch": step / 10} | (bad if step < 24 or step == 26 else {})
        flags, sentences = watch.hear(record)
        assert flags == ({"alarm/collapse": 1} if step < 24 or step == 26 else {})
        said += sentences
    assert len(said) == 2
    assert (
        said[0].startswith("alarm, step 20: collapse: all embeddings")
        and said[1] == "step 31: the alarm collapse has ended."
    )
    assert watch.hear(HEALTHY | bad)[1][0].startswith("alarm, step 50")


@pytest.mark.run
def test_a_run_that_collapses_says_so_on_screen_in_metrics_and_in_its_result(tmp_path, capsys):
    """Alignment alone draws all embeddings to one point; ESS is then 1, out of any target's reach."""
    leaves = {"schedule.warmup": "0 steps", "schedule.learning_rate": 0.01, "projector.norm": "none"}
    made = config_of(**{"train.duration": "60 steps", "log.every": 5} | leaves)
    made["augment"] = {"preset": "crop_only", "size": 8}
    made["loss"] = {"alignment": {"weight": 1.0}}
    made = configs.plain(configs.complete(ConfigDict(made)))
    made["temperature"] = ESS | {"tau": 0.1, "rate": 0.5, "min_tau": 0.05}
    result = loop.train(made, tmp_path, devices=jax.devices()[:1])
    printed = capsys.readouterr().out
    assert printed.count("collapse: all embeddings are nearly one point") == 1
    assert printed.count("the ESS target 0.3 cannot be reached: ESS is") == 1
    saved = json.loads((tmp_path / "result.json").read_text())["alarms"]
    assert saved == result["alarms"] and "ess_unreachable" in {entry["alarm"] for entry in saved}
    entry = next(entry for entry in saved if entry["alarm"] == "collapse")
    flagged = [row["step"] for row in workdirs.read_metrics(tmp_path) if "alarm/collapse" in row]
    assert flagged and flagged == list(range(flagged[0], 61, 5))
    assert (entry["first_step"], entry["last_step"], entry["log_points"]) == (flagged[0], 60, len(flagged))
    assert entry["at_the_end"] and entry["sentence"].startswith("collapse: all embeddings")


@pytest.mark.run
def test_a_healthy_run_is_silent(tmp_path, capsys):
    made = config_of(**{"train.duration": "60 steps", "log.every": 5})
    result = loop.train(made, tmp_path, devices=jax.devices()[:1])
    printed = capsys.readouterr().out
    assert result["alarms"] == [] and "alarm" not in printed
    said = [line.partition(" ")[0] for line in printed.splitlines()]
    assert said.index("compiling") + 1 == said.index("compiled") and said[-1] == "results:"
    assert f"{tmp_path} (result.json" in printed
    assert not any("alarm" in name for row in workdirs.read_metrics(tmp_path) for name in row)
