"""Schedules and optimizers against SimCLR's own numbers, PyTorch's rules written out, and bad options."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from suite import over, sampled

from contrastive_jax import models, optim, sharding
from contrastive_jax.optim import optimizers

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
PARAMS = {
    "encoder": {
        "conv": {"kernel": jnp.array([[1.0, -2.0], [0.5, 3.0]])},
        "bn": {"scale": jnp.ones(2), "bias": jnp.array([0.1, 0.2])},
    },
    "projector": {"dense": {"kernel": jnp.array([[0.3], [-0.7]]), "bias": jnp.array([0.4])}},
    "probe": {"kernel": jnp.array([[2.0, -1.0]]), "bias": jnp.array([0.5])},
}


def golden(name):
    file = np.load(GOLDEN / f"{name}.npz")
    return [(case, file) for case in json.loads(str(file["index"]))]


def cases(name):
    return [
        pytest.param(case, file, id=case["case"], marks=pytest.mark.golden(name, case["case"]))
        for case, file in golden(name)
    ]


def tree(case, file, kind, step=None):
    """Golden arrays "case/kind.layer.name" as {layer: {name: array}}."""
    prefix = f"{case['case']}/{kind}."
    nested = {}
    for field in file.files:
        if field.startswith(prefix):
            layer, name = field.removeprefix(prefix).rsplit(".", 1)
            module, _, rest = layer.partition(".")
            place = nested.setdefault(module, {})
            place = place.setdefault(rest, {}) if rest else place
            place[name] = jnp.asarray(file[field] if step is None else file[field][step])
    return nested


def assert_close(actual, expected, rtol, atol=0.0):
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=rtol, atol=atol), actual, expected)


# ---------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize("case, file", cases("lr_schedule_simclr_tf2"))
def test_cosine_is_simclrs(case, file):
    rate = optim.cosine(
        learning_rate=case["base_learning_rate"],
        total_steps=case["total_steps"],
        warmup=case["warmup_steps"],
        scaling=case["learning_rate_scaling"],
        batch_size=case["train_batch_size"],
    )
    name = case["case"]
    steps = file[f"{name}/steps"]
    ours = jax.jit(jax.vmap(rate))(steps)
    # Ours is the more exact of the two where the cosine nears its end: relative, down to the last step.
    np.testing.assert_allclose(ours, file[f"{name}/lr_formula_f64"], rtol=1e-6)
    np.testing.assert_allclose(ours, file[f"{name}/lr_f32"], rtol=2e-5, atol=1e-6 * case["scaled_lr"])
    with jax.enable_x64(True):
        np.testing.assert_allclose(rate(steps), file[f"{name}/lr_formula_f64"], rtol=1e-9, atol=1e-15)


def test_linear_and_square_root_scaling_meet_at_4096_images():
    options = dict(total_steps=10, batch_size=4096, warmup=0)
    linear = optim.constant(learning_rate=0.3, scaling="linear", **options)(5)
    root = optim.constant(learning_rate=0.075, scaling="sqrt", **options)(5)
    assert linear == pytest.approx(4.8) and root == pytest.approx(4.8)
    assert optim.constant(learning_rate=0.3, scaling="none", **options)(5) == pytest.approx(0.3)


def test_step_schedule_decays_at_its_milestones():
    rate = optim.step(learning_rate=0.03, total_steps=200, batch_size=256, milestones=(120, 160), warmup=0)
    np.testing.assert_allclose(
        [rate(s) for s in (0, 119, 120, 159, 160, 500)], [0.03, 0.03, 0.003, 0.003, 0.0003, 0.0003], rtol=1e-6
    )


def test_linear_schedule_runs_from_the_peak_to_its_end():
    rate = optim.linear(learning_rate=2.0, total_steps=12, warmup=2, batch_size=256, end_factor=0.5)
    np.testing.assert_allclose([rate(s) for s in (0, 1, 2, 7, 12, 99)], [0, 1, 2, 1.5, 1, 1], rtol=1e-6)


def test_cosine_per_epoch_is_moco_v2s():
    steps_per_epoch, epochs = 7, 5
    rate = optim.cosine(
        learning_rate=0.03,
        total_steps=epochs * steps_per_epoch,
        batch_size=256,
        per_epoch=True,
        steps_per_epoch=steps_per_epoch,
        warmup=0,
    )
    expected = [0.03 * 0.5 * (1 + np.cos(np.pi * (s // steps_per_epoch) / epochs)) for s in range(35)]
    np.testing.assert_allclose([rate(s) for s in range(35)], expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint8, np.int8, np.int64])
def test_steps_of_any_whole_numbers_are_the_same(dtype):
    """Unsigned ones wrapped below 0: the peak after the end of the run."""
    rate = optim.cosine(learning_rate=0.3, total_steps=1000, batch_size=256, warmup=2)
    short = optim.cosine(learning_rate=0.3, total_steps=10, batch_size=256, warmup=0)
    for step in (0, 1, 9, 10, 11, 50):
        assert rate(jnp.asarray(dtype(step))) == rate(step) and short(jnp.asarray(dtype(step))) == short(step)


def test_a_long_run_still_counts_every_step():
    """Beyond 2**24 steps float32 no longer tells neighbouring steps apart; the integers do."""
    rate = optim.linear(learning_rate=1.0, total_steps=2**25, batch_size=256, warmup=0)
    assert rate(2**25 - 1) == 2**-25 and rate(2**25) == 0


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(scaling="root"), ["schedule.scaling", "linear, sqrt, none"]),
        (dict(warmup=10), ["schedule.warmup is 10", "below total_steps, 10"]),
        (dict(warmup=-1), ["schedule.warmup is -1", "at least 0"]),
        (dict(warmup="1 epoch"), ["schedule.warmup is '1 epoch'", "a whole number"]),
        (dict(learning_rate=-1.0), ["schedule.learning_rate is -1.0"]),
        (dict(learning_rate=float("nan")), ["schedule.learning_rate is nan"]),
        (dict(name="step"), ["schedule.milestones is empty"]),
        (dict(name="step", milestones=(5, 3)), ["schedule.milestones is (5, 3)", "increasing"]),
        (
            dict(name="step", milestones=("5 epochs", 9)),
            ["schedule.milestones is ('5 epochs', 9)", "of whole numbers"],
        ),
        (dict(end_factor=2.0), ["schedule.end_factor is 2.0"]),
        (dict(per_epoch=True), ["schedule.steps_per_epoch is 0"]),
        (dict(batch_size=0), ["schedule.batch_size is 0"]),
    ],
)
def test_schedule_refuses_in_one_sentence(options, words):
    lengths = {"learning_rate": 1.0, "total_steps": 10, "batch_size": 256, "warmup": 0}
    with pytest.raises(ValueError) as error:
        getattr(optim, options.pop("name", "cosine"))(**lengths | options)
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------- optimizers


@pytest.mark.parametrize("dtype", sampled(["float64", "float32"], 1))
@pytest.mark.parametrize("case, file", cases("lars_simclr_tf2"))
def test_lars_is_simclrs(case, file, dtype):
    with jax.enable_x64(dtype == "float64"):
        rates = jnp.asarray(file[f"{case['case']}/lr"])
        update_rule = optim.lars(
            lambda step: rates[step],
            momentum=case["momentum"],
            nesterov=case["use_nesterov"],
            weight_decay=case["weight_decay"],
            exclude=tuple(case.get("exclude_from_weight_decay", ())),
            trust_coefficient=case["eeta"],
            momentum_order="classic" if case["classic_momentum"] else "popular",
        )

        @jax.jit
        def update(gradient, state, params):
            updates, state = update_rule.update(gradient, state, params)
            return optax.apply_updates(params, updates), state

        params = tree(case, file, "p0")
        state = update_rule.init(params)
        for step in range(case["steps"]):
            params, state = update(tree(case, file, "grads", step), state, params)
            if dtype == "float32":
                continue
            assert_close(params, tree(case, file, "params", step), rtol=1e-9, atol=1e-15)
            momentum = [s.trace for s in state[1:] if isinstance(s, optax.TraceState)]
            if momentum:
                # Classic momentum holds updates, which optax signs; the popular one holds gradients.
                expected = tree(case, file, "momentum", step)
                if case["classic_momentum"]:
                    expected = jax.tree.map(jnp.negative, expected)
                assert_close(momentum[0], expected, rtol=1e-9, atol=1e-15)
        if dtype == "float32":
            assert_close(params, tree(case, file, "params_f32"), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("case, file", cases("weight_decay_simclr_tf2"))
def test_weight_decay_is_simclrs(case, file):
    """SimCLR's penalty is wd * sum(v**2) / 2; its gradient is what ours adds where it decays."""
    with jax.enable_x64(True):
        params = tree(case, file, "param")
        name = {"lars": "lars", "momentum": "sgd", "adam": "adam"}[case["optimizer"]]
        # Under LARS the loss penalises only the probe's kernel: the rest is decayed inside the optimizer.
        others = tuple(layer for layer in params if layer != "head_supervised")
        exclude = ("bias", *others) if name == "lars" else ("norm",)
        mask = optimizers._mask(exclude)(params)
        decayed = {
            "/".join(optimizers._parts(p)) for p, keep in jax.tree_util.tree_leaves_with_path(mask) if keep
        }
        assert decayed == {
            n.removesuffix(":0").replace("linear_layer/dense", "linear_layer.dense")
            for n in case["names_in_penalty"]
        }
        if name == "adam":
            return  # Adam normalises the penalty's gradient; its mask is what is left to compare.
        update_rule = getattr(optim, name)(
            lambda step: 1.0,
            momentum=0.0,
            weight_decay=case["weight_decay"],
            exclude=exclude,
            **({"exclude_from_adaptation": tuple(params)} if name == "lars" else {}),
        )
        updates, _ = update_rule.update(
            jax.tree.map(jnp.zeros_like, params), update_rule.init(params), params
        )
        penalty = -sum(jax.tree.leaves(jax.tree.map(jnp.vdot, updates, params))) / 2
        np.testing.assert_allclose(penalty, file[f"{case['case']}/penalty"], rtol=1e-9)


