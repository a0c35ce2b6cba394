"""Temperature rules: their values, clamps and states; the ESS controller in a closed loop."""

import importlib.util
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax import contrastive_loss
from contrastive_jax.contrast import temperature

FIGURE = pathlib.Path(__file__).parents[2] / "experiments" / "flatnce" / "figure_ess.py"
STEPS = 100


@pytest.fixture(scope="module")
def figure():
    spec = importlib.util.spec_from_file_location("figure_ess", FIGURE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def at(rule, step=0, alignment=0.0):
    return float(rule.value(rule.init(), jnp.asarray(step), jnp.asarray(alignment)))


# Values


def test_fixed_and_schedules():
    values = {
        "fixed": [0.2, 0.2, 0.2, 0.2, 0.2],
        "linear": [0.1, 0.2, 0.3, 0.5, 0.5],
        "cosine": [0.1, 0.3 - 0.2 * np.cos(np.pi / 4), 0.3, 0.5, 0.5],
    }
    rules = {
        "fixed": temperature.fixed(STEPS, tau=0.2),
        "linear": temperature.linear(STEPS, tau=0.1, end=0.5),
        "cosine": temperature.cosine(STEPS, tau=0.1, end=0.5),
    }
    for name, rule in rules.items():
        ours = [at(rule, step) for step in (0, 25, 50, 100, 1000)]  # beyond the end it stays
        np.testing.assert_allclose(ours, values[name], rtol=1e-6, err_msg=name)
        assert rule.init() == () == rule.update((), jnp.asarray(0), jnp.asarray(0.5))


def test_macls_forms():
    for alignment in (-1.0, -0.3, 0.0, 0.8, 1.0):
        a = at(temperature.macl_a(STEPS, tau=0.1, alpha=3.0), alignment=alignment)
        b = at(temperature.macl_b(STEPS, tau=0.1, beta=0.5), alignment=alignment)
        icml = at(temperature.macl_icml(STEPS, tau=0.1, alpha=0.5, a0=0.2), alignment=alignment)
        np.testing.assert_allclose(a, 0.1 * 3.0**alignment, rtol=1e-6)
        np.testing.assert_allclose(b, 0.1 * (1 + 0.5 * alignment), rtol=1e-6)
        np.testing.assert_allclose(icml, 0.1 * (1 + 0.5 * (alignment - 0.2)), rtol=1e-6)


def test_macl_as_published_is_clamped_where_it_would_reach_zero():
    rule = temperature.macl_icml(STEPS, tau=0.1, alpha=1.0, a0=0.5, min_tau=0.01)
    assert 0.1 * (1 + (-1 - 0.5)) < 0
    np.testing.assert_allclose(at(rule, alignment=-1.0), 0.01, rtol=1e-6)
    np.testing.assert_allclose(at(rule, alignment=0.5), 0.1, rtol=1e-6)


@pytest.fixture
def log(tmp_path):
    """A workdir with temperatures at steps 5, 10 and 20, and the digits of its values."""
    taus = {5: 0.1, 10: 0.2, 20: 0.3}
    lines = [{"step": step, "epoch": 1.0, "tau": tau} for step, tau in taus.items()]
    lines.insert(1, {"step": 7, "eval/knn_top1": 0.5})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match="3 values .* 0.1 to 0.3, is '[0-9a-f]{12}'") as refused:
        temperature.replay(20, file=str(tmp_path))
    return {"file": str(tmp_path), "values": re.search(r"is '(\w{12})'", str(refused.value))[1]}


