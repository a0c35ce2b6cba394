"""Losses with one mistake each, of those that public code has made: what every check has to catch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

held = jax.lax.stop_gradient


def unit(x, np=np):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def lse(x, mask=True):
    with np.errstate(divide="ignore"):
        top = np.where(mask, x, -np.inf).max(1, keepdims=True)
        return top[:, 0] + np.log(np.where(mask, np.exp(x - top), 0).sum(1))


def scores(a, b, t, normal=unit):
    """The rows of both views against all rows: logits, each query's positive, and itself."""
    x = normal(np.concatenate([a, b]))
    n = len(a)
    return x @ x.T / t, np.roll(np.eye(2 * n, dtype=bool), n, axis=1), np.eye(2 * n, dtype=bool)


def nt_xent(a, b, temperature=0.2, normal=unit):
    """Right in float64, for mistakes around it."""
    logits, positive, own = scores(a, b, temperature, normal)
    return lse(logits, ~own) - logits[positive]


def in_place(a, b, temperature=0.2):
    """Right, and leaves its arguments normalised."""
    a /= np.linalg.norm(a, axis=1, keepdims=True)
    return nt_xent(a, b, temperature)


def clip(a, b, temperature):
    """Right, in JAX."""
    logits = unit(a, jnp) @ unit(b, jnp).T / temperature
    return -jnp.diag(jax.nn.log_softmax(logits, 1))


def binary_logarithm(a, b, temperature):
    return nt_xent(a, b, temperature) / np.log(2)


def another_temperature(a, b):
    return nt_xent(a, b, 0.1)


def keys_detached(a, b, temperature):
    return clip(a, held(b), temperature)


def two_logarithms(a, b, temperature):
    """DCL with the logarithm of each view's sum, added."""
    logits, positive, own = scores(a, b, temperature)
    n = len(a)
    same = np.kron(np.eye(2, dtype=bool), np.ones((n, n), bool))
    return lse(logits, same & ~own) + lse(logits, ~same & ~positive) - logits[positive]


def other_view_only(a, b, temperature):
    """Called NT-Xent."""
    logits = unit(a) @ unit(b).T / temperature
    return np.concatenate([lse(logits) - np.diag(logits), lse(logits.T) - np.diag(logits)])


def self_in_the_sum(a, b, temperature):
    logits, positive, _ = scores(a, b, temperature)
    return lse(logits) - logits[positive]


def positive_in_dcl(a, b, temperature):
    return nt_xent(a, b, temperature)


def equal_rows_masked(a, b, temperature):
    """The query is found by its score of 1, and so are its duplicates."""
    logits, positive, own = scores(a, b, temperature)
    return lse(logits, (logits * temperature < 1 - 1e-9) | positive) - logits[positive]


def supcon(embeddings, labels, temperature, reading="out", alone=True):
    x = unit(embeddings)
    logits, own = x @ x.T / temperature, np.eye(len(x), dtype=bool)
    alike = (labels[:, None] == labels) & ~own
    number = alike.sum(1)
    if reading == "in":
        value = lse(logits, ~own) - lse(logits, alike) + np.log(number)
        return value.mean()
    with np.errstate(invalid="ignore"):
        value = (np.where(alike, lse(logits, ~own)[:, None] - logits, 0)).sum(1) / number
    return value.mean()


def in_the_logarithm(embeddings, labels, temperature):
    return supcon(embeddings, labels, temperature, "in")


def divided_by_no_positives(embeddings, labels, temperature):
    return supcon(embeddings, labels, temperature)


def small_batches_skipped(a, b, temperature):
    return nt_xent(a, b, temperature) * (len(a) > 2)


def weighted_by_position(a, b, temperature):
    weight = np.arange(1.0, 2 * len(a) + 1)
    return nt_xent(a, b, temperature) * weight / weight.mean()


def not_transposed(a, b, temperature):
    """Both terms of a symmetric loss from the same side."""
    logits, positive, own = scores(a, b, temperature)
    value = (lse(logits, ~own) - logits[positive])[: len(a)]
    return (value + value) / 2


def long_rows_kept(a, b, temperature):
    return nt_xent(a, b, temperature, lambda x: x / np.minimum(np.linalg.norm(x, axis=1, keepdims=True), 5.0))


def norm_divides_by_zero(a, b, temperature):
    return clip(a, b, temperature)


def constant_in_the_norm(a, b, temperature):
    return nt_xent(a, b, temperature, lambda x: x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-6))


def exponentials(a, b, temperature):
    """No largest logit is subtracted."""
    scores = jnp.exp(unit(a, jnp) @ unit(b, jnp).T / temperature)
    return -jnp.log(jnp.diag(scores) / scores.sum(1))


