"""Every check catches a loss that has its mistake; right losses pass; reports and the command are what a CI needs."""

import json
import subprocess
import sys

import broken
import jax
import numpy as np
import own_losses
import pytest

import contrastive_jax
from contrastive_jax.conformance import assert_conforms, check, references, specs
from contrastive_jax.conformance.command import listing, parse
from contrastive_jax.conformance.inputs import shown
from contrastive_jax.conformance.results import CHECKS, FAILED, PASSED

NUMPY = {
    "value": (broken.binary_logarithm, "nt_xent", "1.4427 x"),
    "convention": (broken.another_temperature, "nt_xent", "temperature is 0.1, not 0.5"),
    "candidates": (broken.two_logarithms, "dcl", "logarithms of two sums"),
    "self_pair": (broken.self_in_the_sum, "nt_xent", "the query itself"),
    "positive": (broken.positive_in_dcl, "dcl", "that is InfoNCE"),
    "duplicates": (broken.equal_rows_masked, "nt_xent", "the exact one is"),
    "several_positives": (broken.in_the_logarithm, "supcon", "inside the logarithm"),
    "class_of_one": (broken.divided_by_no_positives, "supcon", "divides by zero"),
    "batch_of_two": (broken.small_batches_skipped, "nt_xent", "the value is 0"),
    "row_order": (broken.weighted_by_position, "nt_xent", "in another order"),
    "symmetry": (broken.not_transposed, "nt_xent", "only the first array"),
    "row_scale": (broken.long_rows_kept, "nt_xent", "multiplied by 10"),
    "norms": (broken.constant_in_the_norm, "nt_xent", "1e-06"),
    "queue_keys": (broken.enqueued_before, "moco", "enqueue after the loss"),
    "determinism": (broken.dropout, "nt_xent", "a second call"),
}
JAX = {
    "gradient": (broken.keys_detached, "info_nce", "array b has no gradient"),
    "zero_rows": (broken.norm_divides_by_zero, "info_nce", "divides by zero"),
    "tau_0_01": (broken.exponentials, "info_nce", "NaN or infinity"),
    "large_logits": (broken.exponentials, "info_nce", "largest logit"),
    "saturated_positives": (broken.one_less_softmax, "info_nce", "softplus"),
    "float16": (broken.exponentials_in_half, "info_nce", "float16"),
    "bfloat16": (broken.scores_in_half, "info_nce", "bfloat16"),
    "temperature_gradient": (broken.temperature_held, "info_nce", "it is zero"),
    "detached_parts": (broken.weights_with_gradient, "dclw", "a gradient flows"),
    "microbatches": (broken.last_part_only, "info_nce", "rows have no gradient"),
    "memory": (broken.differences, "info_nce", "N x N x D"),
}
RANKS = [
    (broken.gathered_detached, "gathered rows are detached"),
    (broken.positives_not_shifted, "start at row r x N"),
    (broken.divided_by_ranks, "divided by the number of ranks"),
]
OWN = list(own_losses.LOSSES.items())
QUICK = ("dcl", "sigmoid")


def caught(name, function, loss, words, **options):
    result = check(function, loss, **({"only": [name]} | options))[name]
    assert result.status == FAILED and words in result.words, result
    return result


@pytest.mark.parametrize("name", NUMPY)
def test_a_mistake_in_numpy_is_caught(name):
    function, loss, words = NUMPY[name]
    result = caught(name, function, loss, words, framework="numpy", tau=0.5 if name == "convention" else None)
    assert result.given is None or len(result.given[0]) <= 12


@pytest.mark.parametrize("name", JAX)
def test_a_mistake_in_jax_is_caught(name):
    caught(name, *JAX[name])


@pytest.mark.run
@pytest.mark.parametrize(("function", "words"), RANKS)
def test_a_mistake_on_ranks_is_caught(function, words):
    caught("n_ranks", function, "info_nce", words)


@pytest.mark.run
def test_ranks_that_gather_with_the_gradient_pass():
    assert check(broken.gathered, "info_nce", only=["n_ranks"])["n_ranks"].status == PASSED


