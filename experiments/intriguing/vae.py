"""A (beta-)variational autoencoder on RandBit: Intriguing Properties (Chen, Luo and Li 2021), section 4.4, Figure 7.

    python -m experiments.intriguing.vae --bits=8 --scale=cpu
    python -m experiments.intriguing.vae --bits=8 --beta=4 --out=vae_8_4.json

The images, the encoder and the linear probe are those of ``configs/randbit_mnist.py`` with as many bits; only what
is learnt differs: a normal posterior from a linear layer on the pooled features, a decoder of transposed
convolutions, and as the loss minus the evidence lower bound, every pixel of every channel (bits too) a Bernoulli
variable (Kingma and Welling 2014), with ``beta`` before the divergence (Higgins et al. 2017).

The paper claims that bits affect it much less than contrastive learning, "despite other settings such as model size
are held the same", and prints neither its settings nor its accuracies. Assumed: 64 latents, Adam 1e-3, batch and
epochs of the config, no augmentation, a decoder of width 64 (of 16 at cpu and smoke).
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from contrastive_jax import augment, data, native, sharding
from contrastive_jax import config as configs
from contrastive_jax.lookup import call
from contrastive_jax.training.encoder import network_of
from contrastive_jax.training.evaluation import Evaluator
from contrastive_jax.training.run import check_constant, replicate, source_of
from contrastive_jax.types import Array, PyTree

ROOT = pathlib.Path(__file__).parent.parent.parent
LATENTS = 64


class Decoder(nn.Module):
    """Latents [B, d] to logits of an image [B, h, w, c]."""

    shape: tuple[int, int, int]
    width: int

    @nn.compact
    def __call__(self, z: Array) -> Array:
        """Compute the logits."""
        height, width, channels = self.shape
        rows, columns = -(-height // 4), -(-width // 4)
        x = nn.relu(nn.Dense(rows * columns * 2 * self.width)(z))
        x = x.reshape(-1, rows, columns, 2 * self.width)
        x = nn.relu(nn.ConvTranspose(self.width, (4, 4), (2, 2))(x))
        return nn.ConvTranspose(channels, (4, 4), (2, 2))(x)[:, :height, :width]


def divergence(mean: Array, log_variance: Array) -> Array:
    """Compute KL(N(mean, variance) || N(0, 1)) of rows [B, d], in nats: [B]."""
    return 0.5 * jnp.sum(mean**2 + jnp.exp(log_variance) - 1 - log_variance, axis=-1)


def reconstruction(logits: Array, image: Array) -> Array:
    """Compute minus the log likelihood of images [B, h, w, c] in [0, 1] under Bernoulli variables: [B]."""
    return jnp.sum(jax.nn.softplus(logits) - image * logits, axis=(1, 2, 3))


def config_of(bits: int, scale: str, seed: int, epochs: int = 0) -> dict[str, Any]:
    """Return the config of RandBit, with a head that gives means and logarithms of variances."""
    config = configs.load(f"{ROOT}/configs/randbit_mnist.py:bits={bits},scale={scale}")
    config.seed = seed
    config.projector.update({"layers": 1, "out": 2 * LATENTS, "norm": "none"})
    config.evaluators = {"linear": config.evaluators.linear}
    if epochs:
        config.train.duration = f"{epochs} epochs"
    return configs.plain(configs.complete(config))


def trained(
    config: Mapping[str, Any], source: data.Source, *, beta: float, width: int, log: Callable = print
) -> tuple[PyTree, PyTree]:
    """Train the encoder with its decoder on clean training images; return its weights and statistics."""
    view = call(augment.make_eval, "augment", config["augment"])
    batch_size, seed = config["train"]["batch_size"], config["seed"]
    size, channels = config["augment"]["size"], source.train.shape[2]
    network, decoder = network_of(config), Decoder((size, size, channels), width)
    params, stats = network.init(seed, (size, size, channels))
    key = jax.random.key(seed)
    variables = {"encoder": params, "decoder": decoder.init(key, jnp.zeros((1, LATENTS)))}
    optimizer = optax.adam(1e-3)
    steps = configs.steps_of("train.duration", config["train"]["duration"], len(source.train), batch_size)
    feed = data.Resident(source.train, seed=seed, batch_size=batch_size)

    @native.jit(donate_argnums=0)
    def train_step(state, arrays, step):
        variables, stats, moments = state
        images = jax.vmap(view)(feed.take(arrays, step).image)

        def loss_fn(variables):
            outputs, after = network.apply(variables["encoder"], stats, images[:, None], train=True)
            mean, log_variance = jnp.split(outputs.projection[:, 0], 2, axis=-1)
            noise = jax.random.normal(jax.random.fold_in(key, step), mean.shape)
            logits = decoder.apply(variables["decoder"], mean + jnp.exp(log_variance / 2) * noise)
            error, kl = reconstruction(logits, images).mean(), divergence(mean, log_variance).mean()
            return error + beta * kl, (after, error, kl)

        grads, (stats, error, kl) = jax.grad(loss_fn, has_aux=True)(variables)
        updates, moments = optimizer.update(grads, moments)
        return (optax.apply_updates(variables, updates), stats, moments), (error, kl)

    state = (variables, stats, optimizer.init(variables))
    for step in range(steps):
        state, (error, kl) = train_step(state, feed.feed(step), step)
        if (step + 1) % max(1, steps // 5) == 0:
            log(f"step {step + 1} of {steps}: reconstruction {error:.1f}, divergence {kl:.1f} nats")
    return state[0]["encoder"], state[1]


def measure(bits: int, *, beta: float = 1.0, scale: str = "paper", seed: int = 0, epochs: int = 0) -> dict:
    """Train and judge; return what the command writes."""
    config = config_of(bits, scale, seed, epochs)
    source = source_of(config)
    check_constant(config["augment"], source)
    width = 16 if scale in ("cpu", "smoke") else 64
    weights = trained(config, source, beta=beta, width=width)
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        judge = Evaluator(config, source, mesh)
        evaluations = judge.table(replicate(weights, mesh))
    floor = source.train.made.facts["mi_floor"]
    return {
        "bits": bits,
        "beta": beta,
        "scale": scale,
        "seed": seed,
        "mi_floor": floor,
        "evaluations": evaluations,
    }


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bits", type=int, default=8)
    parser.add_argument("--beta", type=float, default=1.0, help="weight of the divergence")
    parser.add_argument("--scale", choices=configs.SCALES, default="paper")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=0, help="0: as the config has it")
    parser.add_argument("--out", default="", help="a JSON file for the result")
    given = vars(parser.parse_args(argv))
    out = given.pop("out")
    try:
        found = measure(given.pop("bits"), **given)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if out:
        pathlib.Path(out).write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