def one_less_softmax(a, b, temperature):
    return clip(a, b, temperature)


def exponentials_in_half(a, b, temperature):
    """Of float16 rows the exponentials are rounded to float16: above 65,504 they are infinite."""
    scores = jnp.exp(unit(a, jnp) @ unit(b, jnp).T / temperature)
    if a.dtype == jnp.float16:
        scores = jax.lax.reduce_precision(scores, 5, 10)  # XLA keeps float32 between operations else
    return -jnp.log(jnp.diag(scores) / scores.sum(1))


def scores_in_half(a, b, temperature):
    logits = unit(a, jnp) @ unit(b, jnp).T / jnp.asarray(temperature, a.dtype)
    return -jnp.diag(jax.nn.log_softmax(logits, 1))


def temperature_held(a, b, temperature):
    return clip(a, b, held(temperature))


def weights_with_gradient(a, b, temperature, sigma=0.5):
    """DCLW whose weights are not detached."""
    x, y = unit(a, jnp), unit(b, jnp)
    n = len(a)
    s = jnp.sum(x * y, 1)
    weight = 2 - n * jax.nn.softmax(s / sigma)
    off = -jnp.inf * jnp.eye(n)
    off = jnp.where(jnp.eye(n, dtype=bool), off, 0)
    one = jax.nn.logsumexp(jnp.concatenate([x @ y.T / temperature + off, x @ x.T / temperature + off], 1), 1)
    two = jax.nn.logsumexp(jnp.concatenate([y @ x.T / temperature + off, y @ y.T / temperature + off], 1), 1)
    return jnp.concatenate([one, two]) - jnp.tile(weight * s / temperature, 2)


def nothing_held(a, b, temperature):
    """FlatNCE without its stop_gradient: 1, whatever the rows are."""
    return jnp.ones(len(a)) + 0 * clip(a, b, temperature)


def enqueued_before(a, b, queue, temperature):
    x, y, q = unit(a), unit(b), unit(np.concatenate([queue, b]))
    positive = (x * y).sum(1, keepdims=True) / temperature
    return lse(np.concatenate([positive, x @ q.T / temperature], 1)) - positive[:, 0]


def last_part_only(a, b, temperature, parts=1):
    """Micro-batches of which all but the last are cached without a gradient."""
    rows = len(a) // parts
    a, b = (jnp.concatenate([held(x[: len(x) - rows]), x[len(x) - rows :]]) for x in (a, b))
    return clip(a, b, temperature)


def gather(x, axis_name, gradient):
    everyone = jax.lax.all_gather(x, axis_name, tiled=True)
    if gradient:
        return everyone
    return jax.lax.dynamic_update_slice(held(everyone), x, (jax.lax.axis_index(axis_name) * len(x), 0))


def on_ranks(a, b, temperature, axis_name=None, gradient=True, factor=1.0, shifted=True):
    """CLIP's loss in one direction whose keys are gathered."""
    if axis_name is None:
        return clip(a, b, temperature)
    keys = unit(gather(b, axis_name, gradient), jnp)
    logits = unit(a, jnp) @ keys.T / temperature
    rows = jnp.arange(len(a)) + (jax.lax.axis_index(axis_name) * len(a) if shifted else 0)
    return -jax.nn.log_softmax(logits, 1)[jnp.arange(len(a)), rows] * factor


def gathered(a, b, temperature, axis_name=None):
    """Right."""
    return on_ranks(a, b, temperature, axis_name)


def gathered_detached(a, b, temperature, axis_name=None):
    return on_ranks(a, b, temperature, axis_name, gradient=False)


def positives_not_shifted(a, b, temperature, axis_name=None):
    return on_ranks(a, b, temperature, axis_name, shifted=False)


def divided_by_ranks(a, b, temperature, axis_name=None):
    """The right value, and 1 / ranks of the gradient."""
    if axis_name is None:
        return clip(a, b, temperature)
    value = on_ranks(a, b, temperature, axis_name)
    part = value / jax.lax.axis_size(axis_name)
    return held(value - part) + part


def differences(a, b, temperature):
    """Scores as a sum over an [N, N, D] array."""
    x, y = unit(a, jnp), unit(b, jnp)
    distance = ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1)
    return -jnp.diag(jax.nn.log_softmax((1 - distance / 2) / temperature, 1))


@functools.cache
def random():
    return np.random.default_rng(0)


def dropout(a, b, temperature):
    return nt_xent(
        a * (1 + 1e-5 * random().standard_normal()), b + 1e-5 * random().standard_normal(b.shape), temperature
    )