def one_step(gradient, params=PARAMS, *, name="lars", **options):
    update_rule = getattr(optim, name)(lambda step: 0.5, **options)
    return update_rule.update(gradient, update_rule.init(params), params)[0]


def test_lars_gives_norms_biases_and_the_probe_the_plain_rate_and_no_decay():
    gradient = jax.tree.map(lambda p: p + 1, PARAMS)
    updates = one_step(gradient, name="lars", momentum=0.0, weight_decay=0.1)
    plain = jax.tree.map(lambda g: -0.5 * g, gradient)
    assert_close(updates["probe"], plain["probe"], rtol=1e-6)
    assert_close(updates["encoder"]["bn"], plain["encoder"]["bn"], rtol=1e-6)
    assert_close(updates["projector"]["dense"]["bias"], plain["projector"]["dense"]["bias"], rtol=1e-6)
    for module, layer in (("encoder", "conv"), ("projector", "dense")):
        weight, update = PARAMS[module][layer]["kernel"], updates[module][layer]["kernel"]
        direction = gradient[module][layer]["kernel"] + 0.1 * weight
        ratio = 1e-3 * jnp.linalg.norm(weight) / jnp.linalg.norm(direction)
        np.testing.assert_allclose(update, -0.5 * ratio * direction, rtol=1e-5)


