"""Whether XLA's faulty reductions on a CPU (jax-ml/jax#39103) touched a committed number.

    python -m experiments.reliability.reductions run [--only PATTERN] [--shard=0/2]     # resumable; about 40 s a run
    python -m experiments.reliability.reductions render

Every run that is kept in `experiments/results`, and every method on digits, was computed by programs in which XLA of
jax 0.10.2 handed reductions to YNNPACK, some of which it gets wrong. Here the first train step of each is run from the
same weights on the same batch with these reductions, with XLA's own, with the library's kernels as they are today, and
in float64. The error of each, the largest of all metrics against float64, says whether a number was touched.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import re
import statistics

import numpy as np

HERE = pathlib.Path(__file__).parent / "results"


def runs_of_the_ledger() -> dict[str, str]:
    """Return the arguments of every kept run, and of every method on digits, by name."""
    from experiments.harness import records

    kept = {file.stem: json.loads(file.read_text())["arguments"] for file in records.folder().glob("*.json")}
    methods = pathlib.Path("experiments/digits/results/methods").glob("*.json")
    return kept | {f"digits_{file.stem}": f"configs/digits.py:method={file.stem}" for file in methods}


WAYS = ("ynnpack", "xla", "kernels")


def first_step(config: dict, way: str) -> tuple[dict, int]:
    """Return the metrics of the first step, and how many of its reductions are YNNPACK's."""
    import jax

    from contrastive_jax import native
    from contrastive_jax.training import run as runs
    from contrastive_jax.training.step import make_train_step

    os.environ[native.library.SWITCH] = "on" if way == "kernels" else "off"
    run = runs.prepare(config, jax.devices()[:1])
    with jax.set_mesh(run.mesh):
        feed, state = runs.feed_of(run), runs.initial_state(run)
        step = (jax if way == "ynnpack" else native).jit(make_train_step(run.recipe, feed.take))
        step = step.lower(state, feed.feed(0)).compile()
        _, metrics = step(state, feed.feed(0))
        return jax.device_get(metrics), handed(step.as_text())


def handed(text: str) -> int:
    """Return how many reductions of a compiled program are YNNPACK's."""
    bodies = dict(re.findall(r"^%?([\w.\-]+) \(.*?\) -> .*?\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))
    called = re.findall(r"calls=%?([\w.\-]+).*?__ynn_fusion", text)
    return sum(bool(re.search(r"\breduce(-window)?\(", bodies[name])) for name in called)


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference, relative to the largest entry."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    scale = max(np.abs(other[np.isfinite(other)]).max(initial=0), 1e-3)
    return float(np.where(same, 0, np.abs(one - other)).max(initial=0) / scale)


def compared(arguments: str) -> dict:
    """Return how far a run's first step is from float64, each way."""
    import jax

    from experiments.harness.table import config_of

    config, found = config_of(arguments), {"arguments": arguments}
    with jax.enable_x64(True):
        exact, _ = first_step(config | {"dtype": "float64"}, "xla")
    for way in WAYS:
        metrics, count = first_step(config, way)
        error, metric = max((apart(metrics[name], exact[name]), name) for name in exact)
        found[way] = {"reductions by ynnpack": count, "error": error, "metric": metric}
    return found


def file_of(name: str) -> pathlib.Path:
    """Return where a comparison is kept."""
    return HERE / "reductions" / f"{name}.json"


def run(only: str, shard: str) -> None:
    """Compare what is not compared yet."""
    part, parts = map(int, shard.split("/"))
    names = sorted(fnmatch.filter(everything := runs_of_the_ledger(), only))
    for name in names[part::parts]:
        if not file_of(name).exists():
            found = compared(everything[name])
            file_of(name).parent.mkdir(parents=True, exist_ok=True)
            file_of(name).write_text(json.dumps(found, indent=1) + "\n")
            errors = ", ".join(f"{way} {found[way]['error']:.1e}" for way in WAYS)
            print(f"{name}: {errors}", flush=True)


def draws_by_precision(arguments: str) -> bool:
    """Return whether a run's first step draws normal numbers for its loss: a queue's first keys, sliced projections."""
    from experiments.harness.table import config_of

    config = config_of(arguments)
    return config["candidates"]["name"] == "queue" or "sliced_wasserstein" in config["loss"]


def render() -> None:
    """Print, and write to reductions.md, what was found."""
    found = {f.stem: json.loads(f.read_text()) for f in sorted((HERE / "reductions").glob("*.json"))}
    missing = sorted(set(runs_of_the_ledger()) - set(found))
    # They are others in float64: no way comes near it.
    drawn = [name for name, row in found.items() if draws_by_precision(row["arguments"])]
    apart_in = [max(e := [found[name][way]["error"] for way in WAYS]) - min(e) for name in drawn]
    found = {name: row for name, row in found.items() if name not in drawn}
    counts = [row["ynnpack"]["reductions by ynnpack"] for row in found.values()]
    lines = [
        "# Reductions by YNNPACK and by XLA",
        "",
        f"{len(found)} runs, {len(missing)} not compared; {min(counts)} to {max(counts)} reductions of a step are"
        " YNNPACK's in jax 0.10.2. Error of the first step's metrics against float64, relative:",
        "",
        "| reductions | median over runs | largest | metric | run |",
        "| --- | ---: | ---: | --- | --- |",
    ]
    for way in WAYS:
        row = max(found.values(), key=lambda row, way=way: row[way]["error"])
        middle = statistics.median(row[way]["error"] for row in found.values())
        lines.append(
            f"| {way} | {middle:.1e} | {row[way]['error']:.1e} | {row[way]['metric']} |"
            f" `{row['arguments'].split(' ')[0]}` |"
        )
    if drawn:
        lines += [
            "",
            f"{len(drawn)} more runs draw other random numbers in float64 and cannot be compared with it; their"
            f" errors of the three ways differ by at most {max(apart_in):.1e}.",
        ]
    (HERE / "reductions.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main() -> None:
    """Compare, or render."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=("run", "render"))
    parser.add_argument("--only", default="*", help="names, with wildcards")
    parser.add_argument("--shard", default="0/1", help="part i of n, i/n")
    options = parser.parse_args()
    run(options.only, options.shard) if options.verb == "run" else render()


if __name__ == "__main__":
    main()
