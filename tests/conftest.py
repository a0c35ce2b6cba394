"""Eight emulated devices, and a compilation cache shared by the whole session."""

import os
import pathlib
import tempfile

CACHE = pathlib.Path(
    os.environ.setdefault(
        "JAX_COMPILATION_CACHE_DIR",
        str(pathlib.Path(tempfile.gettempdir()) / f"contrastive_jax-tests-{os.getuid()}"),
    )
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