def test_replay_is_what_was_logged(log):
    """A line is of steps done: the third is that of index 2, as the first logged is of the fifth."""
    rule = temperature.replay(20, **log)
    ours = [at(rule, done - 1) for done in (1, 5, 7, 10, 15, 20, 25)]
    np.testing.assert_allclose(ours, [0.1, 0.1, 0.14, 0.2, 0.25, 0.3, 0.3], rtol=1e-6)
    file = pathlib.Path(log["file"], "metrics.jsonl")
    assert at(temperature.replay(20, **log | {"file": str(file)}), 9) == at(rule, 9)
    with pytest.raises(ValueError, match="ends at step 20; it must reach step 21"):
        temperature.replay(21, **log)
    text = file.read_text()
    file.write_text(text + '{"step": 25, "ta')  # the run died while it wrote
    assert at(temperature.replay(20, **log), 9) == at(rule, 9)
    for changed, message in (
        (text.replace("0.2", "0.21"), f"values is '{log['values']}'"),
        (text.replace("0.2", '"NaN"'), "line 3 must be a record with a step and a positive tau"),
        (text.replace("tau", "beta"), 'a line with a "step" and a "tau"'),
        ("step,tau", "line 1 must be a record"),
    ):
        file.write_text(changed)
        with pytest.raises(ValueError, match=message):
            temperature.replay(20, **log)
    with pytest.raises(ValueError, match="temperature.file is '/gone', which cannot be read"):
        temperature.replay(20, file="/gone")


def test_ess_moves_beta_towards_its_target():
    rule = temperature.ess(STEPS, tau=0.1, target=0.3, rate=0.01)
    state = rule.init()
    np.testing.assert_allclose(rule.value(state, jnp.asarray(0), jnp.asarray(0.0)), 0.1, rtol=1e-6)
    above, below = (rule.update(state, jnp.asarray(0), jnp.asarray(ess)) for ess in (0.31, 0.29))
    np.testing.assert_allclose(above["beta"], 10 * 1.01, rtol=1e-6)  # sharper: a lower ESS
    np.testing.assert_allclose(below["beta"], 10 * 0.99, rtol=1e-6)
    assert jax.tree.structure(above) == jax.tree.structure(state)
    assert jax.tree.map(lambda x: x.dtype, above) == jax.tree.map(lambda x: x.dtype, state)


def test_ess_is_clamped():
    rule = temperature.ess(STEPS, tau=0.1, target=0.3, rate=0.5, min_tau=0.08, max_tau=0.15)
    sharp, flat = rule.init(), rule.init()
    for step in jnp.arange(5):
        sharp = rule.update(sharp, step, jnp.asarray(1.0))
        flat = rule.update(flat, step, jnp.asarray(0.0))
    np.testing.assert_allclose([1 / sharp["beta"], 1 / flat["beta"]], [0.08, 0.15], rtol=1e-6)


def test_ess_target_may_move():
    """From 0.8 to 0.2: an ESS of 0.5 lies below the target at first and above it in the end."""
    rule = temperature.ess(STEPS, tau=0.1, target=0.8, target_end=0.2)
    state = rule.init()
    betas = [state["beta"]]
    for step in jnp.arange(2 * STEPS):
        state = rule.update(state, step, jnp.asarray(0.5))
        betas.append(state["beta"])
    falls = np.diff(np.array(betas)) < 0
    assert falls[:50].all() and not falls[51:].any()


def test_state_follows_x64():
    with jax.enable_x64(True):
        state = temperature.ess(STEPS, tau=0.1).init()
        assert state["beta"].dtype == jnp.float64
        assert (
            temperature.ess(STEPS).update(state, jnp.asarray(0), jnp.float32(0.5))["beta"].dtype
            == jnp.float64
        )


@pytest.mark.parametrize("name", ["kl", "isogclr", "fast_clip_v2", "ess", "learnt", "siglip"])
def test_a_whole_number_is_a_temperature_like_another(name):
    """Its state was int32, so that the first update moved tau 1 to 0."""
    function = getattr(temperature, name)
    found, wanted = (jax.tree.leaves(function(STEPS, tau=tau).init()) for tau in (1, 1.0))
    assert [(leaf.dtype, float(leaf)) for leaf in found] == [(leaf.dtype, float(leaf)) for leaf in wanted]


