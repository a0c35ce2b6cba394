"""Merging of programs that differ only in numbers: these become inputs of one program.

Every option reaches a step as constants of the traced program: a temperature, a rate, the logarithm of a ratio.
Programs of configs that differ only in such numbers are identical except for these constants, so the first
program, with inputs in their place, replaces all of them. Functions that take options need no changes for this.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from contrastive_jax.types import Array, PyTree

# Indices of nested equations and programs, then of an operand, or -1 and the index of a constant.
Path = tuple[int, ...]

# Equations that only call a program with operands.
CALLS = {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
SAVED = {"checkpoint", "remat", "remat2"}
ENTERED = {*CALLS, *SAVED, "scan", "cond"}  # those that can take constants as inputs


class Unlike(ValueError):
    """Error for programs that differ in more than numbers; ``index``: the first that differs from program 0."""

    def __init__(self, index: int, why: str):
        super().__init__(why)
        self.index = index


class Lifted(NamedTuple):
    """N programs merged into one."""

    apply: Callable[..., PyTree]  # (numbers of one program, *arguments) -> its results
    numbers: list[np.ndarray]  # [N, ...] each
    differing: tuple[bool, ...]  # [N] whether a program's numbers differ from the first's


def lift(functions: Sequence[Callable[..., PyTree]], *arguments: PyTree) -> Lifted:
    """Merge functions that differ only in numbers into one function of these numbers.

    Args:
      functions: pure functions of ``arguments``.
      *arguments: arrays, or their shapes.

    Raises:
      Unlike: a function differs from the first in more than numbers.
    """
    traced = [jax.make_jaxpr(function, return_shape=True)(*arguments) for function in functions]
    programs, results = [program for program, _ in traced], traced[0][1]
    by_path: dict[Path, dict[int, Any]] = {}
    for index, program in enumerate(programs[1:], start=1):
        try:
            _compare(
                programs[0],
                program,
                (),
                lambda path, first, other, i=index: _note(by_path, path, i, first, other),
            )
        except Unlike as unlike:
            raise Unlike(index, str(unlike)) from None
    numbers = [_column(values, len(functions)) for values in by_path.values()]
    slots = {path: slot for slot, path in enumerate(by_path)}
    differing = tuple(
        index > 0 and any(index in values for values in by_path.values()) for index in range(len(functions))
    )

    def apply(numbers: Sequence[Array], *arguments: PyTree) -> PyTree:
        lifted = {path: numbers[slot] for path, slot in slots.items()}
        flat = _evaluate(programs[0], jax.tree.leaves(arguments), lifted, ())
        return jax.tree.unflatten(jax.tree.structure(results), flat)

    return Lifted(apply, numbers, differing)


def _note(values: dict[Path, Any], path: Path, index: int, first: Any, other: Any) -> None:
    values.setdefault(path, {0: first})[index] = other


def _column(values: dict[int, Any], count: int) -> np.ndarray:
    """Return the numbers of one place, ``[N, ...]``; programs without a difference have the first program's."""
    return np.stack([np.asarray(values.get(index, values[0])) for index in range(count)])


# --------------------------------------------------------------------------------------------- comparing


def _compare(first: ClosedJaxpr, other: ClosedJaxpr, path: Path, note: Callable) -> None:
    """Call ``note(path, value, other value)`` for every constant in which two programs differ.

    Raises:
      Unlike: they differ in more than constants.
    """
    if len(first.consts) != len(other.consts):
        raise Unlike(0, "their constants differ in shape")
    for number, (one, two) in enumerate(zip(first.consts, other.consts, strict=True)):
        _compare_constants(one, two, (*path, -1, number), note)
    names: tuple[dict[Any, int], dict[Any, int]] = ({}, {})
    pair = (first.jaxpr, other.jaxpr)
    _define(names, [(*jaxpr.constvars, *jaxpr.invars) for jaxpr in pair])
    if len(pair[0].eqns) != len(pair[1].eqns):
        raise Unlike(0, f"one has {len(pair[0].eqns):,} operations, the other {len(pair[1].eqns):,}")
    for number, (one, two) in enumerate(zip(pair[0].eqns, pair[1].eqns, strict=True)):
        here = (*path, number)
        if one.primitive is not two.primitive:
            raise Unlike(0, f"one has {one.primitive.name} where the other has {two.primitive.name}")
        _compare_operands(names, (one.invars, two.invars), here, note)
        _compare_parameters(one, two, here, note)
        _define(names, (one.outvars, two.outvars))
    _compare_operands(names, (pair[0].outvars, pair[1].outvars), (*path, len(pair[0].eqns)), note)


def _define(names: tuple[dict, dict], variables: Sequence[Sequence[Any]]) -> None:
    """Number variables in order of appearance; their shapes and types must match."""
    if [str(v.aval) for v in variables[0]] != [str(v.aval) for v in variables[1]]:
        raise Unlike(0, "their arrays differ in shape")
    for known, defined in zip(names, variables, strict=True):
        known.update({variable: len(known) + number for number, variable in enumerate(defined)})


def _compare_operands(names: tuple[dict, dict], operands: Sequence[Sequence[Any]], path: Path, note) -> None:
    if len(operands[0]) != len(operands[1]):
        raise Unlike(0, "an operation has more operands in one of them")
    for number, (one, two) in enumerate(zip(*operands, strict=True)):
        if isinstance(one, Literal) and isinstance(two, Literal):
            _compare_constants(one.val, two.val, (*path, number), note, jnp.result_type(one.aval))
        elif isinstance(one, Literal) or isinstance(two, Literal):
            raise Unlike(0, "a constant of one is computed in the other")
        elif names[0][one] != names[1][two]:
            raise Unlike(0, "an operation has different operands")


