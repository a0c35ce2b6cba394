"""EqCo's table 9: mutual information of correlated Gaussians, estimated by InfoNCE and EqCo.

    python experiments/eqco/table_9.py run      # train what is missing, resume what was stopped, render
    python experiments/eqco/table_9.py render   # the table and the criteria from the results on disk

``--scale smoke`` is the same program in seconds. A column of the table (one K: 5 informations x 6 objectives
x 3 seeds) is one program; its state lies in ``--workdir`` and its result in ``--results``.
Beside the paper's value every cell shows the same estimate with the exact log density ratio as critic, on
the same batches: for InfoNCE the largest value that any critic can reach in expectation.
Source: EqCo (Zhu et al., 2020), appendix C; the setting is that of Poole et al. (2019), section 3.
"""

import argparse
import dataclasses
import datetime
import functools
import json
import math
import os
import pathlib
import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from contrastive_jax import losses, native
from contrastive_jax.contrast.similarity import normalize

HERE = pathlib.Path(__file__).parent

# As printed: x in 20 dimensions, MLPs with one hidden layer of 256 and ReLU, Adam 5e-4, 5,000 steps, a batch
# of K pairs, so K - 1 negatives; then 1,000 batches with the weights frozen. alpha = 512.
RUNS = {
    "paper": {
        "information": (2.0, 4.0, 6.0, 8.0, 10.0),
        "pairs": (64, 128, 256, 512),
        "seeds": (0, 1, 2),
        "steps": 5000,
        "batches": 1000,
    },
    "smoke": {"information": (2.0, 10.0), "pairs": (16,), "seeds": (0, 1), "steps": 20, "batches": 10},
}
DIMENSION, HIDDEN, LEARNING_RATE, ALPHA = 20, 256, 5e-4, 512.0

# Table 9, rows by mutual information, columns by K = 64, 128, 256, 512.
REPORTED = {
    "info_nce": {
        2.0: (1.7, 1.8, 1.9, 1.9),
        4.0: (2.9, 3.2, 3.4, 3.6),
        6.0: (3.6, 4.1, 4.5, 4.9),
        8.0: (3.9, 4.6, 5.1, 5.6),
        10.0: (4.1, 4.7, 5.4, 6.0),
    },
    "eqco": {
        2.0: (1.9, 1.9, 1.9, 1.9),
        4.0: (3.8, 3.7, 3.6, 3.6),
        6.0: (5.1, 5.0, 4.9, 4.9),
        8.0: (5.8, 5.7, 5.7, 5.6),
        10.0: (6.1, 6.0, 6.0, 6.0),
    },
}

METRIC = "the estimate in nats: mean over queries, fresh batches and seeds, of frozen critics"

# What the paper does not print: our choice, and why.
ASSUMED = {
    "width": (32, "embedding width; Poole et al.'s notebook (embed_dim=32), whose setting the paper follows"),
    "score": ("dot", "dot product of the embeddings; the separable critic of the same notebook"),
    "temperature": (1.0, "none with the dot product: the embeddings find their own scale"),
    "alpha_over": ("K-1", "alpha over the number of negatives that each query has, as eq. 5 defines K"),
    "initialisation": (
        "uniform",
        "weights and biases uniform in +-1/sqrt(fan-in), PyTorch's for a linear layer",
    ),
    "directions": ("x to y", "x queries y: the paper's q and k; one direction"),
    "u": ("MLP", "Fenchel-Legendre's u: an MLP of 256 on (x, y); the row is ours, not the paper's"),
}


class Settings(NamedTuple):
    """A run's settings; the defaults are ``ASSUMED``."""

    information: tuple[float, ...]
    pairs: int
    seeds: tuple[int, ...]
    steps: int
    batches: int
    objectives: tuple[str, ...]
    width: int = ASSUMED["width"][0]
    score: str = ASSUMED["score"][0]
    temperature: float = ASSUMED["temperature"][0]
    alpha_over: str = ASSUMED["alpha_over"][0]


