"""Functions that differ in numbers are one function of the numbers; others are refused."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax.training.lifting import Unlike, lift

X = jnp.linspace(-1.0, 2.0, 6)


@jax.custom_jvp
def doubled(x):
    return 2 * x


doubled.defjvps(lambda tangent, ans, x: 2 * tangent)


def everywhere(number, x):
    """A number at every depth: an operand, a captured array, a call, a rule, a loop, a branch, a result."""
    table = jnp.asarray(np.array([number, 1.0], np.float32))

    @jax.jit
    def called(y):
        return jax.jit(lambda z: z * number)(y) + 1.0

    @jax.custom_jvp
    def ruled(y):
        return y - number

    ruled.defjvps(lambda tangent, ans, y: tangent)

    @jax.checkpoint
    def saved(y):
        return jnp.sin(y * number)

    def body(carry, y):
        return carry * number + y, jnp.tanh(carry - number)

    carry, each = jax.lax.scan(body, x[0], x)
    chosen = jax.lax.cond(carry > 0, lambda y: y * number, lambda y: y - number, x)
    gradient = jax.grad(lambda y: jnp.sum(saved(y) ** 2))(x)
    return called(x) * table[0] + ruled(x) + doubled(x), (each, chosen, gradient), jnp.float32(number)


def test_functions_that_differ_in_numbers_are_one():
    numbers = (0.5, 1.5, -2.0)
    functions = [functools.partial(everywhere, number) for number in numbers]
    together = lift(functions, X)
    assert together.differing == (False, True, True)
    for k, function in enumerate(functions):
        mine = [jnp.asarray(column[k]) for column in together.numbers]
        for found, expected in zip(
            jax.tree.leaves(jax.jit(together.apply)(mine, X)),
            jax.tree.leaves(jax.jit(function)(X)),
            strict=True,
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    stacked = jax.vmap(lambda mine: together.apply(mine, X))([jnp.asarray(c) for c in together.numbers])
    np.testing.assert_allclose(stacked[0], [f(X)[0] for f in functions], rtol=1e-6, atol=1e-7)


def test_functions_that_are_the_same_have_no_numbers():
    together = lift([jnp.sin, jnp.sin], X)
    assert together.numbers == [] and together.differing == (False, False)
    np.testing.assert_array_equal(together.apply([], X), jnp.sin(X))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda x: jnp.sum(x), "2 operations, the other 1"),
        (lambda x: jnp.cos(x) * 2.0, "one has sin where the other has cos"),
        (lambda x: jnp.sin(x) * x, "a constant of one is computed in the other"),
        (lambda x: jnp.sin(x)[:3] * 2.0, "operations, the other|differ in shape"),
    ],
    ids=["another length", "another operation", "no constant", "another shape"],
)
def test_what_differs_in_more_than_numbers_is_refused_and_named(other, message):
    with pytest.raises(Unlike) as raised:
        lift([lambda x: jnp.sin(x) * 2.0, lambda x: jnp.sin(x) * 3.0, other], X)
    assert raised.value.index == 2 and re.search(message, str(raised.value))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (lambda x, y: x - y, lambda x, y: y - x),
        (lambda x, y: jnp.stack([x, y]).sum(0), lambda x, y: jnp.stack([x, y]).sum(1)),
        (lambda x, y: jax.lax.cumsum(x), lambda x, y: jax.lax.cumsum(x, reverse=True)),
        (lambda x, y: x**2, lambda x, y: x**3),
        (lambda x, y: (x, y), lambda x, y: (y, x)),
    ],
    ids=["operands exchanged", "an axis", "a direction", "a power", "results exchanged"],
)
def test_the_same_operations_on_other_things_are_refused(one, two):
    with pytest.raises(Unlike):
        lift([one, two], X, X)


def test_a_number_that_a_loop_of_unknown_length_reads_is_refused_not_left_out():
    def until(limit, x):
        return jax.lax.while_loop(lambda v: v < limit, lambda v: v * 2.0, x)

    with pytest.raises(Unlike, match="inside while"):
        lift([functools.partial(until, limit) for limit in (3.0, 5.0)], jnp.float32(1.0))
