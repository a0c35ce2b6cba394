"""One config over some seeds: a run a seed, then one table. Used by the tables of digits and MNIST."""

import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parents[1]
COLUMNS = {
    "linear": "linear, all labels",
    "few_labels": "linear, 10 labels per class",
    "knn": "kNN, k=10",
}


def run(spec: str, results: pathlib.Path, seeds: Sequence[int] = (0, 1, 2)) -> None:
    """Run the command for every seed that ``results`` has not, and keep what its result.json says."""
    found = json.loads(results.read_text()) if results.exists() else {}
    for seed in seeds:
        if str(seed) in found:
            print(f"seed {seed}: done")
            continue
        workdir = ROOT / "runs" / f"{pathlib.Path(spec.partition(':')[0]).stem}-seed{seed}"
        command = ["-m", "contrastive_jax.main", f"--config={spec}", f"--config.seed={seed}"]
        subprocess.run([sys.executable, *command, f"--workdir={workdir}"], cwd=ROOT, check=True)
        result = json.loads((workdir / "result.json").read_text())
        for row, scores in result["evaluations"].items():
            for column, score in scores.items():
                if "failed" in score:
                    raise SystemExit(
                        f"seed {seed}, {row}, {column}: {score['failed']}; the seed is not kept."
                    )
        found[str(seed)] = {name: result[name] for name in ("evaluations", "seconds", "versions", "device")}
        results.parent.mkdir(exist_ok=True)
        results.write_text(json.dumps(found, indent=1) + "\n")


def render(results: pathlib.Path, about: str) -> str:
    """Write the table, mean ± standard deviation over the seeds, in percent, and ``about`` what it is."""
    seeds = list(json.loads(results.read_text()).values())
    lines = [f"| encoder | {' | '.join(COLUMNS.values())} |", "| --- | ---: | ---: | ---: |"]
    for encoder in ("trained", "untrained", "raw pixels"):
        cells = []
        for column in COLUMNS:
            values = [100 * seed["evaluations"][encoder][column]["top1"] for seed in seeds]
            spread = f" ± {statistics.stdev(values):.1f}" if len(set(values)) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}")
        lines.append(f"| {encoder} | {' | '.join(cells)} |")
    seconds = [f"{seed['seconds']:.0f}" for seed in seeds if seed["seconds"]]
    machine = f"{seeds[0]['device']['kind']}, jax {seeds[0]['versions']['jax']}"
    whole = (
        ""
        if len(seconds) == len(seeds)
        else f" ({len(seconds)} of {len(seeds)}; the others were interrupted)"
    )
    lines += [
        "",
        f"Top-1 on {about}, %, mean ± standard deviation over {len(seeds)} seeds, last epoch;"
        f" seconds a run, compilation included: {', '.join(seconds)}{whole} ({machine}).",
        "",
    ]
    text = "\n".join(lines)
    results.with_suffix(".md").write_text(text)
    return text


def main(spec: str, results: pathlib.Path, about: str) -> None:
    """Call ``run`` or ``render``, from the command line."""
    if sys.argv[1:] == ["run"]:
        run(spec, results)
    elif sys.argv[1:] == ["render"]:
        print(render(results, about))
    else:
        sys.exit(f"usage: {sys.argv[0]} run|render")
