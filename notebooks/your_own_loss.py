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
# # Your own loss
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/)
#
# A loss is one function of the contrast c: the logarithm of what a query's negatives weigh against its positive, far
# below 0 where the query is solved. Here: write one, look at it, train with it by a config, and in a loop of your own.
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
# ## One function
#
# InfoNCE is softplus(c), its gradient sigmoid(c). This one weighs down the queries that are nearly solved, as the focal
# loss does (Lin et al., 2017). Keyword-only parameters are its options.

# %%
import jax
import jax.numpy as jnp


def focal_nce(c, *, gamma=1.0):
    """InfoNCE, its easy queries weighed down."""
    return jax.nn.sigmoid(c) ** gamma * jax.nn.softplus(c)


# %% [markdown]
# ## Its value and its gradient
#
# Right: dL/dc, the weight of a query in training. For gamma 0 it is InfoNCE's.

# %%
import matplotlib.pyplot as plt

from contrastive_jax import losses

curves = {
    "InfoNCE": losses.info_nce,
    "focal, gamma 0.5": lambda c: focal_nce(c, gamma=0.5),
    "focal, gamma 2": lambda c: focal_nce(c, gamma=2.0),
}
c = jnp.linspace(-8.0, 4.0, 241)
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
for name, loss in curves.items():
    left.plot(c, jax.vmap(loss)(c), label=name)
    right.plot(c, jax.vmap(jax.grad(loss))(c), label=name)
left.set(xlabel="contrast c of the query", ylabel="loss")
right.set(xlabel="contrast c of the query", ylabel="dL/dc")
left.legend(fontsize=8)
plt.show()

solved = jnp.float32(-4.0)
for name, loss in curves.items():
    print(f"{name:18s} at c = -4: loss {loss(solved):.1e}, gradient {jax.grad(loss)(solved):.1e}")

# %% [markdown]
# ## By a config
#
# `module:function` is its name. A function of this notebook is `__main__`'s; in a file `my_losses.py` beside the
# command it is `my_losses:focal_nce`, and `--config.loss='{"my_losses:focal_nce": {"gamma": 0.5}}'` names it.
# `docs/how_to/loss.md` lists all that a loss may read.

# %%
import tempfile

from contrastive_jax import config as configs
from contrastive_jax import train


def top1(loss):
    """A short run on digits; linear and nearest-neighbour top-1 on test images."""
    config = configs.load("configs/digits.py:method=simclr")
    config.train.duration = "10 epochs"
    config.loss = loss
    config.evaluate.rows = ("trained",)
    config.evaluators = {"linear": {"name": "lbfgs"}, "knn": {"name": "knn", "k": 10}}
    result = train(configs.plain(configs.complete(config)), tempfile.mkdtemp(), quiet=True)
    return {name: result["evaluations"]["trained"][name]["top1"] for name in ("linear", "knn")}


for name, loss in {
    "InfoNCE": {"info_nce": {"weight": 1.0}},
    "focal, gamma 0.5": {"__main__:focal_nce": {"gamma": 0.5}},
}.items():
    print(f"{name:18s}" + ", ".join(f"{column} {100 * value:.1f} %" for column, value in top1(loss).items()))

# %% [markdown]
# One short run each, of one seed: no comparison of losses, only that both train.
#
# ## In a loop of your own
#
# `contrastive_loss` takes two arrays of embeddings and the same name. Here a linear map learns to tell noisy copies
# of the digits apart.

# %%
import optax

from contrastive_jax import contrastive_loss, data

images = data.load(name="digits").train.image.reshape(-1, 64) / 255.0
optimizer = optax.adam(1e-2)


@jax.jit
def step(weight, state, batch, key):
    a, b = batch + 0.3 * jax.random.normal(key, (2, *batch.shape))

    def mean_loss(weight):
        return contrastive_loss(a @ weight, b @ weight, "__main__:focal_nce", 0.1, gamma=0.5).mean()

    value, gradient = jax.value_and_grad(mean_loss)(weight)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(weight, updates), state, value


weight = 0.1 * jax.random.normal(jax.random.key(0), (64, 16))
state = optimizer.init(weight)
for number in range(201):
    key = jax.random.fold_in(jax.random.key(1), number)
    batch = images[jax.random.choice(key, len(images), (256,), replace=False)]
    weight, state, value = step(weight, state, batch, key)
    if number % 50 == 0:
        print(f"step {number:3d}: loss {value:.3f}")