@dataclasses.dataclass(frozen=True)
class Scores:
    """Quantities of a batch that the losses read: [K] joint scores, logsumexps of the marginal ones, their number."""

    positive: jax.Array
    negative: jax.Array
    count: jax.Array
    margin_count: jax.Array  # what alpha is divided by
    u: jax.Array | None  # Fenchel-Legendre's second critic

    @property
    def c(self):
        """The contrast."""
        return self.negative - self.positive


class Objective(NamedTuple):
    """A function that a critic minimises (averaged over the batch), and how the critic is read."""

    title: str
    loss: callable
    estimate: callable
    bound: str
    note: str = ""


OBJECTIVES = {
    "info_nce": Objective(
        "InfoNCE",
        lambda s: losses.info_nce(s.c),
        lambda s: losses.info_nce_estimate(s.c, s.count),
        "lower bound",
    ),
    "eqco": Objective(
        "EqCo, alpha=512",
        lambda s: losses.eqco(s.c, s.margin_count, alpha=ALPHA),
        lambda s: losses.eqco_estimate(s.c, s.margin_count, alpha=ALPHA),
        "bound for alpha <= K - 1 only",
    ),
    "flat_nce": Objective(
        "FlatNCE, read by InfoNCE",
        lambda s: losses.flat_nce(s.c),
        lambda s: losses.info_nce_estimate(s.c, s.count),
        "lower bound",
        "A critic's scale is free here (a dot product), and FlatNCE's gradient does not fade: where the positive is"
        " mostly ahead of K - 1 negatives, larger scores always lower its objective, which has no minimum. They"
        " grow to the end of training, and the pairs that are not ahead sink the estimate. On the cosine of"
        " the other experiments scores are bounded.",
    ),
    "nwj": Objective(
        "NWJ",
        lambda s: -losses.nwj(s.positive, s.negative, s.count),
        lambda s: losses.nwj(s.positive, s.negative, s.count),
        "lower bound",
    ),
    "donsker_varadhan": Objective(
        "Donsker-Varadhan",
        lambda s: -losses.donsker_varadhan_estimate(s.positive, s.negative, s.count),
        lambda s: losses.donsker_varadhan_estimate(s.positive, s.negative, s.count),
        "no bound",
    ),
    "fenchel_legendre": Objective(
        "Fenchel-Legendre",
        lambda s: losses.fenchel_legendre(s.c, s.count, s.u),
        lambda s: -losses.fenchel_legendre(s.c, s.count, s.u),
        "lower bound",
    ),
}
PAPERS_OWN = ("info_nce", "eqco")


def correlation(information):
    """Return rho at which two DIMENSION-dimensional Gaussians share ``information`` nats (eq. 15)."""
    return jnp.sqrt(-jnp.expm1(-2 * information / DIMENSION))


def batch_noise(key, pairs):
    """Draw independent x and eps, [K, DIMENSION] each; every information makes its y of the same two."""
    return jax.random.normal(key, (2, pairs, DIMENSION))


def joint_sample(noise, rho):
    """Return x and y = rho x + sqrt(1 - rho^2) eps (eq. 14)."""
    return noise[0], rho * noise[0] + jnp.sqrt(1 - rho**2) * noise[1]


def log_density_ratio(x, y, rho):
    """Compute the exact critic log p(y | x) / p(y): [N, DIMENSION], [M, DIMENSION] -> [N, M]."""
    noise = 1 - rho**2
    squares = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(y**2, axis=1)[None, :]
    product = jnp.matmul(x, y.T, precision="highest")
    return -DIMENSION / 2 * jnp.log(noise) + (rho * product - rho**2 / 2 * squares) / noise


