"""Encoders written in Flax NNX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from contrastive_jax.models.encoder import Encoder
from contrastive_jax.types import Array, PyTree


def from_nnx(build: Callable[[Any], Any]) -> Encoder:
    """Return the encoder of a model that is called as ``model(images)``: [N, h, w, c] to features [N, F].

    Its ``nnx.Param`` are trained, its ``nnx.BatchStat`` are statistics of batch norm; ``model.train()`` or
    ``model.eval()`` is called before each pass.

    Args:
      build: ``rngs -> nnx.Module``, called with ``nnx.Rngs`` of the seed, once for every seed.

    Raises:
      ValueError: when the network is built, if ``build`` returns no NNX model, or one with further variables
        (dropout has random numbers of its own, which a training step does not provide).
    """
    from flax import nnx  # here, as the import takes half a second

    def parts(key: Array) -> tuple[Any, PyTree, PyTree]:
        model = build(nnx.Rngs(key))
        if not isinstance(model, nnx.Module):
            raise ValueError(
                f"models.from_nnx was given a function of a {type(model).__name__}, not of an nnx.Module."
            )
        graph, *states = nnx.split(model, nnx.Param, nnx.BatchStat, ...)
        params, stats, others = states
        if kinds := sorted({type(variable).__name__ for _, variable in nnx.to_flat_state(others)}):
            raise ValueError(f"its variables are {', '.join(kinds)} too; they must be Param and BatchStat.")
        return graph, params, stats

    def init(key: Array, images: Array) -> tuple[PyTree, PyTree]:
        _, params, stats = parts(key)
        return _named(nnx.to_pure_dict(params)), _named(nnx.to_pure_dict(stats))

    def apply(params: PyTree, stats: PyTree, images: Array, *, train: bool) -> tuple[Array, PyTree]:
        graph, *states = nnx.eval_shape(lambda: parts(jax.random.key(0)))
        for state, values in zip(states, (params, stats), strict=True):
            values = jax.tree.map(jnp.asarray, values)  # NNX would write into arrays of NumPy
            nnx.replace_by_pure_dict(state, _as_in(nnx.to_pure_dict(state), values))
        model = nnx.merge(graph, *states)
        if train:
            model.train()
        else:
            model.eval()
        features = model(images)
        return features, _named(nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)))

    return Encoder(init, apply)


def _as_in(like: PyTree, named: PyTree) -> PyTree:
    """Invert :func:`_named`: return ``named`` with the keys of ``like``, numbers and names."""
    return {k: _as_in(v, named[str(k)]) if isinstance(v, dict) else named[str(k)] for k, v in like.items()}


def _named(tree: PyTree) -> PyTree:
    """Return a tree with all keys as text for checkpoints; the keys of a list's elements are numbers."""
    return {str(k): _named(v) if isinstance(v, dict) else v for k, v in tree.items()}
