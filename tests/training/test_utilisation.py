"""FLOPs of a model against a count by hand, and a wait for data that shows in the log."""

import time

import jax
import pytest

from contrastive_jax import config as configs
from contrastive_jax import data
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import evaluate
from contrastive_jax.training import loop, utilisation
from contrastive_jax.training import run as runs


def config(method="simclr", **leaves):
    found = configs.load(f"configs/digits.py:method={method},scale=smoke")
    found.augment = {"preset": "none", "size": 8}
    with found.unlocked():
        found.update_from_flattened_dict({"projector.out": 16, "evaluate.final": False} | leaves)
    return configs.plain(configs.complete(found))


def taps(size, kernel, stride):
    """Products of one kernel row along one side: what lies beyond the edge is no work."""
    starts = range(-(kernel // 2), size - kernel // 2, stride)
    return sum(0 <= start + i < size for start in starts for i in range(kernel))


def convolutions(run):
    """FLOPs of every kernel, from its shape and the image that it meets: by hand, but for norm and bias."""
    flops, size = 0, run.recipe.view_shape[0]
    for module, path, shape, count in run.recipe.network.describe(run.recipe.view_shape)[0]:
        if module == "probe" or not path.endswith("kernel"):
            continue
        products = 1
        if len(shape) == 4:  # every group but the first halves the image in its first block
            group = int(path.split("group")[1][0]) if "group" in path else 1
            strides = group > 1 and "block0" in path and "conv2" not in path
            before = size // 2 ** (group - 1 - strides)
            products = taps(before, shape[0], 1 + strides) ** 2 / shape[0] ** 2
        flops += 2 * count * products
    return flops


@pytest.mark.parametrize(("method", "passes"), [("simclr", 6), ("moco_v2", 4), ("byol", 8)])
def test_model_flops_are_those_of_its_kernels(method, passes):
    """Two views with a gradient; one, and one of the target; two, and two of the target."""
    run = runs.prepare(config(method), jax.devices()[:1])
    assert utilisation.model_flops(run) / passes == pytest.approx(convolutions(run), rel=0.05)


def test_computing_again_is_no_work_of_the_model():
    plain, again = (
        runs.prepare(config(**leaves), jax.devices()[:1])
        for leaves in ({}, {"train.remat": True, "train.microbatches": 4})
    )
    assert utilisation.model_flops(plain) == utilisation.model_flops(again)


@pytest.mark.parametrize(
    ("kind", "dtype", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4), ("NVIDIA H100 80GB HBM3", "float32", 494.7),
        ("NVIDIA H100 PCIe", "bfloat16", 756), ("NVIDIA H200", "bfloat16", 989.4),
        ("NVIDIA H200 NVL", "float32", 417.5), ("Tesla T4", "float32", 8.1),
        ("NVIDIA A100-SXM4-40GB", "float32", 156), ("NVIDIA A100 80GB PCIe", "bfloat16", 312),
        ("Tesla V100-SXM2-16GB", "float32", 15.7), ("Tesla V100-SXM2-16GB", "bfloat16", None),
        ("NVIDIA L4", "bfloat16", 121), ("NVIDIA L40S", "bfloat16", None), ("TPU v2", "float32", 22.5),
        ("TPU v5 lite", "bfloat16", 197), ("TPU v5", "bfloat16", 459), ("TPU v6 lite", "bfloat16", 918),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16", None), ("NVIDIA A100-SXM4-40GB", "float64", None),
        ("cpu", "float32", None),
    ],
)  # fmt: skip
def test_peaks_are_those_of_the_kind_of_device(kind, dtype, tera):
    assert utilisation.peak(kind, dtype) == (tera and pytest.approx(tera * 1e12))


def test_utilisation_is_of_all_devices_and_absent_without_a_peak(monkeypatch):
    one, eight = (runs.prepare(config(), devices) for devices in (jax.devices()[:1], jax.devices()))
    assert utilisation.of_one_image_a_second(one) is None
    monkeypatch.setattr(utilisation, "PEAKS", (utilisation.Peak("cpu", None, 2.0),))
    assert utilisation.of_one_image_a_second(one) == utilisation.model_flops(one) / 2e12
    assert utilisation.of_one_image_a_second(eight) == pytest.approx(
        utilisation.of_one_image_a_second(one) / 8
    )


@pytest.mark.run
def test_waiting_for_data_is_in_the_log(tmp_path, monkeypatch):
    feed = data.Resident.feed

    def slow(self, step):
        time.sleep(0.2)
        return feed(self, step)

    monkeypatch.setattr(data.Resident, "feed", slow)
    monkeypatch.setattr(utilisation, "PEAKS", (utilisation.Peak("cpu", None, 2.0),))
    written, write = [], workdirs.write_result
    monkeypatch.setattr(workdirs, "write_result", lambda *a, **k: written.append(k["lost"]) or write(*a, **k))
    monkeypatch.setattr(evaluate.Evaluator, "table", lambda *_, **__: time.sleep(0.2) or {})
    leaves = {
        "train.duration": "8 steps",
        "schedule.warmup": "1 step",
        "log.every": 4,
        "evaluate.final": True,
    }
    result = loop.train(config(**leaves), tmp_path, quiet=True, devices=jax.devices()[:1])
    last = workdirs.read_metrics(tmp_path)[-1]["timing"]
    assert last["lost_to_data"] > 0.5 and 0 < last["utilisation"] < 1
    assert 0 < result["lost_to_data"] < 1 and result["lost_to_checkpoint"] > 0 and result["utilisation"] > 0
    before, after = written  # the table at the end
    assert before == after
