"""The package's losses as functions that `check` takes: what a user's adapter looks like."""

import functools

import jax
import jax.numpy as jnp

from contrastive_jax import contrastive_loss, ntxent, sigmoid_loss

learnt = functools.partial(contrastive_loss, differentiate_temperature=True)


def info_nce(a, b, temperature):
    return learnt(a, b, "info_nce", temperature, candidates="other_view")


def nt_xent(a, b, temperature):
    return learnt(a, b, "info_nce", temperature)


def nt_xent_tiled(a, b, temperature):
    return learnt(a, b, "info_nce", temperature, engine="tiled")


def simclr(a, b, temperature):
    return 2.0 * learnt(a, b, "info_nce", temperature).mean()


def dot_products(a, b, inverse_temperature):
    return learnt(a, b, "info_nce", 1.0 / inverse_temperature, score="dot").sum()


def dcl(a, b, temperature):
    return learnt(a, b, "dcl", temperature)


def dclw(a, b, temperature):
    return learnt(a, b, "dclw", temperature)


def flatnce(a, b, temperature):
    return learnt(a, b, "flat_nce", temperature)


def eqco(a, b, temperature):
    return learnt(a, b, "eqco", temperature, alpha=65536.0)


def macl(a, b, temperature, alpha=0.5):
    rule = lambda alignment: temperature * (1.0 + alpha * alignment)  # noqa: E731
    return contrastive_loss(a, b, "macl", rule, candidates="other_view")


def debiased(a, b, temperature):
    return learnt(a, b, "debiased", temperature, tau_plus=0.1)


def hard_nce(a, b, temperature):
    return learnt(a, b, "hard_nce", temperature, beta=1.0)


def sigmoid(a, b, temperature, bias=-10.0):
    return sigmoid_loss(a, b, temperature, bias)


def moco(a, b, queue, temperature):
    return learnt(
        a,
        jax.lax.stop_gradient(b),
        "info_nce",
        temperature,
        candidates="queue",
        queue=queue,
        directions="one_way",
    )


def supcon(a, b, labels, temperature):
    return learnt(a, b, "info_nce", temperature, positives=labels)


def supcon_in(a, b, labels, temperature):
    return learnt(a, b, "info_nce", temperature, positives=labels, summation="in")


def ntxent_pairs(embeddings, labels, temperature):
    return ntxent(embeddings, labels, temperature)


def in_parts(a, b, temperature, parts=1):
    """NT-Xent behind encoders that run part by part."""
    from contrastive_jax import in_microbatches

    encode = in_microbatches(lambda weight, x: x @ weight, parts)
    weight = jnp.eye(a.shape[1])
    return learnt(encode(weight, a), encode(weight, b), "info_nce", temperature)


LOSSES = {
    info_nce: "info_nce",
    nt_xent: "nt_xent",
    nt_xent_tiled: "nt_xent",
    simclr: "nt_xent",
    dot_products: "nt_xent",
    dcl: "dcl",
    dclw: "dclw",
    flatnce: "flatnce",
    eqco: "eqco",
    macl: "macl",
    debiased: "debiased",
    hard_nce: "hard_nce",
    sigmoid: "sigmoid",
    moco: "moco",
    supcon: "supcon",
    supcon_in: "supcon_in",
    ntxent_pairs: "ntxent_pairs",
    in_parts: "nt_xent",
}
