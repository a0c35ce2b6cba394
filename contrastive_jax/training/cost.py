"""Cost of a step per device: FLOPs, traffic, communication, memory, and utilisation of the devices."""

import contextlib
import functools
import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core
from jax.sharding import Mesh

from contrastive_jax import data, models
from contrastive_jax.data import stream
from contrastive_jax.system import limits
from contrastive_jax.training import pairs
from contrastive_jax.training.encoder import network_of
from contrastive_jax.training.program import IN_FLIGHT
from contrastive_jax.training.run import Run

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_COLLECTIVE = re.compile(rf"^.*? = (.*?) ({'|'.join(KINDS)})(-start)?\(", re.MULTILINE)
_LAYOUT = re.compile(r"\{[^}]*\}")
_SHAPE = re.compile(r"([a-z]+\d*)\w*\[([\d,]*)\]")
EXHAUSTED = "RESOURCE_EXHAUSTED"  # the runtime's status, on every platform
LESS = (
    "use a smaller train.batch_size, more train.microbatches, train.remat=True or optimizer.shard_state=True"
)


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


def count(compiled: jax.stages.Compiled) -> Cost:
    """Return the cost of a compiled program per device; FLOPs and traffic are NaN if not counted."""
    memory, counted, text = compiled.memory_analysis(), compiled.cost_analysis() or {}, compiled.as_text()
    assert memory is not None and text is not None  # CPUs, GPUs and TPUs have both
    return Cost(
        flops=counted.get("flops", float("nan")),
        traffic=counted.get("bytes accessed", float("nan")),
        arguments=memory.argument_size_in_bytes,
        results=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temporary=memory.temp_size_in_bytes,
        collectives=tuple(collectives(text)),
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


class OutOfMemory(ValueError):
    """Error for a step that does not fit; the message lists options that need less."""


def memory_limit(mesh: Mesh) -> int | None:
    """Return the memory limit in bytes, the smallest of this process's devices; None: unknown.

    The devices of a CPU share the machine's memory.
    """
    if mesh.devices.flat[0].platform == "cpu":
        shared = limits.memory()
        return shared and shared // max(1, len(mesh.local_devices))
    statistics = [device.memory_stats() or {} for device in mesh.local_devices]
    return min((s["bytes_limit"] for s in statistics if "bytes_limit" in s), default=None)


def check_memory(run: Run, compiled: jax.stages.Compiled, together: int = 1) -> None:
    """Refuse a step (of ``together`` runs) that needs more memory than its devices have.

    Raises:
      OutOfMemory: the step does not fit.
    """
    available, needed = memory_limit(run.mesh), count(compiled).memory + feed_memory(run)
    if available is not None and needed > available:
        raise OutOfMemory(
            _does_not_fit(run, f"needs {gib(needed)} on each device, which has {gib(available)}", together)
        )


def feed_memory(run: Run) -> int:
    """Return the bytes per device of streamed batches beside the step's: prefetched or of pending steps."""
    train = run.source.train
    if not isinstance(train, data.Streamed):
        return 0
    batch_size = run.settings.train.batch_size
    _, fed = data.feed_shapes(train, view=run.recipe.views, batch_size=batch_size, mesh=run.mesh)
    batch = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(fed))
    return (IN_FLIGHT + stream.AHEAD) * batch // run.mesh.size


@contextlib.contextmanager
def translate_errors(
    run: Run, compiled: jax.stages.Compiled | None = None, together: int = 1
) -> Iterator[None]:
    """Translate the runtime's out-of-memory error, when the step is compiled or run.

    Raises:
      OutOfMemory: instead of the runtime's error.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if EXHAUSTED not in str(error):
            raise
        why = "needs more than the free memory"
        if compiled is not None:
            why = f"needs {gib(count(compiled).memory)} on each device, more than the free memory"
        raise OutOfMemory(_does_not_fit(run, why, together)) from error


def _does_not_fit(run: Run, why: str, together: int) -> str:
    what = f"train.batch_size={run.settings.train.batch_size}"
    if together > 1:
        return f"{what} of {together} replicas does not fit: the step {why}; train fewer replicas at a time."
    return f"{what} does not fit: the step {why}; {LESS}."


def gib(size: int) -> str:
    """Return a number of bytes as text, in GiB or MiB."""
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.3g} MiB"


LONG = 10.0  # hours on a CPU from which a run is announced as long: `small` scales take less
SHORT = 10_000  # examples; a run of fewer is short with every network of this package


def expected_seconds(run: Run, together: int = 1) -> float | None:
    """Return a rough estimate of the seconds per step (of ``together`` runs) on a CPU; None on other devices.

    It divides the network's FLOPs by the measured speed of a matrix product. Convolutions by Winograd's algorithm
    need less, narrow networks and augmentation more; the estimate is for telling seconds from hours.
    """
    if run.mesh.devices.flat[0].platform != "cpu":
        return None
    examples = together * run.settings.train.batch_size
    return model_flops(run) * examples / (_cpu_flops() * jax.process_count())


def warn_long(run: Run, steps: int, together: int = 1) -> str | None:
    """Return a message, with an estimate, if ``steps`` take a CPU longer than :data:`LONG` hours, else None."""
    if run.mesh.devices.flat[0].platform != "cpu" or steps * run.settings.train.batch_size < SHORT:
        return None
    seconds = steps * (expected_seconds(run, together) or 0.0)
    if seconds < LONG * 3600:
        return None
    return (
        f"on this CPU {steps:,} step{'s' * (steps != 1)} take about {rough_time(seconds)}, by the network's"
        " FLOPs: use a GPU, a smaller scale of the config (scale=small, cpu or smoke), or a shorter"
        " train.duration."
    )


@functools.cache
def _cpu_flops() -> float:
    """Measure the FLOP/s of a float32 matrix product on this machine's CPU, in a tenth of a second."""
    size, seconds = 1024, []
    factor = np.ones((size, size), np.float32)
    for _ in range(3):
        began = time.perf_counter()
        factor @ factor
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds)


