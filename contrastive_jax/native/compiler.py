"""The one place where the library's programs meet ``jax.jit``.

On a CPU, XLA of jax 0.10 and 0.11 hands some reductions to YNNPACK, which gets a few of them wrong
(jax-ml/jax#39103: one row in 32,769 of a product and sum). Programs that are compiled here do not. Nor does
tracing for another platform, or in a ``jit`` of one's own, ever see the kernels of
:mod:`contrastive_jax.native.library`: what they stand in for is plain JAX, which can be exported and lowered for any
device.
"""

import contextlib
import contextvars
import functools
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax._src import xla_bridge  # no public name says whether XLA has started

OPTION = "xla_cpu_experimental_ynn_fusion_type"
FLAG = f"--{OPTION}=-reduce"  # of the same meaning, for all programs of a process
# Products may stay YNNPACK's. XLA has no form of this option that names what is left out.
PRODUCTS_ONLY = {OPTION: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
FIRST_AFFECTED, FIRST_MENDED = (0, 10, 2), (0, 12)  # versions of jax
_warned = False
_ON_CPU = contextvars.ContextVar("on_cpu", default=False)


def on_cpu() -> bool:
    """Return whether a program of the library is being traced for a CPU."""
    return _ON_CPU.get()


@contextlib.contextmanager
def tracing_for(platform: str) -> Iterator[None]:
    """Trace what is inside for ``platform``."""
    token = _ON_CPU.set(platform == "cpu")
    try:
        yield
    finally:
        _ON_CPU.reset(token)


@functools.cache
def options(platform: str) -> dict[str, str]:
    """Return the compiler options of every program for ``platform``: none but on a CPU whose XLA knows YNNPACK."""
    if platform != "cpu":
        return {}
    try:
        jax.jit(lambda x: x, compiler_options=PRODUCTS_ONLY).lower(0.0).compile()
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return {}
    return PRODUCTS_ONLY


def is_affected() -> bool:
    """Return whether this jax gets reductions wrong in programs that say nothing of it."""
    known = FIRST_AFFECTED <= jax.__version_info__ < FIRST_MENDED
    return known and OPTION not in os.environ.get("XLA_FLAGS", "")


def set_flag() -> None:
    """Set the option for a user's own programs, by ``XLA_FLAGS``, which XLA reads as it starts.

    Not where it has started, nor beside an accelerator's plugin, whose XLA may end the process at an unknown option.
    """
    plugins = any(importlib.util.find_spec(name) for name in ("libtpu", "jax_plugins"))
    if is_affected() and not plugins and not xla_bridge.backends_are_initialized():
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()


def warn_of_reductions() -> None:
    """Warn, once, where a program that the library does not compile may get reductions wrong."""
    global _warned
    if _warned or on_cpu() or not is_affected() or jax.default_backend() != "cpu":
        return
    _warned = True
    warnings.warn(
        f"import contrastive_jax's losses before jax computes anything, or set XLA_FLAGS={FLAG}: on a CPU"
        f" jax {jax.__version__} gets some reductions wrong in programs of your own (jax-ml/jax#39103).",
        stacklevel=3,
    )


def platform_here() -> str:
    """Return the platform of the mesh in context, or else of jax's default device."""
    mesh, device = jax.sharding.get_mesh(), jax.config.jax_default_device  # type: ignore[attr-defined]
    if not mesh.empty:
        return mesh.devices.flat[0].platform
    return getattr(device, "platform", device) or jax.default_backend()


class Program:
    """A function that is compiled when it is called; see :func:`jit`."""

    def __init__(self, function: Callable, how: dict[str, Any]):
        functools.update_wrapper(self, function)
        self._function, self._how, self._compiled = function, how, {}

    def _for(self, platform: str):
        if platform not in self._compiled:

            @functools.wraps(self._function)
            def traced(*args, **kwargs):
                with tracing_for(platform):
                    return self._function(*args, **kwargs)

            how = dict(self._how)
            compiler_options = options(platform) | how.pop("compiler_options", {})
            self._compiled[platform] = jax.jit(traced, compiler_options=compiler_options or None, **how)
        return self._compiled[platform]

    def __call__(self, *args, **kwargs):
        """Call the function, compiled for the platform of the mesh in context, or of jax's default device."""
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs))):
            return self._function(*args, **kwargs)  # a part of another program, whose options hold
        return self._for(platform_here())(*args, **kwargs)

    def lower(self, *args, **kwargs) -> jax.stages.Lowered:
        """Lower for the platform of the mesh in context, or of jax's default device."""
        return self._for(platform_here()).lower(*args, **kwargs)


def jit(function: Callable | None = None, **how: Any) -> Any:
    """Compile a function as ``jax.jit`` does, and on a CPU as this library needs it.

    Called inside of another program it is a part of that one, as jax allows compiler options to whole programs only.

    Args:
      function: of arrays; None returns a decorator.
      how: options of ``jax.jit``.
    """
    return functools.partial(jit, **how) if function is None else Program(function, how)
