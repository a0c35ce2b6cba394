"""Calls of JAX, PyTorch and NumPy losses that return values and gradients as float64 NumPy arrays."""

import functools
import inspect
import sys
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

FRAMEWORKS = ("jax", "torch", "numpy")
TEMPERATURE = ("temperature", "tau", "t", "logit_scale", "log_scale", "scale", "inverse_temperature")
PARTS = ("parts", "microbatches", "mini_batch_size", "chunks")
DIFFERENCE = 1e-5  # step of central differences, relative to the largest entry


class NoLoss(TypeError):
    """A returned value that is not a loss."""


class Refused(Exception):
    """An error that the function raised, or a returned value that is not a loss."""


def parameters_of(function: Callable) -> list[str]:
    """Return the names of a function's parameters; empty if Python cannot read its signature."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def required_of(function: Callable) -> list[str]:
    """Return the names of a function's required parameters other than temperature and micro-batches."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    free = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return [name for name in free if name not in (*TEMPERATURE, *PARTS)]


def framework_of(function: Callable) -> str:
    """Return the framework of a function, detected from the names in its module."""
    inner = inspect.unwrap(function)
    space = getattr(inner, "__globals__", None) or vars(
        sys.modules.get(getattr(inner, "__module__", ""), object)
    )
    named = {getattr(x, "__name__", "").partition(".")[0] for x in space.values() if inspect.ismodule(x)}
    named |= {str(getattr(x, "__module__", "")).partition(".")[0] for x in space.values() if callable(x)}
    for framework in ("torch", "jax"):
        if framework in named or framework == "jax" and "contrastive_jax" in named:
            return framework
    return "numpy"


def said(error: BaseException) -> str:
    """Return a one-line description of a failed call."""
    if isinstance(error, NoLoss):
        return str(error)
    return f"raised {type(error).__name__}: {' '.join(str(error).split())[:160]}"


