"""Table of all metrics that a run writes: meaning, title, unit and panel.

It is the source of the progress line, ``curves.png``, the page of ``--mode=report`` and ``docs/metrics.md``.
``<name>`` stands for a name in the config.
"""

import re
from typing import NamedTuple

from contrastive_jax.evaluators import table


class Metric(NamedTuple):
    """Meaning of a metric, title and panel of its curve ("": no curve), heading on the progress line."""

    meaning: str
    title: str = ""
    panel: str = ""  # one of PANELS
    unit: str = ""
    column: str = ""
    band: tuple[
        str, ...
    ] = ()  # around the curve: metrics of lower and upper end, or one of a standard deviation
    logarithmic: bool = False


PANELS = ("curves", "diagnostics")
_C = "percentile (5, 50, 95) over queries of the contrast c, without a margin."
_W = "percentile (5, 50, 95) over queries of W = sigmoid(c), InfoNCE's weight on a query's gradient."
_SINCE = "share of the time since the last log point in which"

METRICS = {
    "step": Metric("steps done; the other numbers of the line are of the last of them."),
    "epoch": Metric("epochs done."),
    "loss": Metric("what is minimised, but for the online probe's part.", "loss", "curves", column="loss"),
    "loss/<name>": Metric("this term of it, unweighted."),
    "info_nce": Metric(
        "InfoNCE at the step's tau, without a margin, whatever the loss.", "InfoNCE", "curves", "nats", "InfoNCE"
    ),
    "contrast_accuracy": Metric(
        "share of queries whose positive beats every negative.", "accuracy of the contrast", "curves", column="pair acc"
    ),
    "tau": Metric("the temperature.", "temperature", "curves", column="tau"),
    "ess": Metric(
        "effective sample size of the negatives' weights, as a share of their number, see effective_sample_size.",
        "effective sample size / negatives", "curves", column="ESS",
    ),
    "kl_uniform": Metric(
        "divergence of the negatives' weights from uniform ones, log K minus their entropy; e^-KL is a share of the"
        " negatives beside the ESS, see kl_from_uniform.", "KL of the negatives' weights", "diagnostics", "nats",
    ),
    "probe_accuracy": Metric(
        "top-1 of the online probe on the augmented views, where an image has one label.",
        "online probe, accuracy", "curves",
    ),
    "probe_loss": Metric("cross-entropy of the online probe; 0 where there is none.", unit="nats"),
    "learning_rate": Metric("of this step.", "learning rate", "curves"),
    "gradient_norm": Metric(
        "of all parameters together before clipping, the online probe's too, which is clipped apart.",
        "gradient norm", "curves", logarithmic=True,
    ),
    "eval/<column>_top1": Metric("accuracy on the test images by this column of the evaluators."),
    "eval/<column>_map_11_point": Metric(
        "of sets with several labels an image: the 11-point mean average precision."
    ),
    "eval/<column>_<number>": Metric("of a column that gives no accuracy: each of its numbers."),
    "w_p50": Metric(_W, "W: 5, 50, 95 % of the queries", "diagnostics", band=("w_p05", "w_p95")),
    "w_p05": Metric(_W),
    "w_p95": Metric(_W),
    "query_ess": Metric(
        "effective sample size of the queries' W over the batch, as a share of their number: 1 where InfoNCE weighs all"
        " alike, see query_effective_sample_size.", "effective sample size of W / queries", "diagnostics",
    ),
    "c_p50": Metric(_C, "contrast c: 5, 50, 95 % of the queries", "diagnostics", band=("c_p05", "c_p95")),
    "c_p05": Metric(_C),
    "c_p95": Metric(_C),
    "c_quantiles": Metric(
        "a list, the histogram of the contrasts c at the step's tau, without a margin, where diagnostics.quantiles is"
        " not 0; that of W is sigmoid of it, as W rises with c."
    ),
    "mi_estimate": Metric(
        "what InfoNCE says of the mutual information of the views, log(K + 1) - info_nce.",
        "mutual information, this batch's estimate", "diagnostics", "nats",
    ),
    "mi_floor": Metric(
        "information that the two views of an image share whatever is learnt: the entropy of the integers that RandBit"
        " drew for the training images; rand_bit and binary only.", unit="nats",
    ),
    "contrast_entropy": Metric(
        "mean entropy of the softmax over positive and negatives, without a margin; log(1 + K) where nothing is told"
        " apart.", "entropy of the contrast", "diagnostics", "nats",
    ),
    "ess_with_positive": Metric(
        "effective sample size of the negatives and the positive, which is what InfoNCE weighs.",
        "effective sample size with the positive", "diagnostics",
    ),
    "alignment": Metric("mean score of the positives.", "alignment: mean score of the positives", "diagnostics"),
    "uniformity": Metric(
        "of the normalised projections of the first view, see uniformity; lower is more uniform.",
        "uniformity", "diagnostics",
    ),
    "effective_rank": Metric(
        "how many directions the normalised projections vary in, see effective_rank.", "effective rank", "diagnostics"
    ),
    "rankme": Metric(
        "effective rank of the batch's projections as they are, see spectral_entropy_rank, where diagnostics.rankme.",
        "RankMe", "diagnostics",
    ),
    "embedding_std": Metric(
        "standard deviation of the normalised projections over the batch, the mean over dimensions, times sqrt(D): 1"
        " for a uniform sphere, 0 when all embeddings are the same (collapse).", "embedding std", "diagnostics",
    ),
    "embedding_largest": Metric(
        "largest absolute entry of the projections as they are: the gradient of a cosine shrinks as it grows.",
        "largest entry of the embeddings", "diagnostics",
    ),
    "saturated": Metric(
        "share of queries whose W, with the margin, a cross-entropy of logits in the network's dtype would round to 0:"
        " up to 3e-8 in float32, 0.002 in bfloat16. The losses here do not round it; little is learnt from these.",
        "queries of next to no weight", "diagnostics",
    ),
    "negatives": Metric("mean number of negatives of a query."),
    "query_gradient_norm": Metric(
        "mean over queries of |dL/dq|, of the losses that compare (EqCo, figure 4); keys held fixed.",
        "gradient of a query: mean ± std", "diagnostics", band=("query_gradient_norm_std",),
    ),
    "query_gradient_norm_std": Metric("standard deviation over queries of that norm."),
    "gradient_snr": Metric(
        "mean over the parameters of |mean| / std of their gradient, where gradient_snr.decay is not 0.",
        "gradient SNR, mean over parameters", "diagnostics",
    ),
    "gradient_snr_std": Metric(
        "standard deviation over the parameters of that ratio.", "gradient SNR, std over parameters", "diagnostics"
    ),
    "replaced": Metric(
        "corrupt records that another image stood in for so far, of all processes; streamed data only."
    ),
    "timing.seconds": Metric("since this process began to train.", unit="s"),
    "timing.images_per_second": Metric(
        "over the latest log points, without pauses; absent until it is known.", column="images/s"
    ),
    "timing.utilisation": Metric(
        "of the devices at that rate: FLOPs that the network needs over the published peak of their kind and dtype;"
        " absent until the rate is known, and on devices without such a peak, as CPUs."
    ),
    "timing.lost_to_data": Metric(
        f"{_SINCE} the next batch was waited for, and the device had nothing to do by the end of it."
    ),
    "timing.lost_to_evaluation": Metric(f"{_SINCE} evaluations ran."),
    "timing.lost_to_checkpoint": Metric(
        f"{_SINCE} a checkpoint was begun; writing it goes on beside training."
    ),
    "alarm/<name>": Metric("1 where this alarm rings, absent elsewhere."),
}  # fmt: skip


def find(name: str) -> Metric | None:
    """Return the row of a logged metric by its name, or None."""
    if name in METRICS:
        return METRICS[name]
    for known, metric in METRICS.items():
        if "<" in known and re.fullmatch(re.sub(r"<\w+>", ".+", known), name):
            return metric
    return None


def title(name: str) -> str:
    """Return the title of a metric's curve, with its unit."""
    if name.startswith("eval/"):
        column, name = "", name.removeprefix("eval/")
        for score, heading in table.METRICS.items():
            if name.endswith(f"_{score}"):
                column, name = f"{name.removesuffix(f'_{score}')}: ", heading
        return f"{column}{name.replace('_', ' ')}"
    metric = find(name)
    return f"{metric.title or name}{', ' if metric.unit else ''}{metric.unit}" if metric else name


def drawn(names: list[str], panel: str) -> list[str]:
    """Return those of ``names`` with a curve in a panel, in the table's order; evaluations end "curves"."""
    chosen = [name for name, metric in METRICS.items() if metric.panel == panel and name in names]
    return chosen + [name for name in names if panel == PANELS[0] and name.startswith("eval/")]
