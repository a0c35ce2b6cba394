"""Linear classifiers on frozen features, trained to the optimum (L-BFGS) or by SGD or Adam.

All report the scores of the last iterate; no choice uses the test set.
"""

import functools
import math
import warnings
from typing import NamedTuple

import numpy as np

from contrastive_jax.data.split import stratified
from contrastive_jax.evaluators import features, training
from contrastive_jax.evaluators.features import Rows, Standardized, check, standardized
from contrastive_jax.evaluators.training import Plan

VALIDATION = 0.1  # share of the training images that are held out to choose an option
LARGEST = 4096  # largest side of a matrix that is decomposed


def lbfgs(
    train_features: np.ndarray | Rows,
    train_labels: np.ndarray,
    test_features: np.ndarray | Rows,
    test_labels: np.ndarray,
    *,
    C: float = 1.0,
    Cs: tuple[float, ...] = (),
    labels_per_class: int = 0,
    draws: int = 20,
    seed: int = 0,
    tolerance: float = 1e-5,
    max_iterations: int = 10_000,
    layer: str = "pooled",
    groups: np.ndarray | None = None,
) -> dict:
    """Multinomial logistic regression at its optimum (L-BFGS, float64).

    Minimises mean cross-entropy + |W|^2 / (2 C n) over n labelled images, with no penalty on the bias. Features
    are standardised with the mean and deviation of all training images, labelled or not. Multi-label sets have
    one such regression per class against the rest. Computed on the host, in its memory: features of at most
    ``features.HELD`` numbers are copied to float64 once; larger ones are converted block by block in each evaluation
    of the objective, so that the memory beyond them does not depend on n.

    Args:
        train_features: ``[n, F]``.
        train_labels: ``[n]`` integers from 0, or ``[n, C]`` of 0 and 1.
        test_features: ``[m, F]``.
        test_labels: ``[m]``, or ``[m, C]``.
        C: inverse strength of the l2 penalty, scikit-learn's default 1.
        Cs: candidates for C. The best on a fixed, stratified, held-out tenth of the training images (the first
            among equals) is used to train on all images; (): use ``C``. Not with ``labels_per_class``, which
            limits the labels that may be used.
        labels_per_class: number of training labels per class, drawn ``draws`` times; 0: all labels.
        draws: number of draws; used with ``labels_per_class``.
        seed: random seed; draw i depends on (seed, i) and the labels only.
        tolerance: largest absolute entry of the objective's gradient at which a fit counts as converged.
        max_iterations: maximum number of iterations of one fit.
        layer: name of the features, for the protocol.
        groups: ``[n]`` integers; training images of one group are near-duplicates, which ``Cs`` does not split
            between training and held-out images.

    Returns:
        ``{"top1", "mean_per_class", "converged", "protocol", "settings"}``, accuracies in [0, 1], and ``top5``
        for more than 5 classes; with draws their means, and with several draws ``top1_std``, ... (standard
        deviation of one draw, ddof 1). If a fit has not converged, ``converged`` is False, the protocol states
        it, and a warning is issued.

    Raises:
        ValueError: an option out of range, a class with fewer than ``labels_per_class`` labels, or arrays that
            :func:`features.check` refuses.
    """
    check(train_features, train_labels, test_features, test_labels)
    check_lbfgs(train_labels, C, Cs, labels_per_class, draws, tolerance, max_iterations)
    train_labels, chosen = features.whole_numbers(train_labels), C
    train, test = standardized(train_features, test_features)
    if Cs:
        chosen = _validated(Cs, train, train_labels, tolerance, max_iterations, groups)
    scores, gradients = [], []
    for draw in range(draws if labels_per_class else 1):
        rows, labels = train, train_labels
        if labels_per_class:
            subset = balanced_draw(train_labels, labels_per_class, seed, draw)
            rows, labels = features.chosen(train, subset), train_labels[subset]
        classify, gradient = _classifier(rows, labels, chosen, tolerance, max_iterations)
        scores.append(features.scores(classify(test), test_labels))
        gradients.append(gradient)

    result = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
    if len(scores) > 1:
        result |= {
            f"{name}_std": float(np.std([score[name] for score in scores], ddof=1)) for name in scores[0]
        }
    converged = max(gradients) <= tolerance
    amount = (
        f"{labels_per_class} labels per class, {draws} draw{'' if draws == 1 else 's'}"
        if labels_per_class
        else "all labels"
    )
    if train_labels.ndim == 2:
        amount += ", one class against the rest"
    state = "" if converged else f", NOT CONVERGED (gradient {max(gradients):.1e} > {tolerance:g})"
    how = f" (of {len(Cs)}, on a tenth of the training images)" if Cs else ""
    protocol = f"linear, {amount}, L-BFGS, C={chosen:g}{how}, standardised on the training images, layer {layer}{state}"
    if not converged:
        warnings.warn(f"{protocol}: raise max_iterations or tolerance", RuntimeWarning, stacklevel=2)
    settings = {
        "C": chosen,
        "Cs": list(Cs),
        "labels_per_class": labels_per_class,
        "draws": draws if labels_per_class else 1,
        "seed": seed,
        "tolerance": tolerance,
        "max_iterations": max_iterations,
        "layer": layer,
    }
    return {**result, "converged": bool(converged), "protocol": protocol, "settings": settings}


