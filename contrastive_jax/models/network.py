"""Network of a method: encoder, projector, predictor, probe and second critic as pure functions of arrays."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from contrastive_jax import sharding, types
from contrastive_jax.lookup import call, find, functions_of, hashable, near, pick
from contrastive_jax.models import critics, encoders, heads, initial, microbatch
from contrastive_jax.models import norm as norms
from contrastive_jax.models.adapters import Component, component

Array = jax.Array
PyTree = types.PyTree
WITHOUT_CRITIC = {"name": "none"}
DTYPES = ("float32", "bfloat16", "float64")


View = tuple[int, ...] | jax.ShapeDtypeStruct


def spec(view: View) -> jax.ShapeDtypeStruct:
    """Return a view's shape with its type; a shape alone is of float32, like views of images."""
    return view if isinstance(view, jax.ShapeDtypeStruct) else jax.ShapeDtypeStruct(tuple(view), jnp.float32)


class Network(NamedTuple):
    """Pure functions of a network; ``params`` and ``stats`` are dicts: encoder, projector, predictor, probe.

    A module without parameters or statistics is an empty dict. A second critic is the fifth module, if used.
    """

    init: Callable  # (seed, view) -> (params, stats), float32 numpy arrays; a view: shape of float32, or spec
    shapes: Callable  # (view) -> (params, stats) as jax.ShapeDtypeStruct
    apply: Callable  # (params, stats, views [B, W, ...], *, train, groups=None) -> (Outputs, stats); several sizes of
    # views are a tuple of such arrays
    critic: Callable  # (params, query [B, V, D], key [B, V, D], score over tau [B, V]) -> u [B, V]; None if unused
    encode: Callable  # (params, stats, examples [B, ...]) -> {"pooled" [B, F], "projection_1" [B, ..], ...}
    describe: Callable  # (view) -> (rows of (module, path, shape, size), {module: size})
    width: Callable  # (view) -> D, the projection's width


class Modules(NamedTuple):
    """Modules of the network; hashable, so that functions and shapes made from them are cached."""

    encoder: Component
    projector: heads.Head
    predictor: heads.Head
    probe: heads.Dense | None
    critic: nn.Module | None
    probe_gradient: bool
    norm: norms.Norm
    dtype: Any


