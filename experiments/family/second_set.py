"""Loss by temperature on a second set: CIFAR-10 at batch 16, where FlatNCE leads on MNIST at a low temperature.

    python -m experiments.family.second_set run --scale=small         # skips what is done
    python -m experiments.family.second_set render

On MNIST at 14 pixels and batch 16 FlatNCE leads InfoNCE by 2 points at tau 0.1 (`lead`, `tau_by_batch`), by none at
0.5, and either loss gains 3 to 5 points from the one to the other. Digits are not photographs: both are asked again on
CIFAR-10 at 16 pixels, by linear accuracy with all labels, which has room there (raw pixels 38, supervised 71 %).
"""

import sys

from experiments import harness
from experiments.harness import Claim, gates

LINEAR = "linear top-1, %"
LOSSES = {"InfoNCE": "info_nce", "FlatNCE": "flat_nce"}
TAUS = (0.05, 0.1, 0.2, 0.5)
LONGER = "InfoNCE, 20 epochs"


def spec(loss: str, tau: float, epochs: int) -> str:
    """Return the arguments of a cell."""
    return (
        f"configs/flatclr_cifar10.py:method=simclr,scale=small --config.loss={loss} --config.temperature.tau={tau}"
        f" --config.train.batch_size=16 --config.schedule.learning_rate=0.001{harness.screen(epochs)}"
    )


def lead(tau: float):
    """Return the evidence: FlatNCE - InfoNCE, a seed each."""
    return lambda results: results.differences(("FlatNCE", f"tau {tau}"), ("InfoNCE", f"tau {tau}"))


def warmer(row: str):
    """Return the evidence: tau 0.5 less 0.1, a seed each."""
    return lambda results: results.differences((row, "tau 0.5"), (row, "tau 0.1"))


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions, written before any run: at tau 0.1 FlatNCE leads by 0 to 1.5 points, less than on MNIST, as fewer queries
are solved (InfoNCE's median W 0.3 to 0.5 at batch 16; 0.6 to 0.8 at 64); InfoNCE gains 0.5 to 3 points from tau 0.1 to
0.5; at 0.5 neither leads by more than a point. A surprise would be InfoNCE ahead at 0.1, or a loss that is worse at
0.5: then what is said of temperatures is said of digits.
""",
    read_after="""
Read after InfoNCE's ten runs: the surprise is there, tau 0.5 is about 2 points below 0.1 on every seed. Two questions
more, with predictions written before any of their runs. Where is the best temperature, then: tau 0.2, both losses,
within a point of 0.1? Is it the length of the training: InfoNCE for 20 epochs (three of the five seeds at first), is
tau 0.5 still below 0.1, by 0 to 2 points, since a low temperature learns faster at first? A surprise would be 0.5 ahead
at 20 epochs, or further behind than at 5.

Read after FlatNCE's ten runs: it leads by 0.7 points at tau 0.1, as predicted, where InfoNCE's median W is 0.50, and
the gate asks for less. The design is changed once: tau 0.05. Predictions, before its runs: W is below 0.35, FlatNCE
leads by 0.5 to 2.5 points, and both losses are 0 to 2 points below tau 0.1.

Read after all of these runs: from 0.05 to 0.2 the temperature hardly matters, and 0.5 is worse. FlatNCE is 0.5 to 0.7
points ahead at each of the three and behind at 0.5, which decides nothing; InfoNCE's W at 0.05 is 0.48, not below
0.35. After 20 epochs (three seeds) tau 0.5 is 1.1 points below 0.1, half of what it was, as predicted. By 10 labels a
class it is 1.6 above then, which nobody predicted: what is best may depend on how many labels judge, too.

Read after the two last seeds of 20 epochs: 1.1 below with a half-width of 1.9, one of five seeds the other way, and by
10 labels 1.5 above with one of 1.5: neither is decided. Three seeds had been called a verdict, by a pooled variance.

Read again, by a reader: kNN decides what linear accuracy does not. After 20 epochs tau 0.5 is 4.9 points below 0.1 by
kNN, with a half-width of 1.6. And the gate on W was a knife edge: 0.5004 at tau 0.1, where less than 0.5 was asked for.
It asks now that W is not shown to be above one half; the lead at 0.1 then holds by itself, and not among all of our
claims. `attention` asks what makes it after 20 epochs.
""",
    runs={
        "small": {(loss, f"tau {tau}"): spec(name, tau, 5) for loss, name in LOSSES.items() for tau in TAUS}
        | {(LONGER, f"tau {tau}"): spec("info_nce", tau, 20) for tau in (0.1, 0.5)}
    },
    metric={LINEAR: "trained.linear.top1 %", harness.FEW: "trained.few_labels.top1 %"} | harness.KNN_TOO,
    assumed={
        "rate": "0.001 sqrt(batch) for all, AdamW, 5 epochs; not tuned (at batch 128 sweeps ended at twice that)",
        "the other settings": "those of the scale",
    },
    claims=(
        *(
            Claim(
                f"FlatNCE leads InfoNCE at batch 16 and tau {tau}: CIFAR-10",
                "linear top-1, FlatNCE - InfoNCE, points",
                lead(tau),
                gates=(gates.headroom, gates.regime("InfoNCE", f"tau {tau}")),
            )
            for tau in (0.05, 0.1)
        ),
        Claim(
            "InfoNCE is better at tau 0.5 than at 0.1, at batch 16: CIFAR-10",
            "linear top-1, InfoNCE, tau 0.5 - 0.1, points",
            warmer("InfoNCE"),
            gates=(gates.headroom,),
        ),
        Claim(
            "After 20 epochs InfoNCE is still better at tau 0.1 than at 0.5, at batch 16: CIFAR-10",
            "linear top-1, InfoNCE, tau 0.5 - 0.1, points",
            warmer(LONGER),
            expects="below",
            gates=(gates.headroom,),
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(harness.main())
