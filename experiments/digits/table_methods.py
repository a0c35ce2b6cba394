"""Every method of the zoo on digits: 30 epochs, 3 seeds, one table.

    python experiments/digits/table_methods.py run       # skips what is done; --methods a,b for some
    python experiments/digits/table_methods.py render    # results/methods.md, and the criterion

Not a replication: the methods share data, encoder, augmentation, optimizer and schedule
(``configs/digits.py``), so the table says that each of them learns, not which is best. Nothing was tuned
for one method. Untrained: the same network's first weights, batch-norm statistics of the training images.
A method learns where its kNN beats the untrained encoder's by at least 10 points, seed for seed.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import jax

from contrastive_jax import config as configs
from contrastive_jax import data
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import evaluate
from contrastive_jax.config.methods import METHODS
from contrastive_jax.training import compilation, program
from contrastive_jax.training import run as runs
from contrastive_jax.training.step import init_state

SEEDS = (0, 1, 2)
RESULTS = pathlib.Path(__file__).parent / "results" / "methods"
CONFIG = str(pathlib.Path(__file__).parents[2] / "configs" / "digits.py") + ":method="
COLUMNS = {"linear": "linear, all labels", "few_labels": "linear, 10 per class", "knn": "kNN, k=10"}
MARGIN = 0.10


def judged(judge: evaluate.Evaluator, weights) -> dict[str, float]:
    """Measure the top-1 of one encoder under the three protocols."""
    subject = judge.subject("", weights)
    return {column: judge.evaluators[column](subject)["top1"] for column in COLUMNS}


def run(method: str) -> dict:
    """Train the method once for each seed, by one compiled step, and judge the last state."""
    run = runs.prepare(configs.plain(configs.load(CONFIG + method)))
    judge = evaluate.Evaluator(run.settings, run.source, run.mesh, run.evaluators)
    results = {"method": method, "config": run.settings.to_dict(), "seeds": {}}
    with jax.set_mesh(run.mesh):
        compiled = None
        for seed in SEEDS:
            began = time.perf_counter()
            state = runs.replicate(init_state(run.recipe, seed), run.mesh)
            feed = data.Resident(
                run.source.train, seed=seed, batch_size=run.settings.train.batch_size, mesh=run.mesh
            )
            if compiled is None:
                compiled, _ = compilation.compiled_step(program.single(run), feed, state)
            for step in range(run.total_steps):
                state, metrics = compiled(state, feed.feed(step))
            metrics = {name: float(value) for name, value in metrics.unpacked()[0].items()}
            results["seeds"][seed] = {
                "trained": judged(judge, (state.params, state.stats)),
                "untrained": judged(judge, judge.untrained(seed)),
                "metrics": metrics,
                "seconds": time.perf_counter() - began,
            }
            found = results["seeds"][seed]["trained"]
            print(method, seed, " ".join(f"{k} {100 * v:.1f}" for k, v in found.items()), flush=True)
    return results | workdirs.environment()


def cell(values: list[float]) -> str:
    """Write mean ± standard deviation, in percent."""
    return f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f}"


def render() -> int:
    """Write results/methods.md; return the number of methods that miss the criterion or were not run."""
    rows, missing, made = [], 0, ""
    untrained = {column: {} for column in COLUMNS}
    for method in METHODS:
        file = RESULTS / f"{method}.json"
        if not file.exists():
            rows.append(f"| {method} | not run | | | |")
            missing += 1
            continue
        found = json.loads(file.read_text())
        seeds = found["seeds"].values()
        gain = [s["trained"]["knn"] - s["untrained"]["knn"] for s in seeds]
        missing += min(gain) < MARGIN
        for column in COLUMNS:
            untrained[column] |= {seed: s["untrained"][column] for seed, s in found["seeds"].items()}
        cells = [cell([s["trained"][column] for s in seeds]) for column in COLUMNS]
        rows.append(f"| {method} | {' | '.join(cells)} | {100 * min(gain):+.1f} |")
        made = f"{found['device']['kind']}, jax {found['versions']['jax']}"
    table = [
        f"| method | {' | '.join(COLUMNS.values())} | kNN above untrained, worst seed |",
        "| --- | ---: | ---: | ---: | ---: |",
        *rows,
    ]
    if untrained["knn"]:
        cells = [cell(list(untrained[column].values())) for column in COLUMNS]
        table.append(f"| untrained encoder | {' | '.join(cells)} | |")
    note = f"Top-1 on 360 test images, %, mean ± standard deviation over {len(SEEDS)} seeds, last of 30 epochs; {made}."
    text = "\n".join([*table, "", note, ""])
    (RESULTS.parent / "methods.md").write_text(text)
    print(text)
    print(
        f"{len(METHODS) - missing} of {len(METHODS)} methods beat the untrained encoder"
        f" by {100 * MARGIN:.0f} points of kNN."
    )
    return missing


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["run", "render"])
    parser.add_argument("--methods", default=",".join(METHODS), help="names, separated by commas")
    arguments = parser.parse_args()
    if arguments.verb == "render":
        return render()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for method in arguments.methods.split(","):
        file = RESULTS / f"{method}.json"
        if file.exists():
            print(f"{method}: done")
            continue
        results = run(method)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(results, indent=1) + "\n")
        temporary.replace(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
