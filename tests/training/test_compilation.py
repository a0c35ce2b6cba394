"""A program made from shapes is the program of the arrays, and what it costs is read off its text."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import jax
import pytest

from contrastive_jax import config as configs
from contrastive_jax import data, native
from contrastive_jax.commands import describe
from contrastive_jax.training import compilation
from contrastive_jax.training import run as runs

ROOT = pathlib.Path(__file__).parents[2]


def small(**leaves):
    config = configs.load("configs/digits.py:method=moco_v1,scale=smoke")
    config.augment = {"preset": "none", "size": 8}
    with config.unlocked():
        config.update_from_flattened_dict({"projector.out": 16} | leaves)
    return configs.plain(configs.complete(config))


def without_libtpu(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        compilation.importlib.util, "find_spec", lambda name, *a: None if name == "libtpu" else real(name, *a)
    )


@pytest.mark.parametrize("shard_state", [False, True])
def test_shapes_are_those_of_the_arrays(shard_state):
    run = runs.prepare(small(**{"optimizer.shard_state": shard_state}))
    with jax.set_mesh(run.mesh):
        state, fed = runs.initial_state(run), runs.feed_of(run).feed(0)
        _, feed_shapes = data.feed_shapes(
            run.source.train,
            view=run.recipe.views,
            batch_size=run.config["train"]["batch_size"],
            mesh=run.mesh,
        )
        shapes = compilation.state_shapes(run)
    for arrays, like in ((state, shapes), (fed, feed_shapes)):
        assert jax.tree.structure(arrays) == jax.tree.structure(like)
        for a, b in zip(jax.tree.leaves(arrays), jax.tree.leaves(like), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


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
    assert compilation.collectives(text) == [
        ("all-gather", 64 * 64 * 4),
        ("all-reduce", 36 + 8),
        ("all-gather", 256 + 64),
        ("all-reduce", 44),
        ("reduce-scatter", 32),
        ("all-to-all", 8),
    ]


def test_a_step_of_eight_devices_costs_each_an_eighth(monkeypatch):
    monkeypatch.setenv(native.library.SWITCH, "off")  # the compiler counts no FLOPs of a kernel
    costs = [
        compilation.cost(compilation.compiled_from_shapes(runs.prepare(small(), d)))
        for d in (jax.devices()[:1], None)
    ]
    assert costs[1].flops < 0.3 * costs[0].flops and costs[1].temporary < costs[0].temporary
    kinds = {kind for kind, _ in costs[1].collectives}
    assert {"all-gather", "all-reduce"} <= kinds


def test_virtual_devices_stand_in_for_a_slice_where_libtpu_is_not(monkeypatch, capsys, tmp_path):
    without_libtpu(monkeypatch)
    facts = describe.describe(small(), str(tmp_path / "run"), topology="v5e:2x4")
    said = capsys.readouterr().out
    assert "8 virtual CPU devices stand in for v5e:2x4" in said and "speed" not in said
    assert facts["memory_mib"] > 0 and facts["all-gather_count"] > 0 and facts["all-reduce_mib"] > 0
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="needs a process that asked jax for nothing"):
        compilation.devices_of("v5e:16x16")


@pytest.mark.parametrize("wrong", ["v5e", "16x16", "v5e:", "h100:8", "v5e:16x", "v5e:0x4", "v5e:04"])
def test_what_is_no_slice_is_refused(wrong):
    with pytest.raises(ValueError, match="--topology='.*'; write a TPU generation"):
        compilation.devices_of(wrong)


def test_more_chips_than_there_are_is_refused_before_they_are_made():
    with pytest.raises(ValueError, match=r"'v5e:100000x100' has 10,000,000 chips; at most 16,384"):
        compilation.devices_of("v5e:100000x100")


def test_what_libtpu_says_is_passed_on(monkeypatch):
    """A slice that it does not know, or a library that another process holds: only its own words tell."""
    from jax.experimental import topologies

    def locked(*_):
        raise RuntimeError("ABORTED: The TPU is already in use by process 7\nmore")

    monkeypatch.setattr(compilation.importlib.util, "find_spec", lambda name, *_: object())
    monkeypatch.setattr(topologies, "get_topology_desc", locked)
    with pytest.raises(ValueError, match="libtpu could not describe it: ABORTED: .* by process 7$") as error:
        compilation.devices_of("v5e:4x4")
    assert isinstance(error.value.__cause__, RuntimeError)


def test_one_process_of_several_speaks(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(describe.distributed, "first", lambda: False)
    without_libtpu(monkeypatch)
    describe.describe(small(), str(tmp_path), topology="v5e:2x4")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_the_step_is_compiled_for_a_slice_by_the_command():
    command = [sys.executable, "-m", "contrastive_jax.main", "--config=configs/digits.py:scale=smoke"]
    command += ["--config.train.batch_size=512", "--mode=describe", "--topology=v5e:16x16"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    there = importlib.util.find_spec("libtpu") is not None
    assert ("256 x TPU" if there else "256 x cpu") in done.stdout
    assert "all-reduce_count" in done.stdout
    done = subprocess.run([*command, "--mode=train"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "--topology='v5e:16x16' is for --mode=describe" in done.stderr
