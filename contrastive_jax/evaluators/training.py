"""Training loop of the evaluators.

It trains linear classifiers on cached features or through the frozen encoder on augmented images, and whole
networks. A feed has two parts, as in :mod:`contrastive_jax.data.resident`: ``feed(step)`` on the host and
``take(arrays, step)`` inside the compiled step. The last iterate is evaluated; no choice uses the test set.
"""

import functools
import math
import typing
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

from contrastive_jax import augment, data, native, optim, sharding
from contrastive_jax.evaluators import progress
from contrastive_jax.evaluators.evaluation_data import Seed, check_seed
from contrastive_jax.evaluators.features import TILES, Rows
from contrastive_jax.kinds import Count, Decay, NonNegative, Positive, check_values
from contrastive_jax.types import Array, PyTree, record

Schedule = Literal["cosine", "step", "constant"]


class Plan(NamedTuple):
    """Options of a classifier's training, as in :mod:`optim.optimizers` and :mod:`optim.schedules`.

    ``schedule``: "cosine" to 0, "step" (times 0.1 at 60 % and at 80 %) or "constant"; no warm-up.
    ``scaling``: "linear" multiplies the learning rate by batch_size / 256, "none" does not. ``tolerance`` > 0
    trains to convergence: it stops after ``patience`` consecutive epochs whose mean training loss is not below
    the lowest so far by that fraction, or after ``epochs``.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: Positive = 0.1
    scaling: Literal["linear", "none"] = "linear"
    schedule: Schedule = "cosine"
    momentum: Decay = 0.9
    nesterov: bool = True
    weight_decay: NonNegative = 0.0
    batch_size: Count = 512
    epochs: Count = 100
    tolerance: NonNegative = 0.0
    patience: Count = 5
    seed: Seed = 0

    def check(self) -> "Plan":
        """Return the plan itself.

        Raises:
            ValueError: an option out of range.
        """
        check_values(typing.get_type_hints(Plan, include_extras=True), self._asdict())
        check_seed(self.seed)
        return self

    def steps(self, examples: int) -> int:
        """Return the total number of updates, rounded up."""
        return -(-self.epochs * examples // self.batch_size)

    def describe(self) -> str:
        """Return the plan's text in a protocol."""
        if self.optimizer == "sgd":
            rule = f"SGD, momentum {self.momentum:g}{' (Nesterov)' if self.nesterov else ''}"
        else:
            rule = f"Adam{f' with Nesterov momentum {self.momentum:g}' if self.nesterov else ''}"
        length = f"{self.epochs} epochs (the last is evaluated)"
        if self.tolerance:
            length = f"to convergence (within {self.tolerance:g} for {self.patience} epochs, at most {self.epochs})"
        scale = " x batch/256" if self.scaling == "linear" else ""
        return (
            f"{rule}, {length}, batch {self.batch_size}, learning rate {self.learning_rate:g}{scale}, "
            f"{self.schedule}, weight decay {self.weight_decay:g}"
        )


@record
class Examples:
    """Batch of a training step: B rows, on a mesh sharded over the devices."""

    x: Array  # [B, F] features, or [B, size, size, c] augmented images
    label: Array  # [B] int32, or [B, C]
    weight: Array  # [B]: 1, or 0 for padding


# ------------------------------------------------------------------------------------------------- feeds


@record
class Cached:
    """Cached rows, their labels, and the order of S steps."""

    tiles: Array  # [T, B, F], sharded as in :class:`features.Rows`
    label: Array  # [n, ...], on every device
    index: Array  # [S, batch] int32, -1 for padding


