import json
import tracemalloc

import jax
import numpy as np
import pytest
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import StandardScaler

from contrastive_jax import sharding
from contrastive_jax.evaluators import features as features_module
from contrastive_jax.evaluators import linear_probe
from contrastive_jax.evaluators.features import standardized


def clusters(n, width=5, classes=3, seed=0):
    random = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    centres = np.random.default_rng(99).normal(size=(classes, width))
    return (centres[labels] + 1.5 * random.normal(size=(n, width))).astype(np.float32), labels


TRAIN = clusters(90)
TEST = clusters(200, seed=1)


def optimum(features, labels, C=1.0):
    """scikit-learn's, by another of its solvers."""
    return LogisticRegression(C=C, solver="newton-cg", tol=1e-10, max_iter=1000).fit(features, labels)


@pytest.mark.parametrize("C", [0.05, 1.0, 20.0])
def test_lbfgs_reaches_the_optimum_of_another_solver(C):
    scaler = StandardScaler().fit(TRAIN[0].astype(np.float64))
    train, test = scaler.transform(TRAIN[0].astype(np.float64)), scaler.transform(TEST[0].astype(np.float64))
    theirs = optimum(train, TRAIN[1], C)
    ours, gradient = linear_probe.fit_lbfgs(train, TRAIN[1], C, 1e-7, 10_000)
    assert gradient <= 1e-7
    np.testing.assert_allclose(softmax(ours.logits(test), axis=1), theirs.predict_proba(test), atol=1e-5)
    found = linear_probe.lbfgs(*TRAIN, *TEST, C=C)
    assert found["converged"] and found["top1"] == pytest.approx(theirs.score(test, TEST[1]))
    recalls = [theirs.score(test[TEST[1] == name], TEST[1][TEST[1] == name]) for name in range(3)]
    assert found["mean_per_class"] == pytest.approx(np.mean(recalls))
    assert f"C={C:g}" in found["protocol"] and found["settings"]["C"] == C and json.dumps(found)


@pytest.mark.parametrize("rows, width, largest", [(400, 30, 4096), (20, 200, 4096), (60, 30, 10)])
def test_lbfgs_on_correlated_features(monkeypatch, rows, width, largest):
    """Also with fewer rows than features, where no matrix is decomposed, and by blocks of rows."""
    monkeypatch.setattr(linear_probe, "LARGEST", largest)
    monkeypatch.setattr(features_module, "FEWEST", 13)
    monkeypatch.setattr(features_module, "BLOCK", 13 * width)
    random = np.random.default_rng(0)
    mixed = (
        random.normal(size=(rows, width)) * np.geomspace(1, 1e-3, width) @ random.normal(size=(width, width))
    )
    labels = (mixed @ random.normal(size=(width, 4)) + random.gumbel(size=(rows, 4))).argmax(axis=1)
    kept = mixed.copy()
    features, _ = standardized(mixed, mixed)
    np.testing.assert_allclose(features, StandardScaler().fit_transform(mixed), atol=1e-12)
    np.testing.assert_array_equal(mixed, kept)
    few = 40 if largest > 10 else 10_000  # 80 in the given coordinates
    ours, gradient = linear_probe.fit_lbfgs(features, labels, 1.0, 1e-6, few)
    assert gradient <= 1e-6
    theirs = optimum(features, labels).predict_proba(features)
    np.testing.assert_allclose(softmax(ours.logits(features), axis=1), theirs, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, dict(Cs=(0.01, 1.0)), dict(labels_per_class=5, draws=2), dict(several=True), dict(width=120)],
    ids=lambda options: next(iter(options), "plain"),
)
def test_features_that_are_not_held_give_the_same_classifier(monkeypatch, options):
    """Converted to float64 by blocks in each evaluation of the objective, also of chosen rows."""
    options = dict(options)
    several, width = options.pop("several", False), options.pop("width", 5)
    random = np.random.default_rng(0)
    train = (TRAIN[0] @ random.normal(size=(5, width)) + 0.3 * random.normal(size=(90, width))).astype("f4")
    names = np.stack([TRAIN[1] == 0, TRAIN[1] >= 1], axis=1).astype(int) if several else TRAIN[1]
    fits, fit = [], linear_probe.fit_lbfgs

    def watched(x, *rest):
        fits.append((type(x), *fit(x, *rest)))
        return fits[-1][1:]

    monkeypatch.setattr(linear_probe, "fit_lbfgs", watched)
    held = linear_probe.lbfgs(train, names, train, names, **options)
    first, fits = fits, []
    monkeypatch.setattr(features_module, "HELD", 0)
    monkeypatch.setattr(features_module, "FEWEST", 7)
    monkeypatch.setattr(features_module, "BLOCK", 7 * width)
    assert linear_probe.lbfgs(train, names, train, names, **options) == held
    assert len(fits) == len(first) > 0
    for (kind, one, _), (other_kind, other, _) in zip(first, fits, strict=True):
        assert (kind, other_kind) == (np.ndarray, features_module.Standardized)
        # Rounding errors of sums in another order grow with the iterations.
        np.testing.assert_allclose(other.weights, one.weights, rtol=0, atol=1e-10 * np.abs(one.weights).max())


