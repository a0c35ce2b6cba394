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
# # Your own images
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/)
#
# A folder of images, labelled by its sub-folders, by a file, or not at all: look, train, search, export. Set `folder`
# below to your own; else this notebook makes one of scikit-learn's digits.
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
# ## A folder

# %%
folder = ""  # the folder of your images; empty: digits are written into a temporary one

import pathlib
import tempfile

import numpy as np
from PIL import Image

from contrastive_jax import data

scratch = pathlib.Path(tempfile.mkdtemp())
yours = bool(folder)
folder = pathlib.Path(folder) if yours else scratch / "photos"
if not yours:
    digits = data.load(name="digits").train
    for number, (image, label) in enumerate(zip(digits.image[:700], digits.label[:700], strict=True)):
        path = folder / f"digit_{label}" / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).resize((32, 32), Image.Resampling.BICUBIC).save(path)
print(f"{len(list(folder.rglob('*.*')))} images in {len(list(folder.iterdir()))} folders")

# %% [markdown]
# ## What the network sees
#
# Before hours of training: does the augmentation leave alone what matters? Characters must not be mirrored
# (`augment.flip`), microscopy has no up (`augment.quarter_turns`).

# %%
from contrastive_jax import config as configs
from contrastive_jax.commands.preview import preview

config = configs.load(f"configs/folder.py:size={32 if yours else 16}")
config.data.dir, config.data.test_fraction = str(folder), 0.2
if not yours:
    config.augment.flip, config.augment.crop_min = 0.0, 0.5
    config.train.duration = "10000 examples"
config.log.tensorboard = False
config.preview.images, config.preview.draws = 4, 2

import matplotlib.pyplot as plt

sheet = preview(configs.plain(config), str(scratch))
figure, axis = plt.subplots(figsize=(7, 4.6))
axis.imshow(Image.open(sheet))
axis.axis("off")
plt.show()

# %% [markdown]
# ## Train
#
# A fifth of the images is held out to judge. Frames of one clip or tiles of one slide belong together: `data.group`, a
# regular expression on the path, keeps them from being each other's negatives and on one side of the split.

# %%
from contrastive_jax import train

result = train(configs.plain(config), str(scratch / "run"))

# %% [markdown]
# ## Search by image
#
# Features of all training images, by their paths, and the nearest of three of them.

# %%
from contrastive_jax.commands.embed import embed

found = np.load(embed(configs.plain(config), str(scratch / "run"), quiet=True)["train"])
features = found["pooled"] / np.linalg.norm(found["pooled"], axis=1, keepdims=True)

figure, axes = plt.subplots(3, 8, figsize=(8, 3.4))
for line, query in zip(axes, np.linspace(0, len(features) - 1, 3).astype(int), strict=True):
    for axis, row in zip(line, np.argsort(-(features @ features[query]))[:8], strict=True):
        path = folder / str(found["path"][row])
        axis.imshow(Image.open(path), cmap="gray")
        axis.set_title(path.parent.name, fontsize=7)
        axis.axis("off")
plt.show()

# %% [markdown]
# ## Take it away
#
# A file under torchvision's names, which PyTorch and timm read without executing code (`docs/export.md`). In Python
# `contrastive_jax.load_encoder(scratch / "run")` maps uint8 images to features.

# %%
from contrastive_jax.commands.export import export

export(configs.plain(config), str(scratch / "run"))
print(*sorted(path.name for path in (scratch / "run").iterdir()), sep="\n")