def check_lbfgs(labels, C, Cs, labels_per_class, draws, tolerance, max_iterations) -> None:
    """Refuse options that :func:`lbfgs` does not support with these labels (None: not known yet).

    Raises:
        ValueError: the message names the option and its value.
    """
    if draws != int(draws):
        raise ValueError(f"draws is {draws}; it must be a whole number.")
    _positive(C=C, draws=draws, tolerance=tolerance, max_iterations=max_iterations)
    for value in Cs:
        _positive(Cs=value)
    if labels_per_class < 0:
        raise ValueError(f"labels_per_class is {labels_per_class}; it must be at least 0 (0: all labels).")
    if labels_per_class and Cs:
        raise ValueError(
            f"labels_per_class is {labels_per_class} and Cs is {tuple(Cs)}; with few labels C cannot be"
            " chosen from a tenth of all labels: set C, or labels_per_class=0."
        )
    if labels is None:
        return
    if np.ndim(labels) == 2 and labels_per_class:
        raise ValueError(
            f"labels_per_class is {labels_per_class}; it must be 0, since the images have several labels."
        )
    if np.ndim(labels) == 1:
        classes, counts = np.unique(labels, return_counts=True)
        if len(classes) < 2:
            raise ValueError("train_labels contains one class only; a classifier needs at least two.")
        if labels_per_class > counts.min():
            raise ValueError(_too_few(labels_per_class, classes, counts))


def _too_few(labels_per_class, classes, counts) -> str:
    return (
        f"labels_per_class is {labels_per_class}; it must be at most {counts.min()}, the training"
        f" images of class {classes[counts.argmin()]}."
    )


def _validated(Cs, train, labels, tolerance, max_iterations, groups) -> float:
    """Return the C with the best top-1 or mean average precision on the held-out training images."""
    aside, worth = validation_rows(labels, groups), []
    others, held_out = (features.chosen(train, np.flatnonzero(mask)) for mask in (~aside, aside))
    for C in Cs:
        classify, _ = _classifier(others, labels[~aside], C, tolerance, max_iterations)
        score = features.scores(classify(held_out), labels[aside])
        worth.append(score["top1"] if "top1" in score else score["mean_average_precision"])
    return Cs[int(np.argmax(worth))]


