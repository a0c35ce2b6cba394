"""How concentrated the classes are, as a column of ``evaluators``: of the test images, at any layer."""

import statistics

from contrastive_jax.evaluators import geometry
from contrastive_jax.evaluators.subject import Facts


def concentration(facts: Facts, *, layer: str = "pooled"):
    """Median over classes of the intra-class distance, and the silhouette (Less can be more, section 3).

    Args:
      facts: what is known before features are.
      layer: whose L2-normalised output is measured; the paper does not say: the one that the classifier reads.
    """
    if layer not in facts.layers:
        raise ValueError(f"layer is {layer!r}; this network has {', '.join(facts.layers)}.")

    def evaluate(subject):
        _, _, test, labels = subject.arrays(layer)
        features = test.numpy()
        return {
            "distance": statistics.median(geometry.intra_class_distance(features, labels).values()),
            "silhouette": geometry.silhouette(features, labels),
            "protocol": f"L2-normalised, Euclidean, the {len(labels)} test images, layer {subject.layer(layer)}",
            "settings": {"layer": layer, "images": len(labels)},
        }

    return evaluate
