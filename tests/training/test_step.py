"""The one step: every method, on one device and on eight, and what its program says to the other devices."""

import dataclasses
import re

import jax
import numpy as np
import pytest
from tiny_methods import ALL, tiny, x64  # noqa: F401

from contrastive_jax import config as configs
from contrastive_jax import data, native, sharding
from contrastive_jax.contrast import candidates
from contrastive_jax.training import run as runs
from contrastive_jax.training.compilation import state_shapes
from contrastive_jax.training.program import packed
from contrastive_jax.training.step import init_state, make_train_step


def run_on(devices, config, steps=3, relabel=lambda label: label):
    run = runs.prepare(config, devices)
    train = run.source.train
    train = dataclasses.replace(train, label=relabel(train.label))
    with jax.set_mesh(run.mesh):
        state = runs.initial_state(run)
        feed = data.Resident(
            train, seed=config["seed"], batch_size=config["train"]["batch_size"], mesh=run.mesh
        )
        step = native.jit(make_train_step(run.recipe, feed.take), donate_argnums=0)
        compiled = step.lower(state, feed.feed(0)).compile()
        history = []
        for i in range(steps):
            state, metrics = compiled(state, feed.feed(i))
            history.append(jax.device_get(metrics))
        return jax.device_get(state), history, compiled


COLLECTIVE = re.compile(
    r"= (\([^)]*\)|\S+) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
BYTES = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "pred": 1, "s64": 8, "u64": 8, "u8": 1, "s8": 1}


def collectives(compiled):
    """``(kind, bytes)`` of every collective in the compiled program; bytes of its largest operand shape."""
    found = []
    for shapes, kind in COLLECTIVE.findall(compiled.as_text()):
        sizes = [
            BYTES[dtype] * int(np.prod([int(n) for n in dims.split(",") if n] or [1]))
            for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", shapes)
        ]
        found.append((kind, max(sizes)))
    return found


@pytest.mark.parametrize("method", ALL)
def test_one_device_equals_eight(method, x64):  # noqa: F811
    """In float64, so that what differs is the program and not its rounding: a last layer of one pixel and norm
    groups of four examples amplify float32's a thousandfold. The batch of each device is its eighth."""
    config = tiny(method, dtype="float64", **{"gradient_snr.decay": 0.9})
    one, history_one, _ = run_on(jax.devices()[:1], config)
    eight, history_eight, compiled = run_on(jax.devices(), config)
    for a, b in zip(history_one, history_eight, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            # Of two or three gradients some hardly differ: their ratio to that difference magnifies rounding. The
            # moments themselves are of the state, below.
            tolerance = 1e-3 if name.startswith("gradient_snr") else 1e-9
            np.testing.assert_allclose(a[name], b[name], rtol=tolerance, atol=1e-9, err_msg=name)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(eight), strict=True):
        largest = np.abs(a).max(initial=0.0)
        np.testing.assert_allclose(
            a, b, rtol=0, atol=1e-9 * max(largest, 1e-2), err_msg=jax.tree_util.keystr(path)
        )

    # What eight devices tell each other: nothing is gathered that is larger than all embeddings of the step.
    batch, width = config["train"]["batch_size"], config["projector"]["out"] or 128
    embeddings = 8 * 2 * batch * width
    gathered = [
        size
        for kind, size in collectives(compiled)
        if kind in ("all-gather", "all-to-all", "collective-permute")
    ]
    assert gathered and max(gathered) <= embeddings, (max(gathered), embeddings)
    parameters = sum(x.dtype.itemsize * x.size for x in jax.tree.leaves(one.params))
    reduced = [size for kind, size in collectives(compiled) if kind == "all-reduce"]
    assert reduced and max(reduced) <= max(parameters, embeddings)


def bytes_on_a_device(tree):
    return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))


@pytest.mark.run
@pytest.mark.parametrize("name", ["lars", "adamw"])
def test_a_shared_optimizer_state_is_the_same_training_in_less_memory(name, x64):  # noqa: F811
    options = {"optimizer": {"name": name, "weight_decay": 1e-4}, "dtype": "float64"}
    whole, _, _ = run_on(jax.devices(), tiny("simclr", **options))
    shared, _, _ = run_on(jax.devices(), tiny("simclr", **options, **{"optimizer.shard_state": True}))
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(shared), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9 * max(np.abs(a).max(initial=0), 1e-2))
    held = []
    for share in (False, True):
        run = runs.prepare(tiny("simclr", **options, **{"optimizer.shard_state": share}), jax.devices())
        with jax.set_mesh(run.mesh):
            held.append(bytes_on_a_device(runs.initial_state(run).optimizer))
    assert held[1] < 0.2 * held[0]  # an eighth, and what eight do not divide


