"""Peak memory and time of the dense and the tiled similarity engine, forward and backward.

    python experiments/performance/similarity_engines.py [--rows 1024,4096,16384] [--out results.json]
    python experiments/performance/similarity_engines.py --loss=ntxent [--torch-python PYTHON] [--out results.json]
    python experiments/performance/similarity_engines.py --render results.json

"plain" is the usual loss, the logsumexp of the masked score matrix and nothing else: the honest baseline.
N queries against N candidates of width 128 with one temperature: the mean logsumexp and its gradient with
respect to queries and candidates. Every cell is a process of its own, so that its peak memory is its
own; cells run one after the other. Time is the fastest of ``--repeats`` calls after the first, fewer once
a minute is over (the first where there is no other, compilation aside).
A cell whose compiled program asks for more than the memory that is free is not run, and the table says so.

``--loss=ntxent`` compares whole losses of N rows (two views of N / 2 examples), value and gradient: "dense" and
"tiled" are ``contrastive_jax.ntxent``, "optax" is ``optax.losses.ntxent``, "cross-entropy" the usual code of N x N
logits in JAX; "pytorch-metric-learning" and "lightly" are run by ``--torch-python``, an interpreter that has them. A
loss is not run at larger N once its process has grown by more than ``--limit`` bytes. ``--render`` prints a table in
Markdown.
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
ENGINES = {"logsumexp": "plain,dense,tiled", "ntxent": "optax,cross-entropy,dense,tiled"}
OF_TORCH = ("pytorch-metric-learning", "lightly")
SCALE = 10.0  # 1 / tau


def free_bytes(device) -> int:
    """Return what a program may still allocate on ``device``: the host's memory for a CPU."""
    if device.platform != "cpu":
        statistics = device.memory_stats()
        return statistics["bytes_limit"] - statistics["bytes_in_use"]
    try:
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except OSError:  # not Linux: all of it
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def program(loss: str, engine: str):
    """Return the function that is measured, of (query, key, scale, group) or of (embeddings, labels, scale)."""
    import jax
    import jax.numpy as jnp
    import optax

    from contrastive_jax import ntxent
    from contrastive_jax.contrast.similarity import negative_statistics
    from contrastive_jax.types import Pool

    def usual(query, key, scale, group):
        score = jnp.matmul(query, key.T, precision="highest")
        logit = jnp.where(group[:, None] != group, scale * score, -jnp.inf)
        return jnp.mean(jax.nn.logsumexp(logit, axis=-1))

    def ours(query, key, scale, group):
        return jnp.mean(negative_statistics(query, group, Pool(key, group), scale, engine=engine).logsumexp)

    def cross_entropy(embeddings, labels, scale):
        unit = embeddings / jnp.linalg.norm(embeddings, axis=1, keepdims=True)
        score = scale * jnp.matmul(unit, unit.T, precision="highest")
        score = jnp.where(jnp.eye(len(score), dtype=bool), -jnp.inf, score)
        other = (jnp.arange(len(score)) + len(score) // 2) % len(score)  # the other view
        return optax.softmax_cross_entropy_with_integer_labels(score, other).mean()

    if loss == "logsumexp":
        return jax.jit(jax.value_and_grad(usual if engine == "plain" else ours, (0, 1)))
    losses = {
        "optax": lambda x, labels, scale: optax.losses.ntxent(x, labels, 1 / scale),
        "cross-entropy": cross_entropy,
    }
    own = lambda x, labels, scale: ntxent(x, labels, 1 / scale, engine=engine)  # noqa: E731
    return jax.jit(jax.value_and_grad(losses.get(engine, own)))


def timed(call, repeats: int) -> tuple[list[float], float]:
    """Measure the seconds of up to ``repeats`` calls after the first, and what the last returned."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        value = call()
        seconds.append(time.perf_counter() - start)
        if sum(seconds) > 60:
            break
    return seconds, value


def peak_bytes() -> int:
    """Return the most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure_torch(engine: str, rows: int, repeats: int) -> dict:
    """Measure one cell of PyTorch, in this process."""
    import numpy as np
    import torch

    draw = np.random.default_rng(0)
    x = torch.tensor(draw.standard_normal((rows, WIDTH), np.float32), requires_grad=True)
    if engine == "lightly":
        from lightly.loss import NTXentLoss

        loss, arguments = NTXentLoss(temperature=1 / SCALE), (x[: rows // 2], x[rows // 2 :])
    else:
        from pytorch_metric_learning.losses import NTXentLoss

        loss, arguments = NTXentLoss(temperature=1 / SCALE), (x, torch.arange(rows) % (rows // 2))

    def call():
        x.grad = None
        value = loss(*arguments)
        value.backward()
        return value.item()

    before = peak_bytes()
    seconds, value = timed(call, repeats)
    cell = {"engine": engine, "rows": rows, "value": value, "seconds": min(seconds[1:] or seconds)}
    peak = {"process_peak_bytes": peak_bytes(), "process_before_bytes": before}
    return cell | peak | {"calls": len(seconds), "device_peak_bytes": None, "torch": torch.__version__}


def measure(loss: str, engine: str, rows: int, repeats: int, dtype: str) -> dict:
    """Measure one cell, in this process."""
    if engine in OF_TORCH:
        return measure_torch(engine, rows, repeats)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp
    import numpy as np

    draw = np.random.default_rng(0)

    def normal(unit):
        x = draw.standard_normal((rows, WIDTH), np.float32)
        if unit:
            x /= np.linalg.norm(
                x, axis=1, keepdims=True
            )  # in place: copies of ours are not the engine's memory
        return jax.device_put(x.astype(dtype))

    if loss == "logsumexp":
        arguments = (normal(True), normal(True), jnp.float32(SCALE), jnp.arange(rows))
    else:
        arguments = (normal(False), jnp.arange(rows) % max(rows // 2, 1), jnp.float32(SCALE))
    before = peak_bytes()
    start = time.perf_counter()
    compiled = program(loss, engine).lower(*arguments).compile()
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
    # the gradients of one call only
    seconds, value = timed(lambda: jax.block_until_ready(compiled(*arguments))[0], repeats)
    statistics = device.memory_stats() or {}
    return cell | {
        "value": float(value),
        "seconds": min(seconds[1:] or seconds),
        "calls": len(seconds),
        "process_peak_bytes": peak_bytes(),
        "process_before_bytes": before,
        "device_peak_bytes": statistics.get("peak_bytes_in_use"),
    }


def environment() -> dict:
    """Read device, versions and date in a process of its own: this one must not hold the device."""
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
    """Write one line of the table."""
    head = f"{cell['rows']:>9,}  {cell['engine']:<{NAME}}"
    if "not_run" in cell:
        return f"{head}  not run: {cell['not_run']}"
    device = cell["device_peak_bytes"]
    return (
        f"{head}  {cell['seconds']:>9.4f} s  {cell.get('xla_temporary_bytes', 0) / 1e6:>9,.0f} MB"
        f"  {cell['process_peak_bytes'] / 1e6:>9,.0f} MB  {f'{device / 1e6:,.0f} MB' if device else '-':>11}"
    )


def render(report: dict) -> str:
    """Write time and memory by loss and N in Markdown: of a process, less what it held before it compiled."""
    rows = sorted({cell["rows"] for cell in report["cells"]})
    engines = list(dict.fromkeys(cell["engine"] for cell in report["cells"]))
    cells = {(cell["engine"], cell["rows"]): cell for cell in report["cells"]}

    def entry(cell):
        if cell is None or "not_run" in cell:
            return "—"
        grown = (cell["process_peak_bytes"] - cell["process_before_bytes"]) / 1e6
        return f"{cell['seconds'] * 1e3:,.1f} ms, {grown:,.0f} MB"

    def largest(engine):
        fitting = [n for n in rows if "seconds" in (c := cells.get((engine, n), {})) and not c.get("over")]
        return f"{max(fitting):,}" if fitting else "—"

    limit = report["limit"] / 1e9
    lines = [
        f"| loss | {' | '.join(f'N = {n:,}' for n in rows)} | largest of these N in {limit:.0f} GB |",
        f"| --- |{' ---: |' * (len(rows) + 1)}",
    ]
    for engine in engines:
        entries = " | ".join(entry(cells.get((engine, n))) for n in rows)
        lines.append(f"| {LABELS.get(engine, engine)} | {entries} | {largest(engine)} |")
    return "\n".join(lines)


LABELS = {
    "optax": "`optax.losses.ntxent`",
    "cross-entropy": "cross-entropy of N x N logits",
    "dense": '`contrastive_jax.ntxent(engine="dense")`',
    "tiled": '`contrastive_jax.ntxent(engine="tiled")`',
}
NAME = max(map(len, (*OF_TORCH, *LABELS)))


def main():
    """Run the cells, print the table, save it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loss", default="logsumexp", choices=list(ENGINES))
    parser.add_argument("--rows", default="1024,4096,16384", help="N, comma-separated, rising")
    parser.add_argument("--engines", help="comma-separated; by default all of the loss")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument(
        "--torch-python", help="an interpreter with torch, pytorch-metric-learning and lightly"
    )
    parser.add_argument("--limit", type=float, default=2e9, help="bytes that a process may have grown by")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--note", default="", help="what else the machine did, kept with the results")
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file to write")
    parser.add_argument("--render", type=pathlib.Path, help="print the table of a JSON file, run nothing")
    parser.add_argument("--cell", help=argparse.SUPPRESS)  # engine,rows: measure in this process
    options = parser.parse_args()
    if options.render:
        print(render(json.loads(options.render.read_text())))
        return
    if options.cell:
        engine, rows = options.cell.split(",")
        print(json.dumps(measure(options.loss, engine, int(rows), options.repeats, options.dtype)))
        return

    asked = {name: getattr(options, name) for name in ("loss", "dtype", "repeats", "limit", "note")}
    report = environment() | {"width": WIDTH, "scale": SCALE} | asked | {"cells": []}
    print(f"{report['device']}, jax {report['jax']}, D={WIDTH}, {options.loss}, forward and backward")
    print(f"{'N':>9}  {'engine':<{NAME}}  {'time':>11}  {'XLA temp':>12}  {'process':>12}  {'device':>11}")
    engines = (options.engines or ENGINES[options.loss]).split(",")
    if options.torch_python and options.loss == "ntxent" and not options.engines:
        engines += OF_TORCH
    over = set()  # engines that have passed the limit
    for rows in options.rows.split(","):
        for engine in engines:
            if options.loss == "ntxent" and engine in over:
                continue
            python = options.torch_python if engine in OF_TORCH else sys.executable
            command = [python, __file__, f"--cell={engine},{rows}", f"--repeats={options.repeats}"]
            command += [f"--loss={options.loss}", f"--dtype={options.dtype}"]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                cell = {"engine": engine, "rows": int(rows), "not_run": f"exit status {done.returncode}"}
            else:
                cell = json.loads(done.stdout.splitlines()[-1])
            grown = cell.get("process_peak_bytes", options.limit) - cell.get("process_before_bytes", 0)
            if "not_run" in cell or grown > options.limit:
                cell["over"] = True
                over.add(engine)
            report["cells"].append(cell)
            print(describe(cell), flush=True)
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
