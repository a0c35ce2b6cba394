"""FLOPs of a model against a count by hand, and a wait for data that shows in the log."""

import functools
import time

import jax
import jax.numpy as jnp
import pytest

from contrastive_jax import config as configs
from contrastive_jax import data
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import evaluate
from contrastive_jax.training import cost, loop
from contrastive_jax.training import run as runs


def config(method="simclr", **leaves):
    found = configs.load(f"configs/digits.py:method={method},scale=smoke")
    found.augment = {"preset": "none", "size": 8}
    with found.unlocked():
        found.update_from_flattened_dict({"projector.out": 16, "evaluate.final": False} | leaves)
    return configs.plain(configs.complete(found))


def convolutions(run):
    """FLOPs of every kernel, from its shape and the image that it meets, by hand."""
    flops, size = 0, run.recipe.view.shape[0]
    for module, path, shape, count in run.recipe.network.describe(run.recipe.view)[0]:
        if module == "probe" or not path.endswith("kernel"):
            continue
        pixels = 1
        if len(shape) == 4:  # every group but the first halves the image in its first block
            group = int(path.split("group")[1][0]) if "group" in path else 1
            pixels = (size // 2 ** (group - 1)) ** 2
        flops += 2 * count * pixels
    return flops


@pytest.mark.parametrize(("method", "passes"), [("simclr", 6), ("moco_v2", 4), ("byol", 8)])
def test_model_flops_are_those_of_its_kernels(method, passes, monkeypatch):
    """Two views with a gradient; one, and one of the target; two, and two of the target."""
    monkeypatch.setattr(jax.stages.Lowered, "cost_analysis", lambda _: None)  # as on a GPU or TPU
    run = runs.prepare(config(method), jax.devices()[:1])
    assert cost.model_flops(run) / passes == convolutions(run)


def test_flops_of_programs_within_a_program():
    kernel, rows = jnp.ones((3, 3, 2, 6)), jnp.ones((4, 5))

    def program(image, rows, wide):
        image = jax.vmap(lambda x: convolve(x[None], kernel, feature_group_count=2))(image)
        rows, _ = jax.lax.scan(lambda x, _: (jax.jit(jnp.matmul)(x, jnp.ones((5, 5))), None), rows, length=3)
        rows = jax.lax.cond(wide, lambda x: x @ jnp.ones((5, 9)) @ jnp.ones((9, 1)), lambda x: x[:, :1], rows)
        return image.sum() + rows.sum()

    convolve = functools.partial(
        jax.lax.conv_general_dilated, window_strides=(1, 1), padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
    counted = cost._flops(jax.make_jaxpr(program)(jnp.ones((2, 8, 8, 4)), rows, True).jaxpr)
    assert counted == 2 * (2 * 8 * 8 * 6 * 9 * 2 + 3 * 4 * 5 * 5 + 4 * 5 * 9 + 4 * 9)


def test_computing_again_is_no_work_of_the_model():
    plain, again = (
        runs.prepare(config(**leaves), jax.devices()[:1])
        for leaves in ({}, {"train.remat": True, "train.microbatches": 4})
    )
    assert cost.model_flops(plain) == cost.model_flops(again)


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
    assert cost.peak(kind, dtype) == (tera and pytest.approx(tera * 1e12))


def test_utilisation_is_of_all_devices_and_absent_without_a_peak(monkeypatch):
    one, eight = (runs.prepare(config(), devices) for devices in (jax.devices()[:1], jax.devices()))
    assert cost.of_one_image_a_second(one) is None
    monkeypatch.setattr(cost, "PEAKS", (cost.Peak("cpu", None, 2.0),))
    assert cost.of_one_image_a_second(one) == cost.model_flops(one) / 2e12
    assert cost.of_one_image_a_second(eight) == pytest.approx(cost.of_one_image_a_second(one) / 8)


@pytest.mark.run
def test_waiting_for_data_is_in_the_log(tmp_path, monkeypatch):
    feed = data.Resident.feed

    def slow(self, step):
        time.sleep(0.2)
        return feed(self, step)

    monkeypatch.setattr(data.Resident, "feed", slow)
    monkeypatch.setattr(cost, "PEAKS", (cost.Peak("cpu", None, 2.0),))
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
