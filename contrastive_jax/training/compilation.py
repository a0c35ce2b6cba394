"""Compilation of the step from shapes, also for devices that are absent, and its cost per device."""

import dataclasses
import functools
import math
import re
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding

from contrastive_jax import data, native, sharding
from contrastive_jax.training.packing import packed
from contrastive_jax.training.program import Program
from contrastive_jax.training.run import Run
from contrastive_jax.training.step import make_train_step, state_of
from contrastive_jax.types import PyTree, TrainState

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
DETERMINISTIC: dict[str, bool | int] = {"xla_gpu_deterministic_ops": True}
_COLLECTIVE = re.compile(rf"^.*? = (.*?) ({'|'.join(KINDS)})(-start)?\(", re.MULTILINE)
_LAYOUT = re.compile(r"\{[^}]*\}")
_SHAPE = re.compile(r"([a-z]+\d*)\w*\[([\d,]*)\]")


class Collective(NamedTuple):
    """Communication between devices in a compiled program."""

    kind: str  # one of KINDS
    bytes: int  # size of its results on one device


class Cost(NamedTuple):
    """Costs of one call of a program per device, as its compiler counts: the body of a loop counts once."""

    flops: float  # a multiply-add counts as two; CPU kernels are not counted
    traffic: float  # bytes read and written
    arguments: int  # bytes, including donated arguments, which results overwrite
    results: int  # bytes outside donated arguments
    temporary: int  # bytes
    collectives: tuple[Collective, ...]

    @property
    def memory(self) -> int:
        """Memory in bytes that the program needs."""
        return self.arguments + self.results + self.temporary


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


def cost(compiled: jax.stages.Compiled) -> Cost:
    """Return the cost of a compiled program per device; FLOPs and traffic are NaN if not counted."""
    memory, counted = compiled.memory_analysis(), compiled.cost_analysis() or {}
    return Cost(
        flops=counted.get("flops", float("nan")),
        traffic=counted.get("bytes accessed", float("nan")),
        arguments=memory.argument_size_in_bytes,
        results=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temporary=memory.temp_size_in_bytes,
        collectives=tuple(collectives(compiled.as_text())),
    )


def collectives(text: str) -> list[Collective]:
    """Find every collective of a compiled program, in the order of its text; one in a loop counts once."""
    ops = []
    for shapes, kind, start in _COLLECTIVE.findall(text):
        shapes = _LAYOUT.sub("", shapes)
        if start and kind != "all-reduce":  # (operands, results, ...); for all-reduce only results
            shapes = _second(shapes)
        ops.append(Collective(kind, sum(_bytes(*shape) for shape in _SHAPE.findall(shapes))))
    return ops


def _second(shapes: str) -> str:
    """Return the second element of ``(a, b, ...)``, whose elements may be tuples."""
    depth, starts = 0, []
    for i, character in enumerate(shapes):
        closes = character in ")]"
        depth += (character in "([") - closes
        if depth == 1 and character in "(,":
            starts.append(i + 1)
    return shapes[starts[1] : starts[2] - 1 if len(starts) > 2 else None]


def _bytes(dtype: str, lengths: str) -> int:
    bits = 8 if dtype == "pred" else int(re.sub(r"\D", "", dtype) or 0)  # of bf16, s32, u8; a token has none
    return math.prod(int(n) for n in lengths.split(",") if n) * bits // 8