def network(
    *,
    encoder: dict,
    projector: dict,
    predictor: dict,
    classes: int,
    norm: dict,
    critic: Mapping[str, Any] = WITHOUT_CRITIC,
    probe_gradient: bool = False,
    dtype: str = "float32",
    microbatches: int = 1,
    remat: bool = False,
    functions: Mapping[str, Callable] = {},
) -> Network:
    """Build a network from its config sections; equal sections give the same functions.

    Args:
      encoder: ``name`` of a function of :mod:`encoders`, or ``module:function`` (default: resnet), and its
        options.
      projector: options of :func:`heads.projector`.
      predictor: options of :func:`heads.predictor`.
      classes: number of outputs of the online probe; 0: no probe.
      norm: options of :func:`norm.norm`.
      critic: ``name`` of a function of :mod:`critics`, or ``module:function``, and its options.
      probe_gradient: whether the probe's gradient flows into the features (supervised learning).
      dtype: type of convolutions and linear layers: "float32", "bfloat16" or "float64". Batch-norm statistics,
        normalisation, the probe and all outputs are float32, or float64 with "float64".
      microbatches: number of parts in which ``apply`` runs (:func:`microbatch.in_parts`).
      remat: whether the backward pass recomputes every block from its input.
      functions: functions that ``encoder`` and ``critic`` name, by section; others are looked up.

    Raises:
      ValueError: an option is out of its range, or unknown to the encoder or the critic.
      TypeError: an unknown option of ``norm`` or of a head.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}.")
    if dtype == "float64" and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise ValueError("dtype is 'float64'; it needs JAX_ENABLE_X64=1.")
    if classes < 0:
        raise ValueError(f"classes is {classes}; it must be at least 0.")
    options, compute = norms.norm(**norm), jnp.dtype(dtype)
    if microbatches < 1:
        raise ValueError(f"train.microbatches is {microbatches}; it must be at least 1.")
    if microbatches > 1 and options.scope == "groups":
        raise ValueError(
            f"norm.scope is 'groups' and train.microbatches is {microbatches}; micro-batches are norm"
            " groups themselves, so norm.scope must be joint or per_view."
        )
    known = functions.get("critic")
    second = (
        call(known, "critic", {k: v for k, v in critic.items() if k != "name"}, compute)
        if known
        else pick(critics, "critic", critic, compute)
    )
    if not isinstance(second, nn.Module | None):
        raise ValueError(
            f"critic.name={critic['name']!r} returned a {type(second).__name__}; it must return a Flax linen module."
        )
    whole = _network(
        Modules(
            _encoder(options, compute, remat, functions.get("encoder"), **encoder),
            heads.projector(options, compute, **projector),
            heads.predictor(options, compute, **predictor),
            heads.Dense(classes, True, jnp.promote_types(compute, jnp.float32)) if classes else None,
            second,
            probe_gradient,
            options,
            compute,
        )
    )
    return whole._replace(apply=_in_parts(whole.apply, microbatches)) if microbatches > 1 else whole


def _encoder(
    norm: norms.Norm, dtype: Any, remat: bool, known: Callable | None, *, name: str = "resnet", **options: Any
) -> Component:
    function = known or find(encoders, name, "encoder.name")
    if function is None:
        depth = re.fullmatch(r"resnet[-_ ]?(\d+)", str(name).lower())  # torchvision's names
        hint = f"Set encoder.depth={depth[1]}." if depth else near(name, functions_of(encoders))
        raise ValueError(f"encoder.name is {name!r}, which is unknown. {hint}")
    if remat and not _positional(function, "remat"):
        raise ValueError(
            f"train.remat is True; it must be False for encoder.name={name!r}, which has no argument remat"
            " after norm and dtype."
        )
    return encoder_of(function, name, norm, dtype, remat, hashable(options))


def _positional(function: Callable, name: str) -> bool:
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.kind is not parameter.KEYWORD_ONLY


@functools.lru_cache(maxsize=64)
def encoder_of(
    function: Callable, name: str, norm: norms.Norm, dtype: Any, remat: bool, options: tuple
) -> Component:
    """Return the encoder that a function makes with these options; equal arguments return the same object."""
    return component(call(function, "encoder", dict(options), norm, dtype, remat), name)


_in_parts = functools.lru_cache(maxsize=64)(microbatch.in_parts)  # equal sections give the same functions


@functools.lru_cache(maxsize=64)
def _network(modules: Modules) -> Network:
    functions = (_init, _shapes_of, _apply, _critic, _encode, _describe, _width)
    return Network(*(functools.partial(function, modules) for function in functions))


def _apply(
    modules: Modules,
    params: PyTree,
    stats: PyTree,
    views: Array | tuple[Array, ...],
    *,
    train: bool,
    groups: Array | None = None,
) -> tuple[types.Outputs, PyTree]:
    """Compute the outputs for every view, and the statistics: new ones if ``train``, else those given.

    ``views`` [B, W, ...] are in the encoder's form (images [h, w, c] float), on a mesh with rows over the
    devices; ``groups`` [B] int32 gives each example's norm group (scope "groups"). For one view pass
    ``views[:, :1]``; under jit, unused outputs are not computed. Raises ValueError if B does not split into the
    norm's groups.

    Views of several sizes are a tuple of such arrays. The encoder runs once for each of them, in turn, with batch
    norms of its own; the heads run once on all views, as in SwAV's and DINO's code. The outputs are those of all
    views in this order, but the probe's, which are of the first size.
    """
    sizes = views if isinstance(views, tuple) else (views,)
    sizes = tuple(map(sharding.shard_batch, sizes)) if train else sizes
    batch, width = sizes[0].shape[0], sum(each.shape[1] for each in sizes)
    new = dict(stats)

    def members_of(views: int) -> norms.Members | None:
        exact = jnp.promote_types(modules.dtype, jnp.float32)
        return norms.members(modules.norm, batch, views, groups, exact) if train else None

    members = members_of(width)

    def head(module, x):
        if not train:
            return _evaluate(modules, module, params, stats, x)
        variables = {"params": params[module], "batch_stats": stats[module]}
        y, updated = getattr(modules, module).apply(
            variables, x, members, train=True, mutable=["batch_stats"]
        )
        new[module] = updated.get("batch_stats", {})
        return y

    of_sizes: list[Array] = []
    for each in sizes:
        shared = members if len(sizes) == 1 else members_of(each.shape[1])
        images = each.reshape(-1, *each.shape[2:])
        features, new["encoder"] = _features(modules, params, new, images, shared, train=train)
        of_sizes.append(features)
    features = _of_all_sizes(of_sizes, batch)
    projection = (head("projector", features) or [features])[-1]
    prediction = (head("predictor", projection) or [projection])[-1]
    logits: Any = of_sizes[0][:, :0]
    if modules.probe:
        seen = of_sizes[0] if modules.probe_gradient else jax.lax.stop_gradient(of_sizes[0])
        logits = modules.probe.apply({"params": params["probe"]}, seen)
    counts = (*[width] * 3, sizes[0].shape[1])
    flat = zip((features, projection, prediction, logits), counts, strict=True)
    return types.Outputs(*(y.reshape(batch, views, y.shape[-1]) for y, views in flat)), new


def _of_all_sizes(features: list[Array], batch: int) -> Array:
    """Return the features of all views, [B W, F], from those of each size, [B W_i, F]."""
    if len(features) == 1:
        return features[0]
    whole = jnp.concatenate([y.reshape(batch, -1, y.shape[-1]) for y in features], axis=1)
    return whole.reshape(-1, whole.shape[-1])


def _critic(modules: Modules, params: PyTree, query: Array, key: Array, score: Array) -> Any:
    """Return u for every query, [B, V], or None without a second critic."""
    return modules.critic.apply({"params": params["critic"]}, query, key, score) if modules.critic else None


def _encode(modules: Modules, params: PyTree, stats: PyTree, images: Array) -> dict[str, Array]:
    """Compute features and all projector layers' outputs (hidden ones after ReLU), with running statistics."""
    pooled, _ = _features(modules, params, stats, images, None, train=False)
    layers = _evaluate(modules, "projector", params, stats, pooled)
    return {"pooled": pooled, **{f"projection_{i}": y for i, y in enumerate(layers, 1)}}


