# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Feature suppression
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/)
#
# Two views of an image share more than one thing. Where one of them is enough to tell images apart, contrastive
# learning may take that one and leave the others (*Intriguing Properties of Contrastive Losses*, Chen, Luo and Li
# 2021, section 4). RandBit shows it: behind the channels of every digit b channels hold the bits of one random number,
# the same in both views. They say nothing of the digit; they only tell images apart.
#
# The first cell finds or fetches the repository, and ends in a working jax.

# %%
# In a clone of the repository nothing is to be set. Elsewhere (Colab) REPOSITORY is what `git clone` takes.
REPOSITORY = ""

import os
import pathlib
import runpy
import subprocess
import sys

here = pathlib.Path.cwd()
roots = [here, *here.parents, here / "contrastive_jax"]
roots = [path for path in roots if (path / "contrastive_jax/training/step.py").exists()]
if not roots:
    if not REPOSITORY:
        raise SystemExit("Set REPOSITORY, the first line of this cell, to the address of the repository.")
    subprocess.run(["git", "clone", "--depth=1", REPOSITORY, "contrastive_jax"], check=True)
    roots = [here / "contrastive_jax"]
os.chdir(roots[0])
sys.path.insert(0, str(roots[0]))

_ = runpy.run_path("notebooks/_install.py")

# %% [markdown]
# ## The same run, with more and more bits

# %%
import tempfile

from contrastive_jax import config as configs
from contrastive_jax import train
from contrastive_jax.workdir import read_metrics

BITS = (0, 4, 12)
found, curves = {}, {}
for bits in BITS:
    config = configs.load(f"configs/randbit_mnist.py:bits={bits},scale=cpu")
    config.train.duration = "12 epochs"
    config.evaluate.rows = ("trained",)
    config.evaluators = {"linear": {"name": "lbfgs"}, "knn": {"name": "knn", "k": 10}}
    config.log.every = 11  # an epoch
    workdir = tempfile.mkdtemp()
    print(f"{bits} bits")
    result = train(configs.plain(configs.complete(config)), workdir, quiet=True)
    found[bits] = {name: result["evaluations"]["trained"][name]["top1"] for name in ("linear", "knn")}
    curves[bits] = read_metrics(workdir)

# %% [markdown]
# ## What is left of the digits
#
# Top-1 on test images (which have bits of their own, unknown to training). The contrast becomes easier with every bit,
# and the digits are forgotten.

# %%
import matplotlib.pyplot as plt

for bits, scores in found.items():
    print(f"{bits:3d} bits: " + ", ".join(f"{name} {100 * top1:.1f} %" for name, top1 in scores.items()))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for name in ("linear", "knn"):
    left.plot(BITS, [100 * found[bits][name] for bits in BITS], marker="o", label=name)
left.axhline(10, color="gray", linestyle=":", label="chance")
left.set(xlabel="random bits", ylabel="top-1, %", ylim=(0, 100))
left.legend(fontsize=8)
for bits, rows in curves.items():
    right.plot([row["epoch"] for row in rows], [row["info_nce"] for row in rows], label=f"{bits} bits")
right.set(xlabel="epoch", ylabel="InfoNCE, nats")
right.legend(fontsize=8)
plt.show()

# %% [markdown]
# The paper's Figure 7, other losses, MoCo and BYOL too: `python -m experiments.intriguing.figure_7 plan`.
