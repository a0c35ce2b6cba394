"""Controls at scale `small`: what raw pixels reach without any training.

    python -m experiments.family.pixels run --scale=small          # CIFAR-10 at 16 x 16 pixels; skips what is done
    python -m experiments.family.pixels run --scale=small_mnist    # MNIST at 14 x 14 pixels
    python -m experiments.family.pixels render

The same classifiers as everywhere, of the images at the size that the networks see. kNN of MNIST's pixels is as good as
SimCLR's representation, so that all labels leave no headroom there. The network of the run trains one step and is not
judged.
"""

import sys

from experiments import harness

ROW, COLUMN = "raw pixels", "linear and kNN"
LINEAR = {"small": {"name": "lbfgs", "tolerance": 1e-4, "max_iterations": 300}}


def spec(scale: str) -> str:
    """Return the arguments of a scale: nothing is trained but a step, and raw pixels alone are judged."""
    judged = harness.screen(**{"linear": LINEAR[scale]} if scale in LINEAR else {})
    judged = judged.replace("('trained',)", "('raw pixels',)")
    return (
        f"configs/simclr_mnist.py:method=simclr,scale={scale}{judged}"
        " --config.train.duration='1 steps' --config.schedule.warmup='0 steps'"
    )


TABLE = harness.Table(
    __name__,
    __doc__,
    runs={scale: {(ROW, COLUMN): spec(scale)} for scale in harness.SMALL},
    metric={  # "?" is the blank
        "linear top-1, %": "raw?pixels.linear.top1 %",
        "kNN top-1, %": "raw?pixels.knn.top1 %",
        harness.FEW: "raw?pixels.few_labels.top1 %",
    },
    seeds=dict.fromkeys(harness.SCALES, (0,)),
    assumed={
        "everything": "no table of a paper; one seed, as nothing but the choice of 10 labels a class is drawn"
    },
)


if __name__ == "__main__":
    sys.exit(harness.main())
