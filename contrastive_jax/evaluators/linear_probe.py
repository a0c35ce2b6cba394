"""A linear classifier on frozen features: to the optimum (L-BFGS), or by the field's SGD.

Both read cached features: the encoder is not in the program, so it cannot be trained. Both report what the
last iterate scores; the test set chooses nothing.
"""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax

from contrastive_jax.evaluators.features import accuracy, check, standardized


def lbfgs(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    *,
    C: float = 1.0,
    labels_per_class: int = 0,
    draws: int = 20,
    seed: int = 0,
    tolerance: float = 1e-5,
    max_iterations: int = 10_000,
    layer: str = "pooled",
) -> dict:
    """Multinomial logistic regression at its optimum (scikit-learn, L-BFGS, float64).

    Minimises mean cross-entropy + |W|^2 / (2 C n) over n labelled images, the bias not penalised. Features
    are standardised with the mean and deviation of all training images, labelled or not.

    Args:
        train_features: ``[n, F]``.
        train_labels: ``[n]`` integers from 0.
        test_features: ``[m, F]``.
        test_labels: ``[m]``.
        C: inverse strength of the l2 penalty, scikit-learn's default 1.
        labels_per_class: 0 for all labels; m > 0 draws m labels of each class, ``draws`` times.
        draws: number of draws; used with ``labels_per_class``.
        seed: draw i is fixed by (seed, i) and the labels, whatever the features.
        tolerance: largest absolute entry of the objective's gradient at which a fit counts as converged.
        max_iterations: of one fit.
        layer: name of the features, for the protocol.

    Returns:
        ``{"top1", "mean_per_class", "converged", "protocol", "settings"}``, accuracies in [0, 1]; with draws
        the means over them, and ``top1_std``, ``mean_per_class_std`` (deviation of one draw, ddof 1). A fit
        that stops short is not hidden: ``converged`` is False, the protocol says so, and a warning is given.

    Raises:
        ValueError: an option out of its range, a class with fewer than ``labels_per_class`` labels, or
            arrays that :func:`features.check` refuses.
    """
    check(train_features, train_labels, test_features, test_labels)
    _positive(C=C, draws=draws, tolerance=tolerance, max_iterations=max_iterations)
    if labels_per_class < 0:
        raise ValueError(f"labels_per_class={labels_per_class} must be 0 (all labels) or more.")
    train_labels = np.asarray(train_labels)
    if len(np.unique(train_labels)) < 2:
        raise ValueError("train_labels holds one class only: a classifier needs two.")
    if labels_per_class:
        subsets = [balanced_draw(train_labels, labels_per_class, seed, draw) for draw in range(draws)]
    else:
        subsets = [np.arange(len(train_labels))]

    train, test = standardized(train_features, test_features)
    scores, gradients = [], []
    for subset in subsets:
        model, gradient = fit_lbfgs(train[subset], train_labels[subset], C, tolerance, max_iterations)
        scores.append(accuracy(model.predict(test), test_labels))
        gradients.append(gradient)

    result = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
    if labels_per_class:
        spread = 1 if draws > 1 else 0
        result |= {
            f"{name}_std": float(np.std([score[name] for score in scores], ddof=spread)) for name in scores[0]
        }
    converged = max(gradients) <= tolerance
    amount = f"{labels_per_class} labels per class, {draws} draws" if labels_per_class else "all labels"
    state = "" if converged else f", NOT CONVERGED (gradient {max(gradients):.1e} > {tolerance:g})"
    protocol = f"linear, {amount}, L-BFGS, C={C:g}, standardised on the training images, layer {layer}{state}"
    if not converged:
        warnings.warn(f"{protocol}: raise max_iterations or tolerance", RuntimeWarning, stacklevel=2)
    settings = {
        "C": C,
        "labels_per_class": labels_per_class,
        "draws": draws if labels_per_class else 1,
        "seed": seed,
        "tolerance": tolerance,
        "max_iterations": max_iterations,
        "layer": layer,
    }
    return {**result, "converged": bool(converged), "protocol": protocol, "settings": settings}


