"""What EqCo's tables share: their assumptions, and the drawn lines."""

METRIC = {"linear top-1, %": "trained.linear.top1 %"}
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


def simo(k: int = 16, alpha: int = 256, overrides: str = "", scale: str = "paper") -> str:
    """Arguments of SiMo; K also as a leaf, since scale=cpu reduces a K as large as its batch."""
    return f"configs/simo_imagenet.py:k={k},alpha={alpha},scale={scale} --config.negatives.k={k}{overrides}"


def lasting(epochs: int) -> str:
    """The override for a number of epochs."""
    return f" --config.train.duration='{epochs} epochs'"