def _features(modules: Modules, params: PyTree, stats: PyTree, images: Array, members: Any, *, train: bool):
    features, new = modules.encoder.apply(params["encoder"], stats["encoder"], images, members, train=train)
    return features.astype(jnp.promote_types(modules.dtype, jnp.float32)), new


def _evaluate(modules: Modules, module: str, params: PyTree, stats: PyTree, x: Array):
    return getattr(modules, module).apply(
        {"params": params[module], "batch_stats": stats[module]}, x, None, train=False
    )


def _init(modules: Modules, seed: int, view: View) -> tuple[PyTree, PyTree]:
    """Draw initial parameters and statistics on the host.

    The heads' kernels are normal with variance 1 / fan-in, the probe's with standard deviation 0.01 (MoCo's
    protocol); norm scales and variances are 1, biases and means 0. The encoder initializes its own arrays.
    Raises ValueError if an image is too small for the encoder.
    """

    params, stats = _shapes_of(modules, view)
    arrays = modules.encoder.init(seed, spec(view))
    heads = ({name: module for name, module in tree.items() if name != "encoder"} for tree in (params, stats))
    drawn = (initial.draw(seed, tree, deviation=_deviation) for tree in heads)
    return tuple({"encoder": encoder} | rest for encoder, rest in zip(arrays, drawn, strict=True))


def _deviation(path: initial.Path, shape: tuple[int, ...]) -> float:
    return 0.01 if path[0] == "probe" else initial.fan_in(path, shape)


def _shapes_of(modules: Modules, view: View) -> tuple[PyTree, PyTree]:
    """Return the shapes of :func:`_init`'s arrays, without drawing weights."""
    shapes = _shapes(modules, spec(view))
    return shapes["params"], shapes["batch_stats"]


def _describe(modules: Modules, view: View) -> tuple[list[tuple], dict[str, int]]:
    """Return rows (module, path, shape, number of parameters), and the number of parameters per module."""

    def order(row):  # the stem first, block 2 before block 10
        return not row[1].startswith("stem"), [
            int(s) if s.isdecimal() else s for s in re.split(r"(\d+)", row[1])
        ]

    rows, totals = [], {}
    for module, tree in _shapes(modules, spec(view))["params"].items():
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        rows += sorted(
            ((module, "/".join(k.key for k in path), leaf.shape, leaf.size) for path, leaf in leaves),
            key=order,
        )
        totals[module] = sum(leaf.size for _, leaf in leaves)
    return rows, totals


def _width(modules: Modules, view: View) -> int:
    """Return the width of projections.

    Raises ValueError if predictions, which are compared with projections, have another width.
    """
    last = modules.projector.widths[-1] if modules.projector.widths else 0
    width = last or modules.encoder.shapes(spec(view))[2]
    predicted = modules.predictor.widths[-1] if modules.predictor.widths else 0
    if predicted not in (0, width):
        raise ValueError(
            f"predictor.out (or the last of predictor.widths) is {predicted}; it must be {width}, the"
            " width of the projection, or 0 for the same."
        )
    return width


@functools.lru_cache(maxsize=64)
def _shapes(modules: Modules, view: jax.ShapeDtypeStruct) -> dict[str, dict[str, dict]]:
    """Return {"params" | "batch_stats": {module: tree of ShapeDtypeStruct}}."""

    params, stats, width = modules.encoder.shapes(view)
    if stats and not modules.encoder.scoped and modules.norm.scope != "joint":
        raise ValueError(
            f"norm.scope is {modules.norm.scope!r}, which has no effect on the encoder's own batch"
            " norm: use joint, or contrastive_jax.models.BatchNorm in the encoder."
        )

    def variables(features):
        key = jax.random.key(0)  # no initialiser reads it
        projections, projector = modules.projector.init_with_output(key, features)
        projection = (projections or [features])[-1]
        shapes = {"projector": projector, "predictor": modules.predictor.init(key, projection)}
        shapes["probe"] = modules.probe.init(key, features) if modules.probe else {}
        if modules.critic:
            shapes["critic"] = modules.critic.init(
                key, projection[None], projection[None], projection[None, :, 0]
            )
        return {
            kind: {module: tree.get(kind, {}) for module, tree in shapes.items()}
            for kind in ("params", "batch_stats")
        }

    exact = jnp.promote_types(modules.dtype, jnp.float32)
    shapes = jax.eval_shape(variables, jax.ShapeDtypeStruct((1, width), exact))
    shapes = {
        kind: {"encoder": tree} | shapes[kind] for kind, tree in (("params", params), ("batch_stats", stats))
    }
    # without shardings, as the cached shapes also serve other meshes
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes)
