"""Encoders as pure functions from examples to features: of Flax linen, of Flax NNX, or written as such.

The function that ``encoder.name`` names is called as ``f(norm, dtype, **options)`` and returns an
:class:`Encoder`, or a Flax linen module whose ``__call__(images, train)`` returns the features.
"""

import functools
import inspect
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from contrastive_jax import native, sharding
from contrastive_jax.lookup import is_own
from contrastive_jax.models.resnet import ResNet
from contrastive_jax.models.vit import ViT
from contrastive_jax.types import Array, PyTree

Shape = jax.ShapeDtypeStruct  # shape of one view, such as float32 [h, w, c] for an image
STATISTICS = "batch_stats"


class Encoder(NamedTuple):
    """Encoder as two pure functions of arrays.

    ``params`` and ``stats`` are nested dictionaries of arrays. ``params`` are trained; ``stats`` (running
    statistics of batch norm) change in training without a gradient, and are ``{}`` if there are none.
    """

    init: Callable[
        [Array, Array], tuple[PyTree, PyTree]
    ]  # (key, views [1, ...], such as images [1, h, w, c] float32) -> (params, stats)
    apply: Callable  # (params, stats, views [N, ...], *, train) -> (features [N, F], stats)


class Component(NamedTuple):
    """Encoder as the network calls it; a shape is that of one view, with its type."""

    init: Callable[[int, Shape], tuple[PyTree, PyTree]]  # (seed, shape) -> (params, stats), NumPy arrays
    shapes: Callable[[Shape], tuple[PyTree, PyTree, int]]  # shape -> params and stats as shapes, features F
    apply: Callable  # (params, stats, images, members, *, train) -> (features, stats)
    scoped: bool  # whether its batch norms use the groups of rows set by ``norm.scope``


def component(made: Any, name: str) -> Component:
    """Wrap the result of an encoder's function, ``made``, in a :class:`Component`.

    Raises:
      ValueError: ``made`` is neither an :class:`Encoder` nor a linen module.
    """
    if isinstance(made, nn.Module):
        takes = inspect.signature(type(made).__call__).parameters
        scoped, encoder = "members" in takes, _of_linen(made, takes)
    elif isinstance(made, Encoder):
        scoped, encoder = False, Encoder(made.init, _without_members(made.apply))
    else:
        raise ValueError(
            f"encoder.name={name!r} returned a {type(made).__name__}; it must return a contrastive_jax.models.Encoder"
            " (models.from_nnx makes one of an NNX model) or a Flax linen module."
        )
    ours = isinstance(made, ResNet)  # other modules may use these names differently
    shapes = functools.partial(_shapes, encoder, made.features if ours else None)
    init = functools.partial(_init, encoder, made.draw if ours else None)
    if is_own(name):
        shapes, init = functools.partial(_named, name, shapes), functools.partial(_named, name, init)
    no_norm = isinstance(made, ViT)  # its statistics are frozen weights
    return Component(init, shapes, encoder.apply if scoped else _automatic(encoder.apply), scoped or no_norm)


def _of_linen(module: nn.Module, takes: Mapping[str, Any]) -> Encoder:
    def call(function, variables, images, members, train, **options):
        given = {"members": members, "train": train}
        return function(variables, images, **options, **{k: v for k, v in given.items() if k in takes})

    def init(key, images):
        variables_of = call(module.init, key, images, None, False)
        if other := sorted(variables_of.keys() - {"params", STATISTICS}):
            raise ValueError(f"its variables are {', '.join(other)}; they must be params and {STATISTICS}.")
        params, stats = variables_of.get("params", {}), variables_of.get(STATISTICS, {})
        if stats and "train" not in takes:
            raise ValueError(
                f"it has {STATISTICS}, so its __call__ needs an argument train, which is True if they"
                " are those of the batch."
            )
        return params, stats

    def apply(params, stats, images, members, *, train):
        variables = {"params": params, STATISTICS: stats}
        if not train:
            return call(module.apply, variables, images, members, False), stats
        features, new = call(module.apply, variables, images, members, True, mutable=[STATISTICS])
        return features, new.get(STATISTICS, {})

    return Encoder(init, apply)


def _without_members(apply: Callable) -> Callable:
    return lambda params, stats, images, members, *, train: apply(params, stats, images, train=train)


def _automatic(apply: Callable) -> Callable:
    """Wrap a function that is unaware of the mesh."""

    def call(params, stats, images, members, *, train):
        function = functools.partial(apply, members=None, train=train)
        specs = (sharding.rows_of(images), sharding.REPLICATED)
        return sharding.automatic(function, specs)(params, stats, images)

    return call


