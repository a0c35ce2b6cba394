"""Memory of a step's temporaries, kept from one step to the next.

XLA's CPU client allocates about a gigabyte of temporaries at every call, and glibc maps it from the system and
returns it: hundreds of thousands of page faults per step. Here all threads share one heap that keeps its pages,
huge ones if the system supports them.
"""

import ctypes
import importlib.util
import sys

import jax

from contrastive_jax.native.library import check_switch

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # parameters of glibc's mallopt
MADV_HUGEPAGE = 14
HUGE = 1 << 21  # bytes of a huge page
ACCELERATORS = ("jax_plugins", "libtpu")
_kept = False


def keep_pages() -> None:
    """Keep freed memory in the process if jax can use only a CPU, on Linux with glibc.

    Call it before jax creates its client: threads that exist already keep heaps of their own.
    """
    global _kept
    wanted = check_switch()
    asked = jax.config.jax_platforms  # type: ignore[attr-defined]
    if asked != "cpu" and (asked or any(map(importlib.util.find_spec, ACCELERATORS))):
        return
    if _kept or not wanted or not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        _kept = all(
            libc.mallopt(*setting) for setting in ((ARENA_MAX, 1), (MMAP_MAX, 0), (TRIM_THRESHOLD, -1))
        )


def use_huge_pages(size: int) -> None:
    """Advise huge pages for the next ``size`` bytes of the heap of :func:`keep_pages`."""
    if not _kept or size < HUGE:
        return
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.argtypes, libc.madvise.argtypes = (
        (ctypes.c_void_p,),
        (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    )
    block = libc.malloc(size)
    if block:
        first = -(-block // HUGE) * HUGE
        libc.madvise(first, max(0, block + size - first) // HUGE * HUGE, MADV_HUGEPAGE)
        libc.free(block)
