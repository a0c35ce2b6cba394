"""Compilation of the step, also from shapes alone for devices that are absent."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping

import jax
from jax.sharding import Mesh, NamedSharding

from contrastive_jax import data, native, sharding
from contrastive_jax.training.program import Program, packed
from contrastive_jax.training.run import Run
from contrastive_jax.training.step import make_train_step, state_of
from contrastive_jax.types import PyTree, TrainState

DETERMINISTIC: dict[str, bool | int] = {"xla_gpu_deterministic_ops": True}


def compiler_options(mesh: Mesh, deterministic: bool = True) -> dict[str, bool | int]:
    """Return the compiler options of a step, in addition to those of every program of the library.

    On a CPU, LLVM's optimization level 1 compiles a third faster, and the step is as fast. On a GPU, a
    ``deterministic`` step (``train.deterministic``) selects kernels by rules instead of by timing, and none of
    them sums in the order in which threads finish: its results are bitwise the same in every call and process,
    whatever else the GPU did during compilation.
    """
    platform = mesh.devices.flat[0].platform
    if platform == "cpu":
        return {"xla_backend_optimization_level": 1}
    return DETERMINISTIC if deterministic and platform == "gpu" else {}


def compiled_step(
    program: Program, feed: data.Resident | data.Stream, state: TrainState
) -> tuple[jax.stages.Compiled, float]:
    """Compile the train step, with packed metrics, before its first call; return it and the seconds taken."""
    options = compiler_options(program.mesh, program.runs[0].settings.train.deterministic)
    return compiled(program.step(feed), options, state, feed.feed(int(state.step)))


def compiled(
    step: Callable, options: Mapping[str, bool | int], state: TrainState, fed: PyTree
) -> tuple[jax.stages.Compiled, float]:
    """Return ``step(state, fed)``, compiled with ``options``, and the seconds taken; the state is donated."""
    began = time.perf_counter()
    program = native.jit(step, donate_argnums=0, compiler_options=options).lower(state, fed).compile()
    memory = program.memory_analysis()
    native.use_huge_pages(
        memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    )
    return program, time.perf_counter() - began


def compiled_from_shapes(run: Run) -> jax.stages.Compiled:
    """Compile the train step for ``run.mesh`` without placing arrays on its devices."""
    take, feed = data.feed_shapes(
        run.source.train,
        view=run.recipe.views,
        batch_size=run.settings.train.batch_size,
        mesh=run.mesh,
    )
    with jax.set_mesh(run.mesh):
        options = compiler_options(run.mesh, run.settings.train.deterministic)
        step = native.jit(
            packed(make_train_step(run.recipe, take)), donate_argnums=0, compiler_options=options
        )
        return step.lower(state_shapes(run), feed).compile()


def state_shapes(run: Run) -> TrainState:
    """Return the shapes of :func:`contrastive_jax.training.run.initial_state`; needs the mesh in context."""
    everywhere = sharding.named(run.mesh, sharding.REPLICATED)

    def replicated(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), tree)

    def shared(x):
        spec = x.sharding.spec if isinstance(x.sharding, NamedSharding) else sharding.REPLICATED
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding.named(run.mesh, spec))

    weights = run.recipe.network.shapes(run.recipe.view)
    state = replicated(jax.eval_shape(functools.partial(state_of, run.recipe, run.settings.seed), *weights))
    if run.settings.optimizer.options.get("shard_state", False):
        optimizer = jax.tree.map(shared, jax.eval_shape(run.recipe.optimizer.init, state.params))
        state = dataclasses.replace(state, optimizer=optimizer)
    return state