def test_lr_last_keeps_the_rate_out_of_the_momentum():
    rates = jnp.array([1.0, 0.1])
    params, gradient = {"layer": {"kernel": jnp.ones(3)}}, {"layer": {"kernel": jnp.ones(3)}}
    second = {}
    for order in ("classic", "lr_last"):
        rule = optim.lars(lambda step: rates[step], trust_coefficient=1.0, momentum_order=order)
        state = rule.init(params)
        for _ in range(2):
            updates, state = rule.update(gradient, state, params)
        second[order] = float(updates["layer"]["kernel"][0])
    assert second == {"classic": pytest.approx(-(0.9 + 0.1)), "lr_last": pytest.approx(-0.1 * (0.9 + 1))}


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_pytorchs(nesterov):
    """d = g + wd * w; b = momentum * b + d; w -= lr * (b, or d + momentum * b with Nesterov)."""
    rule = optim.sgd(lambda step: 0.5 / (step + 1), momentum=0.9, nesterov=nesterov, weight_decay=0.1)
    params, state, weight, buffer = PARAMS, rule.init(PARAMS), np.array([0.5]), np.zeros(1)
    for step, gradient in enumerate((1.0, -2.0, 0.5)):
        updates, state = rule.update(jax.tree.map(lambda p, g=gradient: 0 * p + g, params), state, params)
        params = optax.apply_updates(params, updates)
        direction = gradient + 0.1 * weight
        buffer = 0.9 * buffer + direction
        weight = weight - 0.5 / (step + 1) * (direction + 0.9 * buffer if nesterov else buffer)
    np.testing.assert_allclose(params["probe"]["bias"], weight, rtol=1e-5)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_is_pytorchs(name):
    rule = getattr(optim, name)(lambda step: 0.1, weight_decay=0.2, exclude=(), b2=0.99, eps=1e-3)
    params, state, w, m, v = PARAMS, rule.init(PARAMS), 0.5, 0.0, 0.0
    for step, g in enumerate((1.0, -2.0, 0.5), start=1):
        updates, state = rule.update(jax.tree.map(lambda p, g=g: 0 * p + g, params), state, params)
        params = optax.apply_updates(params, updates)
        direction = g + 0.2 * w if name == "adam" else g
        m, v = 0.9 * m + 0.1 * direction, 0.99 * v + 0.01 * direction**2
        w -= 0.1 * (0.2 * w if name == "adamw" else 0.0)
        w -= 0.1 * m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.99**step)) + 1e-3)
    np.testing.assert_allclose(params["probe"]["bias"], [w], rtol=1e-5)