class Bridge:
    """Wrapper that calls a loss function with NumPy arrays.

    Args:
      function: takes two arrays, embeddings and labels, two arrays and labels, or two arrays and a queue.
      framework: one of ``FRAMEWORKS``.
      options: keyword arguments added to every call.
    """

    def __init__(self, function: Callable, framework: str, options: Mapping[str, Any]):
        self.function, self.framework, self.options = function, framework, dict(options)
        names = parameters_of(function)
        self.temperature = next((name for name in TEMPERATURE if name in names), None)
        self.parts = next((name for name in PARTS if name in names), None)
        self.names = names
        self.changes_arguments = False  # whether a call has changed its arrays, which are copies
        self._compiled: dict[Any, Callable] = {}
        if framework == "jax":
            from contrastive_jax.native import compiler

            compiler.set_flag()  # otherwise XLA's wrong reductions would count as errors of the loss

    def differentiate(
        self, arrays: Sequence[np.ndarray], argument: float | None, dtype: str = "float32", **extra: Any
    ) -> tuple[np.ndarray, list[np.ndarray], float | None]:
        """Return the function's result, the gradients of its mean, and the temperature's derivative.

        Args:
          arrays: float64 arrays, passed in ``dtype`` (NumPy: rounded to it); integer arrays stay integer.
          argument: value of the temperature parameter, if the function has one.
          dtype: float32, float16 or bfloat16.
          **extra: further keyword arguments of this call.

        Raises:
          Refused: the function raised an error, or did not return a loss.
        """
        call = {"jax": self._jax, "torch": self._torch, "numpy": self._numpy}[self.framework]
        try:
            value, gradients, slope = call(arrays, argument, dtype, {**self.options, **extra})
        except (Exception, SystemExit) as error:  # a user's function may raise any error
            raise Refused(said(error)) from error
        return np.asarray(value, float), [np.asarray(x, float) for x in gradients], slope

    def _named(self, argument: Any) -> dict[str, Any]:
        return {} if self.temperature is None or argument is None else {self.temperature: argument}

    # -------------------------------------------------------------------------------------- frameworks

    def _jax(self, arrays, argument, dtype, extra):
        import jax
        import jax.numpy as jnp

        which = tuple(i + 1 for i, x in enumerate(arrays) if x.dtype.kind == "f")
        given = [jnp.asarray(x, dtype if x.dtype.kind == "f" else jnp.int32) for x in arrays]

        def mean(tau, *given):
            value = first(self.function(*given, **self._named(tau), **extra))
            return jnp.mean(jnp.asarray(value)).astype(jnp.float32), value

        key = repr(sorted(extra.items()))
        if self._named(argument):
            try:
                if ("tau", key) not in self._compiled:
                    self._compiled["tau", key] = jax.jit(jax.value_and_grad(mean, (0, *which), has_aux=True))
                (_, value), slopes = self._compiled["tau", key](jnp.float32(argument), *given)
                return value, slopes[1:], float(slopes[0])
            except Exception:  # it needs the temperature as a Python number, or cannot be traced
                pass
        key = repr((key, argument))
        try:
            if key not in self._compiled:
                at = functools.partial(mean, argument)
                self._compiled[key] = jax.jit(
                    jax.value_and_grad(at, tuple(i - 1 for i in which), has_aux=True)
                )
            (_, value), slopes = self._compiled[key](*given)
        except Exception:  # it needs concrete values: call it without jit
            (_, value), slopes = jax.value_and_grad(mean, which, has_aux=True)(argument, *given)
        return value, slopes, None

    def _torch(self, arrays, argument, dtype, extra):
        import torch

        def leaves():
            return [
                torch.tensor(x, dtype=getattr(torch, dtype), requires_grad=True)
                if x.dtype.kind == "f"
                else torch.tensor(x)
                for x in arrays
            ]

        slope = None
        if self._named(argument):
            tau = torch.tensor(float(argument), requires_grad=True)
            try:
                first(self.function(*leaves(), **self._named(tau), **extra)).float().mean().backward()
                slope = 0.0 if tau.grad is None else float(tau.grad)
            except Exception:  # it needs the temperature as a Python number
                slope = None
        given = leaves()
        value = first(self.function(*given, **self._named(argument), **extra))
        self.changes_arguments |= not all(map(torch.equal, given, leaves()))
        if not torch.is_tensor(value):
            raise NoLoss(f"returned a {type(value).__name__}, not a tensor")
        if value.requires_grad:
            value.float().mean().backward()  # not autograd.grad: hooks of gradient caching write to .grad
        inputs = [x for x in given if x.is_floating_point()]
        slopes = [torch.zeros_like(x) if x.grad is None else x.grad for x in inputs]
        return value.detach().double().numpy(), [x.double().numpy() for x in slopes], slope

    def _numpy(self, arrays, argument, dtype, extra):
        def called(argument, *given):
            copies = [x.copy() for x in given]
            value = first(self.function(*copies, **self._named(argument), **extra))
            same = (np.array_equal(x, y, equal_nan=True) for x, y in zip(copies, given, strict=True))
            self.changes_arguments |= not all(same)
            return value

        def mean(argument, *given):
            return float(np.mean(np.asarray(called(argument, *given), float)))

        given = [x.astype(dtype).astype(float) if x.dtype.kind == "f" else x for x in arrays]
        value, slopes = called(argument, *given), []
        for i, x in enumerate(given):
            if x.dtype.kind != "f":
                continue
            step = DIFFERENCE * float(np.abs(x).max() or 1.0)
            slope = np.zeros_like(x)
            for place in np.ndindex(x.shape):
                ends = []
                for sign in (1.0, -1.0):
                    moved = x.copy()
                    moved[place] += sign * step
                    ends.append(mean(argument, *given[:i], moved, *given[i + 1 :]))
                slope[place] = (ends[0] - ends[1]) / (2 * step)
            slopes.append(slope)
        if not self._named(argument):
            return value, slopes, None
        step = DIFFERENCE * argument
        return value, slopes, (mean(argument + step, *given) - mean(argument - step, *given)) / (2 * step)

    # -------------------------------------------------------------------------------------- memory

    def memory(self, arrays: Sequence[np.ndarray], argument: float | None) -> int:
        """Return the number of bytes that a value and its gradient need in addition to the arguments.

        JAX: temporary buffers of the compiled program. PyTorch: peak size of the tensors that the forward pass
        saves for the backward pass. NumPy: peak of the value alone.

        Raises:
          Refused: the function raised an error.
        """
        try:
            return {"jax": self._jax_memory, "torch": self._torch_memory, "numpy": self._numpy_memory}[
                self.framework
            ](arrays, argument)
        except (Exception, SystemExit) as error:
            raise Refused(said(error)) from error

    def _jax_memory(self, arrays, argument):
        import jax
        import jax.numpy as jnp

        given = [jnp.asarray(x, jnp.float32 if x.dtype.kind == "f" else jnp.int32) for x in arrays]
        which = tuple(i for i, x in enumerate(given) if x.dtype == jnp.float32)

        def mean(*given):
            return jnp.mean(first(self.function(*given, **self._named(argument), **self.options)))

        compiled = jax.jit(jax.value_and_grad(mean, which)).lower(*given).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    def _torch_memory(self, arrays, argument):
        import torch

        given = [
            torch.tensor(x, dtype=torch.float32, requires_grad=True)
            if x.dtype.kind == "f"
            else torch.tensor(x)
            for x in arrays
        ]
        alive: dict[int, int] = {}  # storage -> number of its saved tensors
        total = peak = 0

        class Kept:
            def __init__(self, tensor):
                nonlocal total, peak
                self.tensor, storage = tensor, tensor.untyped_storage()
                self.place, self.size = storage.data_ptr(), storage.nbytes()
                alive[self.place] = alive.get(self.place, 0) + 1
                total += self.size * (alive[self.place] == 1)
                peak = max(peak, total)

            def __del__(self):
                nonlocal total
                alive[self.place] -= 1
                total -= self.size * (alive[self.place] == 0)

        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            value = first(self.function(*given, **self._named(argument), **self.options))
        return peak if value is not None else 0

    def _numpy_memory(self, arrays, argument):
        copies = [x.copy() for x in arrays]
        tracemalloc.start()
        try:
            self.function(*copies, **self._named(argument), **self.options)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def first(value: Any) -> Any:
    """Return the loss from a function's result: the first of several values, such as a loss and a queue.

    Raises:
      NoLoss: the value is neither a real number nor a vector of real numbers.
    """
    found = value[0] if isinstance(value, tuple | list) and value else value
    shape = getattr(found, "shape", () if isinstance(found, int | float) else None)
    if shape is None:
        raise NoLoss(f"returned a {type(found).__name__}; {WANTED}")
    if 0 in shape or sum(side > 1 for side in shape) > 1:
        raise NoLoss(f"returned an array of shape {tuple(shape)}; {WANTED}")
    if "complex" in str(found.dtype if hasattr(found, "dtype") else ""):
        raise NoLoss(f"returned complex numbers; {WANTED}")
    return found


WANTED = "a loss must return a number, or one per query"
