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
_W = "percentile (5, 50, 95) over queries of W = sigmoid(c), InfoNCE's weight on a query's gradient; without a margin."
_SINCE = "share of the time since the last log point"

METRICS = {
    "step": Metric("number of completed steps; the other metrics of the line belong to the last of them."),
    "epoch": Metric("number of completed epochs."),
    "loss": Metric("training loss, without the online probe's loss.", "loss", "curves", column="loss"),
    "loss/<name>": Metric("this term of the loss, unweighted."),
    "info_nce": Metric(
        "InfoNCE at the step's tau, without a margin, for any training loss.", "InfoNCE", "curves", "nats", "InfoNCE"
    ),
    "contrast_accuracy": Metric(
        "share of queries whose positive beats every negative.",
        "accuracy of the contrast", "curves", column="pair acc"
    ),
    "tau": Metric("temperature.", "temperature", "curves", column="tau"),
    "bias": Metric(
        "learnt part of the bias of the loss sigmoid, beside loss.sigmoid.bias; temperature=siglip only.",
        "learnt bias", "diagnostics",
    ),
    "ess": Metric(
        "effective sample size of the negatives' weights, as a share of their number, see effective_sample_size.",
        "effective sample size / negatives", "curves", column="ESS",
    ),
    "kl_uniform": Metric(
        "divergence of the negatives' weights from uniform weights, log K minus their entropy; e^-KL"
        " is an effective share of the negatives like the ESS, see kl_from_uniform.",
        "KL of the negatives' weights", "diagnostics", "nats",
    ),
    "probe_accuracy": Metric(
        "top-1 of the online probe on the augmented views, if an image has one label.",
        "online probe, accuracy", "curves",
    ),
    "probe_loss": Metric(
        "cross-entropy of the online probe, mean over labelled examples; 0 without a probe.", unit="nats"
    ),
    "learning_rate": Metric("learning rate of this step.", "learning rate", "curves"),
    "gradient_norm": Metric(
        "norm of the gradient of all parameters before clipping, including the online probe, which is"
        " clipped separately.",
        "gradient norm", "curves", logarithmic=True,
    ),
    "eval/<column>_top1": Metric("accuracy of this evaluator on the test images."),
    "eval/<column>_map_11_point": Metric(
        "11-point mean average precision of this evaluator on the test images, for data with several"
        " labels per image."
    ),
    "eval/<column>_<number>": Metric("each number of an evaluator that returns no accuracy."),
    "w_p50": Metric(_W, "W: 5, 50, 95 % of the queries", "diagnostics", band=("w_p05", "w_p95")),
    "w_p05": Metric(_W),
    "w_p95": Metric(_W),
    "query_ess": Metric(
        "effective sample size of the queries' W over the batch, as a share of their number: 1 if"
        " InfoNCE weights all equally, see query_effective_sample_size.",
        "effective sample size of W / queries", "diagnostics",
    ),
    "c_p50": Metric(_C, "contrast c: 5, 50, 95 % of the queries", "diagnostics", band=("c_p05", "c_p95")),
    "c_p05": Metric(_C),
    "c_p95": Metric(_C),
    "c_quantiles": Metric(
        "quantiles of the contrasts c at the step's tau, without a margin, as a list, if"
        " diagnostics.quantiles is not 0; their sigmoids are the quantiles of W, which rises with c."
    ),
    "mi_estimate": Metric(
        "InfoNCE estimate of the mutual information of the views, log(K + 1) - info_nce.",
        "mutual information, this batch's estimate", "diagnostics", "nats",
    ),
    "mi_floor": Metric(
        "information that the two views of an image always share: the entropy of the integers that"
        " RandBit drew for the training images; rand_bit and binary only.", unit="nats",
    ),
    "contrast_entropy": Metric(
        "mean entropy of the softmax over positive and negatives, without a margin; log(1 + K) if all"
        " scores are equal.", "entropy of the contrast", "diagnostics", "nats",
    ),
    "ess_with_positive": Metric(
        "effective sample size over the negatives and the positive, the softmax of InfoNCE, as a share"
        " of their number.",
        "effective sample size with the positive", "diagnostics",
    ),
    "alignment": Metric("mean score of the positives.", "alignment: mean score of the positives", "diagnostics"),
    "uniformity": Metric(
        "uniformity of the normalised projections of the first view, see uniformity; lower is more uniform.",
        "uniformity", "diagnostics",
    ),
    "effective_rank": Metric(
        "effective number of directions in which the normalised projections vary, see effective_rank; the"
        " smaller of two encoders.",
        "effective rank", "diagnostics"
    ),
    "rankme": Metric(
        "effective rank of the batch's projections, not normalised, see spectral_entropy_rank, if"
        " diagnostics.rankme.",
        "RankMe", "diagnostics",
    ),
    "embedding_std": Metric(
        "standard deviation of the normalised projections over the batch, averaged over dimensions,"
        " times sqrt(D): 1 for a uniform sphere, 0 when all embeddings are the same (collapse);"
        " the smaller of two encoders.",
        "embedding std", "diagnostics",
    ),
    "embedding_largest": Metric(
        "largest absolute entry of the projections, not normalised; the gradient of a cosine shrinks"
        " as it grows.",
        "largest entry of the embeddings", "diagnostics",
    ),
    "saturated": Metric(
        "share of queries whose W, with the margin, is so small that a cross-entropy of logits in the"
        " network's dtype would round it to 0: up to 3e-8 in float32, 0.002 in bfloat16. The losses of"
        " this package do not round it, but these queries contribute little.",
        "queries with almost no weight", "diagnostics",
    ),
    "negatives": Metric("mean number of negatives per query."),
    "query_gradient_norm": Metric(
        "mean over queries of |dL/dq| of the contrastive losses, with the keys held fixed (EqCo, figure 4).",
        "gradient of a query: mean ± std", "diagnostics", band=("query_gradient_norm_std",),
    ),
    "query_gradient_norm_std": Metric("standard deviation of that norm over queries."),
    "gradient_snr": Metric(
        "mean over the parameters of |mean| / std of their gradient, if gradient_snr.decay is not 0.",
        "gradient SNR, mean over parameters", "diagnostics",
    ),
    "gradient_snr_std": Metric(
        "standard deviation of that ratio over the parameters.", "gradient SNR, std over parameters", "diagnostics"
    ),
    "replaced": Metric(
        "number of corrupt records that were replaced by another image, over all processes; streamed"
        " data only."
    ),
    "timing.seconds": Metric("seconds since this process began to train.", unit="s"),
    "timing.images_per_second": Metric(
        "training images per second over the latest log points, without pauses; absent until known.", column="images/s"
    ),
    "timing.utilisation": Metric(
        "utilisation of the devices at that rate: FLOPs that the network needs, divided by the"
        " published peak of the device and dtype; absent until the rate is known, and on devices"
        " without a published peak, such as CPUs."
    ),
    "timing.lost_to_data": Metric(
        f"{_SINCE} spent waiting for the next batch, counting only waits that left the device idle."
    ),
    "timing.lost_to_evaluation": Metric(f"{_SINCE} spent on evaluations."),
    "timing.lost_to_checkpoint": Metric(
        f"{_SINCE} spent on starting checkpoints; they are written during training."
    ),
    "alarm/<name>": Metric("1 while this alarm is active, else absent."),
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