def _shapes(encoder: Encoder, features: int | None, view: Shape) -> tuple[PyTree, PyTree, int]:
    def images(count):
        return jax.ShapeDtypeStruct((count, *view.shape), view.dtype)

    params, stats = jax.eval_shape(encoder.init, jax.random.key(0), images(1))
    if features is not None:
        return params, stats, features
    for tree in (params, stats):
        _check_names(tree)
        _check_places(tree)
    for path, array in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"its parameter {_shown(path)} is {array.dtype}; parameters must be floating.")
    for path, array in jax.tree_util.tree_leaves_with_path(stats):
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):
            raise ValueError(
                f"its statistic {_shown(path)} is {array.dtype}; it must be numbers (use"
                " jax.random.key_data)."
            )
    train = functools.partial(encoder.apply, members=None, train=True)
    before = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, carried(x.dtype)), stats)
    shape, after = jax.eval_shape(train, params, before, images(2))
    if shape.ndim != 2 or len(shape) != 2:
        raise ValueError(f"for 2 images it returns {list(shape.shape)}; features must be [n, F].")
    if jax.tree.structure(after) != jax.tree.structure(before):  # type: ignore[operator]
        raise ValueError("the names of its statistics change in a training step; they must stay the same.")
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True
    ):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise ValueError(
                f"its statistic {_shown(path)} is {old.dtype}{list(old.shape)} before and"
                f" {new.dtype}{list(new.shape)} after a training step; it must stay the same."
            )
    return params, stats, shape.shape[1]


def carried(dtype: Any) -> Any:
    """Return the type of arrays of ``dtype`` in a run's state: floating types become float32 at least."""
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.floating) else dtype


def _shown(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _check_names(tree: PyTree) -> None:
    if not isinstance(tree, Mapping):
        raise ValueError(f"its arrays are in a {type(tree).__name__}; they must be in nested dictionaries.")
    for name, value in tree.items():
        if not isinstance(name, str):
            raise ValueError(
                f"the name of an array, or of a dictionary of arrays, is {name!r}; names must be text."
            )
        if not hasattr(value, "shape"):
            _check_names(value)


def _check_places(tree: PyTree) -> None:
    places: dict[str, str] = {}
    for path, array in jax.tree_util.tree_leaves_with_path(tree):
        other = places.setdefault(jax.tree_util.keystr(path, simple=True, separator="."), _shown(path))
        if other != _shown(path):
            raise ValueError(
                f"its arrays {other} and {_shown(path)} would have the same path in a checkpoint; use"
                " different names."
            )
        if 0 in array.shape:
            raise ValueError(
                f"its array {_shown(path)} is {list(array.shape)}; empty arrays cannot be saved."
            )


def _init(encoder: Encoder, draw: Callable | None, seed: int, view: Shape) -> tuple[PyTree, PyTree]:
    if draw is not None:
        params, stats, _ = _shapes(encoder, 0, view)
        return tuple(draw(seed, {"encoder": tree})["encoder"] for tree in (params, stats))
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(b"encoder"))
    return jax.device_get(
        native.jit(lambda key: encoder.init(key, jnp.zeros((1, *view.shape), view.dtype)))(key)
    )


def _named(name: str, function: Callable, *arguments: Any) -> Any:
    """Call a function of a user's encoder; its errors become ValueErrors that name the encoder."""
    try:
        return function(*arguments)
    except Exception as error:
        what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"encoder.name={name!r}: {what}") from error


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
                f"models.from_nnx: the function returned a {type(model).__name__}; it must return an"
                " nnx.Module."
            )
        graph, *states = nnx.split(model, nnx.Param, nnx.BatchStat, ...)
        params, stats, others = states
        if kinds := sorted({type(variable).__name__ for _, variable in nnx.to_flat_state(others)}):
            raise ValueError(
                f"its variables include {', '.join(kinds)}; they must be Param and BatchStat only."
            )
        return graph, params, stats

    def init(key: Array, images: Array) -> tuple[PyTree, PyTree]:
        _, params, stats = parts(key)
        return _text_keys(nnx.to_pure_dict(params)), _text_keys(nnx.to_pure_dict(stats))

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
        return features, _text_keys(nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)))

    return Encoder(init, apply)


def _as_in(like: PyTree, named: PyTree) -> PyTree:
    """Invert :func:`_text_keys`: return ``named`` with the keys of ``like``, numbers and names."""
    return {k: _as_in(v, named[str(k)]) if isinstance(v, dict) else named[str(k)] for k, v in like.items()}


def _text_keys(tree: PyTree) -> PyTree:
    """Return a tree with all keys as text for checkpoints; the keys of a list's elements are numbers."""
    return {str(k): _text_keys(v) if isinstance(v, dict) else v for k, v in tree.items()}
