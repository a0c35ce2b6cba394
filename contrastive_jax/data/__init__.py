"""Images, labels and their order.

``load`` says where images are (:mod:`sources`), ``Resident`` how a step gets them (:mod:`resident`), and
:mod:`order` in which order, for whatever feeds the step.
"""

from contrastive_jax.data.order import permutation, rows
from contrastive_jax.data.resident import Resident
from contrastive_jax.data.sources import load
from contrastive_jax.data.split import Source, Split

__all__ = ["Resident", "Source", "Split", "load", "permutation", "rows"]