@native.jit(static_argnums=(0, 2, 3))
def by_exact_critic(estimates, information, negatives, batches, seed):
    """Compute {estimate: [batches]}: each batch's mean of ``estimates(positive, negative, count)``, exact critic."""
    rho = correlation(information)

    def of_batch(number):
        key = jax.random.fold_in(jax.random.key(seed), number)
        scores = log_density_ratio(*joint_sample(batch_noise(key, negatives + 1), rho), rho)
        return {name: jnp.mean(value) for name, value in estimates(*losses.row_statistics(scores)).items()}

    return jax.lax.map(of_batch, jnp.arange(batches))


def mlp_init(key, inputs, outputs):
    """Draw the weights of one hidden layer."""
    shapes = {"w1": (inputs, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, outputs), "b2": (outputs,)}
    fan_in = {"w1": inputs, "b1": inputs, "w2": HIDDEN, "b2": HIDDEN}
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.uniform(k, shape, minval=-1, maxval=1) / math.sqrt(fan_in[name])
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def mlp(weights, x):
    """Apply the layers: [K, inputs] -> [K, outputs]."""
    hidden = jax.nn.relu(jnp.matmul(x, weights["w1"], precision="highest") + weights["b1"])
    return jnp.matmul(hidden, weights["w2"], precision="highest") + weights["b2"]


def critic_init(key, settings, name):
    """Draw the weights of an objective's critic."""
    keys = jax.random.split(key, 3)
    weights = {side: mlp_init(k, DIMENSION, settings.width) for side, k in zip("xy", keys[:2], strict=True)}
    return weights | ({"u": mlp_init(keys[2], 2 * DIMENSION, 1)} if name == "fenchel_legendre" else {})


def statistics(scores, settings, u=None):
    """Compute :class:`Scores` of the matrix of scores of all x with all y."""
    positive, negative, count = losses.row_statistics(scores)
    margin_count = count if settings.alpha_over == "K-1" else count + 1
    return Scores(positive, negative, count, margin_count, u)


def learned(weights, x, y, settings):
    """Compute scores of a trained critic."""
    query, key = mlp(weights["x"], x), mlp(weights["y"], y)
    if settings.score == "cosine":
        query, key = normalize(query), normalize(key)
    u = mlp(weights["u"], jnp.concatenate([x, y], axis=1))[:, 0] if "u" in weights else None
    scores = jnp.matmul(query, key.T, precision="highest") / settings.temperature
    return statistics(scores, settings, u)


def exact(x, y, rho, settings, name):
    """Compute scores of the objective's best critic: the log density ratio r; for NWJ r + 1, as u -r."""
    scores = log_density_ratio(x, y, rho) + (1.0 if name == "nwj" else 0.0)
    return statistics(scores, settings, u=-jnp.diagonal(scores))


def over_cells(function, per_cell, noise, rho):
    """Compute ``function(per_cell, noise, rho)`` of every seed (whose noise it is) and information.

    Leaves [seeds, informations, ...]. One cell after the other in one compiled loop: on a CPU 2.5 times as
    fast as vmap at K = 512, because a cell's [K, K] scores then stay in the cache.
    """

    def of_seed(seed):
        per_cell, noise = seed
        return jax.lax.map(lambda cell: function(cell[0], noise, cell[1]), (per_cell, rho))

    return jax.lax.map(of_seed, (per_cell, noise))


def noises(settings, key_name, step):
    """Draw [seeds, 2, K, DIMENSION], from (seed, K, what for, step) and nothing else."""
    root = jax.random.fold_in(jax.random.key(9), {"train": 0, "evaluate": 1}[key_name])
    keys = [jax.random.fold_in(jax.random.fold_in(root, seed), settings.pairs) for seed in settings.seeds]
    return jnp.stack([batch_noise(jax.random.fold_in(key, step), settings.pairs) for key in keys])


OPTIMIZER = optax.adam(LEARNING_RATE)