def rough_time(seconds: float) -> str:
    """Return a time as text of two digits, in milliseconds, seconds, minutes or hours."""
    units = ((1e-3, "ms"), (1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours"))
    size, unit = next((u for u in reversed(units) if seconds >= 2 * u[0]), units[0])
    value = seconds / size
    return f"{float(f'{value:.2g}'):,.{1 if value < 9.95 else 0}f} {unit}"


class Peak(NamedTuple):
    """Published peak TFLOP/s of one jax device in dense matrix products."""

    kind: str  # regular expression that matches jax's whole name of the device
    bfloat16: float | None  # None: no bfloat16 units
    float32: float  # at jax's default precision: TF32 if available, bfloat16 on a TPU


# GPUs: NVIDIA's data sheets, without sparsity (half of the figures with it). TPUs: cloud.google.com/tpu/docs,
# one page per version; a device of v2 or v3 is a core, half of a chip. A part of a GPU (MIG) has no figure.
PEAKS = (
    Peak(r"NVIDIA H[12]00 NVL", 835, 417.5),
    Peak(r"NVIDIA H100 PCIe", 756, 378),
    Peak(r"NVIDIA H[12]00( .*)?", 989.4, 494.7),
    Peak(r"NVIDIA A100[- ].*", 312, 156),
    Peak(r"(NVIDIA )?(Tesla )?V100-PCI.*", None, 14),
    Peak(r"(NVIDIA )?(Tesla )?V100-SXM2.*", None, 15.7),
    Peak(r"NVIDIA L4", 121, 60),
    Peak(r"(NVIDIA )?(Tesla )?T4", None, 8.1),
    Peak(r"TPU v2", 22.5, 22.5),
    Peak(r"TPU v3", 61.5, 61.5),
    Peak(r"TPU v4", 275, 275),
    Peak(r"TPU v5( lite|e)", 197, 197),
    Peak(r"TPU v5p?", 459, 459),
    Peak(r"TPU v6( lite|e)", 918, 918),
)


def peak(kind: str, dtype: str) -> float | None:
    """Return the published peak FLOP/s of a kind of device; None if there is none, as for a CPU."""
    device = next((row for row in PEAKS if re.fullmatch(row.kind, kind) and "MIG" not in kind), None)
    tera = {"bfloat16": device.bfloat16, "float32": device.float32}.get(dtype) if device else None
    return None if tera is None else tera * 1e12


def of_one_image_a_second(run: Run, together: int = 1) -> float | None:
    """Return the utilisation per image per second, to be multiplied by a rate; None: no published peak.

    ``together``: number of runs that the devices train at once, each at that rate.
    """
    most = peak(run.mesh.local_devices[0].device_kind, run.settings.dtype)
    return None if most is None else together * model_flops(run) / (run.mesh.size * most)


def model_flops(run: Run) -> float:
    """Return the FLOPs that training needs per image.

    A view with a gradient counts as three forward passes of the network (a backward pass is two), a view of an
    averaged target as one. Recomputation (``train.remat``, ``train.microbatches``), augmentation, loss and
    optimizer are not counted, so that they do not increase the utilisation (Chowdhery et al. 2022, appendix B).
    """
    networks = [network_of(tower) for tower, _ in pairs.towers(run.settings, run.source)]
    encoded = run.recipe.encoded  # of pairs, one view for each network
    return sum(
        (3 * online + target) * _forward_flops(network, view)
        for network, (view, online, target) in zip(networks * len(encoded), encoded, strict=False)
    )


@functools.lru_cache(maxsize=16)
def _forward_flops(network: models.Network, view: jax.ShapeDtypeStruct) -> float:
    """Return the FLOPs of a forward pass in matrix products and convolutions, for one view."""

    def forward(params, stats, views):
        return network.apply(params, stats, views, train=False)[0].prediction

    weights = network.shapes(view)
    views = jax.ShapeDtypeStruct((1, 1, *view.shape), view.dtype)
    return _flops(jax.make_jaxpr(forward)(*weights, views).jaxpr)


def _flops(program: Any) -> float:
    """Return the FLOPs of matrix products and convolutions in a jaxpr; a multiply-add counts as two.

    Padding counts too, the body of a ``while`` counts once, and a ``cond`` counts as its largest branch. XLA's
    own count is not available for GPUs and TPUs before compilation, and lacks cuDNN's convolutions after it.
    """
    total = 0.0
    for equation in program.eqns:
        name, given, found = equation.primitive.name, equation.invars, equation.outvars
        if name == "conv_general_dilated":
            kernel, output = given[1].aval.shape, equation.params["dimension_numbers"].rhs_spec[0]
            total += 2 * found[0].aval.size * math.prod(kernel) / kernel[output]
        elif name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += 2 * found[0].aval.size * math.prod(given[0].aval.shape[axis] for axis in contracted)
        else:
            inner = [_flops(getattr(part, "jaxpr", part)) for part in _programs(equation.params)]
            total += max(inner) if name == "cond" else sum(inner) * equation.params.get("length", 1)
    return total


def _programs(parameters: Mapping[str, Any]) -> list[Any]:
    """Return the programs in an equation's parameters."""
    lists = [value if isinstance(value, tuple | list) else [value] for value in parameters.values()]
    return [part for parts in lists for part in parts if isinstance(part, core.Jaxpr | core.ClosedJaxpr)]
