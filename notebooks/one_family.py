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
# # One family
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/)
#
# Almost every loss of the five papers is a function of one number per query, its contrast
# $c = \log\sum_j \exp((s_j - s_+) / \tau)$ over the negatives $j$. So some losses with different names have the same
# gradient, and all can be computed so that nothing is lost where the positive is far ahead.
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
# ## Identities
#
# Gradients of whole losses with respect to the embeddings of two views, in float32: the relative difference of each
# pair, which the theory says is none.

# %%
import jax
import numpy as np

from contrastive_jax import contrastive_loss

a, noise = np.random.default_rng(0).normal(size=(2, 64, 32)).astype(np.float32)
b = a + 0.5 * noise  # the other view: positives are ahead of most negatives


def gradient(loss, tau=0.1, **options):
    """Of the mean loss, with respect to both views."""
    of = jax.grad(lambda a, b: contrastive_loss(a, b, loss, tau, **options).mean(), (0, 1))
    return np.concatenate(jax.jit(of)(a, b))


PAIRS = {
    "FlatNCE and DCL": (gradient("flat_nce"), gradient("dcl")),
    "MACL and DCL": (gradient("macl"), gradient("dcl")),
    "FlatNCE+ and InfoNCE": (gradient("flat_nce_plus"), gradient("info_nce")),
    "EqCo, alpha = K, and InfoNCE": (gradient("eqco", alpha=126.0), gradient("info_nce")),
    "EqCo, alpha = 1e30, and DCL": (gradient("eqco", alpha=1e30), gradient("dcl")),
    "decoupled NT-Xent and tau InfoNCE": (gradient("decoupled_nt_xent"), 0.1 * gradient("info_nce")),
    "InfoNCE and DCL (not an identity)": (gradient("info_nce"), gradient("dcl")),
}
differences = {name: np.linalg.norm(x - y) / np.linalg.norm(y) for name, (x, y) in PAIRS.items()}
for name, difference in differences.items():
    print(f"{name:36s} {difference:.1e}")
assert all(difference < 1e-5 for name, difference in differences.items() if "not" not in name)

# %% [markdown]
# What tells the losses apart is the weight $dL/dc$ that they give a query: InfoNCE forgets those that are solved
# ($c \ll 0$), the FlatNCE family does not, EqCo lies between.

# %%
import matplotlib.pyplot as plt

from experiments.flatnce import figure_family

figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, (loss, *_) in figure_family.CURVES.items():
    axis.plot(figure_family.GRID, figure_family.weight(loss), label=name)
axis.set(xlabel="contrast c of the query", ylabel="dL/dc")
axis.legend(fontsize=7)
plt.show()

# %% [markdown]
# ## Precision
#
# One positive and 14 negatives, given in float32; the gap is how far ahead the positive is. The relative error of the
# gradient against NumPy's long double: the usual forms lose it where temperature is low and the gap is wide (black: not
# finite), the library's do not. The whole figure, half precision too: `python experiments/flatnce/figure_precision.py`.

# %%
from experiments.flatnce import figure_precision as precision

names = [
    "InfoNCE\ncross-entropy",
    "InfoNCE\nexp / sum",
    "InfoNCE\nours",
    "FlatNCE\nours",
    "MACL\nas published",
    "MACL\nours",
]
measured = precision.measure("float32", names)
figure, axes = plt.subplots(1, len(names), figsize=(11, 2.6), sharey=True, layout="constrained")
colours = plt.get_cmap("viridis").with_extremes(bad="black")
for axis, name in zip(axes, names, strict=True):
    error = np.ma.masked_invalid(np.log10(np.maximum(measured[name][0].max(axis=-1), 1e-9)))
    mesh = axis.pcolormesh(precision.GAPS, precision.TEMPERATURES, error, cmap=colours, vmin=-8, vmax=0)
    axis.set(title=name, yscale="log", xlabel="gap")
axes[0].set_ylabel("temperature")
figure.colorbar(mesh, ax=axes, label="log10 of the relative error")
plt.show()
