"""Compilation of the library's programs: with own CPU kernels, and without XLA's wrong reductions.

Images are resized on the host by :mod:`contrastive_jax.native.resize`.
"""

from contrastive_jax.native.compiler import jit, on_cpu, tracing_for
from contrastive_jax.native.library import available, call, check_switch, kernels, start, winograd
from contrastive_jax.native.pages import keep_pages, use_huge_pages

__all__ = [
    "available",
    "call",
    "check_switch",
    "jit",
    "keep_pages",
    "kernels",
    "on_cpu",
    "start",
    "tracing_for",
    "use_huge_pages",
    "winograd",
]
