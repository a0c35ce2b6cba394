"""SimCLR on CIFAR-10 at full size, by two recipes.

    python -m experiments.family.full_size run --scale=gpu      # ResNet-18, 32 pixels, batch 512, 100 epochs
    python -m experiments.family.full_size render

One seed of `configs/simclr_cifar10.py` ended, after 200 epochs, 0.9 to 1.7 points below what was predicted
(`experiments/performance/README.md`). Is that its recipe, which SimCLR's README has for 1,000 epochs, or a mistake of
ours? A single-file SimCLR in PyTorch (github.com/dkobak/simclr-cifar10) prints what its recipe reaches after 100:
83.2 +- 0.2 by kNN, 85.6 +- 0.2 by a linear classifier on stored features, at a loss of 5.18 +- 0.01, over three runs.
Its recipe is options of the same config here: SGD, weight decay of everything, no warm-up, torchvision's boxes of at
least a fifth of the image, grey in one of ten, batch norm by view, a head of two layers without batch norm.
"""

import sys

from experiments import harness
from experiments.family import controls

KNN, LINEAR = "kNN top-1, k = 10, %", "linear top-1, stored features, %"
COLUMN = "100 epochs"
BRIEF = f""" --config.evaluate.rows="('trained',)"{controls.BRIEF}"""
SGD = (
    """ --config.optimizer='{"name": "sgd", "momentum": 0.9, "weight_decay": 5e-4}'"""
    " --config.schedule.learning_rate=0.06 --config.schedule.per_epoch=True --config.schedule.warmup='0 epochs'"
    " --config.loss.info_nce.weight=1.0 --config.augment.preset=macl --config.augment.crop_min=0.2"
    " --config.augment.gray=0.1 --config.projector.layers=2 --config.projector.hidden=1024"
    " --config.projector.norm=none --config.norm.scope=per_view --config.norm.unbiased=True"
    " --config.encoder.variant=torchvision --config.encoder.zero_init=False --config.encoder.kernel_init=fan_out"
)
FASTER = " --config.schedule.learning_rate=2.25"
ROWS = {
    "LARS, as configured": "",
    "SGD, the single file's recipe": SGD,
    "LARS, rate 2.25": FASTER,
    "LARS, rate 2.25, tau 0.2, head of 2 layers": f"{FASTER} --config.temperature.tau=0.2"
    " --config.projector.layers=2 --config.projector.out=64",
    "LARS, easier views": " --config.augment.sampler=torchvision --config.augment.crop_min=0.2"
    " --config.augment.gray=0.1",
}

TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions, written before any run: SGD by that recipe has kNN 82.5 to 83.7 and InfoNCE, its mean over the last epoch
as there, 5.16 to 5.20; LARS as configured 81.5 to 83 (half way through its 200 epochs it had 81.8), 0 to 1.5 points
less. A surprise would be SGD below 82.2, or its loss above 5.21: then the fault is in our code, of augmentation or
batch norm where both are off, of evaluation where kNN alone is. LARS, TensorFlow's boxes and its colours are not
tested by it.

Added before any run of this table: three rows that change one thing at a time of LARS as configured, by the order in
which a reader's line-by-line comparison suspects them. The step: a rate of 2.25 x batch / 256, where the angle that
weights turn in a step is that of recipes tuned for as few epochs; predicted kNN +0.7 to +1.5. With it tau 0.2 and a
head of two layers to 64, which Intriguing Properties takes for short trainings: another 0 to 1. Easier views, of
torchvision's boxes of at least a fifth of the image with grey in one of ten: +0.5 to +2. A surprise would be a row
below LARS as configured.
""",
    read_after="""
Read after one seed of four rows (one H200, 13 minutes, two runs at a time; the other seeds and the easier views are
not run). SGD by the single file's recipe ended as its author printed: kNN 83.5 (83.2 +- 0.2 there), InfoNCE 5.185 (5.18
+- 0.01), both inside of what was predicted; its linear classifier has 84.4 where there, by Adam, 85.6 was read. So
nothing is wrong with our augmentation, batch norm, loss or kNN at full size as far as one seed can say, and the 200
epochs that were below their prediction were so by their recipe. LARS as configured had 80.8, below the 81.5 to 83
that were predicted: half way through a longer schedule is no measure of a short one's end. At rate 2.25 it had 0.8
more, inside of +0.7 to +1.5; with tau 0.2 and a head of two layers another 2.5, where at most 1 was predicted: 84.1 by
kNN and 86.6 linear after 100 epochs, where 200 of the README's recipe had given 85.0 and, of clean features as here,
87.2. Tau and the head were changed together: which of them it is, this does not say.
""",
    runs={
        "gpu": {
            (row, COLUMN): "configs/simclr_cifar10.py:scale=gpu --config.dtype=bfloat16"
            f" --config.train.duration='100 epochs' --config.evaluators.linear.augment=False{BRIEF}{recipe}"
            for row, recipe in ROWS.items()
        },
        "smoke": {(next(iter(ROWS)), COLUMN): next(iter(controls.TABLE.runs["smoke"].values()))},
    },
    metric={
        KNN: "trained.knn.top1 %",
        LINEAR: "trained.linear.top1 %",
    },
    curves=("info_nce",),  # its mean over the last epoch is what the prediction is of
    assumed={
        "the single file's recipe": "bfloat16; a head's first weights of variance 1 / fan-in, three times PyTorch's;"
        " views are not rounded to 8 bits; the linear classifier is SGD's, there Adam's with a decay of 5e-6",
    },
)


if __name__ == "__main__":
    sys.exit(harness.main())