def test_every_check_has_a_loss_that_it_catches():
    contrastive_jax.check(broken.nt_xent, only=["value"], framework="numpy")  # registers them
    assert set(CHECKS) == {*NUMPY, *JAX, "n_ranks"}


def test_a_wrong_loss_of_one_kind_is_named_in_words_that_say_what_to_change():
    with pytest.raises(AssertionError, match="only, N - 1; this loss"):
        assert_conforms(broken.other_view_only, "nt_xent", framework="numpy", only=["candidates"])
    caught("detached_parts", broken.nothing_held, "flatnce", "the gradient is zero")


@pytest.mark.parametrize(
    ("function", "loss"),
    [
        pytest.param(f, loss, marks=() if f.__name__ in QUICK else pytest.mark.run, id=f.__name__)
        for f, loss in OWN
    ],
)
def test_our_own_losses_pass(function, loss):
    report = check(function, loss, skip=["n_ranks"])
    assert report.passed, str(report)
    assert report.convention.startswith("your loss is ")


@pytest.mark.run
def test_linear_memory_is_measured_where_tiles_are_smaller_than_the_batch():
    options = {"only": ["memory"], "memory": "linear"}
    assert check(own_losses.nt_xent_tiled, "nt_xent", **options)["memory"].status == PASSED
    caught("memory", broken.clip, "info_nce", "memory grows as N^2", memory="linear")


@pytest.mark.slow
@pytest.mark.parametrize(("function", "loss"), OWN, ids=lambda value: getattr(value, "__name__", ""))
def test_our_own_losses_pass_on_ranks(function, loss):
    assert check(function, loss, only=["n_ranks"])["n_ranks"].status == PASSED


def test_conventions_are_named():
    words = {
        lambda a, b: 2 * broken.nt_xent(a, b, 0.5).mean(): "2 x the mean over queries: SimCLR's",
        lambda a, b: broken.nt_xent(a, b, 0.1).sum(): "the sum over queries",
        lambda a, b: 0.2 * broken.nt_xent(a, b, 0.1).mean(): "MoCo v3",
        lambda a, b, scale: broken.nt_xent(a, b, 1 / scale): "1 / tau",
        lambda a, b, log_scale: broken.nt_xent(a, b, np.exp(-log_scale)): "logit scale",
        lambda a, b, t: broken.nt_xent(a, b, t, lambda x: x): "rows are used without normalisation",
    }
    for function, expected in words.items():
        report = check(function, framework="numpy", only=["value", "convention"])
        assert report.passed and expected in report.convention, (expected, str(report))


def test_one_direction_is_not_taken_for_two_where_the_temperature_multiplies():
    """At scale 0.2 all forms are nearly log N."""
    function = lambda a, b, scale: broken.lse(s := broken.unit(a) @ broken.unit(b).T * scale) - np.diag(s)  # noqa: E731
    report = check(function, "info_nce", framework="numpy", only=["value", "convention", "gradient"])
    assert report.passed and "a queries b" in report.convention, str(report)


def test_the_complex_step_is_the_derivative():
    """Against central differences, on every loss."""
    draw = np.random.default_rng(0)
    for name, spec in specs.SPECS.items():
        a, b, queue = draw.standard_normal((3, 4, 3))
        given = {"pairs": (a, b), "queue": (a, b, queue), "labels": (a, np.array([0, 0, 1, 1]))}[spec.kind]
        variant = references.dataclasses.replace(spec.usual(), held=False)
        loss = lambda *x: spec.loss(*x, 0.5, variant, **spec.options)  # noqa: B023, E731
        if name == "flatnce":
            continue  # a constant where nothing is held
        found, step = references.gradient(loss, given, 0), np.zeros_like(a)
        step[1, 2] = 1e-6
        ends = [float(loss(given[0] + s * step, *given[1:])) for s in (1, -1)]
        assert abs(found[1, 2] - (ends[0] - ends[1]) / 2e-6) < 1e-6, name