@pytest.mark.parametrize("options", [{}, dict(Cs=(0.1, 1.0))], ids=["plain", "Cs"])
def test_large_features_are_not_copied(monkeypatch, options):
    train, names = clusters(10_000, width=64)
    small = (train[:300], names[:300])
    linear_probe.lbfgs(*small, *small)  # imports
    monkeypatch.setattr(features_module, "HELD", 2**14)
    monkeypatch.setattr(features_module, "BLOCK", 2**14)
    tracemalloc.start()
    linear_probe.lbfgs(train, names, *small, tolerance=0.01, **options)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < train.nbytes / 2  # in float64 they have twice their bytes


def test_two_classes_share_one_vector():
    keep, keep_test = TRAIN[1] < 2, TEST[1] < 2
    found = linear_probe.lbfgs(TRAIN[0][keep], TRAIN[1][keep], TEST[0][keep_test], TEST[1][keep_test])
    train, test = standardized(TRAIN[0][keep], TEST[0][keep_test])
    assert found["converged"]
    assert found["top1"] == pytest.approx(optimum(train, TRAIN[1][keep]).score(test, TEST[1][keep_test]))


def test_stopping_short_is_said_everywhere():
    with pytest.warns(RuntimeWarning, match="NOT CONVERGED"):
        found = linear_probe.lbfgs(*TRAIN, *TEST, max_iterations=2)
    assert not found["converged"] and "NOT CONVERGED" in found["protocol"]


def test_few_labels_mean_and_spread_over_the_fixed_draws():
    found = linear_probe.lbfgs(*TRAIN, *TEST, labels_per_class=4, draws=5, seed=3)
    train, test = standardized(TRAIN[0], TEST[0])
    subsets = [linear_probe.balanced_draw(TRAIN[1], 4, 3, draw) for draw in range(5)]
    scores = [optimum(train[rows], TRAIN[1][rows]).score(test, TEST[1]) for rows in subsets]
    assert len(set(scores)) > 1
    assert found["top1"] == pytest.approx(np.mean(scores))
    assert found["top1_std"] == pytest.approx(np.std(scores, ddof=1))
    assert found == linear_probe.lbfgs(*TRAIN, *TEST, labels_per_class=4, draws=5, seed=3)
    assert found["top1"] != linear_probe.lbfgs(*TRAIN, *TEST, labels_per_class=4, draws=5, seed=4)["top1"]
    assert "4 labels per class, 5 draws" in found["protocol"]
    assert "top1_std" not in linear_probe.lbfgs(*TRAIN, *TEST, labels_per_class=4, draws=1)


def test_a_draw_is_balanced_random_nested_and_frozen():
    rows = linear_probe.balanced_draw(TRAIN[1], 6, 0, 0)
    np.testing.assert_array_equal(np.bincount(TRAIN[1][rows]), [6, 6, 6])
    assert len(set(rows)) == 18
    assert set(linear_probe.balanced_draw(TRAIN[1], 2, 0, 0)) < set(rows)
    assert not np.array_equal(rows, linear_probe.balanced_draw(TRAIN[1], 6, 0, 1))
    assert not np.array_equal(rows, linear_probe.balanced_draw(TRAIN[1], 6, 1, 0))
    drawn = np.zeros(90)
    for draw in range(300):
        drawn[linear_probe.balanced_draw(TRAIN[1], 10, 0, draw)] += 1
    assert abs(drawn / 300 - 1 / 3).max() < 5 * np.sqrt(2 / 9 / 300)  # each image equally often
    # The draws rest on these bits: Random123's known answer for Philox4x64-10, counter 0 and key 0.
    before = np.full(4, 2**64 - 1, np.uint64)  # NumPy counts up before it draws
    bits = np.random.Philox(key=[0, 0], counter=before).random_raw(4)
    known = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    np.testing.assert_array_equal(bits, np.array(known, np.uint64))


