"""Alignment, uniformity, tolerance, sensitivity and class concentration against published numbers."""

import json
import pathlib

import golden_cases
import jax
import numpy as np
import pytest

from contrastive_jax import losses
from contrastive_jax.evaluators import geometry

GOLDEN = np.load(pathlib.Path(__file__).parents[1] / "golden" / "label_metrics.npz")
CASES = json.loads(str(GOLDEN["index"]))


def fields(case):
    return {name: GOLDEN[f"{case['case']}/{name}"] for name in case["fields"]}


@pytest.mark.parametrize("case", golden_cases.marked("label_metrics", CASES))
@pytest.mark.parametrize("block", [512, 7])
def test_golden(case, block, monkeypatch):
    monkeypatch.setattr(geometry, "BLOCK", block)
    theirs = fields(case)
    f, g, labels = theirs["f"], theirs["g"], theirs["labels"]
    ours = {"alignment_cross_g2": geometry.alignment(f, g)}
    for views, second in (("one", None), ("cross", g)):
        for pairs, self_pairs in (("all", True), ("nodiag", False)):
            options = dict(self_pairs=self_pairs)
            ours |= {
                f"uniformity_eq5_{views}_{pairs}_t2": geometry.uniformity(f, second, **options),
                f"tolerance_{views}_{pairs}": geometry.tolerance(f, labels, second, **options),
                f"semsens_{views}_{pairs}": geometry.semantic_sensitivity(f, labels, second, **options),
            }
        ours[f"tolerance_{views}_cond_nodiag"] = geometry.tolerance(f, labels, second, same_class_only=True)
    for name, normalize in (("raw", False), ("unit", True)):
        distances = geometry.intra_class_distance(f, labels, normalize=normalize)
        ours[f"intraclass_mean_pairdist_{name}"] = list(distances.values())
        for metric in ("cosine", "euclidean"):
            ours[f"silhouette_{name}_{metric}"] = geometry.silhouette(
                f, labels, normalize=normalize, metric=metric
            )
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_uniformity_is_the_training_loss():
    z = np.random.default_rng(0).normal(size=(30, 1, 5)).astype(np.float32)
    np.testing.assert_allclose(geometry.uniformity(z[:, 0]), jax.jit(losses.uniformity)(z)[0], rtol=1e-5)


def test_extremes():
    """One direction for each of two classes, opposite to one another: what the measures were made to see."""
    labels = np.repeat([0, 1], 5)
    f = np.where(labels[:, None] == 0, 1.0, -1.0) * np.array([[3.0, 4.0]])
    found = geometry.evaluate(f, labels, f)
    assert found["semantic_sensitivity"] == pytest.approx(1) and found["same_class_cosine"] == pytest.approx(
        1
    )
    assert found["silhouette"] == pytest.approx(1) and found["intra_class_distance"] == pytest.approx(0)
    assert found["alignment"] == 0
    collapsed = np.ones((10, 2))
    assert geometry.tolerance(collapsed, labels, self_pairs=True) == pytest.approx(0.5)
    assert geometry.semantic_sensitivity(collapsed, labels, self_pairs=True) == pytest.approx(
        (1 + np.exp(-4)) / 2
    )
    assert geometry.uniformity(collapsed) == pytest.approx(0)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="views of the same images"):
        geometry.alignment(np.ones((3, 2)), np.ones((4, 2)))
    with pytest.raises(ValueError, match="metric is 'l1'; it must be"):
        geometry.silhouette(np.eye(4), [0, 0, 1, 1], metric="l1")
    with pytest.raises(ValueError, match="not finite"):
        geometry.evaluate(np.full((4, 2), np.nan), np.array([0, 0, 1, 1]))