def test_what_is_decayed_by_default():
    def decayed(name):
        mask = optimizers._mask(optim.EXCLUDED[name])(PARAMS)
        return {
            "/".join(optimizers._parts(p)) for p, keep in jax.tree_util.tree_leaves_with_path(mask) if keep
        }

    kernels = {"encoder/conv/kernel", "projector/dense/kernel"}
    assert decayed("lars") == kernels
    assert decayed("adamw") == kernels | {"probe/kernel"}
    assert len(decayed("sgd")) == len(decayed("adam")) == len(jax.tree.leaves(PARAMS))


def test_a_weight_need_not_be_called_kernel():
    """Plain JAX's perceptron, Haiku's batch norm, an embedding, all in the dictionary of one encoder."""
    own = {
        "w": jnp.ones((4, 3)),
        "b": jnp.zeros(3),
        "batch_norm": {"scale": jnp.ones((1, 1, 1, 3)), "offset": jnp.zeros((1, 1, 1, 3))},
        "embed": {"embedding": jnp.ones((5, 3))},
        "gain": {"g": jnp.ones(3)},
    }
    for names in (("norm", "bias"), ("norm", "bias", "probe")):
        found = optimizers._mask(names)(own)
        kept = {path[0].key for path, keep in jax.tree_util.tree_leaves_with_path(found) if keep}
        assert kept == {"w", "embed"}
    assert optimizers._mask(("norm",))(own)["b"]