def fit_lbfgs(features, labels, C: float, tolerance: float, max_iterations: int):
    """The fitted ``LogisticRegression``, and the largest absolute entry of its gradient, which we compute.

    (scikit-learn's solver also stops where the loss no longer changes, and calls that convergence.)
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    # Below some size handing a product to a second thread costs more than the product: 20 times on digits.
    work = features.size * len(np.unique(labels))
    # The solver tests the same gradient; half leaves room for its rounding and ours.
    model = LogisticRegression(C=C, tol=tolerance / 2, max_iter=max_iterations)
    with threadpool_limits(limits=1 if work < 1e8 else None), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # judged by the gradient instead
        model.fit(features, labels)
        residual = model.predict_proba(features) - (labels[:, None] == model.classes_)
        residual = residual[:, -len(model.coef_) :]  # two classes share one vector, that of the second
        slope = (residual.T @ features + model.coef_ / C) / len(labels)
    return model, max(np.abs(slope).max(), np.abs(residual.mean(axis=0)).max())


def balanced_draw(labels: np.ndarray, labels_per_class: int, seed: int, draw: int) -> np.ndarray:
    """Positions of ``labels_per_class`` random images of every class, sorted.

    The first of each class in the order of (seed, draw): raw Philox bits, the same in every NumPy. Draws
    with more labels contain those with fewer.

    Raises:
        ValueError: a class has too few.
    """
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < labels_per_class:
        raise ValueError(
            f"labels_per_class={labels_per_class} is more than class {classes[counts.argmin()]} has: "
            f"{counts.min()} training images."
        )
    order = np.argsort(np.random.Philox(key=[seed, draw]).random_raw(len(labels)), kind="stable")
    return np.sort(np.concatenate([order[labels[order] == name][:labels_per_class] for name in classes]))


def sgd(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    *,
    learning_rate: float = 0.1,
    schedule: str = "cosine",
    momentum: float = 0.9,
    nesterov: bool = True,
    weight_decay: float = 0.0,
    batch_size: int = 512,
    epochs: int = 100,
    standardize: bool = False,
    seed: int = 0,
    layer: str = "pooled",
) -> dict:
    """Softmax regression by SGD on cached features, judged at the last epoch.

    The defaults are those of SimCLR's code on CIFAR, without its crops and flips. MoCo's on ImageNet (He et
    al., 2020, section 4.1) are ``learning_rate=30, schedule="step", nesterov=False, batch_size=256``. Weights
    start at N(0, 0.01), the bias at 0. Epoch e has the order of raw Philox bits of (seed, e); epochs follow
    one another without a break, so that no remainder of a batch is dropped.

    Args:
        train_features: ``[n, F]``.
        train_labels: ``[n]`` integers from 0.
        test_features: ``[m, F]``.
        test_labels: ``[m]``.
        learning_rate: at batch size 256; used as ``learning_rate * batch_size / 256``.
        schedule: "cosine" to 0, "step" (a tenth at 60 % and again at 80 %) or "constant"; no warm-up.
        momentum: of SGD.
        nesterov: Nesterov's form of the momentum.
        weight_decay: l2 penalty, ``weight_decay / 2 * |W|^2``; the bias has none.
        batch_size: images of one step, at most n.
        epochs: passes over the training features.
        standardize: first bring every feature to zero mean and unit deviation over the training images.
        seed: of the initial weights and the order.
        layer: name of the features, for the protocol.

    Returns:
        ``{"top1", "mean_per_class", "train_loss", "protocol", "settings"}``; accuracies in [0, 1],
        ``train_loss`` the mean cross-entropy of the last epoch's steps.

    Raises:
        ValueError: an option out of its range, or arrays that :func:`features.check` refuses.
    """
    check(train_features, train_labels, test_features, test_labels)
    _positive(learning_rate=learning_rate, batch_size=batch_size, epochs=epochs)
    if schedule not in _SCHEDULES:
        raise ValueError(f"schedule={schedule!r} must be one of {', '.join(_SCHEDULES)}.")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum} must be in [0, 1).")
    if not weight_decay >= 0:
        raise ValueError(f"weight_decay={weight_decay} must be 0 or more.")
    n = len(train_labels)
    if batch_size > n:
        raise ValueError(f"batch_size={batch_size} is more than the {n} training images.")
    settings = {
        "learning_rate": learning_rate,
        "schedule": schedule,
        "momentum": momentum,
        "nesterov": nesterov,
        "weight_decay": weight_decay,
        "batch_size": batch_size,
        "epochs": epochs,
        "standardize": standardize,
        "seed": seed,
        "layer": layer,
    }
    if standardize:
        train_features, test_features = standardized(train_features, test_features)
    features = jnp.asarray(train_features)
    features = features.astype(jnp.promote_types(features.dtype, jnp.float32))
    labels = jnp.asarray(train_labels, jnp.int32)

    steps = -(-epochs * n // batch_size)
    optimizer, train_block = _trainer(
        learning_rate * batch_size / 256, schedule, momentum, nesterov, weight_decay, steps
    )
    width, classes = features.shape[1], int(np.max(train_labels)) + 1
    params = {
        "weight": 0.01 * jax.random.normal(jax.random.key(seed), (width, classes), features.dtype),
        "bias": jnp.zeros(classes, features.dtype),
    }
    state = (params, optimizer.init(params))
    block = -(-n // batch_size)  # steps compiled as one program: an epoch, rounded up to whole steps
    losses = []
    for start in range(0, steps, block):
        rows = _stream(start * batch_size, block * batch_size, n, seed).reshape(block, batch_size)
        state, loss = train_block(state, features, labels, jnp.asarray(rows))
        losses.append(loss[: steps - start])  # the last block may run on, at learning rate 0
    params = jax.device_get(state[0])
    predicted = np.argmax(np.asarray(test_features) @ params["weight"] + params["bias"], axis=1)
    scaling = ", standardised on the training images" if standardize else ""
    memory = f"momentum {momentum:g}{' (Nesterov)' if nesterov else ''}"
    protocol = (
        f"linear, all labels, SGD, {epochs} epochs (the last is judged), batch {batch_size}, learning rate "
        f"{learning_rate:g} x batch/256, {schedule}, {memory}, "
        f"weight decay {weight_decay:g}{scaling}, no augmentation, layer {layer}"
    )
    train_loss = float(np.concatenate([np.asarray(loss) for loss in losses])[-block:].mean())
    return {
        **accuracy(predicted, test_labels),
        "train_loss": train_loss,
        "protocol": protocol,
        "settings": settings,
    }


_SCHEDULES = {
    "cosine": lambda progress: 0.5 * (1 + jnp.cos(jnp.pi * progress)),
    "step": lambda progress: jnp.where(progress < 0.6, 1.0, jnp.where(progress < 0.8, 0.1, 0.01)),
    "constant": lambda progress: jnp.ones_like(progress),
}


@functools.lru_cache(maxsize=8)
def _trainer(peak, schedule, momentum, nesterov, weight_decay, steps):
    """optimizer, train_block(state, features, labels, rows [S, B]) -> state, loss [S]."""

    def rate(step):
        return jnp.where(step < steps, peak * _SCHEDULES[schedule](step / steps), 0.0)

    optimizer = optax.chain(
        optax.add_decayed_weights(weight_decay, mask={"weight": True, "bias": False}),
        optax.sgd(rate, momentum=momentum, nesterov=nesterov),
    )

    def mean_cross_entropy(params, x, label):
        logits = jnp.dot(x, params["weight"], precision=jax.lax.Precision.HIGHEST) + params["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

    @jax.jit
    def train_block(state, features, labels, rows):
        def step(state, row):
            params, memory = state
            loss, gradient = jax.value_and_grad(mean_cross_entropy)(params, features[row], labels[row])
            update, memory = optimizer.update(gradient, memory, params)
            return (optax.apply_updates(params, update), memory), loss

        return jax.lax.scan(step, state, rows)

    return optimizer, train_block


def _stream(start: int, length: int, n: int, seed: int) -> np.ndarray:
    """Examples at ``length`` positions of the endless stream of epochs, from position ``start``."""
    position = np.arange(start, start + length)
    epochs = range(position[0] // n, position[-1] // n + 1)
    orders = [
        np.argsort(np.random.Philox(key=[seed, epoch]).random_raw(n), kind="stable") for epoch in epochs
    ]
    return np.concatenate(orders)[position - epochs[0] * n].astype(np.int32)


def _positive(**options) -> None:
    for name, value in options.items():
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value} must be positive and finite.")
