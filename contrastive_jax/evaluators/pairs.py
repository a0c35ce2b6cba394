"""Evaluation of pairs: how well the embeddings of one array find those of the other.

Like the protocols, these functions are found by name and take :class:`~.evaluation_data.EvalSpec`; they return
``evaluate(embedded)``, which takes the test pairs' embeddings by both encoders, :class:`Embedded`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from contrastive_jax.evaluators import retrieval
from contrastive_jax.evaluators.evaluation_data import EvalSpec
from contrastive_jax.evaluators.features import NotFinite as _NotFinite
from contrastive_jax.losses.geometry import directions


class Embedded(NamedTuple):
    """Test pairs: embeddings of one width, and numbers by which equal arrays are known."""

    name: str  # row of the table
    first: np.ndarray  # [n, D]
    second: np.ndarray  # [n, D]
    first_item: np.ndarray  # [n] int; equal arrays have equal numbers
    second_item: np.ndarray  # [n] int
    group: np.ndarray  # [n] int
    layer: str  # layer of the embeddings
    held: str = "test"  # or validation: what the pairs were held out for


EQUAL = 1e-6  # largest difference of unit vectors that is rounding in float32
Evaluate = Callable[[Embedded], dict]


def pair_retrieval(facts: EvalSpec) -> Evaluate:
    """Recall@1, 5 and 10 of test pairs, both ways, by the cosine of the last projections, beside chance.

    ``to_second_at_1`` is the share of first arrays whose nearest second array is right: of a pair with it, or of its
    group. See :func:`retrieval.cross_retrieval`.

    Args:
      facts: facts about the data and encoders that are known before features are computed.
    """

    def evaluate(embedded):
        if not (np.isfinite(embedded.first).all() and np.isfinite(embedded.second).all()):
            raise _NotFinite("the embeddings contain values that are not finite: the encoders have diverged.")
        for which, rows in (("first", embedded.first), ("second", embedded.second)):
            unit = directions(rows)
            if len(rows) > 1 and np.abs(unit - unit[0]).max() <= EQUAL:
                raise ValueError(
                    f"collapse: all embeddings of the {which} arrays are one point, so that no order is theirs."
                )
        found = retrieval.cross_retrieval(*embedded[1:6])
        return found | {
            "protocol": f"retrieval among {found['first_items']} first and {found['second_items']} second arrays of"
            f" {len(embedded.group)} {embedded.held} pairs, cosine, layer {embedded.layer}",
            "settings": {"layer": embedded.layer, "pairs": len(embedded.group)},
        }

    return evaluate
