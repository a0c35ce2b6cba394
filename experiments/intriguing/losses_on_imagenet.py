"""What Tables A.2 and A.3 share: five losses on ImageNet; the tables differ in the layers of the head."""

from experiments.intriguing.table_a1 import LOSSES, printed, published

BATCHES = (512, 1024, 2048)
METRIC = {"linear top-1, %": "trained.linear.top1 %"}
ASSUMED = {
    "learning rate, tau": "LARS 0.075 x sqrt(batch), tau 0.2: the authors, google-research/simclr issue 166",
    "decoupled NT-Xent": "tau 0.2, lambda 0.1; in no source at hand",
    "SWD": "lambda 1, the default of the authors' notebook",
    "other settings": "SimCLR's: weight decay 1e-6, 10 epochs of warm-up, cosine, colour strength 1, blur",
}


def runs(layers: int) -> dict[str, dict[tuple[str, str], str]]:
    """RUNS of a head."""
    return {
        "paper": published("intriguing_imagenet", BATCHES, layers=layers),
        "gpu": {
            (
                f"{name}, batch 512",
                "20",
            ): f"configs/intriguing_imagenet.py:loss={loss},layers={layers},scale=gpu"
            for name, loss in LOSSES.items()
        },
    }


def reported(values: str) -> dict[str, dict]:
    """REPORTED, of a table as it is printed."""
    return {"linear top-1, %": printed(BATCHES, values)}
