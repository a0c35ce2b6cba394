"""FlatNCE (Chen et al. 2021), Figure 4: accuracy against mutual information by a large pool, over finished runs.

    python -m experiments.flatnce.figure_4 run       # figure_2's encoders of the cpu scale, which must be at hand
    python -m experiments.flatnce.figure_4 render

The paper plots top-1 accuracy against its approximation of the true mutual information over all checkpoints: a strong
linear relation (Pearson 0.65), which mini-batch estimates do not show (Figure S1). Here the last checkpoints of
Figure 2's runs: two methods, three batch sizes, three seeds; correlations within a seed.
"""

import math
import statistics
import sys

from experiments import harness
from experiments.flatnce import figure_1, figure_2
from experiments.harness import Claim, Results, gates

SCALE = "cpu"
PEARSON = 0.65  # printed; its p-value's exponent is illegible
EVALUATOR = {k: v for k, v in figure_1.MI.items() if k != "name"}


def measure() -> dict:
    """Measure a row a run: both estimates, in nats, and its accuracy.

    Raises:
      ValueError: Figure 2's runs are not on this machine.
    """
    import jax

    from contrastive_jax import sharding
    from contrastive_jax.commands import evaluate
    from contrastive_jax.training.run import source_of
    from experiments.harness.jobs import Job
    from experiments.harness.records import curves, pick

    rows, judge = [], None
    for cell, text in figure_2.TABLE.runs[SCALE].items():
        job = Job(figure_2.__name__, SCALE, cell)
        for seed in job.seeds():
            result = job.here(seed)
            if result is None:
                raise ValueError(
                    f"{job.name}, seed {seed}: no encoder in {job.folder(seed)}. Run figure_2 here; where its numbers"
                    f" are kept already, remove experiments/results/{job.key}.json first."
                )
            if judge is None:
                config = harness.config_of(text)
                config["evaluators"] = {"mi": {"name": "mutual_information"} | EVALUATOR}
                mesh = sharding.make_mesh()
                with jax.set_mesh(mesh):
                    judge = evaluate.Evaluator(config, source_of(config), mesh)
            with jax.set_mesh(judge.mesh):
                weights, _ = evaluate.restored(str(job.folder(seed)), judge)
                found = judge.evaluators["mi"](judge.subject("", weights))
            curve = curves(job.folder(seed) / "metrics.jsonl", ("info_nce",))["info_nce"]
            rows.append({
                "method": cell[0],
                "batch": int(cell[1]),
                "seed": seed,
                "large_pool": found["large_pool"],
                "mini_batch": mini_batch(int(cell[1]), *curve),
                "linear": pick(result, "trained.linear.top1 %"),
            })  # fmt: skip
    return {"rows": rows}


def mini_batch(batch: int, epochs: list, info_nce: list) -> float:
    """Return the training's own estimate: K = 2 (batch - 1) negatives of both views."""
    late = [v for e, v in zip(epochs, info_nce, strict=True) if e > 0.75 * epochs[-1]]
    return math.log(2 * batch - 1) - statistics.mean(late)


def correlations(found: dict, estimate: str) -> list[float]:
    """Compute Pearson's correlation between an estimate and accuracy, a seed each."""
    by_seed = {}
    for row in found["rows"]:
        by_seed.setdefault(row["seed"], []).append((row[estimate], row["linear"]))
    return [statistics.correlation(*zip(*points, strict=True)) for points in by_seed.values()]


def page(found: dict) -> list[str]:
    """Write a row a method and batch size, and the correlations."""
    groups = {}
    for row in found["rows"]:
        groups.setdefault((row["method"], row["batch"]), []).append(row)
    head = ["method", "batch", "large pool, nats", "mini-batch, nats", "linear top-1, %"]
    rows = [
        (*key, *(harness.summary(r[name] for r in group) for name in ("large_pool", "mini_batch", "linear")))
        for key, group in groups.items()
    ]
    means = {name: statistics.mean(correlations(found, name)) for name in ("large_pool", "mini_batch")}
    return [
        *harness.markdown(head, rows),
        "",
        f"Pearson's correlation with accuracy, the mean over seeds: large pool {means['large_pool']:.2f} (the paper:"
        f" {PEARSON}), mini-batch {means['mini_batch']:.2f}.",
    ]


def advantage(found: dict, estimate: str) -> list[float]:
    """Return FlatCLR less SimCLR of an estimate, the mean over batch sizes, a seed each."""
    value = {(row["method"], row["batch"], row["seed"]): row[estimate] for row in found["rows"]}
    batches, seeds = ({row[name] for row in found["rows"]} for name in ("batch", "seed"))
    return [
        statistics.mean(value["FlatCLR", batch, seed] - value["SimCLR", batch, seed] for batch in batches)
        for seed in sorted(seeds)
    ]


# The gaps are means over batch sizes, so that InfoNCE's W has to be in the regime at each.
REGIME = gates.of_runs(gates.regime("SimCLR"), lambda: Results(figure_2.TABLE, SCALE))


def scatter(found: dict, estimate: str, label: str):
    """Draw accuracy over an estimate, a point a run."""
    figure, axes = harness.panel()
    for method, marker in zip(figure_2.METHODS, "so", strict=True):
        for batch in sorted({row["batch"] for row in found["rows"]}):
            rows = [r for r in found["rows"] if (r["method"], r["batch"]) == (method, batch)]
            axes.scatter(
                [r[estimate] for r in rows],
                [r["linear"] for r in rows],
                marker=marker,
                label=f"{method}, {batch}",
            )
    axes.set(xlabel=label, ylabel="linear top-1, %")
    axes.legend(frameon=False, fontsize=7)
    return figure


def draw(found: dict):
    """Draw accuracy over the large pool's estimate."""
    return scatter(found, "large_pool", "mutual information by a large pool, nats")


TABLE = harness.Table(
    __name__,
    __doc__,
    assumed={
        "runs": "the paper takes all its checkpoints; here the last ones of Figure 2's runs on digits",
        "large pool": figure_1.TABLE.assumed["pool"],
        "critic": figure_1.TABLE.assumed["critic"],
        "mini-batch": "log(1 + K) less the training's InfoNCE, the mean over the last quarter of training",
    },
    claims=(
        Claim(
            "Large-pool mutual information predicts accuracy",
            "Pearson's correlation over methods and batch sizes, a seed each",
            lambda found: correlations(found, "large_pool"),
            by="fisher",
        ),
        Claim(
            "Mini-batch mutual information does not predict accuracy as well",
            "correlation, large pool - mini-batch, in Fisher's z, a seed each",
            lambda found: [
                math.atanh(a) - math.atanh(b)
                for a, b in zip(
                    correlations(found, "large_pool"), correlations(found, "mini_batch"), strict=True
                )
            ],
        ),
        Claim(
            "FlatCLR's large-pool mutual information is higher than SimCLR's at the end (Figure 1)",
            "FlatCLR - SimCLR, mean over batch sizes, nats",
            lambda found: advantage(found, "large_pool"),
            gates=(REGIME,),
        ),
        Claim(
            "Their mini-batch estimates are tied (Figure 1)",
            "FlatCLR - SimCLR, mean over batch sizes, nats",
            lambda found: advantage(found, "mini_batch"),
            expects="within",
            margin=0.1,
            gates=(REGIME,),
        ),
    ),
    draw=draw,
    measure=measure,
    page=page,
)


if __name__ == "__main__":
    sys.exit(harness.main())
