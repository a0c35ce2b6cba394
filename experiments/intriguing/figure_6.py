"""Intriguing Properties (Chen, Luo and Li 2021), Figure 6: digits on ImageNet's images, by how many digits there are.

    python -m experiments.intriguing.figure_6 run       # --scale=paper|gpu; skips what is done
    python -m experiments.intriguing.figure_6 render

One of m unique digits is added to every training image, any digit in validation. The paper claims that as m grows
SimCLR recognises digits better and objects much worse, at every temperature, and that a supervised network loses
nothing. The curves' values are not printed.
"""

import sys

from experiments import harness
from experiments.harness import Claim, Results

UNIQUE = (1, 10, 100, 1000, 10000, 60000)
TAUS = (0.05, 0.1, 0.2, 0.5)
OBJECTS, DIGITS = "linear top-1 on objects, %", "linear top-1 on digits, %"
METRIC = {OBJECTS: "trained.linear.top1 %", DIGITS: "trained.linear@digit.top1 %"}


def cells(scale, unique, taus):
    """Method down, unique digits across."""
    methods = {"Supervised": ",method=supervised"} | {f"SimCLR, tau {tau}": f",tau={tau}" for tau in taus}
    return {
        (name, str(m)): f"configs/digit_on_imagenet.py:unique={m}{options},scale={scale}"
        for name, options in methods.items()
        for m in unique
    }


RUNS = {"paper": cells("paper", UNIQUE, TAUS), "gpu": cells("gpu", (1, 1000, 60000), (0.1,))}
REPORTED = {heading: dict.fromkeys(RUNS["paper"]) for heading in METRIC}
ASSUMED = {
    "numbers of digits, temperatures": "lost in the text at hand: ours",
    "nine places": "at 0.15, 0.45 and 0.75 of the side (the authors' notebook); sums are clipped",
    "batch, epochs": "1,024 and 100; 'batch sizes and head depths have negligible influence'",
    "learning rate, head": "LARS 0.075 x sqrt(batch), 2 layers with 128 outputs",
    "linear evaluation": "on cached clean features",
    "classifier of digits": "learns from training images with any training digit on them; the paper says that all"
    " digits are in validation, not what it learns from",
    "gpu": "20 epochs, batch 512, bfloat16",
}


def over_digits(row: str, heading: str):
    """Evidence: a number with the most unique digits less with the fewest, a seed each."""

    def evidence(results: Results) -> list[float]:
        unique = sorted(int(column) for name, column in results.cells if name == row)
        return results.differences((row, str(unique[-1])), (row, str(unique[0])), heading) if unique else []

    return evidence


CLAIMS = (
    Claim(
        "More unique digits lower SimCLR's accuracy on objects",
        "linear top-1 on objects, tau 0.1, most unique digits - fewest, points",
        over_digits("SimCLR, tau 0.1", OBJECTS),
        expects="below",
    ),
    Claim(
        "They raise that on digits",
        "linear top-1 on digits, tau 0.1, most unique digits - fewest, points",
        over_digits("SimCLR, tau 0.1", DIGITS),
    ),
    Claim(
        "They do not lower supervised training's",
        "linear top-1 on objects, supervised, most unique digits - fewest, points",
        over_digits("Supervised", OBJECTS),
        expects="within",
        margin=1.0,
    ),
)


def draw(results: Results):
    """Objects over the number of unique digits."""
    return harness.lines(results, "unique digits", OBJECTS, log=True)


if __name__ == "__main__":
    sys.exit(harness.main())