def validation_rows(labels: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Return a mask ``[n]`` of a fixed tenth of the images to hold out, stratified by class for single labels.

    A class of two or more images has at least one in it, if possible. Groups ``[n]`` are held out as a whole.

    Raises:
        ValueError: no class has two images, or two groups.
    """
    kinds = labels if np.ndim(labels) == 1 else np.zeros(len(labels), int)
    of_group = np.arange(len(kinds)) if groups is None else np.asarray(groups)
    aside = stratified(kinds, VALIDATION, of_group)
    for kind in np.unique(kinds):
        here = kinds == kind
        if aside[here].any():
            continue
        for group in sorted(np.unique(of_group[here]), key=lambda group: np.sum(of_group == group)):
            more = aside | (of_group == group)
            if set(kinds[~more]) == set(kinds[~aside]):  # every class keeps training images
                aside = more
                break
    if not aside.any():
        one = "training image" if groups is None else "group of training images"
        raise ValueError(
            f"no {one} can be held out to choose among values, since each class has only one; set a single"
            " value."
        )
    return aside


def _classifier(train, labels, C, tolerance, max_iterations):
    """Return a function from features to outputs ``[m, C]``, larger for likelier classes, and the gradient."""
    if labels.ndim == 1:
        model, gradient = fit_lbfgs(train, labels, C, tolerance, max_iterations)
        return functools.partial(_outputs, model, class_count(labels)), gradient
    fits = {
        number: fit_lbfgs(train, column, C, tolerance, max_iterations)
        for number, column in enumerate(labels.T)
        if 0 < column.sum() < len(column)  # a constant label has output 0
    }

    if not fits:
        raise ValueError("the labels do not distinguish training images: each is on all of them or on none.")

    def outputs(x):
        decisions = np.zeros((len(x), labels.shape[1]))
        for number, (model, _) in fits.items():
            decisions[:, number] = _logits(model, x)[:, 1]
        return decisions

    return outputs, max(gradient for _, gradient in fits.values())


def _outputs(model: "Linear", classes: int, x: np.ndarray | Standardized) -> np.ndarray:
    """Return the logits of all class numbers, -inf for classes without training labels."""
    outputs = np.full((len(x), classes), -np.inf)
    outputs[:, model.classes] = _logits(model, x)
    return outputs


def _logits(model: "Linear", x: np.ndarray | Standardized) -> np.ndarray:
    return np.concatenate([model.logits(block) for block in features.blocks(x, len(model.classes))])


class Linear(NamedTuple):
    """A fitted classifier: ``weights [F, K]``, ``bias [K]`` and ``classes [K]``; one column for two classes."""

    weights: np.ndarray
    bias: np.ndarray
    classes: np.ndarray

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Compute logits ``[m, K]``; 0 for the first of two classes."""
        outputs = x @ self.weights + self.bias
        return np.hstack([np.zeros_like(outputs), outputs]) if len(self.classes) == 2 else outputs


def fit_lbfgs(
    x: np.ndarray | Standardized, labels: np.ndarray, C: float, tolerance: float, max_iterations: int
) -> tuple[Linear, float]:
    """Fit logistic regression; return the model and the largest absolute entry of the objective's gradient.

    The objective is that of :func:`lbfgs`, with a unique optimum. The search uses coordinates in which features
    are decorrelated: an encoder's features then need 10 to 20 times fewer iterations.

    Args:
        x: features ``[n, F]``, float64.
        labels: ``[n]`` integers, of two or more classes.
        C: inverse strength of the l2 penalty.
        tolerance: largest absolute entry of the gradient at which the fit ends.
        max_iterations: maximum number of iterations.
    """
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    classes, index = np.unique(labels, return_inverse=True)
    count, number = len(labels), len(classes)
    columns = number if number > 2 else 1  # two classes share one vector
    curvature = (number - 1) / number**2  # of cross-entropy for equally likely classes
    found, slope = Linear(np.empty(0), np.empty(0), classes), np.inf

    def objective(point):
        nonlocal found, slope
        *rows, bias = point.reshape(-1, columns)
        found = Linear(basis @ np.reshape(rows, (-1, columns)), bias / np.sqrt(curvature), classes)
        loss = np.sum(found.weights**2) / (2 * C * count)
        of_weights, of_bias = found.weights / (C * count), np.zeros(columns)
        first = 0
        for here in features.blocks(x, number):
            target = index[first : first + len(here), None] == np.arange(number)
            first += len(here)
            logits = found.logits(here)
            largest = logits.max(axis=1, keepdims=True)
            powers = np.exp(logits - largest)
            total = powers.sum(axis=1, keepdims=True)
            loss += np.sum((largest + np.log(total))[:, 0] - logits[target]) / count
            residual = ((powers / total - target) / count)[:, -columns:]
            of_weights += here.T @ residual
            of_bias += residual.sum(axis=0)
        slope = max(np.abs(of_weights).max(), np.abs(of_bias).max())
        return loss, np.vstack([basis.T @ of_weights, of_bias / np.sqrt(curvature)]).ravel()

    def stop(intermediate_result):
        if slope <= tolerance:
            raise StopIteration

    # For small products a second thread costs more than the product: 20 times as much on digits.
    with threadpool_limits(limits=1 if math.prod(x.shape) * number < 1e8 else None):
        basis = _decorrelating(x, curvature / count, 1 / (C * count))
        options = {"maxiter": max_iterations, "maxfun": np.inf, "maxls": 50, "gtol": 0, "ftol": 0}
        start = np.zeros((basis.shape[1] + 1) * columns)
        last = minimize(objective, start, jac=True, method="L-BFGS-B", callback=stop, options=options)
        objective(last.x)  # the line search's last point may be another one
    return found, slope


def _decorrelating(x: np.ndarray | Standardized, scale: float, ridge: float):
    """Return a basis ``[F, r]`` in which ``scale x^T x + ridge`` is the identity.

    Its columns span the rows of ``x``, and thus the optimum. If both sides of ``x`` are above 4,096, the
    decomposition would cost more than it saves: the result is then a multiple of the identity.
    """
    from scipy import linalg, sparse

    count, width = x.shape
    if min(count, width) > LARGEST:
        return sparse.eye_array(width) / np.sqrt(scale * count + ridge)
    if count >= width:
        values, vectors = linalg.eigh(sum(block.T @ block for block in features.blocks(x)))
    else:
        rows = x[:]  # as large as the basis
        values, vectors = linalg.eigh(rows @ rows.T)
        kept = values > np.finfo(float).eps * count * values[-1]
        values, vectors = values[kept], rows.T @ (vectors[:, kept] / np.sqrt(values[kept]))
    return vectors / np.sqrt(scale * np.maximum(values, 0) + ridge)


def balanced_share(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Return the sorted positions of ``fraction`` of the images of every class, at least one per class.

    These are the first of each class in the order of :func:`balanced_draw` for (seed, 0), so larger shares
    contain smaller ones.
    """
    order = np.argsort(np.random.Philox(key=[seed, 0]).random_raw(len(labels)), kind="stable")
    of_class = (order[labels[order] == name] for name in np.unique(labels))
    return np.sort(np.concatenate([rows[: max(1, int(fraction * len(rows) + 0.5))] for rows in of_class]))


def balanced_draw(labels: np.ndarray, labels_per_class: int, seed: int, draw: int) -> np.ndarray:
    """Draw the sorted positions of ``labels_per_class`` random images of every class.

    These are the first of each class in the order of (seed, draw): raw Philox bits, the same in every NumPy
    version. Draws with more labels contain those with fewer.

    Raises:
        ValueError: a class has too few images.
    """
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < labels_per_class:
        raise ValueError(_too_few(labels_per_class, classes, counts))
    order = np.argsort(np.random.Philox(key=[seed, draw]).random_raw(len(labels)), kind="stable")
    return np.sort(np.concatenate([order[labels[order] == name][:labels_per_class] for name in classes]))


def sgd(
    train_features: np.ndarray | Rows,
    train_labels: np.ndarray,
    test_features: np.ndarray | Rows,
    test_labels: np.ndarray,
    *,
    learning_rate: float = 0.1,
    schedule: training.Schedule = "cosine",
    momentum: float = 0.9,
    nesterov: bool = True,
    weight_decay: float = 0.0,
    batch_size: int = 512,
    epochs: int = 100,
    standardize: bool = False,
    seed: int = 0,
    layer: str = "pooled",
) -> dict:
    """Evaluate softmax regression, trained by SGD on cached features, after the last epoch.

    The defaults are those of SimCLR's code on CIFAR, without its crops and flips; published protocols are in
    :mod:`contrastive_jax.evaluators.protocols`. Initial weights have standard deviation 0.01, the bias is 0.
    The order of epoch e is that of raw Philox bits of (seed, e). Batches continue across epochs, so no
    remainder is dropped.

    Args:
        train_features: ``[n, F]``; on a mesh sharded over the devices.
        train_labels: ``[n]`` integers from 0, or ``[n, C]`` of 0 and 1.
        test_features: ``[m, F]``.
        test_labels: ``[m]``, or ``[m, C]``.
        learning_rate: learning rate for batch size 256; multiplied by ``batch_size / 256``.
        schedule: "cosine" to 0, "step" (times 0.1 at 60 % and at 80 %) or "constant"; no warm-up.
        momentum: momentum of SGD.
        nesterov: whether to use Nesterov momentum.
        weight_decay: coefficient of the l2 penalty ``weight_decay / 2 * |W|^2``, which excludes the bias.
        batch_size: number of images per step, at most n.
        epochs: number of passes over the training features.
        standardize: whether features are standardized to mean 0 and deviation 1 over the training images.
        seed: random seed of initial weights and order.
        layer: name of the features, for the protocol.

    Returns:
        The result of :func:`by_gradient`.

    Raises:
        ValueError: an option out of range, or arrays that :func:`features.check` refuses.
    """
    plan = Plan(
        learning_rate=learning_rate, schedule=schedule, momentum=momentum, nesterov=nesterov,
        weight_decay=weight_decay, batch_size=batch_size, epochs=epochs, seed=seed,
    )  # fmt: skip
    arrays = (train_features, train_labels, test_features, test_labels)
    check(*arrays)
    return by_gradient(*arrays, plan.check(), standardize=standardize, layer=layer)


def by_gradient(
    train_features: np.ndarray | Rows,
    train_labels: np.ndarray,
    test_features: np.ndarray | Rows,
    test_labels: np.ndarray,
    plan: Plan,
    *,
    name: str = "",
    standardize: bool = False,
    learning_rates: tuple[float, ...] = (),
    layer: str = "pooled",
    crop: float | None = None,
    groups: np.ndarray | None = None,
) -> dict:
    """Train a linear classifier by ``plan`` on cached features, without augmentation.

    ``name`` names the source in the protocol. With ``learning_rates``, the plan's learning rate is the
    candidate with the best score on a fixed, stratified, held-out tenth of the training images. ``crop`` is the
    crop of the features' images, for the protocol. ``groups`` are those of :func:`lbfgs`.

    Returns:
        ``{"top1", "mean_per_class", "train_loss", "epochs", "converged", "protocol", "settings"}``: accuracies
        in [0, 1], ``top5`` for more than 5 classes, ``train_loss`` as the mean cross-entropy of the last
        epoch's steps. Multi-label sets have the two mean average precisions instead of accuracies.

    Raises:
        ValueError: the batch size exceeds the number of training images, or the training loss is not finite.
    """
    n = len(train_labels)
    if plan.batch_size > n:
        raise ValueError(
            f"batch_size is {plan.batch_size}; it must be at most {n}, the number of training images."
        )
    train, test = features.spread(train_features), features.spread(test_features)
    if standardize:
        train, test = features.standardized_rows(train, test)
    if learning_rates:
        plan = plan._replace(learning_rate=_best_rate(train, train_labels, plan, learning_rates, groups))
    fitted = _fit_cached(train, train_labels, plan)
    outputs = training.linear_outputs(fitted.variables, test)
    return outcome(
        outputs, test_labels, fitted, plan,
        name=name, standardize=standardize, learning_rates=learning_rates, augment="", crop=crop, layer=layer,
    )  # fmt: skip


def _fit_cached(train: Rows, labels, plan: Plan, rows: np.ndarray | None = None) -> training.Fitted:
    feed = training.CachedFeed(train, labels, batch_size=plan.batch_size, seed=plan.seed, rows=rows)
    exact = np.promote_types(train.tiles.dtype, np.float32)
    first = training.first_linear(train.shape[1], class_count(labels), plan.seed, exact)
    return training.fit(plan, feed, training.linear, first)


def _best_rate(train: Rows, labels, plan: Plan, learning_rates, groups) -> float:
    aside, worth = validation_rows(labels, groups), []
    rows = np.flatnonzero(~aside)
    plan = plan._replace(batch_size=min(plan.batch_size, len(rows)))
    for rate in learning_rates:
        fitted = _fit_cached(train, labels, plan._replace(learning_rate=rate), rows)
        outputs = training.linear_outputs(fitted.variables, train)[aside]
        if not (math.isfinite(fitted.train_loss) and np.isfinite(outputs).all()):
            worth.append(-math.inf)  # it diverged
            continue
        score = features.scores(outputs, labels[aside])
        worth.append(score["top1"] if "top1" in score else score["mean_average_precision"])
    return learning_rates[int(np.argmax(worth))]


def class_count(labels: np.ndarray) -> int:
    """Return the number of outputs of a classifier of these labels."""
    return labels.shape[1] if np.ndim(labels) == 2 else int(np.max(labels)) + 1


def outcome(
    outputs, labels, fitted: training.Fitted, plan: Plan, *, name, layer, augment, crop=None, standardize=False,
    learning_rates=(), what="linear, all labels",
) -> dict:  # fmt: skip
    """Return the scores, protocol and settings of a classifier that was trained by ``plan``."""
    scaling = ", standardised on the training images" if standardize else ""
    chosen = (
        f" (best of {len(learning_rates)} rates on a tenth of the training images)" if learning_rates else ""
    )
    state = "" if fitted.converged else ", NOT CONVERGED"
    centre = f", the centred {crop:g} of {'test ' if augment else ''}images" if crop else ""
    protocol = (
        f"{what}, {f'{name}: ' if name else ''}{plan.describe()}{chosen}{scaling}, "
        f"{augment or 'no augmentation'}{centre}, layer {layer}{state}"
    )
    settings = plan._asdict() | {
        "standardize": standardize,
        "learning_rates": list(learning_rates),
        "augment": augment,
        "crop": crop,
        "layer": layer,
    }
    if not math.isfinite(fitted.train_loss):
        raise ValueError(f"{protocol}: the training loss is {fitted.train_loss}; use a lower learning_rate.")
    return {
        **features.scores(outputs, labels),
        "train_loss": fitted.train_loss,
        "epochs": fitted.epochs,
        "converged": fitted.converged,
        "protocol": protocol,
        "settings": settings,
    }


def _positive(**options) -> None:
    for name, value in options.items():
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be positive and finite.")
