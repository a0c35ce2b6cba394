"""Network of two encoders, one for each array of a pair, with embeddings of one width (CLIP, Radford et al., 2021)."""

import functools
import zlib

import jax.numpy as jnp

from contrastive_jax.models.network import Network, View
from contrastive_jax.types import Array, Outputs, PyTree

SECOND = "second_"  # before the names of the second encoder's modules
MODULES = ("encoder", "projector")  # modules that the second encoder has


def second_seed(seed: int) -> int:
    """Return the seed of the second encoder's weights, so that equal encoders begin with different ones."""
    return zlib.crc32(f"second encoder {seed}".encode())


def of_tower(tree: PyTree, number: int) -> PyTree:
    """Return the parameters or statistics of one encoder with its heads, as a network of its own has them."""
    if number == 0:
        return {name: part for name, part in tree.items() if not name.startswith(SECOND)}
    return {module: tree.get(SECOND + module, {}) for module in MODULES} | {"predictor": {}, "probe": {}}


def joined(first: PyTree, second: PyTree) -> PyTree:
    """Return the parameters or statistics of both encoders: the inverse of :func:`of_tower`."""
    return first | {SECOND + module: second[module] for module in MODULES}


@functools.lru_cache(maxsize=64)
def towers(first: Network, second: Network) -> Network:
    """Return the network of both encoders; equal networks give the same functions.

    A view is a tuple of two: the specs of both arrays. ``apply`` takes a tuple of one view [B, 1, ...] of each array;
    projections and predictions have W = 2, in this order. Features, whose widths may differ, are the first's.

    Args:
      first: network of the first arrays.
      second: network of the second arrays, without predictor, probe or critic.
    """
    functions = (_init, _shapes, _apply, _encode, _describe, _width)
    init, shapes, apply, *rest = (functools.partial(function, (first, second)) for function in functions)
    return Network(init, shapes, apply, first.critic, *rest)


Pair = tuple[Network, Network]
Views = tuple[View, View]


def _init(networks: Pair, seed: int, views: Views) -> tuple[PyTree, PyTree]:
    first, second = networks[0].init(seed, views[0]), networks[1].init(second_seed(seed), views[1])
    return joined(first[0], second[0]), joined(first[1], second[1])


def _shapes(networks: Pair, views: Views) -> tuple[PyTree, PyTree]:
    """Return the shapes of both.

    Raises:
      ValueError: an encoder cannot read its array.
    """
    first = networks[0].shapes(views[0])
    try:
        second = networks[1].shapes(views[1])
    except ValueError as error:
        raise ValueError(f"second_encoder: {error}") from None
    return joined(first[0], second[0]), joined(first[1], second[1])


def _apply(
    networks: Pair,
    params: PyTree,
    stats: PyTree,
    views: tuple[Array, Array],
    *,
    train: bool,
    groups: Array | None = None,
) -> tuple[Outputs, PyTree]:
    (one, new), (other, new_of_second) = (
        network.apply(of_tower(params, i), of_tower(stats, i), views[i], train=train, groups=groups)
        for i, network in enumerate(networks)
    )
    outputs = Outputs(
        features=one.features,
        projection=jnp.concatenate([one.projection, other.projection], axis=1),
        prediction=jnp.concatenate([one.prediction, other.prediction], axis=1),
        logits=one.logits,
    )
    return outputs, joined(new, new_of_second)


def _encode(
    networks: Pair, params: PyTree, stats: PyTree, examples: tuple[Array, Array]
) -> tuple[dict[str, Array], ...]:
    """Compute the features of both arrays: a tuple of two dictionaries."""
    return tuple(
        network.encode(of_tower(params, i), of_tower(stats, i), examples[i])
        for i, network in enumerate(networks)
    )


def _describe(networks: Pair, views: Views) -> tuple[list[tuple], dict[str, int]]:
    (rows, totals), (of_second, second_totals) = (
        network.describe(view) for network, view in zip(networks, views, strict=True)
    )
    rows += [(SECOND + module, *rest) for module, *rest in of_second if module in MODULES]
    return rows, totals | {SECOND + module: second_totals[module] for module in MODULES}


def _width(networks: Pair, views: Views) -> int:
    """Return the width of projections.

    Raises:
      ValueError: the two encoders' projections have different widths.
    """
    _shapes(networks, views)  # raises with the section's name
    first, second = (network.width(view) for network, view in zip(networks, views, strict=True))
    if first != second:
        raise ValueError(
            f"projector.out is 0, and the projections of encoder and second_encoder have widths {first} and {second};"
            " it must be one width for both, with projector.layers of at least 1."
        )
    return first
