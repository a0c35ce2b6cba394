"""FlatNCE's lead at small batches, once more: twice the width, other seeds.

    python -m experiments.family.lead run --scale=small_mnist         # skips what is done
    python -m experiments.family.lead render

On MNIST at 14 pixels FlatNCE leads InfoNCE by 2.0 points at batch 16, with 10 labels a class, and by 0.2 at 256
(FlatNCE's Figure 2: five seeds at width x 0.125, the rate chosen for each cell). It is asked again of runs that had no
part in it: seeds 10 to 14 at twice the width, each loss at the rate that it chose there.
"""

import sys

from experiments import harness
from experiments.harness import FEW, Claim, Results, gates

RATES = {  # loss -> batch size -> the rate that Figure 2 chose, times sqrt(batch)
    "InfoNCE": {16: 0.000125, 256: 0.000125},
    "FlatNCE": {16: 0.00025, 256: 0.000125},
}
METHODS = {"InfoNCE": "simclr", "FlatNCE": "flatclr"}


def lead(results: Results, batch: int) -> list[float]:
    """Return FlatNCE - InfoNCE at a batch size, a seed each."""
    return results.differences(("FlatNCE", str(batch)), ("InfoNCE", str(batch)))


def shrinks(results: Results) -> list[float]:
    """Return the lead at batch 16 less that at 256, a seed each."""
    pairs = [lead(results, batch) for batch in (16, 256)]
    return [small - large for small, large in zip(*pairs, strict=True)] if all(pairs) else []


GATES = (gates.few_headroom, gates.regime("InfoNCE", "16"))


TABLE = harness.Table(
    __name__,
    __doc__,
    predicted="""
Predictions, written before any run: at batch 16 the lead is 0.5 to 3 points with 10 labels a class, and InfoNCE's
median W is below 0.2; at 256 it is less than 0.7 to either side; the first less the second is above half a point.
Judged is that there is a lead at 16, and that it is larger than at 256. A surprise would be InfoNCE ahead at 16: then
the lead is of one width, or of rates that suit one width.
""",
    read_after="""
Read after the runs: both claims hold, and the lead at batch 16 is more than predicted, 3.7 points; at 256 it is 0.2.
The wider network gains with FlatNCE (90.0 to 92.3) and hardly with InfoNCE (88.0 to 88.6), whose rate is half of
FlatNCE's: neither is tuned at this width, so that the size is of these rates.
""",
    runs={
        "small_mnist": {
            (loss, str(batch)): f"configs/flatclr_cifar10.py:method={METHODS[loss]},scale=small_mnist"
            f" --config.encoder.width=0.25 --config.train.batch_size={batch}"
            f" --config.schedule.learning_rate={rate}{harness.screen()}"
            for loss, rates in RATES.items()
            for batch, rate in rates.items()
        }
    },
    metric={FEW: "trained.few_labels.top1 %", "linear top-1, %": "trained.linear.top1 %"} | harness.KNN_TOO,
    seeds={"small_mnist": (10, 11, 12, 13, 14)},
    assumed={
        "rates": "those that FlatNCE's Figure 2 chose for each cell at half the width; none is tuned at this width",
        "headroom": "asked of the controls, whose supervised network has half the width",
    },
    claims=(
        Claim(
            "FlatNCE leads InfoNCE at batch 16: MNIST at twice the width",
            "10 labels a class, FlatNCE - InfoNCE at batch 16, points",
            lambda results: lead(results, 16),
            gates=GATES,
        ),
        Claim(
            "The lead is larger at batch 16 than at 256: MNIST at twice the width",
            "10 labels a class, FlatNCE - InfoNCE, batch 16 less batch 256, points",
            shrinks,
            gates=GATES,
        ),
    ),
    draw=harness.lines("batch size", log=True),
)


if __name__ == "__main__":
    sys.exit(harness.main())
