"""The library's replacement of ``jax.jit``, used for all its programs.

On a CPU, XLA of jax 0.10 and 0.11 computes some reductions with YNNPACK, which gets a few of them wrong
(jax-ml/jax#39103: one row in 32,769 of a product and sum). Programs compiled here use XLA's own reductions.
Only these programs, and only on a CPU, call the kernels of :mod:`contrastive_jax.native.library`. Code traced
for another platform, or inside a user's own ``jit``, is plain JAX, and can be exported and lowered for any
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
from jax._src import xla_bridge  # no public name for whether XLA has started

OPTION = "xla_cpu_experimental_ynn_fusion_type"
FLAG = f"--{OPTION}=-reduce"  # the same option, for all programs of a process
# YNNPACK for products only: a compiler option lists the kinds to include, and cannot exclude one.
PRODUCTS_ONLY = {OPTION: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
FIRST_AFFECTED, FIRST_MENDED = (0, 10, 2), (0, 12)  # versions of jax
_warned = False
_ON_CPU = contextvars.ContextVar("on_cpu", default=False)


def on_cpu() -> bool:
    """Return whether a program of the library is being traced for a CPU."""
    return _ON_CPU.get()


@contextlib.contextmanager
def tracing_for(platform: str) -> Iterator[None]:
    """Mark the body as traced for ``platform``, see :func:`on_cpu`."""
    token = _ON_CPU.set(platform == "cpu")
    try:
        yield
    finally:
        _ON_CPU.reset(token)


@functools.cache
def options(platform: str) -> dict[str, str]:
    """Return the compiler options for ``platform``; empty except on a CPU whose XLA supports YNNPACK."""
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
    """Return whether this version of jax computes wrong reductions in programs without the option."""
    known = FIRST_AFFECTED <= jax.__version_info__ < FIRST_MENDED
    return known and OPTION not in os.environ.get("XLA_FLAGS", "")


def set_flag() -> None:
    """Set the option for the user's own programs in ``XLA_FLAGS``, which XLA reads when it starts.

    Do nothing if XLA has started, or if an accelerator's plugin is installed: its XLA may end the process at an
    unknown option.
    """
    plugins = any(importlib.util.find_spec(name) for name in ("libtpu", "jax_plugins"))
    if is_affected() and not plugins and not xla_bridge.backends_are_initialized():
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()


def warn_of_reductions() -> None:
    """Warn once if a program that the library does not compile may compute wrong reductions."""
    global _warned
    if _warned or on_cpu() or not is_affected() or jax.default_backend() != "cpu":
        return
    _warned = True
    warnings.warn(
        f"on a CPU jax {jax.__version__} computes some reductions of your own programs incorrectly"
        " (jax-ml/jax#39103): import contrastive_jax's losses before the first computation, or set"
        f" XLA_FLAGS={FLAG}.",
        stacklevel=3,
    )


def platform_here() -> str:
    """Return the platform of the mesh in context, or of jax's default device."""
    mesh, device = jax.sharding.get_mesh(), jax.config.jax_default_device  # type: ignore[attr-defined]
    if not mesh.empty:
        return mesh.devices.flat[0].platform
    return getattr(device, "platform", device) or jax.default_backend()


class Program:
    """A function that is compiled when it is called; see :func:`jit`."""

    def __init__(self, function: Callable, how: dict[str, Any]):
        functools.update_wrapper(self, function)
        self._function, self._how = function, how
        self._compiled: dict[str, Callable] = {}

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
            return self._function(*args, **kwargs)  # part of another program, which sets the options
        return self._for(platform_here())(*args, **kwargs)

    def lower(self, *args, **kwargs) -> jax.stages.Lowered:
        """Lower for the platform of the mesh in context, or of jax's default device."""
        return self._for(platform_here()).lower(*args, **kwargs)


def jit(function: Callable | None = None, **how: Any) -> Any:
    """Compile a function like ``jax.jit``, on a CPU with the library's kernels and compiler options.

    Inside another program the function becomes part of it, as jax accepts compiler options only for whole
    programs.

    Args:
      function: function of arrays; None returns a decorator.
      how: options of ``jax.jit``.
    """
    return functools.partial(jit, **how) if function is None else Program(function, how)