def test_references_are_finite_at_every_temperature_of_the_checks():
    draw = np.random.default_rng(1)
    for name, spec in specs.SPECS.items():
        a, b, queue = draw.standard_normal((3, 4, 3))
        given = {"pairs": (a, b), "queue": (a, b, queue), "labels": (a, np.array([0, 0, 1, 1]))}[spec.kind]
        for tau in (1e-4, 0.01, 0.1, 5.0):
            loss = lambda *x: spec.loss(*x, tau, spec.usual(), **spec.options)  # noqa: B023, E731
            assert np.isfinite(loss(*given)) and np.isfinite(references.gradient(loss, given, 0)).all(), (
                name,
                tau,
            )


def test_the_report_is_a_table_and_json(tmp_path):
    report = check(
        broken.self_in_the_sum, framework="numpy", only=["value", "self_pair", "queue_keys", "row_order"]
    )
    lines = str(report).splitlines()
    assert max(map(len, lines)) <= 80 and lines[-1] == "1 passed, 2 failed, 1 not applicable"
    found = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert not found["passed"] and [c["name"] for c in found["checks"] if "input" in c] == [
        "value",
        "self_pair",
    ]
    a, b = map(np.array, report["value"].given)
    assert a.shape == b.shape == (3, 2)  # the smallest input shows the mistake by itself
    usual, wrong = (
        broken.nt_xent(a, b, report["value"].tau),
        broken.self_in_the_sum(a, b, report["value"].tau),
    )
    assert abs(usual.mean() - wrong.mean()) > 0.1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"as_": "nt_xnet"}, "Did you mean 'nt_xent'"),
        ({"framework": "tf"}, "jax, torch, numpy"),
        ({"only": ["gradients"]}, "gradients"),
        ({"tau": 0.0}, "positive"),
        ({"options": {"sigma": 1.0}}, "sigma"),
        ({"ranks": 1}, "from 2 to 8"),
    ],
)
def test_a_wrong_argument_is_named(options, words):
    with pytest.raises(ValueError, match=words):
        check(broken.nt_xent, **options)


@pytest.mark.parametrize("framework", ["numpy", "jax"])
@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda a, b: None, "returned a NoneType; a loss must return a number"),
        (lambda a, b: {"loss": 1.0}, "returned a dict"),
        (lambda a, b: a @ b.T, "returned an array of shape (3, 3)"),
        (lambda a, b: (a @ b.T).mean() * 1j, "returned complex numbers"),
        (lambda a, b: sys.exit(3), "raised SystemExit: 3"),
        (lambda a: a.sum(), "raised TypeError"),
    ],
)
def test_what_is_no_loss_is_told_once(returned, words, framework):
    report = check(returned, "info_nce", framework=framework)
    assert (
        [result.name for result in report.failures] == [result.name for result in report.results] == ["value"]
    )
    assert words in report["value"].words


def test_a_loss_that_changes_its_arguments_has_its_own_values():
    report = check(broken.in_place, "nt_xent", framework="numpy", only=["value", "gradient", "determinism"])
    assert [result.name for result in report.failures] == ["determinism"], str(report)
    assert "changes its arguments" in report["determinism"].words


@pytest.mark.parametrize(
    ("loss", "options"),
    [("eqco", {"alpha": -1.0}), ("dclw", {"sigma": 0.0}), ("debiased", {"tau_plus": 1.0})],
)
def test_an_option_out_of_range_is_not_a_fault_of_the_loss(loss, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} is .*; it must be"):
        check(broken.nt_xent, loss, options=options)


def test_a_loss_without_scores_ends_every_check():
    report = check(lambda a, b: (a * b).mean(), "info_nce", framework="jax", skip=["n_ranks"])
    assert [result.name for result in report.failures] == ["value"]


def test_the_command_line_is_read():
    name, found = parse(["m:f", "--as=supcon", "--skip", "memory,n_ranks", "--tau=0.1", "--sigma=2"])
    assert name == "m:f" and found == {
        "as_": "supcon", "skip": ["memory", "n_ranks"], "tau": 0.1, "options": {"sigma": 2.0},
    }  # fmt: skip
    for words in (
        [],
        ["m:f"],
        ["m:f", "n:g", "--as=dcl"],
        ["m:f", "--as=dcl", "--tau=x"],
        ["m:f", "--has=dcl"],
    ):
        with pytest.raises(ValueError):
            parse(words)
    assert max(map(len, listing().splitlines())) <= 80


