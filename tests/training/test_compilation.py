"""A program made from shapes is the program of the arrays, and what it costs is read off its text."""

import jax
import jax.numpy as jnp
import pytest

from contrastive_jax import config as configs
from contrastive_jax import data, native
from contrastive_jax.config.methods import METHODS
from contrastive_jax.training import compilation, cost
from contrastive_jax.training import run as runs
from contrastive_jax.training.step import make_train_step
from tests.tiny_methods import tiny


def small(**leaves):
    config = configs.load("configs/digits.py:method=moco_v1,scale=smoke")
    config.augment = {"preset": "none", "size": 8}
    with config.unlocked():
        config.update_from_flattened_dict({"projector.out": 16} | leaves)
    return configs.plain(configs.complete(config))


@pytest.mark.run
@pytest.mark.parametrize("shard_state", [False, True])
def test_shapes_are_those_of_the_arrays(shard_state):
    run = runs.prepare(small(**{"optimizer.shard_state": shard_state}))
    with jax.set_mesh(run.mesh):
        state, fed = runs.initial_state(run), runs.feed_of(run).feed(0)
        _, feed_shapes = data.feed_shapes(
            run.source.train,
            view=run.recipe.views,
            batch_size=run.settings.train.batch_size,
            mesh=run.mesh,
        )
        shapes = compilation.state_shapes(run)
    for arrays, like in ((state, shapes), (fed, feed_shapes)):
        assert jax.tree.structure(arrays) == jax.tree.structure(like)
        for a, b in zip(jax.tree.leaves(arrays), jax.tree.leaves(like), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


def _added_in_any_order(program):
    """The equations in which a GPU adds floats in the order in which its threads end."""
    for equation in program.eqns:
        name = equation.primitive.name
        floats = any(jnp.issubdtype(x.aval.dtype, jnp.inexact) for x in equation.outvars)
        if name.startswith("select_and_scatter") or (
            name in ("scatter-add", "scatter-sub", "scatter-mul")
            and floats
            and not equation.params["unique_indices"]
        ):
            yield equation
        for part in cost._programs(equation.params):
            yield from _added_in_any_order(getattr(part, "jaxpr", part))


def _step(config):
    run = runs.prepare(config, jax.devices()[:1])
    batch = run.settings.train.batch_size
    take, feed = data.feed_shapes(run.source.train, view=run.recipe.views, batch_size=batch, mesh=run.mesh)
    with jax.set_mesh(run.mesh), native.tracing_for("cuda"):
        return jax.make_jaxpr(make_train_step(run.recipe, take))(compilation.state_shapes(run), feed).jaxpr


FEW = ("simclr_k", "swd_hypersphere", "supervised")


@pytest.mark.parametrize(
    "method", [m if m in FEW else pytest.param(m, marks=pytest.mark.run) for m in METHODS]
)
def test_nothing_in_a_step_is_added_in_any_order(method):
    """Where something is, a deterministic GPU adds entries one by one, and any other gives other bits."""
    assert not list(_added_in_any_order(_step(tiny(method))))


def test_nor_in_a_step_of_the_imagenet_stem():
    config = tiny("simclr", **{"encoder.stem": "imagenet", "augment.size": 32})
    assert not list(_added_in_any_order(_step(config)))


def test_collectives_are_read_with_their_bytes():
    text = """
  %a = f32[64,8,8]{2,1,0} all-gather(%p), channel_id=1
  %b = (f32[3,3]{1,0:T(8,128)S(1)}, bf16[4]{0}) all-reduce(%q, %r), to_apply=%sum
  %c = ((f32[2,4]{1,0:T(8,128)}, s32[2]{0}), (f32[16,4]{1,0:T(8,128)}, s32[16]{0}), u32[]) all-gather-start(%s, %t)
  %d = (f32[5]{0}, f32[6]{0}) all-reduce-start(%u, %v)
  %e = f32[16,4]{1,0} all-gather-done(%c)
  ROOT %f = f32[2,4]{1,0} reduce-scatter(%w), dimensions={0}
  %g = f8e4m3fn[8]{0} all-to-all(%x)
  %h = f32[64]{0} fusion(%all-reduce.1), calls=%all-reduce-scatter
"""
    assert cost.collectives(text) == [
        ("all-gather", 64 * 64 * 4),
        ("all-reduce", 36 + 8),
        ("all-gather", 256 + 64),
        ("all-reduce", 44),
        ("reduce-scatter", 32),
        ("all-to-all", 8),
    ]


@pytest.mark.run
def test_a_step_of_eight_devices_costs_each_an_eighth(monkeypatch):
    monkeypatch.setenv(native.library.SWITCH, "off")  # the compiler counts no FLOPs of a kernel
    costs = [
        cost.count(compilation.compiled_from_shapes(runs.prepare(small(), d)))
        for d in (jax.devices()[:1], None)
    ]
    assert costs[1].flops < 0.3 * costs[0].flops and costs[1].temporary < costs[0].temporary
    kinds = {kind for kind, _ in costs[1].collectives}
    assert {"all-gather", "all-reduce"} <= kinds
