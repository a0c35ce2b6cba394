"""What the first cell of every notebook runs in the clone: installs the package for the accelerator that is here."""

import glob
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys

accelerator = "tpu" if glob.glob("/dev/accel*") or glob.glob("/dev/vfio/*") else ""
accelerator = "cuda" if shutil.which("nvidia-smi") else accelerator
installed = "contrastive_jax" in {distribution.name for distribution in importlib.metadata.distributions()}
plugin = {"cuda": "jax_cuda12_plugin", "tpu": "libtpu", "": "jax"}[accelerator]
if not installed or importlib.util.find_spec(plugin) is None:
    what = f".[{accelerator}]" if accelerator else "."
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "-e", what], check=True)
    importlib.invalidate_caches()

import jax

from contrastive_jax.native import compiler

compiler.set_flag()  # it is read with the first array

found = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
if found != (accelerator or "cpu") and not os.environ.get("JAX_PLATFORMS"):
    raise SystemExit(f"Here is {accelerator}, but jax {jax.__version__} uses {found}: restart the kernel.")
print(f"jax {jax.__version__} on {found}: {', '.join(device.device_kind for device in jax.devices())}")