def test_sgd_full_batch_reaches_scikit_learns_optimum():
    C, n = 0.5, len(TRAIN[1])
    train, test = standardized(TRAIN[0], TEST[0])
    theirs = optimum(train, TRAIN[1], C)
    options = dict(
        standardize=True, weight_decay=1 / (C * n), batch_size=n, epochs=400, learning_rate=0.5 * 256 / n
    )
    found = linear_probe.sgd(*TRAIN, *TEST, **options)
    assert found["top1"] == pytest.approx(theirs.score(test, TEST[1]))
    cross_entropy = -np.log(theirs.predict_proba(train)[np.arange(n), TRAIN[1]]).mean()
    assert found["train_loss"] == pytest.approx(cross_entropy, rel=1e-5)


def test_sgd_in_batches_nears_the_optimum_and_judges_the_last_epoch():
    train, test = standardized(TRAIN[0], TEST[0])
    theirs = optimum(train, TRAIN[1], 0.5)
    options = dict(standardize=True, weight_decay=1 / (0.5 * 90), batch_size=32, learning_rate=1.0)
    found = linear_probe.sgd(*TRAIN, *TEST, epochs=100, **options)
    assert found["top1"] == pytest.approx(theirs.score(test, TEST[1]), abs=0.011)
    assert found == linear_probe.sgd(*TRAIN, *TEST, epochs=100, **options)  # compiled before, the same bits
    worse = linear_probe.sgd(
        *TRAIN, TEST[0], 2 - TEST[1], epochs=100, **options
    )  # the test set chooses nothing
    assert worse["train_loss"] == found["train_loss"]
    assert "100 epochs (the last is evaluated)" in found["protocol"] and json.dumps(found)


@pytest.mark.parametrize("schedule, nesterov", [("cosine", True), ("step", False), ("constant", True)])
def test_sgd_is_the_written_rule(schedule, nesterov):
    """The same steps in NumPy, float64: order, rate, momentum, decay, and where the last block ends."""
    batch, epochs, decay, momentum, n = 40, 2, 0.01, 0.9, 90
    steps = int(np.ceil(epochs * n / batch))  # 4.5 -> 5 steps; blocks of 3
    options = dict(
        schedule=schedule, nesterov=nesterov, learning_rate=2.0, momentum=momentum, weight_decay=decay
    )
    with jax.enable_x64(True):
        found = linear_probe.sgd(
            TRAIN[0].astype(np.float64), TRAIN[1], *TEST, batch_size=batch, epochs=epochs, seed=7, **options
        )
        weight = 0.01 * np.asarray(jax.random.normal(jax.random.key(7), (5, 3), np.float64))
    stream = np.concatenate(
        [np.argsort(np.random.Philox(key=[7, e]).random_raw(n), kind="stable") for e in range(3)]
    )
    bias, memory, losses = np.zeros(3), [0.0, 0.0], []
    for step in range(steps):
        rows = stream[step * batch : (step + 1) * batch]
        logits = TRAIN[0][rows].astype(np.float64) @ weight + bias
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        losses.append(-np.log(p[np.arange(batch), TRAIN[1][rows]]).mean())
        residual = (p - np.eye(3)[TRAIN[1][rows]]) / batch
        gradients = [TRAIN[0][rows].T @ residual + decay * weight, residual.sum(0)]
        memory = [momentum * m + g for m, g in zip(memory, gradients, strict=True)]
        update = [g + momentum * m if nesterov else m for g, m in zip(gradients, memory, strict=True)]
        done = step / steps
        factor = {
            "cosine": 0.5 * (1 + np.cos(np.pi * done)),
            "step": 1.0 if done < 0.6 else 0.1 if done < 0.8 else 0.01,
            "constant": 1.0,
        }[schedule]
        rate = 2.0 * batch / 256 * factor
        weight, bias = weight - rate * update[0], bias - rate * update[1]
    assert found["train_loss"] == pytest.approx(np.mean(losses[-3:]), rel=1e-6)
    predicted = (TEST[0] @ weight + bias).argmax(1)
    assert found["top1"] == pytest.approx((predicted == TEST[1]).mean())