def by_name(exclude, params):
    """Return the rule of networks whose every weight is called kernel."""
    paths = [optimizers._parts(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    layers = {path[:-1] for path in paths if path[-1] == "kernel"}
    return [
        not any(part in exclude for part in path) and not ("norm" in exclude and path[:-1] not in layers)
        for path in paths
    ]


HEADS = {"classes": 3, "projector": {"norm": "all_with_bias"}, "predictor": {"layers": 2}, "norm": {}}


@over(
    [{"depth": depth, "variant": v} for depth in (18, 50) for v in ("simclr", "torchvision")]
    + [{"stem": "imagenet"}, {"name": "vit", "patch": 2, "dim": 16, "layers": 2, "heads": 2}]
)
def test_networks_of_the_package_go_by_names_alone(encoder):
    network = models.network(encoder=encoder, critic={"name": "pair"}, **HEADS)
    params, _ = network.shapes((32, 32, 3))
    for exclude in {*optim.EXCLUDED.values(), ("norm",), ("bias",), ("encoder",), ("scale",)}:
        assert jax.tree.leaves(optimizers._mask(exclude)(params)) == by_name(exclude, params), exclude


def test_clip_norm_bounds_the_global_norm():
    gradient = jax.tree.map(lambda p: 100 * jnp.ones_like(p), PARAMS)
    updates = one_step(gradient, name="sgd", momentum=0.0, clip_norm=2.0)
    assert optax.tree.norm(updates) == pytest.approx(0.5 * 2.0, rel=1e-5)


def test_what_watches_is_clipped_apart():
    """A probe's gradient, however large, does not shorten the encoder's step."""
    rule = optim.sgd(lambda step: 1.0, ("probe",), momentum=0.0, clip_norm=2.0)
    for watching in (0.0, 100.0):
        gradient = jax.tree.map(jnp.ones_like, PARAMS)
        gradient["probe"] = optax.tree.scale(watching, gradient["probe"])
        updates, _ = rule.update(gradient, rule.init(PARAMS), PARAMS)
        probe = updates.pop("probe")
        assert optax.tree.norm(updates) == pytest.approx(2.0, rel=1e-5)
        assert optax.tree.norm(probe) == pytest.approx(2.0 if watching else 0.0, rel=1e-5)


def test_alternate_updates_its_part_at_even_steps_and_the_rest_at_odd_ones():
    """At the run's rate, with moments that know of their own steps only."""
    rule = optim.sgd(lambda step: 1.0 + step, momentum=0.5, alternate=("probe",))
    state, gradient = rule.init(PARAMS), jax.tree.map(jnp.ones_like, PARAMS)
    for of_probe, of_rest in ((-1.0, 0.0), (0.0, -2.0), (-3.0 * 1.5, 0.0), (0.0, -4.0 * 1.5)):
        updates, state = rule.update(gradient, state, PARAMS)
        for module, tree in updates.items():
            expected = of_probe if module == "probe" else of_rest
            assert all((leaf == expected).all() for leaf in jax.tree.leaves(tree)), module


def test_a_layer_stays_one_where_its_kernel_and_its_bias_take_turns():
    """Beside a norm's, which is not decayed, a dense layer's bias was taken for one."""
    rule = optim.sgd(
        lambda step: 1.0, momentum=0.0, weight_decay=0.1, exclude=("norm",), alternate=("kernel",)
    )
    state, nothing = rule.init(PARAMS), jax.tree.map(jnp.zeros_like, PARAMS)
    total = nothing
    for _ in range(2):
        updates, state = rule.update(nothing, state, PARAMS)
        total = optax.tree.add(total, updates)
    of_norm = total["encoder"].pop("bn")
    assert not any(leaf.any() for leaf in jax.tree.leaves(of_norm))
    layers = {**PARAMS, "encoder": {"conv": PARAMS["encoder"]["conv"]}}
    assert_close(total, optax.tree.scale(-0.1, layers), rtol=1e-6)


def test_update_is_the_same_on_a_mesh():
    rule = optim.lars(lambda step: 0.5, weight_decay=0.1)
    update = jax.jit(rule.update)
    one, _ = update(PARAMS, rule.init(PARAMS), PARAMS)
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        params = jax.device_put(PARAMS, sharding.named(mesh, sharding.REPLICATED))
        many, _ = update(params, rule.init(params), params)
    assert_close(many, one, rtol=1e-6)


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(momentum=1.0), ["optimizer.momentum is 1.0", "below 1"]),
        (dict(weight_decay=-0.1), ["optimizer.weight_decay is -0.1"]),
        (dict(trust_coefficient=0.0), ["optimizer.trust_coefficient is 0.0", "above 0"]),
        (dict(momentum_order="last"), ["optimizer.momentum_order", "classic, lr_last, popular"]),
        (dict(exclude="bias"), ["optimizer.exclude is 'bias'", "tuple"]),
    ],
)
def test_optimizer_refuses_in_one_sentence(options, words):
    with pytest.raises(ValueError) as error:
        optim.lars(lambda step: 0.1, **options)
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


def test_a_name_that_no_parameter_has_is_refused():
    with pytest.raises(ValueError, match=r"'projectr'.*did you mean 'projector'"):
        optim.lars(lambda step: 0.1, exclude=("projectr",)).init(PARAMS)
    optim.lars(lambda step: 0.1, exclude=("predictor",)).init(PARAMS)  # a module that may be empty
    with pytest.raises(
        ValueError, match="optimizer.alternate contains 'critic', which is not part of any parameter's path"
    ):
        optim.lars(lambda step: 0.1, alternate=("critic",)).init(PARAMS)
