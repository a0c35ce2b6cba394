"""``--mode=describe``: what a run would be; trains nothing."""

from collections.abc import Mapping
from typing import Any

import jax

from contrastive_jax import config as configs
from contrastive_jax import data, sharding
from contrastive_jax.run import prepare, replicate
from contrastive_jax.step import init_state
from contrastive_jax.train import compiled_step


def describe(config: Mapping[str, Any], workdir: str, *, quiet: bool = False) -> dict[str, Any]:
    """Prints the config, the network, the mesh, the steps and what the compiled step costs; trains nothing."""
    run = prepare(config)
    print("config")
    for name, value in configs.leaves(run.config).items():
        print(f"  {name} = {value!r}")
    shape = run.source.train.image.shape
    rows, totals = run.recipe.network.describe(run.recipe.view_shape)
    print("network")
    for room, path, size, count in rows:
        print(f"  {room}/{path:<40} {'x'.join(map(str, size)):>20} {count:>12,}")
    for room, count in totals.items():
        print(f"  {room}: {count:,} parameters")
    print(
        f"data\n  {run.source.name}: {shape[0]:,} images {'x'.join(map(str, shape[1:]))},"
        f" {len(run.source.classes)} classes"
    )
    devices = run.mesh.devices.reshape(-1)
    print(f"mesh\n  {run.mesh.size} x {devices[0].device_kind}, axis {sharding.AXIS!r}")
    print(
        f"steps\n  {run.total_steps:,} in all, {run.steps_per_epoch:.2f} an epoch,"
        f" batch {config['train']['batch_size']}"
    )
    with jax.set_mesh(run.mesh):
        feed = data.Resident(
            run.source.train, seed=config["seed"], batch_size=config["train"]["batch_size"], mesh=run.mesh
        )
        step, seconds = compiled_step(run, feed, replicate(init_state(run.recipe, config["seed"]), run.mesh))
    memory, cost = step.memory_analysis(), step.cost_analysis() or {}
    facts = {"compile_seconds": seconds, "gflops_per_step": cost.get("flops", float("nan")) / 1e9}
    for name in ("argument", "output", "temp"):
        facts[f"{name}_mib"] = getattr(memory, f"{name}_size_in_bytes") / 2**20
    print("compiled step, per device")
    for name, value in facts.items():
        print(f"  {name} = {value:,.2f}")
    return facts