def test_no_gradient_flows_through_tau():
    """With MACL's rule tau depends on the embeddings; the gradient is that of the loss at this tau."""
    a, b = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 3)), jnp.float32)
    seen = []

    def rule(alignment):
        seen.append(alignment)
        return 0.1 * 2.0**alignment

    def slope(temperature):
        return jax.jit(jax.grad(lambda a: contrastive_loss(a, b, "info_nce", temperature).mean()))(a)

    moving = slope(rule)
    u, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    tau = 0.1 * 2.0 ** float(np.mean(np.sum(u * v, axis=1)))
    fixed = slope(tau)
    np.testing.assert_allclose(moving, fixed, rtol=1e-4, atol=1e-6)
    assert len(seen) == 1 and np.abs(fixed).max() > 1e-2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fixed", {"tau": 0.0}, "temperature.tau is 0.0"),
        ("fixed", {"tau": float("nan")}, "temperature.tau is nan"),
        ("linear", {"end": -0.1}, "temperature.end is -0.1"),
        ("cosine", {"tau": -1.0}, "temperature.tau is -1.0"),
        ("ess", {"target": 1.5}, "temperature.target is 1.5; it must be above 0 and at most 1"),
        ("ess", {"target_end": -0.1}, "temperature.target_end is -0.1"),
        ("ess", {"rate": 1.0}, "temperature.rate is 1.0"),
        ("ess", {"min_tau": 0.0}, "temperature.min_tau is 0.0"),
        ("ess", {"min_tau": 0.2}, "temperature.tau is 0.1; it must be from temperature.min_tau=0.2"),
        ("ess", {"min_tau": 11.0}, "temperature.tau is 0.1; it must be"),
        ("macl_a", {"alpha": 0.0}, "temperature.alpha is 0.0"),
        ("macl_b", {"beta": 1.0}, "temperature.beta is 1.0"),
        ("macl_icml", {"min_tau": 0.0}, "temperature.min_tau is 0.0"),
    ],
)
def test_what_cannot_be_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        getattr(temperature, name)(STEPS, **options)


# Closed loops


def closed_loop(rule, score, steps):
    """ESS and tau of every step against fixed scores [Q, K], the ESS by its definition."""

    def step(state, i):
        tau = rule.value(state, i, jnp.zeros(()))
        weight = jax.nn.softmax(score / tau, axis=1)
        ess = jnp.mean(1 / (score.shape[1] * jnp.sum(weight**2, axis=1)))
        return rule.update(state, i, ess), jnp.stack([ess, tau])

    return np.asarray(jax.jit(lambda: jax.lax.scan(step, rule.init(), jnp.arange(steps))[1])()).T


@pytest.mark.parametrize("target", [0.15, 0.3, 0.4])
def test_ess_holds_its_target_on_fixed_scores_and_runs_away_as_printed(figure, target):
    score = jnp.asarray(
        np.random.default_rng(0).normal(size=(64, 62)) / 8, jnp.float32
    )  # cosines of width 64
    for tau in (0.02, 2.0):  # from below and from above
        ess, taus = closed_loop(temperature.ess(STEPS, tau=tau, target=target), score, 500)
        assert abs(ess[0] - target) > 0.05
        np.testing.assert_allclose(ess[-50:], target, atol=0.02)
        assert 0.02 < taus[-1] < 2.0
        ess, taus = closed_loop(figure.as_printed(target, tau=tau), score, 500)
        assert abs(ess[-1] - target) > 0.1
        assert taus[-1] == pytest.approx(0.005 if tau < 0.1 else 10.0, rel=1e-3)


@pytest.mark.slow
def test_ess_holds_its_targets_in_training(figure):
    """FlatNCE on digits: within 0.02 of 0.15, 0.3 and 0.4 after 500 steps, as the mean over the last 50."""
    found = figure.histories(
        500, {("ours", t): temperature.ess(1, tau=0.5, target=t) for t in figure.TARGETS}
    )
    for (_, target), (ess, tau) in found.items():
        assert abs(ess[-figure.LAST :].mean() - target) < figure.TOLERANCE, target
        assert 0.005 < tau[-1] < 10 and abs(ess[0] - target) > 0.1


@pytest.mark.slow
def test_the_step_moves_the_temperature_by_its_ess(figure):
    """Three steps of training: tau moves by 1 % a step, up or down as the step's own ESS says."""
    ((ess, tau),) = figure.histories(3, {("ours", 0.3): figure.RULES["ours"](0.3)}).values()
    expected = [0.1]
    for value in ess[:-1]:
        expected.append(expected[-1] / (1.01 if value > 0.3 else 0.99))
    np.testing.assert_allclose(tau, expected, rtol=1e-6)