@native.jit(static_argnums=0)
def init(settings):
    """Make step 0: {objective: (weights, Adam's moments)}, every leaf [seeds, informations, ...].

    A seed's first weights are the same for every objective and information.
    """

    def cell(name, key):
        weights = critic_init(key, settings, name)
        return weights, OPTIMIZER.init(weights)

    keys = jnp.stack([jax.random.fold_in(jax.random.key(2020), seed) for seed in settings.seeds])
    keys = jnp.repeat(keys[:, None], len(settings.information), axis=1)
    return {name: jax.vmap(jax.vmap(functools.partial(cell, name)))(keys) for name in settings.objectives}


@native.jit(static_argnums=(0, 3), donate_argnums=1)
def train(settings, states, first, steps):
    """Train ``steps`` steps of every cell of a column from step ``first``."""
    rho = correlation(jnp.asarray(settings.information))

    def update(name, state, noise, rho):
        def loss(weights):
            return jnp.mean(OBJECTIVES[name].loss(learned(weights, *joint_sample(noise, rho), settings)))

        weights, moments = state
        change, moments = OPTIMIZER.update(jax.grad(loss)(weights), moments)
        return optax.apply_updates(weights, change), moments

    def step(states, number):
        noise = noises(settings, "train", number)
        updated = {
            name: over_cells(functools.partial(update, name), state, noise, rho)
            for name, state in states.items()
        }
        return updated, None

    return jax.lax.scan(step, states, first + jnp.arange(steps))[0]


@native.jit(static_argnums=(0, 3))
def evaluate(settings, states, first, batches):
    """Compute {objective: [batches, seeds, informations, 2]}: each batch's estimate, ours and the exact."""
    rho = correlation(jnp.asarray(settings.information))

    def cell(name, weights, noise, rho):
        sample, estimate = joint_sample(noise, rho), OBJECTIVES[name].estimate
        critics = learned(weights, *sample, settings), exact(*sample, rho, settings, name)
        return jnp.stack([jnp.mean(estimate(scores)) for scores in critics])

    def batch(_, number):
        noise = noises(settings, "evaluate", number)
        return None, {
            name: over_cells(functools.partial(cell, name), weights, noise, rho)
            for name, (weights, _) in states.items()
        }

    return jax.lax.scan(batch, None, first + jnp.arange(batches))[1]


def save_state(path, fingerprint, step, states):
    """Write the leaves of a column's state, whole or not at all."""
    leaves = {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(states))}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, fingerprint=fingerprint, step=step, **leaves)
    os.replace(partial, path)


def load_state(path, fingerprint, states):
    """Read (step, states) from disk, or (0, ``states``) where there are none of these settings."""
    if not path.exists():
        return 0, states
    with np.load(path) as file:
        if str(file["fingerprint"]) != fingerprint:
            return 0, states
        leaves, structure = jax.tree.flatten(states)
        read = [jnp.asarray(file[f"leaf_{i}"]) for i in range(len(leaves))]
        return int(file["step"]), jax.tree.unflatten(structure, read)


