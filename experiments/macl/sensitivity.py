"""MACL's semantic sensitivity as a column of ``evaluators``: of the test images, at any layer."""

from contrastive_jax.evaluators import geometry
from contrastive_jax.evaluators.subject import Facts, left_out


def semantic_sensitivity(facts: Facts, *, layer: str = "projection_2", self_pairs: bool = False):
    """S of MACL (Huang et al., 2022), eq. 7: see :func:`geometry.semantic_sensitivity`.

    Args:
      facts: what is known before features are.
      layer: whose output is measured; the paper does not say: the last of the projector, which the loss sees.
      self_pairs: whether an image is a pair with itself.
    """
    if layer not in facts.layers:
        raise ValueError(f"layer is {layer!r}; this network has {', '.join(facts.layers)}.")

    def evaluate(subject):
        if subject.encoder is None:
            return left_out("pixels have no layers")
        _, _, test, labels = subject.arrays(layer)
        pairs = "all pairs" if self_pairs else "distinct pairs"
        return {
            "S": geometry.semantic_sensitivity(test.numpy(), labels, self_pairs=self_pairs),
            "protocol": f"semantic sensitivity, {pairs} of one view of the {len(labels)} test images, layer {layer}",
            "settings": {"layer": layer, "self_pairs": self_pairs, "images": len(labels)},
        }

    return evaluate