@pytest.mark.parametrize(
    "probe, option, sentence",
    [
        ("lbfgs", dict(C=0), "C is 0; it must be positive"),
        ("lbfgs", dict(draws=0), "draws is 0"),
        (
            "lbfgs",
            dict(labels_per_class=2, Cs=(0.1, 1.0)),
            r"labels_per_class is 2 and Cs is \(0.1, 1.0\).*set C",
        ),
        ("lbfgs", dict(tolerance=-1), "tolerance is -1"),
        ("lbfgs", dict(labels_per_class=-1), "labels_per_class is -1; it must be at least 0"),
        ("lbfgs", dict(labels_per_class=31), "labels_per_class is 31; it must be at most 30"),
        ("sgd", dict(learning_rate=float("nan")), "learning_rate is nan"),
        ("sgd", dict(schedule="linear"), "schedule is 'linear'; it must be one of cosine, step, constant"),
        ("sgd", dict(momentum=1.0), "momentum is 1.0"),
        ("sgd", dict(weight_decay=-1.0), "weight_decay is -1.0"),
        ("sgd", dict(batch_size=91), "batch_size is 91; it must be at most 90"),
        ("sgd", dict(epochs=0), "epochs is 0"),
    ],
)
def test_bad_options(probe, option, sentence):
    with pytest.raises(ValueError, match=sentence):
        getattr(linear_probe, probe)(*TRAIN, *TEST, **option)


def test_sgd_on_a_mesh_is_the_same():
    options = dict(batch_size=30, epochs=3)
    one = linear_probe.sgd(*TRAIN, *TEST, **options)
    with jax.set_mesh(sharding.make_mesh()):
        eight = linear_probe.sgd(*TRAIN, *TEST, **options)
    assert eight["train_loss"] == pytest.approx(one["train_loss"], rel=1e-6) and eight["top1"] == one["top1"]


def test_one_class_against_the_rest_is_scikit_learns():
    several = np.stack([TRAIN[1] == 0, TRAIN[1] >= 1, np.zeros(90)], axis=1).astype(np.uint8)
    test_several = np.stack([TEST[1] == 0, TEST[1] >= 1, TEST[1] == 5], axis=1).astype(np.uint8)
    found = linear_probe.lbfgs(TRAIN[0], several, TEST[0], test_several, tolerance=1e-8)
    train, test = standardized(TRAIN[0], TEST[0])
    ranked = [
        average_precision_score(test_several[:, c], optimum(train, several[:, c]).decision_function(test))
        for c in range(2)
    ]
    assert found["converged"] and "one class against the rest" in found["protocol"]
    assert found["mean_average_precision"] == pytest.approx(np.mean(ranked), abs=1e-6)


def test_C_is_chosen_on_a_tenth_of_the_training_images_alone():
    Cs = (1e-4, 0.1, 1e3)
    found = linear_probe.lbfgs(*TRAIN, *TEST, Cs=Cs)
    aside = linear_probe.validation_rows(TRAIN[1])
    assert aside.sum() == 9 and set(np.bincount(TRAIN[1][aside])) == {3}
    train, _ = standardized(TRAIN[0], TEST[0])
    worth = [optimum(train[~aside], TRAIN[1][~aside], C).score(train[aside], TRAIN[1][aside]) for C in Cs]
    assert found["settings"]["C"] == Cs[int(np.argmax(worth))]
    assert found["top1"] == linear_probe.lbfgs(*TRAIN, *TEST, C=found["settings"]["C"])["top1"]
    assert linear_probe.lbfgs(*TRAIN, TEST[0], 2 - TEST[1], Cs=Cs)["settings"]["C"] == found["settings"]["C"]


