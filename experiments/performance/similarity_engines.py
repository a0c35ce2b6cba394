"""Peak memory and time of the dense and the tiled similarity engine, forward and backward.

    python experiments/performance/similarity_engines.py [--rows 1024,4096,16384] [--out results.json]

"plain" is the usual loss, the logsumexp of the masked score matrix and nothing else: the honest baseline.
N queries against N candidates of width 128 with one temperature: the mean logsumexp and its gradient with
respect to queries and candidates. Every cell is a process of its own, so that its peak memory is its
own; cells run one after the other. Time is the fastest of ``--repeats`` calls after the first, fewer once
a minute is over.
A cell whose compiled program asks for more than the memory that is free is not run, and the table says so.
"""

import argparse
import datetime
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

WIDTH = 128
SCALE = 10.0  # 1 / tau


def free_bytes(device) -> int:
    """What a program may still allocate on ``device``: the host's memory for a CPU."""
    if device.platform != "cpu":
        statistics = device.memory_stats()
        return statistics["bytes_limit"] - statistics["bytes_in_use"]
    try:
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except OSError:  # not Linux: all of it
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def measure(engine: str, rows: int, repeats: int) -> dict:
    """One cell, in this process."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp
    import numpy as np

    from contrastive_jax.contrast.similarity import negative_statistics
    from contrastive_jax.types import Pool

    def usual(query, key, scale, group):
        score = jnp.matmul(query, key.T, precision="highest")
        logit = jnp.where(group[:, None] != group, scale * score, -jnp.inf)
        return jnp.mean(jax.nn.logsumexp(logit, axis=-1))

    def ours(query, key, scale, group):
        return jnp.mean(negative_statistics(query, group, Pool(key, group), scale, engine=engine).logsumexp)

    program = jax.jit(jax.value_and_grad(usual if engine == "plain" else ours, (0, 1)))

    draw = np.random.default_rng(0)

    def unit():
        x = draw.standard_normal((rows, WIDTH), np.float32)
        x /= np.linalg.norm(x, axis=1, keepdims=True)  # in place: copies of ours are not the engine's memory
        return jax.device_put(x)

    query, key = unit(), unit()
    arguments = (query, key, jnp.float32(SCALE), jnp.arange(rows))
    start = time.perf_counter()
    compiled = program.lower(*arguments).compile()
    device = jax.devices()[0]
    cell = {
        "engine": engine,
        "rows": rows,
        "compile_seconds": time.perf_counter() - start,
        "xla_temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
    }
    free = free_bytes(device)
    if cell["xla_temporary_bytes"] > 0.9 * free:
        needs = f"needs {cell['xla_temporary_bytes'] / 1e9:.0f} GB, {free / 1e9:.0f} GB free"
        return cell | {"not_run": needs}
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        value = jax.block_until_ready(compiled(*arguments))[0]  # the gradients of one call only
        seconds.append(time.perf_counter() - start)
        if sum(seconds) > 60:
            break
    unit = 1 if sys.platform == "darwin" else 1024
    statistics = device.memory_stats() or {}
    return cell | {
        "value": float(value),
        "seconds": min(seconds[1:] or seconds),
        "calls": len(seconds),
        "process_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        "device_peak_bytes": statistics.get("peak_bytes_in_use"),
    }


def environment() -> dict:
    """Device, versions and date, read in a process of its own: this one must not hold the device."""
    code = (
        "import jax, jaxlib, json; d = jax.devices()[0];"
        "print(json.dumps({'platform': d.platform, 'device': d.device_kind,"
        "'jax': jax.__version__, 'jaxlib': jaxlib.__version__}))"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1]) | {
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def describe(cell: dict) -> str:
    """One line of the table."""
    head = f"{cell['rows']:>9,}  {cell['engine']:<6}"
    if "not_run" in cell:
        return f"{head}  not run: {cell['not_run']}"
    device = cell["device_peak_bytes"]
    return (
        f"{head}  {cell['seconds']:>9.3f} s  {cell['xla_temporary_bytes'] / 1e6:>9,.0f} MB"
        f"  {cell['process_peak_bytes'] / 1e6:>9,.0f} MB  {f'{device / 1e6:,.0f} MB' if device else '-':>11}"
    )


def main():
    """Run the cells, print the table, save it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1024,4096,16384", help="N, comma-separated")
    parser.add_argument("--engines", default="plain,dense,tiled")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file to write")
    parser.add_argument("--cell", help=argparse.SUPPRESS)  # engine,rows: measure in this process
    options = parser.parse_args()
    if options.cell:
        engine, rows = options.cell.split(",")
        print(json.dumps(measure(engine, int(rows), options.repeats)))
        return

    report = environment() | {"width": WIDTH, "scale": SCALE, "repeats": options.repeats, "cells": []}
    print(f"{report['device']}, jax {report['jax']}, D={WIDTH}, one scale, forward and backward")
    print(f"{'N':>9}  {'engine':<6}  {'time':>11}  {'XLA temp':>12}  {'process':>12}  {'device':>11}")
    for rows in options.rows.split(","):
        for engine in options.engines.split(","):
            command = [sys.executable, __file__, f"--cell={engine},{rows}", f"--repeats={options.repeats}"]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                cell = {"engine": engine, "rows": int(rows), "not_run": f"exit status {done.returncode}"}
            else:
                cell = json.loads(done.stdout.splitlines()[-1])
            report["cells"].append(cell)
            print(describe(cell), flush=True)
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
