"""FlatCLR on digits, the README's first command, over 3 seeds.

    python experiments/digits/table_flatclr.py run       # three runs of a minute; skips what is done
    python experiments/digits/table_flatclr.py render    # results/flatclr.md

Each seed is ``python -m contrastive_jax.main --config=configs/flatclr_digits.py --config.seed=SEED``: seed of the
weights, the order and the augmentation. The split and the draws of labels are fixed: raw pixels do not vary.
"""

import json
import pathlib
import statistics
import subprocess
import sys

SEEDS = (0, 1, 2)
ROOT = pathlib.Path(__file__).parents[2]
RESULTS = pathlib.Path(__file__).parent / "results" / "flatclr.json"
COLUMNS = {
    "linear": "linear, all labels",
    "few_labels": "linear, 10 labels per class",
    "knn": "kNN, k=10",
}


def run() -> None:
    """Runs the command for every seed and keeps what its result.json says."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for seed in SEEDS:
        if str(seed) in found:
            print(f"seed {seed}: done")
            continue
        workdir = ROOT / "runs" / f"flatclr_digits-seed{seed}"
        command = [
            "-m",
            "contrastive_jax.main",
            "--config=configs/flatclr_digits.py",
            f"--config.seed={seed}",
        ]
        subprocess.run([sys.executable, *command, f"--workdir={workdir}"], cwd=ROOT, check=True)
        result = json.loads((workdir / "result.json").read_text())
        found[seed] = {name: result[name] for name in ("evaluations", "seconds", "versions", "device")}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def render() -> str:
    """The table, mean ± standard deviation over the seeds, in percent."""
    seeds = list(json.loads(RESULTS.read_text()).values())
    lines = [f"| encoder | {' | '.join(COLUMNS.values())} |", "| --- | ---: | ---: | ---: |"]
    for encoder in ("trained", "untrained", "raw pixels"):
        cells = []
        for column in COLUMNS:
            values = [100 * seed["evaluations"][encoder][column]["top1"] for seed in seeds]
            spread = f" ± {statistics.stdev(values):.1f}" if len(set(values)) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}")
        lines.append(f"| {encoder} | {' | '.join(cells)} |")
    seconds = ", ".join(f"{seed['seconds']:.0f}" for seed in seeds)
    machine = f"{seeds[0]['device']['kind']}, jax {seeds[0]['versions']['jax']}"
    lines += [
        "",
        f"Top-1 on 360 test images, %, mean ± standard deviation over {len(seeds)} seeds, 60 epochs, last epoch;"
        f" seconds a run, compilation included: {seconds} ({machine}).",
        "",
    ]
    text = "\n".join(lines)
    RESULTS.with_suffix(".md").write_text(text)
    return text


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run()
    elif sys.argv[1:] == ["render"]:
        print(render())
    else:
        sys.exit("usage: table_flatclr.py run|render")
