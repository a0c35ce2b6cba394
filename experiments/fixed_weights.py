"""Measurements at the weights of a training that stand still. Used by figures 4 at fixed weights."""

import dataclasses
import json
import math
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def trained(config: Mapping[str, Any], epochs: float, points: Mapping[str, float]) -> dict[str, tuple | None]:
    """Train; return point -> weights and statistics, on the host, None at the start.

    Args:
      config: of the training.
      epochs: between two checkpoints, of which the last three are kept.
      points: share of the training for each point.
    """
    import jax

    from contrastive_jax.training import encoder, loop, run

    config = {**config, "evaluate": config["evaluate"] | {"final": False}}
    config["checkpoint"] = config["checkpoint"] | {"keep_every": f"{epochs:g} epochs", "keep_last": 3}
    with tempfile.TemporaryDirectory() as workdir:
        loop.train(config, workdir, quiet=True)
        total = run.prepare(config, jax.devices()[:1]).total_steps
        found: dict[str, tuple | None] = {}
        for point, share in points.items():
            step, parts = math.ceil(share * total), ("encoder", "projector")
            saved = encoder.read(workdir, modules=parts, step=step) if step else None
            found[point] = jax.device_get((saved.params, saved.stats)) if saved else None
    return found


def steps(config: Mapping[str, Any], weights: tuple | None, optimizer: Any, count: int) -> Iterator[tuple]:
    """Yield state and metrics after each step of a run from these weights (None: its own); ``optimizer`` holds them."""
    import jax

    from contrastive_jax import native
    from contrastive_jax.training import run as runs
    from contrastive_jax.training.step import make_train_step

    run = runs.prepare(config, jax.devices()[:1])
    run = run._replace(recipe=run.recipe._replace(optimizer=optimizer))
    with jax.set_mesh(run.mesh):
        feed, state = runs.feed_of(run), runs.initial_state(run)
        if weights is not None:
            params, stats = runs.replicate(weights, run.mesh)
            state = dataclasses.replace(state, params=state.params | params, stats=state.stats | stats)
        step = native.jit(make_train_step(run.recipe, feed.take))
        try:
            for number in range(count):
                state, metrics = step(state, feed.feed(number))
                yield state, metrics
        finally:
            feed.close()


def kept(folder: pathlib.Path, parts: Mapping[str, Callable[[], list[dict]]]) -> dict[str, list[dict]]:
    """Measure each part that ``folder`` does not have yet and keep it there; return the rows of all."""
    from contrastive_jax import native

    native.keep_pages()  # as the command does
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, part in parts.items():
        file = folder / f"{name}.json"
        if not file.exists():
            file.write_text(json.dumps(part(), indent=0) + "\n")
        found[name] = json.loads(file.read_text())
    return found