def _compare_constants(one: Any, two: Any, path: Path, note: Callable, dtype: Any = None) -> None:
    if one is two:
        return
    one, two = np.asarray(one, dtype), np.asarray(two, dtype)
    if (one.shape, one.dtype) != (two.shape, two.dtype):
        raise Unlike(0, "their constants differ in shape")
    if one.tobytes() != two.tobytes():
        note(path, one, two)


def _compare_parameters(one: Any, two: Any, path: Path, note: Callable) -> None:
    inner = [_inner(equation) for equation in (one, two)]
    if [len(programs) for programs in inner] != [len(inner[0])] * 2:
        raise Unlike(0, f"{one.primitive.name} differs")
    if one.primitive.name not in ENTERED:
        note = functools.partial(_refuse, one.primitive.name)
    for number, (first, other) in enumerate(zip(*inner, strict=True)):
        _compare(first, other, (*path, number), note)
    called = one.primitive.name in CALLS  # their other parameters only concern differentiation
    for name in () if called else one.params:
        values = one.params[name], two.params.get(name)
        if not _programs(values[0]) and not _same(*values):
            raise Unlike(
                0, f"{one.primitive.name} has {name}={values[0]} in one and {values[1]} in the other"
            )


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, float) and isinstance(two, float) and one != one:
        return two != two  # NaN is the fill value of a gather
    return one is two or bool(np.all(one == two))


def _refuse(name: str, *difference: Any) -> None:
    raise Unlike(0, f"they differ in a number inside {name}, which cannot be an argument")


def _programs(value: Any) -> list[ClosedJaxpr]:
    """Return the programs in a parameter of an equation."""
    if isinstance(value, ClosedJaxpr):
        return [value]
    if isinstance(value, Jaxpr):
        return [ClosedJaxpr(value, ())] if not value.constvars else []
    return [p for part in value for p in _programs(part)] if isinstance(value, tuple | list) else []


def _inner(equation: Any) -> list[ClosedJaxpr]:
    """Return the programs inside an equation, in the alphabetical order of its parameters."""
    return [program for name in sorted(equation.params) for program in _programs(equation.params[name])]


# -------------------------------------------------------------------------------------------- evaluating


def _evaluate(
    program: ClosedJaxpr, arguments: Sequence[Any], lifted: dict[Path, Any], path: Path
) -> list[Any]:
    """Return the results of a program with some constants replaced by ``lifted``."""
    known: dict[Any, Any] = {}
    consts = [lifted.get((*path, -1, number), value) for number, value in enumerate(program.consts)]
    known.update(zip(program.jaxpr.constvars, consts, strict=True))
    known.update(zip(program.jaxpr.invars, arguments, strict=True))

    def values(variables: Sequence[Any], path: Path) -> list[Any]:
        return [
            lifted.get((*path, number), v.val) if isinstance(v, Literal) else known[v]
            for number, v in enumerate(variables)
        ]

    for number, equation in enumerate(program.jaxpr.eqns):
        here = (*path, number)
        operands = values(equation.invars, here)
        inside = {
            p: value for p, value in lifted.items() if p[: len(here)] == here and len(p) > len(here) + 1
        }
        if inside:
            results = _enter(equation, operands, inside, here)
        else:
            parameters = equation.primitive.get_bind_params(equation.params)
            with equation.ctx.manager:
                results = equation.primitive.bind(*operands, **parameters)
        results = results if equation.primitive.multiple_results else [results]
        known.update(zip(equation.outvars, results, strict=True))
    return values(program.jaxpr.outvars, (*path, len(program.jaxpr.eqns)))


def _enter(equation: Any, operands: list[Any], lifted: dict[Path, Any], path: Path) -> list[Any]:
    """Return the results of an equation with constants replaced inside it."""
    name, parameters = equation.primitive.name, equation.params
    inner = [
        functools.partial(_call, program, lifted, (*path, i)) for i, program in enumerate(_inner(equation))
    ]
    if name in CALLS:
        return inner[0](*operands)
    if name in SAVED:  # the barrier preserves recomputation in the backward pass
        return inner[0](*jax.lax.optimization_barrier(operands))
    if name == "scan":
        # Scanned arrays have one more axis outside; the parameters for the counts vary between jax versions.
        program = _inner(equation)[0].jaxpr
        carried = len(equation.outvars) - _deeper(equation.outvars, program.outvars)
        end = len(operands) - _deeper(equation.invars, program.invars)
        fixed, first, over = operands[: end - carried], operands[end - carried : end], operands[end:]

        def body(carry, x):
            results = inner[0](*fixed, *carry, *x)
            return results[:carried], results[carried:]

        options = {option: parameters[option] for option in ("length", "reverse", "unroll")}
        last, each = jax.lax.scan(body, first, over, **options)
        return [*last, *each]
    return jax.lax.switch(operands[0], inner, *operands[1:])


def _deeper(outer: Sequence[Any], inner: Sequence[Any]) -> int:
    """Return the number of variables that have more axes outside a loop than inside."""
    return sum(len(o.aval.shape) > len(i.aval.shape) for o, i in zip(outer, inner, strict=True))


def _call(program: ClosedJaxpr, lifted: dict[Path, Any], path: Path, *operands: Any) -> list[Any]:
    return _evaluate(program, [jnp.asarray(x) for x in operands], lifted, path)