@pytest.mark.run
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["mine:good", "--as=nt_xent", "--framework=numpy", "--only=value,convention"], 0),
        (["mine:bad", "--as=nt_xent", "--framework=numpy", "--only=self_pair", "--json=found.json"], 1),
        (["mine:none", "--as=nt_xent"], 2),
        (["absent:good", "--as=nt_xent"], 2),
        (["json:dumps", "--as=nt_xent"], 2),
        (["ends:good", "--as=nt_xent"], 2),
        (["raises:good", "--as=nt_xent"], 2),
        (["mine:good", "--as=nt_xent", "--json=absent/found.json"], 2),
        (["mine:good", "--as=nt_xent", "--json=."], 2),
        (["--help"], 0),
    ],
)
def test_the_exit_status(words, status, tmp_path):
    text = f"import sys; sys.path.insert(0, {str(broken.__file__.rpartition('/')[0])!r})\n"
    (tmp_path / "mine.py").write_text(f"{text}from broken import nt_xent as good, self_in_the_sum as bad\n")
    (tmp_path / "ends.py").write_text("import sys; sys.exit(4)")
    (tmp_path / "raises.py").write_text("1 / 0")
    command = [sys.executable, "-m", "contrastive_jax", "check", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == status, done
    assert "Traceback" not in done.stderr
    assert ((tmp_path / "found.json").exists()) == ("--json=found.json" in words)
    assert status != 2 or done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.run
@pytest.mark.parametrize("framework", ["torch"])
def test_a_loss_of_pytorch(framework, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="the extra torch is not installed")
    (tmp_path / "of_torch.py").write_text(TORCH)
    monkeypatch.syspath_prepend(tmp_path)
    import of_torch

    report = check(of_torch.clip, "info_nce", skip=["saturated_positives", "n_ranks", "bfloat16"])
    assert report.framework == "torch" and report.passed, str(report)
    caught("n_ranks", of_torch.whole_without_gradient, "info_nce", "1 / 2 x")
    caught("n_ranks", of_torch.scaled_apart, "info_nce", "nothing is gathered")
    assert "does not gather" in check(of_torch.clip, "info_nce", only=["n_ranks"])["n_ranks"].words


TORCH = '''
import torch, torch.distributed as dist, torch.nn.functional as F

def clip(a, b, temperature=0.1):
    logits = F.normalize(a) @ F.normalize(b).T / temperature
    rows = torch.arange(len(a))
    return (F.cross_entropy(logits, rows) + F.cross_entropy(logits.T, rows)) / 2

def whole_without_gradient(a, b, temperature=0.1):
    """Every rank has the whole loss, and gradients of its own rows."""
    if dist.is_initialized():
        for x in (parts := [[torch.zeros_like(a) for _ in range(dist.get_world_size())] for _ in "ab"]):
            pass
        for part, mine in zip(parts, (a, b)):
            dist.all_gather(part, mine.detach().contiguous())
            part[dist.get_rank()] = mine
        a, b = (torch.cat(part) for part in parts)
    return clip(a, b, temperature)

def scaled_apart(a, b, temperature=0.1):
    """Times the number of ranks, though nothing is gathered."""
    return clip(a, b, temperature) * (dist.get_world_size() if dist.is_initialized() else 1)
'''


def test_a_queue_loss_whose_query_has_no_gradient():
    def detached(a, b, queue, temperature):
        return own_losses.moco(jax.lax.stop_gradient(a), b, queue, temperature)

    caught("gradient", detached, "moco", "no gradient")


def test_small_numbers_of_an_input_are_shown():
    small = np.array([[7.1234567e-7, -3.3e-7]])
    assert shown([small, np.array([1])]) == [[[7.12346e-7, -3.3e-7]], [1]]