def test_the_collectives_test_sees_a_gathered_image():
    """Guard of the guard: a step that gathers its images is caught by the same reading."""
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        images = jax.device_put(np.zeros((64, 8, 8, 1), np.float32), sharding.named(mesh, sharding.ROWS))
        program = jax.jit(lambda x: sharding.replicate(x).sum(axis=0)).lower(images).compile()
    assert ("all-gather", 64 * 64 * 4) in collectives(program)


@pytest.mark.run
def test_no_recompilation_after_the_first_step():
    config = tiny("simclr")
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **kwargs: (
            compiled.append(event) if event == "/jax/core/compile/backend_compile_duration" else None
        )
    )
    run = runs.prepare(config, jax.devices()[:1])
    with jax.set_mesh(run.mesh):
        state = runs.replicate(init_state(run.recipe, 0), run.mesh)
        feed = data.Resident(run.source.train, seed=0, batch_size=32, mesh=run.mesh)
        step = native.jit(make_train_step(run.recipe, feed.take), donate_argnums=0)
        state, _ = step(state, feed.feed(0))
        before = len(compiled)
        for i in range(1, 2 * feed.steps + 2):  # into the third chunk of the order
            state, _ = step(state, feed.feed(i))
        jax.block_until_ready(state)
    assert before > 0 and len(compiled) == before


@pytest.mark.run
def test_methods_do_what_they_say():
    """Facts of single methods after a few steps: who moves, who does not, who is slow."""
    config = tiny("moco_v2")
    state, history, _ = run_on(jax.devices()[:1], config)
    assert int(state.candidates["next"]) == 3 * 32 % 128 and (state.candidates["group"][:96] >= 0).all()
    assert (state.candidates["group"][96:] == candidates.NO_GROUP).all()
    np.testing.assert_allclose(np.linalg.norm(state.candidates["key"], axis=1), 1.0, rtol=1e-5)
    assert history[0]["negatives"] == 128 and history[0]["tau"] == np.float32(0.2)
    online = jax.tree.leaves(state.params["encoder"])
    slow = jax.tree.leaves(state.target["params"]["encoder"])
    assert any(np.abs(a - b).max() > 0 for a, b in zip(online, slow, strict=True))

    state, history, _ = run_on(jax.devices()[:1], tiny("simclr_k"))
    assert history[0]["negatives"] == 2
    assert state.gradient_snr == () and "gradient_snr" not in history[0]
    state, history, _ = run_on(jax.devices()[:1], tiny("flatclr_ess"))
    assert history[1]["tau"] != history[0]["tau"] and history[0]["loss"] == 1.0