def take_cached(arrays: Cached, step: Array) -> Examples:
    """Look up the rows of a step.

    Each device looks up its own rows, and one reduce-scatter moves all rows to their devices. It is exact,
    since all summands but one are 0.
    """
    index = jax.lax.dynamic_index_in_dim(arrays.index, step % arrays.index.shape[0], keepdims=False)
    size = arrays.tiles.shape[1]

    def local(tiles, index, first):
        column = index % size - first
        mine = (index >= 0) & (column >= 0) & (column < tiles.shape[1])
        row = tiles[jnp.maximum(index, 0) // size, jnp.clip(column, 0, tiles.shape[1] - 1)]
        return jnp.where(mine[:, None], row, 0)

    def scattered(tiles, index):
        x = local(tiles, index, jax.lax.axis_index(sharding.AXIS) * tiles.shape[1])
        return jax.lax.psum_scatter(x, sharding.AXIS, scatter_dimension=0, tiled=True)

    if sharding.on_mesh():
        x = jax.shard_map(scattered, in_specs=(TILES, P()), out_specs=sharding.ROWS)(arrays.tiles, index)
    else:
        x = local(arrays.tiles, index, 0)
    index = sharding.shard_batch(index)
    label = arrays.label.at[jnp.maximum(index, 0)].get(out_sharding=sharding.rows_sharding())
    return Examples(x.astype(jnp.promote_types(x.dtype, jnp.float32)), label, (index >= 0).astype(x.dtype))


class CachedFeed:
    """Feed of the cached ``rows`` (None: all), in the order of :mod:`data.order`, with many steps per call."""

    take = staticmethod(take_cached)
    many = True

    def __init__(
        self, whole: Rows, labels: np.ndarray, *, batch_size: int, seed: int, rows: np.ndarray | None
    ):
        self.rows = np.arange(whole.count) if rows is None else np.asarray(rows)
        self.examples, self.batch_size, self.seed = len(self.rows), batch_size, seed
        self.steps = -(-self.examples // batch_size)
        self._tiles, self._labels = whole.tiles, _everywhere(_label_type(labels))

    def feed(self, step: int) -> Cached:
        """Return the arrays for the chunk of steps (about an epoch) that contains ``step``."""
        count = self.steps * self.batch_size
        order, _ = data.rows(self.seed, self.examples, step // self.steps * count, count)
        index = self.rows[order].reshape(self.steps, self.batch_size)
        fill = -self.batch_size % sharding.devices()
        index = np.pad(index, [(0, 0), (0, fill)], constant_values=-1)
        return Cached(self._tiles, self._labels, _everywhere(index.astype(np.int32)))


@functools.cache
def _take_views(take: Callable, view: Callable) -> Callable:
    def take_views(arrays, step):
        inner, seed = arrays
        batch = take(inner, step)
        keys = augment.example_keys(seed, batch.epoch, batch.id)
        views = jax.vmap(view)(keys, batch.image)
        return Examples(views[:, 0], batch.label, jnp.ones_like(batch.id, jnp.float32))

    return take_views


class ViewsFeed:
    """Feed of one random view per image of a split, drawn by seed, epoch and image; one step per call."""

    many = False

    def __init__(self, split: Any, view: augment.Views, plan: Plan):
        mesh = jax.sharding.get_mesh() if sharding.on_mesh() else None
        if plan.batch_size % sharding.devices():
            raise ValueError(
                f"batch_size is {plan.batch_size}; it must be a multiple of the {sharding.devices()} devices."
            )
        self.examples, self.batch_size = len(split), plan.batch_size
        self.steps = -(-self.examples // plan.batch_size)
        self._feed = data.feed(
            split,
            view=view,
            seed=plan.seed,
            batch_size=plan.batch_size,
            steps=plan.steps(self.examples),
            mesh=mesh,
        )
        self.take = _take_views(self._feed.take, split.finish(view))
        self._seed = _everywhere(np.uint32(plan.seed))

    def feed(self, step: int) -> tuple[PyTree, Array]:
        """Return the arrays of one step."""
        return self._feed.feed(step), self._seed

    def close(self) -> None:
        """End the processes that read images."""
        self._feed.close()


def _label_type(labels: np.ndarray) -> np.ndarray:
    return np.asarray(labels, np.float32 if np.ndim(labels) == 2 else np.int32)


def _everywhere(array: np.ndarray | np.generic) -> Array:
    if not sharding.on_mesh():
        return jnp.asarray(array)
    put = sharding.named(jax.sharding.get_mesh(), sharding.REPLICATED)
    return jax.make_array_from_callback(np.shape(array), put, lambda i: np.asarray(array)[i])


# -------------------------------------------------------------------------------------------------- loop


class Program(NamedTuple):
    """Static values of a step; ``forward(variables, extra, frozen, x) -> (logits [B, C], extra)``."""

    plan: Plan
    steps: int
    examples: int
    take: Callable
    forward: Callable


class Fitted(NamedTuple):
    """Result of training: final weights, loss of the last epoch, epochs, convergence."""

    variables: PyTree
    extra: PyTree
    train_loss: float  # mean over the steps of the last epoch
    epochs: float
    converged: bool


def fit(
    plan: Plan,
    feed: CachedFeed | ViewsFeed,
    forward: Callable,
    variables: PyTree,
    extra: PyTree = (),
    frozen: PyTree = (),
) -> Fitted:
    """Minimise the mean cross-entropy over ``variables``.

    For multi-label sets the loss is the mean over images of the sum of the classes' logistic losses. ``extra``
    is carried through ``forward``; ``frozen`` stays constant. Calls with the same function ``forward`` and
    shapes share one compiled program.
    """
    steps = plan.steps(feed.examples)
    program = Program(plan._replace(seed=0), steps, feed.examples, feed.take, forward)
    variables, extra = jax.tree.map(jnp.copy, (variables, extra))  # the originals survive donation
    state = (variables, extra, _optimizer(program).init(variables))
    previous: list[Array] = []
    recent: list[Array] = []
    best, waited, stop = math.inf, 0, 0
    for start in range(0, steps, feed.steps):
        stop, previous, recent = min(start + feed.steps, steps), recent, []
        if feed.many:
            arrays = feed.feed(start)
            state, loss = _advance(program, state, arrays, frozen, start, stop)
            recent = [loss[: stop - start]]
        else:
            for step in range(start, stop):
                state, loss = _one(program, state, feed.feed(step), frozen, step)
                recent.append(loss[None])
        progress.report("training steps", stop, steps)
        if plan.tolerance:
            mean = float(np.concatenate(jax.device_get(recent)).mean())
            waited = 0 if mean < best * (1 - plan.tolerance) else waited + 1
            best = min(best, mean)
            if waited == plan.patience:
                break
    last = np.concatenate(jax.device_get([*previous, *recent]))[-feed.steps :]
    epochs = stop * plan.batch_size / feed.examples
    return Fitted(*state[:2], float(last.mean()), epochs, waited == plan.patience if plan.tolerance else True)


def _optimizer(program: Program) -> optax.GradientTransformation:
    plan, steps = program.plan, program.steps
    # Two milestones at one step count once.
    milestones = tuple(sorted({max(1, -(-steps * tenths // 10)) for tenths in (6, 8)}))
    schedules: dict[str, Callable] = {
        "cosine": optim.cosine,
        "step": functools.partial(optim.step, milestones=milestones),
        "constant": optim.constant,
    }
    rate = schedules[plan.schedule](
        steps, plan.batch_size, learning_rate=plan.learning_rate, scaling=plan.scaling, warmup=0
    )
    rules = {
        "sgd": functools.partial(optim.sgd, momentum=plan.momentum),
        "adam": functools.partial(optim.adam, b1=plan.momentum),
    }
    return rules[plan.optimizer](
        rate, nesterov=plan.nesterov, weight_decay=plan.weight_decay, exclude=("bias", "norm")
    )


def _update(program, state, arrays, frozen, step):
    variables, extra, memory = state
    batch = program.take(arrays, step)

    def objective(variables):
        logits, carried = program.forward(variables, extra, frozen, batch.x)
        if batch.label.ndim == 2:
            each = optax.sigmoid_binary_cross_entropy(logits, batch.label.astype(logits.dtype)).sum(axis=-1)
        else:
            each = optax.softmax_cross_entropy_with_integer_labels(logits, batch.label)
        return jnp.sum(each * batch.weight) / program.plan.batch_size, carried

    (loss, extra), gradient = jax.value_and_grad(objective, has_aux=True)(variables)
    updates, memory = _optimizer(program).update(gradient, memory, variables)
    return (optax.apply_updates(variables, updates), extra, memory), loss


@native.jit(static_argnums=0, donate_argnums=1)
def _one(program, state, arrays, frozen, step):
    return _update(program, state, arrays, frozen, step)


@native.jit(static_argnums=0, donate_argnums=1)
def _advance(program, state, arrays, frozen, start, stop):
    """Run steps ``start`` to ``stop - 1`` in one program; the returned array begins with their losses."""
    dtype = jax.tree.leaves(state[0])[0].dtype
    losses = jnp.zeros(arrays.index.shape[0], dtype)

    def body(step, carry):
        state, losses = carry
        state, loss = _update(program, state, arrays, frozen, step)
        return state, losses.at[step - start].set(loss)

    return jax.lax.fori_loop(start, stop, body, (state, losses))


# ---------------------------------------------------------------------------------------------- forwards


def linear(variables, extra, frozen, x):
    """Compute logits of features ``[B, F]``."""
    del frozen
    logits = jnp.dot(x, variables["kernel"], precision=jax.lax.Precision.HIGHEST) + variables["bias"]
    return logits, extra


@functools.cache
def through(encode: Callable, layer: str) -> Callable:
    """Return a linear classifier's forward function on a layer of the frozen encoder (running statistics)."""

    def forward(variables, extra, frozen, x):
        features = encode(*frozen, x)[layer].reshape(x.shape[0], -1)
        return linear(variables, extra, (), features.astype(jnp.promote_types(features.dtype, jnp.float32)))

    return forward


def first_linear(width: int, classes: int, seed: int, dtype: Any = jnp.float32) -> PyTree:
    """Return a classifier's initial weights: kernel N(0, 0.01^2), bias 0 (MoCo's ``main_lincls.py``)."""
    kernel = 0.01 * jax.random.normal(jax.random.key(seed), (width, classes), dtype)
    return jax.tree.map(_everywhere, jax.device_get({"kernel": kernel, "bias": jnp.zeros(classes, dtype)}))


def linear_outputs(variables: PyTree, test: Rows) -> np.ndarray:
    """Compute logits ``[m, C]`` of features by tiles, on their devices."""
    return Rows(_logits(variables, test.tiles), test.count).numpy()


@native.jit
def _logits(variables, tiles):
    product = jnp.einsum("tbf,fc->tbc", tiles, variables["kernel"], precision=jax.lax.Precision.HIGHEST)
    return product + variables["bias"]