def number(value):
    """Keep six digits for JSON; None for what is not finite."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


def run_column(settings, state_path, progress):
    """Train and evaluate one column; return what its JSON file holds."""
    fingerprint = json.dumps(settings._asdict() | {"jax": jax.__version__})
    start, chunk = time.perf_counter(), max(1, min(250, settings.steps // 4))
    step, states = load_state(state_path, fingerprint, init(settings))
    resumed = step
    progress(step)
    while step < settings.steps:
        steps = min(chunk, settings.steps - step)
        states, step = train(settings, states, step, steps), step + steps
        save_state(state_path, fingerprint, step, states)
        progress(step)
    chunk, values = min(100, settings.batches), []
    for first in range(0, settings.batches, chunk):
        values.append(evaluate(settings, states, first, min(chunk, settings.batches - first)))
        progress(settings.steps + first + chunk)
    values = {name: np.concatenate([np.asarray(v[name], np.float64) for v in values]) for name in states}
    cells = [
        {
            "objective": name,
            "information": information,
            "pairs": settings.pairs,
            "ours": [number(x) for x in value[:, :, i, 0].mean(axis=0)],
            "exact": number(value[:, :, i, 1].mean()),
            "exact_standard_error": number(value[:, :, i, 1].std(ddof=1) / math.sqrt(value[:, :, i, 1].size)),
        }
        for name, value in values.items()
        for i, information in enumerate(settings.information)
    ]
    return {
        "settings": settings._asdict(),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - start, 1),
        "resumed_from_step": resumed,
        "cells": cells,
    }


def columns(scale):
    """Return {file stem: Settings}: the paper's own objectives first, then the extra rows."""
    options = dict(RUNS[scale])
    pairs = options.pop("pairs")
    groups = {"paper": PAPERS_OWN, "extra": tuple(name for name in OBJECTIVES if name not in PAPERS_OWN)}
    return {
        f"table_9_{group}_{count}": Settings(pairs=count, objectives=objectives, **options)
        for group, objectives in groups.items()
        for count in pairs
    }


def run(jobs, workdir, results):
    """Run the columns whose results are not on disk with the same settings."""
    results.mkdir(parents=True, exist_ok=True)
    for name, settings in jobs.items():
        path = results / f"{name}.json"
        if path.exists() and json.loads(path.read_text())["settings"] == as_read(settings):
            print(f"{name}: on disk", flush=True)
            continue
        total = settings.steps + settings.batches

        def progress(done, name=name, total=total):
            print(f"{name}: {min(done, total)}/{total} steps and batches", flush=True)

        column = run_column(settings, workdir / f"{name}.npz", progress)
        path.write_text(json.dumps(column, indent=1) + "\n")
        print(f"{name}: {column['seconds']:.0f} s", flush=True)


def as_read(settings):
    """Return settings as JSON gives them back."""
    return json.loads(json.dumps(settings._asdict()))


def collect(jobs, results):
    """Read {(objective, information, K): cell} of the columns on disk that have these settings."""
    cells = {}
    for name, settings in jobs.items():
        path = results / f"{name}.json"
        column = json.loads(path.read_text()) if path.exists() else {"settings": None}
        if column["settings"] == as_read(settings):
            cells |= {(c["objective"], c["information"], c["pairs"]): c for c in column["cells"]}
    return cells


def mean(cell):
    """Return the mean over seeds; NaN where one of them is not finite."""
    return float(np.mean([math.nan if x is None else x for x in cell["ours"]]))


def reported(objective, information, pairs):
    """Return the paper's value, or None."""
    row = REPORTED.get(objective, {}).get(information)
    printed = RUNS["paper"]["pairs"]
    return row[printed.index(pairs)] if row and pairs in printed else None


def criteria(cells):
    """Return {criterion: the cells or rows that miss it}: the conditions of the replication, on what is there."""
    rows, widths = RUNS["paper"]["information"], RUNS["paper"]["pairs"]
    ours = {key: mean(cell) for key, cell in cells.items() if reported(*key) is not None}

    def outside(name, low, high):
        return [key for key in ours if key[0] == name and not low(key) <= ours[key] <= high(key)]

    def roof(key):
        return cells[key]["exact"] + 3 * cells[key]["exact_standard_error"]

    def line(name, row):
        return np.array([ours[name, row, width] for width in widths if (name, row, width) in ours])

    return {
        "InfoNCE lies between the paper - 0.15 and the exact critic + 3 standard errors": outside(
            "info_nce", lambda key: reported(*key) - 0.15, roof
        ),
        "EqCo lies between the paper - 0.15 and the paper + 0.35": outside(
            "eqco", lambda key: reported(*key) - 0.15, lambda key: reported(*key) + 0.35
        ),
        "InfoNCE grows with K": [row for row in rows if np.any(np.diff(line("info_nce", row)) <= 0)],
        "EqCo's rows are flat over K within 0.35 (a tolerance set before the run; the ledger asks for 0.3)": [
            row for row in rows if len(found := line("eqco", row)) and not np.ptp(found) <= 0.35
        ],
    }


