"""Two encoders, of images and of words, in plain JAX: seconds on a CPU.

Handwritten digits with their names in four languages: an image's positives are all names of its digit in the batch, a
name's all images. The temperature is learnt as CLIP learns it, log(1 / tau) with a bound; SigLIP's loss has a bias too.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from contrastive_jax import contrastive_loss, sigmoid_loss

NAMES = """zero one two three four five six seven eight nine null eins zwei drei vier fuenf sechs sieben acht neun
zero un deux trois quatre cinq six sept huit neuf cero uno dos tres cuatro cinco seis siete ocho nueve""".split()
LETTERS = np.array(
    [[ord(c) - 96 for c in name.ljust(6, "`")] for name in NAMES]
)  # [40, 6], 0 where there is none


def encode(weights, x):
    """Embed by a perceptron without biases."""
    for weight in weights[:-1]:
        x = jax.nn.relu(x @ weight)
    return x @ weights[-1]


def embed(params, images, names):
    """Embed images [N, 64] and names [M, 6]."""
    letters = jax.nn.one_hot(names, 27).reshape(len(names), -1)
    return encode(params["image"], images), encode(params["text"], letters)


def loss(params, images, names, digits, kind):
    """Compare images with names, both ways."""
    a, b = embed(params, images, names)
    tau = jnp.exp(-jnp.minimum(params["log_scale"], jnp.log(100.0)))
    if kind == "sigmoid":
        return sigmoid_loss(a, b, tau, params["bias"], positives=digits).mean()
    options = dict(candidates="other_view", positives=digits, differentiate_temperature=True)
    return contrastive_loss(a, b, "info_nce", tau, **options).mean()


def main(kind):
    """Train, then retrieve: return the share of images that find a name of theirs, and of names an image."""
    images, digits = load_digits(return_X_y=True)
    images, draw = images / 16.0, np.random.default_rng(0)
    test, train = np.split(draw.permutation(len(images)), [360])
    layer = lambda m, n: jnp.asarray(draw.normal(size=(m, n)) * m**-0.5, jnp.float32)  # noqa: E731
    params = {"image": [layer(64, 128), layer(128, 32)], "text": [layer(6 * 27, 128), layer(128, 32)]}
    params |= {"log_scale": jnp.log(10.0), "bias": jnp.array(-10.0)}
    optimizer = optax.adam(1e-3)

    @jax.jit
    def step(params, state, *batch):
        value, gradient = jax.value_and_grad(loss)(params, *batch, kind)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    state = optimizer.init(params)
    for _ in range(300):
        row = draw.choice(train, 256, replace=False)
        name = digits[row] + 10 * draw.integers(4, size=256)
        params, state, value = step(params, state, images[row], LETTERS[name], digits[row])
    a, b = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in embed(params, images[test], LETTERS))
    nearest_name, nearest_image = jnp.argmax(a @ b.T, axis=1), jnp.argmax(a @ b.T, axis=0)
    of_images = float(np.mean(nearest_name % 10 == digits[test]))
    of_names = float(np.mean(digits[test][nearest_image] == np.arange(40) % 10))
    print(f"tau {np.exp(-params['log_scale']):.3f}; retrieved: names {of_images:.1%}, images {of_names:.1%}")
    return of_images, of_names


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--loss", default="info_nce", choices=["info_nce", "sigmoid"])
    main(parser.parse_args().loss)