@pytest.mark.run
def test_supervised_reaches_the_encoder_and_the_probe_of_others_does_not():
    _, supervised, _ = run_on(jax.devices()[:1], tiny("supervised"), steps=1)
    assert supervised[0]["loss"] > 1.0 and supervised[0]["gradient_norm"] > 0
    with_probe, _, _ = run_on(jax.devices()[:1], tiny("simclr", **{"schedule.warmup": "0 steps"}), steps=2)
    without, silent, _ = run_on(
        jax.devices()[:1], tiny("simclr", **{"schedule.warmup": "0 steps", "probe.weight": 0.0}), steps=2
    )
    for a, b in zip(
        jax.tree.leaves(with_probe.params["encoder"]), jax.tree.leaves(without.params["encoder"]), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert (
        with_probe.params["probe"] and not without.params.get("probe") and "probe_accuracy" not in silent[0]
    )


@pytest.mark.run
@pytest.mark.parametrize("method, loss", [("simclr", "probe_loss"), ("supervised", "loss")])
def test_a_loss_of_labels_is_the_mean_over_labelled_examples(method, loss):
    def few(label):
        return np.where(np.arange(len(label)) % 4, -1, label).astype(label.dtype)

    _, (first, *_), _ = run_on(jax.devices()[:1], tiny(method), steps=1, relabel=few)
    assert abs(first[loss] - np.log(10)) < 0.3  # of a probe that knows nothing, whoever has a label


@pytest.mark.run
@pytest.mark.parametrize("method", ["fenchel_legendre", "fenchel_legendre_baseline", "donsker_varadhan"])
def test_a_bound_of_mutual_information_is_trained_by(method):
    """On augmented digits InfoNCE falls with it, and a second critic moves."""
    config = configs.load(f"configs/digits.py:method={method},scale=smoke")
    config.train.duration = "36 steps"
    state, history, _ = run_on(jax.devices()[:1], configs.plain(config), steps=36)
    for name in ("loss", "info_nce"):
        found = [metrics[name] for metrics in history]
        assert np.isfinite(found).all() and np.mean(found[-12:]) < np.mean(found[:12]), name
    start = init_state(runs.prepare(configs.plain(config)).recipe, 0).params
    moved = [(a != b).any() for a, b in zip(*map(jax.tree.leaves, (start, state.params)), strict=True)]
    assert all(moved) and ("critic" in start) == method.startswith("fenchel")


@pytest.mark.run
def test_a_critic_and_its_encoder_take_turns():
    config = tiny("fenchel_legendre", **{"optimizer.alternate": ("critic",), "schedule.warmup": "0 steps"})
    start = init_state(runs.prepare(config).recipe, 0).params
    first, second = (run_on(jax.devices()[:1], config, steps=steps)[0].params for steps in (1, 2))

    def moved(before, after):
        pairs = {
            module: zip(*map(jax.tree.leaves, (before[module], after[module])), strict=True)
            for module in before
        }
        return {module for module, leaves in pairs.items() if any((a != b).any() for a, b in leaves)}

    assert moved(start, first) == {"critic"} and moved(first, second) == {"encoder", "projector", "probe"}


@pytest.mark.run
def test_the_gradient_of_each_query_and_the_histogram_of_contrasts_are_in_the_metrics():
    """On eight devices as on one, and without the histogram the step is the same training."""
    leaves = {"diagnostics.quantiles": 4, "diagnostics.rankme": True}
    plain, history, _ = run_on(jax.devices()[:1], tiny("moco_v1"), steps=1)
    more, (metrics,), _ = run_on(jax.devices(), tiny("moco_v1", **leaves), steps=1)
    assert 0 < metrics["query_gradient_norm"] <= 2 / 0.07 and metrics["query_gradient_norm_std"] > 0
    assert metrics["c_quantiles"].shape == (5,) and (np.diff(metrics["c_quantiles"]) >= 0).all()
    assert 1 < metrics["rankme"] <= 16 and metrics["c_quantiles"][2] == metrics["c_p50"]
    np.testing.assert_allclose(metrics["query_gradient_norm"], history[0]["query_gradient_norm"], rtol=1e-3)
    assert set(metrics) - set(history[0]) == {"c_quantiles", "rankme"}
    assert jax.tree.structure(plain) == jax.tree.structure(more)


@pytest.mark.parametrize("method", ["flatclr_ess", "kl_tau"])
def test_training_reads_no_diagnostic(method):
    """A rule of the temperature has its scalar from the comparison: metrics may be renamed, or left out."""
    run = runs.prepare(tiny(method), jax.devices()[:1])
    take, feed = data.feed_shapes(run.source.train, view=run.recipe.views, batch_size=32, mesh=run.mesh)
    with jax.set_mesh(run.mesh):
        bare = run.recipe._replace(diagnose=lambda *_: {})
        steps = [make_train_step(recipe, take) for recipe in (run.recipe, bare)]
        (state, metrics), (other, few) = (jax.eval_shape(step, state_shapes(run), feed) for step in steps)
    assert "ess" in metrics and "ess" not in few and "kl_uniform" not in few
    assert jax.tree.structure(state) == jax.tree.structure(other) and jax.tree.leaves(state.temperature)


def test_packed_metrics_are_the_metrics():
    metrics = {
        "a": np.float32(1 / 3),
        "list": np.arange(3, dtype=np.float32),
        "bf16": jax.numpy.bfloat16(0.1),
        "zero": 0.0,
    }
    _, found = jax.jit(packed(lambda state, feed: (state, metrics)))(0, 0)
    assert found.values.shape == (6,)
    both = dataclasses.replace(found, values=np.stack([found.values, 2 * found.values]))
    (found,) = jax.device_get(found).unpacked()
    one, other = both.unpacked()  # of two runs
    assert one["a"] == found["a"] and other["list"].tolist() == [0, 2, 4]
    assert list(found) == list(metrics)
    for name, value in metrics.items():
        np.testing.assert_array_equal(found[name], np.asarray(value, np.float32))
