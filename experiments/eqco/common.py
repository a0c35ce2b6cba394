"""What EqCo's tables share: their assumptions, and the drawn lines."""

from collections.abc import Sequence

from experiments import harness

# Independence of K has one measure, the share of InfoNCE's dependence that is left with the margin, and one bound.
REMAINS = 0.1
LESS = 0.5  # "depends on K less", on either side: too large a margin turns the dependence round
LINEAR = "linear top-1, %"
METRIC = {LINEAR: "trained.linear.top1 %"}
MOCO_V2 = {
    "optimizer, schedule, head, batch norm": "MoCo v2's published code where the paper says 'the original settings':"
    " SGD 0.9, weight decay 1e-4, 0.03 x N / 256, cosine, tau 0.2, batch norm in 8 groups of 32, shuffled for keys",
    "classifier": "MoCo's: SGD, learning rate 30, 100 epochs",
}
SIMO = {
    "SiMo": "10 epochs of warm-up; batch norm on both layers of the head, the last without a bias; one random choice of"
    " negatives for all queries of a step (the first author's code); the rest as MoCo v2",
    "classifier": "MoCo's: SGD, learning rate 30, 100 epochs",
}


# The paper's optimizer, at small scales too; each cell chooses its rate, which grows linearly with the batch.
SGD = (
    " --config.schedule.scaling=linear"
    """ --config.optimizer="{'name': 'sgd', 'momentum': 0.9, 'weight_decay': 1e-4}\""""
)
SCREEN = SGD + harness.screen()
SWEEP = dict.fromkeys(harness.SMALL, {"schedule.learning_rate": (0.03, 0.1, 0.3, 1.0)})
ALSO, CHOOSES = harness.FEW_LABELS, harness.BY_FEW_LABELS
SMALL = "CIFAR-10 or MNIST, 5 epochs, batch 128 (127 other keys), momentum 0.99, SGD with warm-up and cosine"
SWEPT = f"{SMALL}; rate chosen for each cell from 0.03 to 1 x batch / 256, on MNIST by 10 labels a class"


def simo(k: int = 16, alpha: int = 256, overrides: str = "", scale: str = "paper") -> str:
    """Return the arguments of SiMo; K also as a leaf, since scale=cpu reduces a K as large as its batch."""
    return f"configs/simo_imagenet.py:k={k},alpha={alpha},scale={scale} --config.negatives.k={k}{overrides}"


def remains(with_margin: Sequence[float], without: Sequence[float]) -> list[float]:
    """Return the share of a change over K that the margin leaves, of two changes a seed each."""
    return [eqco / plain for eqco, plain in zip(with_margin, without, strict=True)]


def lasting(epochs: int) -> str:
    """Return the override for a number of epochs."""
    return f" --config.train.duration='{epochs} epochs'"
