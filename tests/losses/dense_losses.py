"""What the tests of the losses share: golden cases, dense contrasts from embeddings, and comparison."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
VALUE = {"float64": dict(rtol=1e-9, atol=1e-11), "float32": dict(rtol=2e-5, atol=1e-6)}
GRADIENT = {"float64": 1e-9, "float32": 1e-4}


class Case(dict):
    """One case of a golden file: its settings as items, its arrays by ``case("field")``."""

    def __init__(self, file, arrays, settings):
        super().__init__(settings)
        self.file, self.arrays = file, arrays

    def __call__(self, field):
        return self.arrays[f"{self['case']}/{field}"]

    def __repr__(self):
        return f"{self.file}-{self['case']}"


def cases(file):
    """All cases of a golden file."""
    arrays = np.load(GOLDEN / f"{file}.npz")
    return [Case(file, arrays, settings) for settings in json.loads(str(arrays["index"]))]


def unit(z):
    return z * jax.lax.rsqrt(jnp.maximum(jnp.sum(z**2, axis=-1, keepdims=True), 1e-12))


def contrast(score, positive, permitted, temperature, scale=1.0):
    """c [Q] from scores [Q, M], the positive's score [Q] and which candidates are negatives [Q, M]."""
    above = (score - positive[:, None]) * scale / temperature
    return logsumexp(jnp.where(permitted, above, -jnp.inf), axis=1)


def both_views(z, temperature, scale=1.0, normalize=True):
    """SimCLR's layout, z [2N, D] with view 2 below view 1: c, s+ and count, [2N] each."""
    u = unit(z) if normalize else z
    rows = u.shape[0]
    partner = (np.arange(rows) + rows // 2) % rows
    permitted = ~np.eye(rows, dtype=bool)
    permitted[np.arange(rows), partner] = False
    positive = jnp.sum(u * u[partner], axis=1)
    return contrast(u @ u.T, positive, permitted, temperature, scale), positive, permitted.sum(1)


def other_view(z1, z2, temperature, scale=1.0, normalize=True):
    """View 1 queries the other examples' view 2: c and s+, [N] each."""
    u1, u2 = (unit(z1), unit(z2)) if normalize else (z1, z2)
    positive = jnp.sum(u1 * u2, axis=1)
    return contrast(u1 @ u2.T, positive, ~np.eye(len(u1), dtype=bool), temperature, scale), positive


def evaluate(losses, *inputs):
    """Values, and gradients with respect to every input, of a dict of losses, in one program.

    {name: (value, gradients)} for scalars, {name: (value, None)} for arrays.
    """

    def run(*inputs):
        def split(*inputs):
            out = losses(*inputs)
            return jnp.stack([out[name] for name in sorted(out) if out[name].ndim == 0]), out

        values, pull, out = jax.vjp(split, *inputs, has_aux=True)
        gradients = jax.vmap(pull)(jnp.eye(len(values), dtype=values.dtype))
        scalars = [name for name in sorted(out) if out[name].ndim == 0]
        of = {name: tuple(g[i] for g in gradients) for i, name in enumerate(scalars)}
        return {name: (value, of.get(name)) for name, value in out.items()}

    # Tests compile many small programs once: what XLA would do to make them fast is not worth its time.
    compiled = jax.jit(run, compiler_options={"xla_backend_optimization_level": 0})
    with jax.default_matmul_precision("highest"):
        return jax.tree.map(np.asarray, compiled(*inputs))


def assert_value(ours, golden, precision, **tolerance):
    assert str(np.asarray(ours).dtype) == precision
    np.testing.assert_allclose(
        ours, np.asarray(golden).reshape(np.shape(ours)), **VALUE[precision] | tolerance
    )


def assert_gradient(ours, golden, precision, tolerance=None, norm=None):
    """Error of the gradient vector relative to its norm (or to the given norm)."""
    assert str(ours.dtype) == precision
    norm = np.linalg.norm(golden) if norm is None else norm
    error = np.linalg.norm(ours - golden)
    assert error <= (tolerance or GRADIENT[precision]) * norm + 1e-14, (error, norm)
