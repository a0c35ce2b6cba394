"""InfoNCE of very many rows by the tiled engine: seconds, the process's memory, and a sample of gradients in float64.

    python experiments/performance/many_rows.py [--rows=262144] [--width=128] [--sample=16] [--out=...]

``rows`` queries against as many candidates (``directions=one_way, candidates=other_view``), value and gradient of the
mean. A query's gradient depends on its own row of scores only: it is computed again for a sample of queries in
float64. The error is the largest difference over the largest number of the sample. Candidates are the queries plus
noise, so that some scores are high, as in a trained network.
"""

import argparse
import datetime
import json
import os
import pathlib
import resource
import time

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import contrastive_loss

HERE = pathlib.Path(__file__).parent
TAU = 0.1


def exact(queries: np.ndarray, keys: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute losses and gradients of some queries in float64: ``[s]`` and ``[s, D]``."""
    queries, keys = queries[numbers].astype(float), keys.astype(float)
    lengths = np.linalg.norm(queries, axis=1, keepdims=True)
    units = queries / lengths
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    logits = units @ keys.T / TAU
    largest = logits.max(axis=1, keepdims=True)
    chances = np.exp(logits - largest)
    total = chances.sum(axis=1, keepdims=True)
    losses = (largest + np.log(total))[:, 0] - logits[np.arange(len(numbers)), numbers]
    of_units = (chances / total @ keys - keys[numbers]) / TAU
    return losses, (of_units - np.sum(of_units * units, axis=1, keepdims=True) * units) / lengths


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=262_144)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--sample", type=int, default=16)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    queries = draw.normal(size=(options.rows, options.width)).astype(np.float32)
    keys = queries + draw.normal(size=queries.shape).astype(np.float32)

    def loss(a, b):
        losses = contrastive_loss(
            a, b, temperature=TAU, directions="one_way", candidates="other_view", engine="tiled"
        )
        return losses.mean(), losses

    program = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    given = jnp.asarray(queries), jnp.asarray(keys)
    compiled = program.lower(*given).compile()
    began, worked = time.perf_counter(), time.process_time()
    (_, losses), (of_queries, _) = jax.block_until_ready(compiled(*given))
    report = {
        "what": "InfoNCE, value and both gradients, tiled engine",
        "rows": options.rows,
        "width": options.width,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "load": os.getloadavg()[0],
        "seconds": time.perf_counter() - began,
        "CPU seconds": time.process_time() - worked,
        "GiB of temporaries": compiled.memory_analysis().temp_size_in_bytes / 2**30,
        "GiB of the process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    numbers = draw.choice(options.rows, options.sample, replace=False)
    for name, found, wanted in zip(
        ("losses", "gradients"),
        (np.asarray(losses).ravel()[numbers], np.asarray(of_queries)[numbers] * options.rows),
        exact(queries, keys, numbers),
        strict=True,
    ):
        report[f"error of {name}"] = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    for name, value in report.items():
        print(f"{name}: {value}")
    device = report["device"].lower().replace(" ", "_")
    out = options.out or HERE / "results" / f"many_rows_{options.rows}_{device}.json"
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
