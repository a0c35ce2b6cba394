"""What Tables A.2 and A.3 share: five losses on ImageNet; the tables differ in the layers of the head."""

from experiments import harness
from experiments.intriguing import table_a1
from experiments.intriguing.table_a1 import LOSSES, THREE, by_depth, printed, published

BATCHES = (512, 1024, 2048)
# At small the losses are judged on CIFAR-10, with the points of Table A.1's sweep: 2 layers are its runs.
SWEEP = {"small": {f"{name}, batch 128": points for name, points in table_a1.TABLE.sweep["small"].items()}}
ALSO = {"small": harness.FEW_LABELS["small"]}
METRIC = {"linear top-1, %": "trained.linear.top1 %"}
ASSUMED = {
    "learning rate, tau": "LARS 0.075 x sqrt(batch), tau 0.2: the authors, google-research/simclr issue 166",
    "decoupled NT-Xent": "tau 0.2, lambda 0.5; in no source at hand (the best at scale small, Figure A.2)",
    "SWD": "lambda 1, the default of the authors' notebook; a choice by held-out images needs them in memory",
    "other settings": "SimCLR's: weight decay 1e-6, 10 epochs of warm-up, cosine, colour strength 1, blur",
    "small": "CIFAR-10 at 16 pixels, 5 epochs, batch 128, AdamW; rate and lambda chosen as in Table A.1",
}


def runs(layers: int) -> dict[str, dict[tuple[str, str], str]]:
    """Return the runs of a head."""
    return {
        "paper": published("intriguing_imagenet", BATCHES, layers=layers),
        "gpu": {
            (
                f"{name}, batch 512",
                "20",
            ): f"configs/intriguing_imagenet.py:loss={loss},layers={layers},scale=gpu"
            for name, loss in LOSSES.items()
        },
        "small": {
            (f"{name}, batch 128", "5"): text
            for (name, _), text in by_depth("small", harness.screen(), THREE, (layers,)).items()
        },
    }


def reported(values: str) -> dict[str, dict]:
    """Return the reported numbers of a table as it is printed."""
    return {"linear top-1, %": printed(BATCHES, values)}
