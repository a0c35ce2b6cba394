"""What the tests have in common: the tiers of the suite (CONTRIBUTING.md says which), and rules over many cases."""

import functools

import jax
import numpy as np
import pytest


def sampled(cases, n):
    """Parameters for ``parametrize`` of which ``n``, evenly spread, run by default, and the others with ``-m run``.

    A tuple is the values of several arguments. The first and the last case are in the sample.
    """
    cases = list(cases)
    chosen = {round(i * (len(cases) - 1) / max(n - 1, 1)) for i in range(n)}
    return [as_parameter(case) if i in chosen else later(case) for i, case in enumerate(cases)]


def as_parameter(case):
    if isinstance(case, type(pytest.param())):
        return case
    return pytest.param(*case) if isinstance(case, tuple) else pytest.param(case)


def later(case):
    """A case that runs with ``-m run``."""
    case = as_parameter(case)
    return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.run])


def in_two_tiers(items):
    """Tests with both marks: they would run twice."""
    return [i.nodeid for i in items if i.get_closest_marker("run") and i.get_closest_marker("slow")]


def over(cases):
    """Make a check of one case, or of the values of a tuple, one test of all: it names every case that fails."""

    def decorate(check):
        def test():
            wrong = []
            for case in cases:
                try:
                    check(*case) if isinstance(case, tuple) else check(case)
                except Exception as error:
                    wrong.append(f"{case}: {type(error).__name__}: {error}")
            assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate


def one_program(function):
    """Return ``function`` compiled: called eagerly, a loss compiles up to a hundred programs of one operation each.

    Arrays among the arguments are traced; all else, such as names, numbers and functions, is constant. Calls with
    equal constants share a program.
    """

    @functools.wraps(function)
    def call(*arguments, **options):
        leaves, tree = jax.tree.flatten((arguments, options))
        traced = tuple(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)
        arrays = [leaf for leaf, is_array in zip(leaves, traced, strict=True) if is_array]
        constants = [leaf for leaf, is_array in zip(leaves, traced, strict=True) if not is_array]
        return _program(function, tree, traced, *map(_Constant, constants))(arrays)

    return call


class _Constant:
    """A value with its type: 1, 1.0 and True are three constants."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(self.value) is type(other.value) and self.value == other.value

    def __hash__(self):
        return hash(self.value)


@functools.lru_cache(maxsize=64)
def _program(function, tree, traced, *constants):
    @jax.jit
    def program(arrays):
        arrays, others = iter(arrays), iter(constants)
        leaves = [next(arrays) if is_array else next(others).value for is_array in traced]
        arguments, options = jax.tree.unflatten(tree, leaves)
        return function(*arguments, **options)

    return program
