"""Model FLOP utilisation: what a run computes over what its devices can, by FLOPs counted and a peak measured."""

import functools
import math
import time

import jax
import jax.numpy as jnp

from contrastive_jax import models, sharding
from contrastive_jax.training.run import Run
from contrastive_jax.workdir.encoder import network_of

# Side of the matrices whose product is timed: some milliseconds, on an idle device.
SIDES = {"cpu": 1024, "gpu": 8192, "tpu": 8192}


def of_one_image_a_second(run: Run) -> float | None:
    """The utilisation at one image a second, by which images a second become utilisation.

    The peak is measured on one device for each of the mesh; CPU devices of a process share its cores, and count
    as one. None where the device has no room to measure by: the run itself may still fit.
    """
    device = run.mesh.local_devices[0]
    devices = jax.process_count() if device.platform == "cpu" else run.mesh.size
    try:
        return model_flops(run) / (devices * peak(device, run.config["dtype"]))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None


def model_flops(run: Run) -> float:
    """FLOPs that training needs for an image: the network's forward pass over the views that have a gradient three
    times (a backward pass is two), and over those of an averaged target once.

    What is computed again (``train.remat``, ``train.microbatches``), augmentation, loss and optimizer are not
    counted, so that the figure does not grow with them (Chowdhery et al. 2022, appendix B).
    """
    online = len(range(*run.recipe.online_views.indices(2)))
    target = 0 if run.recipe.target.shared else len(range(*run.recipe.target_views.indices(2)))
    return (3 * online + target) * _forward_flops(network_of(run.config), run.recipe.view_shape)


@functools.lru_cache(maxsize=16)
def _forward_flops(network: models.Network, view_shape: tuple[int, int, int]) -> float:
    """Of one view, as XLA counts before it optimises: a multiplication and an addition are two."""

    def forward(params, stats, views):
        return network.apply(params, stats, views, train=False)[0].prediction

    weights = network.shapes(view_shape)
    views = jax.ShapeDtypeStruct((1, 1, *view_shape), jnp.float32)
    return (jax.jit(forward).lower(*weights, views).cost_analysis() or {}).get("flops", math.nan)


@functools.cache
def peak(device: jax.Device, dtype: str) -> float:
    """FLOPs a second of a product of two square matrices on a device, the best of a few: measured, not published."""
    side = SIDES.get(device.platform, 4096)
    with jax.set_mesh(sharding.make_mesh([device])):  # in place of the run's
        matrix = jnp.ones((side, side), dtype)
        product = jax.jit(jnp.matmul).lower(matrix, matrix).compile()
        seconds = math.inf
        for _ in range(5):
            began = time.perf_counter()
            product(matrix, matrix).block_until_ready()
            seconds = min(seconds, time.perf_counter() - began)
    return 2 * side**3 / seconds