def copies():
    """30 images of noise with labels by chance, four copies of each: a classifier can but remember."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), 4)
    return rng.normal(size=(30, 40))[groups], rng.integers(0, 2, 30)[groups], groups


def test_copies_of_an_image_never_choose_what_others_learnt():
    """By copies of what it has learnt the weakest penalty is the best; by other images it is not."""
    x, y, groups = copies()
    aside = linear_probe.validation_rows(y, groups)
    assert 0 < aside.sum() < 30 and not set(groups[aside]) & set(groups[~aside])
    Cs = (1e-6, 1e3)  # the first predicts the larger class
    chosen = [linear_probe.lbfgs(x, y, x, y, Cs=Cs, groups=g)["settings"]["C"] for g in (None, groups)]
    assert chosen == [1e3, 1e-6]
    labels = np.repeat([0, 1], (8, 2))
    assert linear_probe.validation_rows(labels, np.repeat(np.arange(5), 2))[:8].sum() == 2
    with pytest.raises(ValueError, match="no group of training images can be held out"):
        linear_probe.validation_rows(labels, labels)


def test_a_share_of_every_class_is_fixed_nested_and_the_draws_order():
    labels = np.repeat(np.arange(3), (100, 40, 7))
    rows = linear_probe.balanced_share(labels, 0.1, 0)
    np.testing.assert_array_equal(np.bincount(labels[rows]), [10, 4, 1])
    assert set(linear_probe.balanced_share(labels, 0.01, 0)) < set(rows)
    assert len(linear_probe.balanced_share(labels, 1.0, 0)) == len(labels)
    equal = np.arange(90) % 3
    np.testing.assert_array_equal(
        linear_probe.balanced_share(equal, 0.2, 5), linear_probe.balanced_draw(equal, 6, 5, 0)
    )
    assert not np.array_equal(rows, linear_probe.balanced_share(labels, 0.1, 1))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_trained_to_convergence_is_the_optimum_to_1e_6(optimizer):
    """Logistic regression without a penalty, in float64, by any protocol that trains until the loss stands."""
    theirs = LogisticRegression(C=np.inf, solver="newton-cg", tol=1e-12, max_iter=1000)
    plan = linear_probe.Plan(
        optimizer, 0.05 if optimizer == "adam" else 2.0, "none", "constant", nesterov=False,
        batch_size=90, epochs=4000, tolerance=1e-13, patience=20,
    )  # fmt: skip
    theirs.fit(TRAIN[0].astype(np.float64), TRAIN[1])
    expected = -np.log(theirs.predict_proba(TRAIN[0])[np.arange(90), TRAIN[1]]).mean()
    with jax.enable_x64(True):
        found = linear_probe.by_gradient(TRAIN[0].astype(np.float64), TRAIN[1], *TEST, plan)
    assert found["converged"] and found["train_loss"] == pytest.approx(expected, abs=1e-6)
    assert found["top1"] == pytest.approx(theirs.score(*TEST), abs=1e-6)


def test_the_rate_is_chosen_on_a_tenth_of_the_training_images():
    plan = linear_probe.Plan(batch_size=30, epochs=5)
    found = linear_probe.by_gradient(*TRAIN, *TEST, plan, learning_rates=(1e-6, 1.0))
    assert found["settings"]["learning_rate"] == 1.0 and "best of 2 rates" in found["protocol"]


@pytest.mark.parametrize("several", [False, True])
def test_a_rate_that_diverges_is_never_chosen(several):
    """A classifier of NaN scored the share of class 0, and could win."""
    labels = [np.zeros(len(x[1]), int) for x in (TRAIN, TEST)]
    for label in labels:
        label[:3] = 1
    if several:
        labels = [np.eye(2, dtype=int)[label] for label in labels]
    plan = linear_probe.Plan(batch_size=30, epochs=5)
    arrays = (TRAIN[0] * 1e3, labels[0], TEST[0] * 1e3, labels[1])
    found = linear_probe.by_gradient(*arrays, plan, learning_rates=(1e38, 1e-6))
    assert found["settings"]["learning_rate"] == 1e-6


def test_something_is_set_aside_also_of_few_images():
    """A tenth of four is none: the first of the values was taken, and said to be chosen."""
    labels = np.repeat(np.arange(3), 4)
    aside = linear_probe.validation_rows(labels)
    assert np.bincount(labels[aside], minlength=3).tolist() == [1, 1, 1]
    assert linear_probe.validation_rows(np.eye(4, dtype=int)).sum() == 1
    assert linear_probe.validation_rows(np.array([0, 0, 1])).tolist()[2] is False
    labels, groups = np.array([0] * 10 + [1] * 2), np.array([0] * 11 + [1])
    assert np.flatnonzero(linear_probe.validation_rows(labels, groups)).tolist() == [
        11
    ]  # not the large group
    with pytest.raises(ValueError, match="no training image can be held out"):
        linear_probe.validation_rows(np.arange(3))


def test_labels_that_tell_nothing_apart_are_refused():
    same = np.tile([1, 0], (90, 1))
    with pytest.raises(ValueError, match="the labels do not distinguish training images"):
        linear_probe.lbfgs(TRAIN[0], same, TRAIN[0], same)


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="one class only"):
        linear_probe.lbfgs(TRAIN[0], np.zeros(90, int), *TEST)
