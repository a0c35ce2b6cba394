"""The step compiled for a slice that is not here, by the script."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

from experiments.performance import topology

ROOT = pathlib.Path(__file__).parents[2]
SMALL = (
    "--config=configs/digits.py:method=moco_v1,scale=smoke", "--config.augment.preset=none",
    "--config.augment.size=8", "--config.projector.out=16",
)  # fmt: skip


@pytest.mark.run
def test_virtual_devices_stand_in_for_a_slice_where_libtpu_is_not(monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        topology.importlib.util, "find_spec", lambda name, *a: None if name == "libtpu" else real(name, *a)
    )
    facts = topology.described(list(SMALL), "v5e:2x4")
    said = capsys.readouterr().out
    assert "8 virtual CPU devices stand in for v5e:2x4" in said and "all-reduce_count" in said
    assert facts["memory_mib"] > 0 and facts["all-gather_count"] > 0 and facts["all-reduce_mib"] > 0
    with pytest.raises(ValueError, match="needs a process that asked jax for nothing"):
        topology.devices_of("v5e:16x16")


@pytest.mark.parametrize("wrong", ["v5e", "16x16", "v5e:", "h100:8", "v5e:16x", "v5e:0x4", "v5e:04"])
def test_what_is_no_slice_is_refused(wrong):
    with pytest.raises(ValueError, match="--topology='.*'; write a TPU generation"):
        topology.devices_of(wrong)


def test_more_chips_than_there_are_is_refused_before_they_are_made():
    with pytest.raises(ValueError, match=r"'v5e:100000x100' has 10,000,000 chips; at most 16,384"):
        topology.devices_of("v5e:100000x100")


def test_what_libtpu_says_is_passed_on(monkeypatch):
    """A slice that it does not know, or a library that another process holds: only its own words tell."""
    from jax.experimental import topologies

    def locked(*_):
        raise RuntimeError("ABORTED: The TPU is already in use by process 7\nmore")

    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name, *_: object())
    monkeypatch.setattr(topologies, "get_topology_desc", locked)
    with pytest.raises(ValueError, match="libtpu could not describe it: ABORTED: .* by process 7$") as error:
        topology.devices_of("v5e:4x4")
    assert isinstance(error.value.__cause__, RuntimeError)


@pytest.mark.slow
def test_the_step_is_compiled_for_a_slice_by_the_script():
    command = [
        sys.executable,
        "experiments/performance/topology.py",
        "--config=configs/digits.py:scale=smoke",
    ]
    command += ["--config.train.batch_size=64"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment["PYTHONPATH"] = str(ROOT)
    for slice, code in (("v5e:4x4", 0), ("v5e", 1)):
        done = subprocess.run(
            [*command, f"--topology={slice}"], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr
        if code:
            assert done.stderr.startswith("error: --topology='v5e'; write a TPU generation")
        else:
            there = importlib.util.find_spec("libtpu") is not None
            assert ("16 x TPU" if there else "16 x cpu") in done.stdout
            assert "all-reduce_count" in done.stdout