def verdicts(cells):
    """Write one line for every criterion."""
    wanted = len(PAPERS_OWN) * len(RUNS["paper"]["information"]) * len(RUNS["paper"]["pairs"])
    there = sum(reported(*key) is not None for key in cells)
    so_far = "" if there == wanted else f" so far ({there} of {wanted} cells are there)"
    return [
        f"{name}: {f'missed at {missed}' if missed else 'holds'}{so_far}"
        for name, missed in criteria(cells).items()
    ]


def cell_text(cell):
    """Write ours, exact, paper."""
    values = [x for x in cell["ours"] if x is not None]
    ours = f"{np.mean(values):.2f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.2f} ({len(values)})"
    if len(values) < len(cell["ours"]):
        ours = f"{len(cell['ours']) - len(values)} of {len(cell['ours'])} not finite"
    exact = (
        "overflow" if cell["exact"] is None else f"{cell['exact']:.2f} ± {cell['exact_standard_error']:.2g}"
    )
    paper = reported(cell["objective"], cell["information"], cell["pairs"])
    return f"**{ours}**; {exact}; {'-' if paper is None else paper}"


def render(scale, cells, path):
    """Write the table in Markdown."""
    options = RUNS[scale]
    lines = [
        f"# EqCo, table 9 ({scale} scale)",
        "",
        "Made by `python experiments/eqco/table_9.py run`. Every cell: **ours, mean ± standard deviation (n",
        "seeds)**; the same estimate with the exact log density ratio as critic, mean ± standard error; the",
        f"paper. {METRIC[0].upper()}{METRIC[1:]}.",
        f"{options['steps']:,} steps and {options['batches']:,} batches of K pairs: K - 1 negatives a query.",
        "",
    ]
    for name, objective in OBJECTIVES.items():
        lines += [
            f"## {objective.title} ({objective.bound})",
            "",
            "| MI | " + " | ".join(f"K = {width}" for width in options["pairs"]) + " |",
            "| --- |" + " --- |" * len(options["pairs"]),
        ]
        for row in options["information"]:
            found = [cells.get((name, row, width)) for width in options["pairs"]]
            lines.append(f"| {row:g} | " + " | ".join(cell_text(c) if c else "" for c in found) + " |")
        lines += ["", *((objective.note, "") if objective.note else ())]
    if scale == "paper":
        lines += ["## Criteria", "", *(f"* {line}" for line in verdicts(cells)), ""]
    lines += ["## Not printed in the paper, so chosen", "", "| what | choice | why |", "| --- | --- | --- |"]
    lines += [f"| {what} | {choice} | {why} |" for what, (choice, why) in ASSUMED.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def main(arguments=None):
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", nargs="?", default="run", choices=("run", "render"))
    parser.add_argument("--scale", default="paper", choices=tuple(RUNS))
    parser.add_argument("--workdir", type=pathlib.Path, help="states (default: runs/eqco_table_9/<scale>)")
    parser.add_argument(
        "--results", type=pathlib.Path, help="default: results/ beside this file at paper scale"
    )
    options = parser.parse_args(arguments)
    workdir = options.workdir or pathlib.Path("runs") / "eqco_table_9" / options.scale
    results = options.results or (HERE / "results" if options.scale == "paper" else workdir / "results")
    jobs = columns(options.scale)
    if options.verb == "run":
        run(jobs, workdir, results)
    cells = collect(jobs, results)
    table = results / "table_9.md"
    render(options.scale, cells, table)
    print(f"{table}: {len(cells)} cells")
    if options.scale == "paper":
        print(*verdicts(cells), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
