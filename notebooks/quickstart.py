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
# # Quick start
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/)
#
# An encoder learns handwritten digits without a label: FlatCLR on the 1,797 real 8x8 images inside scikit-learn, no
# download, about a minute on two CPU cores. Then its nearest neighbours, and a map of its embeddings.
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
# ## Train
#
# A config is a file and a few leaves. `contrastive-jax config search temperature` finds options,
# `docs/options.md` lists them all.

# %%
import tempfile

from contrastive_jax import config as configs
from contrastive_jax import train

config = configs.load("configs/digits.py:method=flatclr")
config.train.duration = "20 epochs"
config.evaluators = {"linear": {"name": "lbfgs"}, "knn": {"name": "knn", "k": 10}}
config.log.every = 11  # an epoch
config.log.tensorboard = False
workdir = tempfile.mkdtemp()
result = train(configs.plain(configs.complete(config)), workdir)

# %% [markdown]
# The table compares the trained encoder with the same network untrained and with raw pixels. FlatNCE's own value is
# always 1, only its gradient tells; so InfoNCE and the accuracy of the contrast are what to watch.

# %%
import matplotlib.pyplot as plt

from contrastive_jax.workdir import read_metrics

rows = read_metrics(workdir)
figure, axes = plt.subplots(1, 3, figsize=(10, 2.6), layout="constrained")
for axis, name in zip(axes, ("info_nce", "contrast_accuracy", "ess"), strict=True):
    axis.plot([row["epoch"] for row in rows], [row[name] for row in rows])
    axis.set(title=name, xlabel="epoch")
plt.show()

# %% [markdown]
# ## Neighbours
#
# Test images (left) and the training images whose features are nearest by cosine.

# %%
import numpy as np

from contrastive_jax import data, load_encoder

source = data.load(name="digits")
encoder = load_encoder(workdir)


def embed(images):
    """[n, h, w, c] uint8 -> [n, F] of length 1."""
    features = encoder(images)
    return features / np.linalg.norm(features, axis=1, keepdims=True)


bank, queries = embed(source.train.image), embed(source.test.image)
similarity = queries @ bank.T
nearest = np.argsort(-similarity, axis=1)
accuracy = np.mean(source.train.label[nearest[:, 0]] == source.test.label)
print(f"the nearest neighbour has the same digit: {100 * accuracy:.1f} %")

figure, axes = plt.subplots(6, 7, figsize=(6, 5.4))
for line, query in zip(axes, range(0, 360, 60), strict=True):
    shown = [source.test.image[query], *source.train.image[nearest[query, :6]]]
    for axis, image in zip(line, shown, strict=True):
        axis.imshow(image[..., 0], cmap="gray_r")
        axis.axis("off")
plt.show()

# %% [markdown]
# ## The embedding map
#
# The two leading principal components of the features; colours are the labels, which training did not see. The same
# over epochs: `python -m experiments.digits.figure_map`.

# %%
mean = bank.mean(axis=0)
components = np.linalg.svd(bank - mean, full_matrices=False)[2][:2]
x, y = ((bank - mean) @ components.T).T
figure, axis = plt.subplots(figsize=(5, 4.4), layout="constrained")
dots = axis.scatter(x, y, c=source.train.label, cmap="tab10", vmin=-0.5, vmax=9.5, s=5)
axis.set(xticks=[], yticks=[])
figure.colorbar(dots, ticks=range(10))
plt.show()

# %% [markdown]
# ## Another method
#
# `configs.load("configs/digits.py:method=macl")`, or `simclr`, `moco_v2`, `byol`, `decoupled_nt_xent`, ...: every
# method of `contrastive_jax/config/methods.py` is a few leaves away from the next.

# %%
simclr, macl = (
    configs.plain(configs.load(f"configs/digits.py:method={name}")) for name in ("simclr", "macl")
)
for name, (was, now) in configs.diff(simclr, macl).items():
    print(f"{name}: {was!r} -> {now!r}")
