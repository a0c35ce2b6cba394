"""Rank process of :mod:`contrastive_jax.conformance.ranks`: reads a request and writes its results."""

import importlib
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from contrastive_jax.conformance.bridge import first


def main(request: dict[str, Any]) -> None:
    """Compute a rank's value and gradient with respect to shared weights, and write them as JSON."""
    module, _, name = request["function"].partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    arrays = [np.asarray(x) for x in request["arrays"]]
    answer = {"torch": torch_rank, "jax": jax_ranks}[request["framework"]](function, arrays, request)
    pathlib.Path(request["answer"]).write_text(json.dumps(answer))


def named(request: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of every call."""
    parameter = request["parameter"]
    return {**request["options"], **({parameter: request["argument"]} if parameter else {})}


def torch_rank(function: Callable, arrays: list[np.ndarray], request: dict[str, Any]) -> dict[str, Any]:
    """Compute the whole batch, the rank's part alone, and the part together with the other ranks (gloo)."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, number = request["rank"], request["ranks"]

    def value_and_gradient(batch: list[np.ndarray]) -> tuple[float, list]:
        given = [torch.tensor(x, dtype=torch.float32 if x.dtype.kind == "f" else None) for x in batch]
        leaves = [x.requires_grad_(True) for x in given if x.is_floating_point()]
        value = first(function(*given, **named(request))).float().mean()
        value.backward()  # gradient of W = I in rows x W: the sum of x^T dL/dx
        slopes = [x.detach().T @ x.grad for x in leaves if x.grad is not None]
        return float(value), sum(slopes).tolist()

    rows = len(arrays[0]) // number
    part = [x[rank * rows : (rank + 1) * rows] if i < request["split"] else x for i, x in enumerate(arrays)]
    whole_value, whole = value_and_gradient(arrays)
    _, apart = value_and_gradient(part)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", init_method=f"file://{request['store']}", rank=rank, world_size=number)
    try:
        value, gradient = value_and_gradient(part)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return {
        "value": value,
        "gradient": gradient,
        "whole_value": whole_value,
        "whole_gradient": whole,
        "part_gradient": apart,
    }


def jax_ranks(function: Callable, arrays: list[np.ndarray], request: dict[str, Any]) -> dict[str, Any]:
    """Compute all ranks on emulated devices, with shard_map for ``axis_name``, otherwise on sharded rows."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    number, split = request["ranks"], request["split"]
    mesh = jax.make_mesh((number,), ("ranks",), axis_types=(AxisType.Auto,), devices=jax.devices()[:number])
    given = [jnp.asarray(x, jnp.float32 if x.dtype.kind == "f" else jnp.int32) for x in arrays]
    weights = jnp.eye(arrays[0].shape[1], dtype=jnp.float32)

    def mean(weights, *batch, **extra):
        turned = [x @ weights if x.dtype == jnp.float32 else x for x in batch]
        return jnp.mean(first(function(*turned, **named(request), **extra)))

    whole_value, whole = jax.jit(jax.value_and_grad(mean))(weights, *given)
    found = {"whole_value": float(whole_value), "whole_gradient": np.asarray(whole).tolist()}
    sliced = [PartitionSpec("ranks") if i < split else PartitionSpec() for i in range(len(given))]
    if not request["axis_name"]:
        laid = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(given, sliced, strict=True)]
        value, gradient = jax.jit(jax.value_and_grad(mean))(
            jax.device_put(weights, NamedSharding(mesh, PartitionSpec())), *laid
        )
        return found | {"value": float(value), "gradient": np.asarray(gradient).tolist()}

    def of_rank(weights, *batch):
        value, gradient = jax.value_and_grad(mean)(weights, *batch, axis_name="ranks")
        return jax.lax.pmean(value, "ranks"), jax.lax.pmean(gradient, "ranks")

    ranks = jax.shard_map(
        of_rank, mesh=mesh, in_specs=(PartitionSpec(), *sliced), out_specs=PartitionSpec(), check_vma=False
    )
    value, gradient = jax.jit(ranks)(weights, *given)
    rows = len(arrays[0]) // number
    found |= {"value": float(value), "gradient": np.asarray(gradient).tolist()}
    return found | {"rows": rows}
