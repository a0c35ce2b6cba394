"""Whether XLA's faulty reductions on a CPU (jax-ml/jax#39103) touched a committed number.

    python -m experiments.reliability.reductions run [--only PATTERN] [--shard=0/2]     # resumable; about 20 s a run
    python -m experiments.reliability.reductions render

Every run that is kept in `experiments/results`, and every method on digits, was computed by programs in which XLA of
jax 0.10.2 handed reductions to YNNPACK, some of which it gets wrong. Here each of their train steps is compiled twice,
with these reductions and without, runs three steps from the same weights on the same batches, and the two are compared:
all metrics of all steps, and all weights at the end. The same for kNN's cosines on digits. What is compared is XLA's
code: the library's own kernels are switched off.

A row that is wrong by 0.8 %, as in the report, would stand out of rounding, which is some 1e-6 of a metric.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import re

import numpy as np

HERE = pathlib.Path(__file__).parent / "results"
STEPS = 3


def runs_of_the_ledger() -> dict[str, str]:
    """Return the arguments of every kept run, and of every method on digits, by name."""
    from experiments.harness import records

    kept = {file.stem: json.loads(file.read_text())["arguments"] for file in records.folder().glob("*.json")}
    methods = pathlib.Path("experiments/digits/results/methods").glob("*.json")
    return kept | {f"digits_{file.stem}": f"configs/digits.py:method={file.stem}" for file in methods}


def some_steps(config: dict, options: dict) -> tuple[list[dict], list[np.ndarray], int]:
    """Return the metrics of every step, the weights after the last, and how many reductions are YNNPACK's."""
    import jax

    from contrastive_jax import run as runs
    from contrastive_jax.step import make_train_step

    run = runs.prepare(config, jax.devices()[:1])
    with jax.set_mesh(run.mesh):
        feed, state = runs.feed_of(run), runs.initial_state(run)
        step = jax.jit(make_train_step(run.recipe, feed.take), compiler_options=options)
        step = step.lower(state, feed.feed(0)).compile()
        metrics = []
        for number in range(STEPS):
            state, found = step(state, feed.feed(number))
            metrics.append(jax.device_get(found))
    return metrics, [np.asarray(x) for x in jax.tree.leaves(state.params)], handed(step.as_text())


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
    """Return how far a run's first steps lie apart, with YNNPACK's reductions and without."""
    from contrastive_jax.native.compiler import PRODUCTS_ONLY
    from experiments.harness.table import config_of

    config = config_of(arguments)
    (given, weights, count), (right, exact, none) = (some_steps(config, o) for o in ({}, PRODUCTS_ONLY))
    assert none == 0
    first = {name: apart(given[0][name], right[0][name]) for name in right[0]}
    every = [apart(a[name], b[name]) for a, b in zip(given, right, strict=True) for name in b]
    name = max(first, key=first.__getitem__)
    return {
        "arguments": arguments,
        "reductions": count,
        "first step": first[name],
        "metric": name,
        "all steps": max(every),
        "weights": max(map(apart, weights, exact)),
    }


def file_of(name: str) -> pathlib.Path:
    """Return where a comparison is kept."""
    return HERE / "reductions" / f"{name}.json"


def run(only: str, shard: str) -> None:
    """Compare what is not compared yet."""
    os.environ["CONTRASTIVE_JAX_CPU_KERNELS"] = "off"
    part, parts = map(int, shard.split("/"))
    names = sorted(fnmatch.filter(everything := runs_of_the_ledger(), only))
    for name in names[part::parts]:
        if not file_of(name).exists():
            found = compared(everything[name])
            file_of(name).parent.mkdir(parents=True, exist_ok=True)
            file_of(name).write_text(json.dumps(found, indent=1) + "\n")
            print(
                f"{name}: {found['reductions']} reductions, {found['first step']:.1e} ({found['metric']})",
                flush=True,
            )


def render() -> None:
    """Print, and write to reductions.md, what was found."""
    found = {f.stem: json.loads(f.read_text()) for f in sorted((HERE / "reductions").glob("*.json"))}
    missing = sorted(set(runs_of_the_ledger()) - set(found))
    worst = {
        key: max(found.values(), key=lambda row, key=key: row[key])
        for key in ("first step", "all steps", "weights")
    }
    lines = [
        "# Reductions by YNNPACK and by XLA",
        "",
        f"{len(found)} runs, {len(missing)} not compared; {min(r['reductions'] for r in found.values())} to"
        f" {max(r['reductions'] for r in found.values())} reductions of a step are YNNPACK's in jax 0.10.2. Largest"
        " relative differences:",
        "",
        "| of | difference | in |",
        "| --- | ---: | --- |",
    ]
    for key, row in worst.items():
        metric = f", {row['metric']}" if key == "first step" else ""
        lines.append(f"| {key} | {row[key]:.1e} | `{row['arguments'].split(' ')[0]}`{metric} |")
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
