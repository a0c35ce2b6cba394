"""Conformance tests for contrastive losses in JAX, PyTorch or NumPy, from this package or any other.

A loss of two arrays, or of embeddings and labels, is compared with a float64 reference. :func:`check` returns
a :class:`~contrastive_jax.conformance.report.Report`, :func:`assert_conforms` raises AssertionError in a test.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contrastive_jax.conformance.report import Report

MEMORY = ("square", "linear")


def check(
    function: Callable,
    as_: str = "nt_xent",
    *,
    framework: str | None = None,
    tau: float | None = None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    memory: str = "square",
    ranks: int = 2,
    options: dict[str, Any] | None = None,
) -> "Report":
    """Check a contrastive loss: its formula, gradients, numerics, micro-batches, ranks and memory.

    The function takes float32 arrays of its framework (NumPy: float64) and returns a scalar or one value per
    query; in a tuple, the first element is the loss. Its arrays depend on ``as_``:

    * two views ``a``, ``b`` [N, D]: info_nce, nt_xent, dcl, dclw, flatnce, eqco, macl, debiased, hard_nce,
      sigmoid;
    * ``embeddings`` [N, D] and ``labels`` [N], or ``a``, ``b`` [N, D] and ``labels`` [N]: supcon, supcon_in,
      sincere, ntxent_pairs;
    * ``a``, ``b`` [N, D] and ``queue`` [M, D]: moco.

    Other parameters are recognised by name: the temperature (``temperature``, ``tau``, ``t``, ``scale``,
    ``logit_scale``, ``log_scale``, ``inverse_temperature``), micro-batches (``parts``, ``mini_batch_size``,
    ``microbatches``, ``chunks``) and, for JAX, ``axis_name``.

    Args:
      function: the loss, or a short adapter around it.
      as_: name of the loss to compare with.
      framework: ``jax``, ``torch`` or ``numpy``; None: detected from the imports of the function's module.
      tau: temperature of a function without a temperature parameter; None: detected among 0.05, 0.07, 0.1, 0.2,
        0.5, 1 and their inverses.
      only: names of the checks to run; empty: all.
      skip: names of the checks to leave out.
      memory: allowed growth of memory, ``square`` (N x N) or ``linear``.
      ranks: number of processes (PyTorch) or emulated devices (JAX), from 2 to 8.
      options: options of the loss: sigma (dclw), alpha (eqco, macl), offset (macl), tau_plus (debiased), beta
        (hard_nce), bias (sigmoid). The function receives those that it has as parameters.

    Returns:
      The report, with ``report.passed``, ``print(report)`` and ``report.as_json()``.

    Raises:
      ValueError: an argument has a value that is not allowed.

    Examples:
      >>> import numpy as np
      >>> from contrastive_jax import check
      >>> def clip(a, b, temperature=0.1):
      ...     a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
      ...     s = a @ b.T / temperature
      ...     return (np.log(np.exp(s).sum(1)) - np.diag(s)).mean()
      >>> report = check(clip, "info_nce", framework="numpy", only=["value", "convention", "large_logits"])
      >>> [result.status for result in report.results]
      ['passed', 'passed', 'failed']
    """
    from contrastive_jax.conformance import formula, numerics, specs
    from contrastive_jax.conformance.bridge import (
        FRAMEWORKS,
        Bridge,
        framework_of,
        parameters_of,
        required_of,
    )
    from contrastive_jax.conformance.references import options_of
    from contrastive_jax.conformance.report import Report
    from contrastive_jax.conformance.results import CHECKS
    from contrastive_jax.conformance.session import Session

    del formula, numerics  # importing them registers their checks
    if not callable(function):
        raise ValueError(f"function is {str(function)[:60]!r}; it must be callable.")
    name, spec = specs.find(as_)
    framework = framework_of(function) if framework is None else framework
    for argument, given, allowed in (("framework", framework, FRAMEWORKS), ("memory", memory, MEMORY)):
        if given not in allowed:
            raise ValueError(f"{argument} is {given!r}; allowed: {', '.join(allowed)}.")
    for argument, names in (("only", only), ("skip", skip)):
        if unknown := set(names) - set(CHECKS):
            raise ValueError(f"{argument} contains {sorted(unknown)[0]!r}; allowed: {', '.join(CHECKS)}.")
    if tau is not None and not 0 < tau < float("inf"):
        raise ValueError(f"tau is {tau}; it must be positive.")
    if not 2 <= ranks <= 8:
        raise ValueError(f"ranks is {ranks}; it must be from 2 to 8.")
    values = options_of(options or {}, spec.options)
    names = parameters_of(function)
    if spec.kind == specs.LABELS and len(required_of(function)) == 3:
        spec = specs.of_two_views(spec)
    passed = {key: value for key, value in values.items() if key in names and key in (options or {})}
    session = Session(Bridge(function, framework, passed), name, spec, tau, values, memory, ranks)
    chosen = [one for one in CHECKS if (not only or one in only) and one not in skip]
    chosen = ["value"] if session.refused else chosen  # the function cannot be called
    results = [CHECKS[one].run(session) for one in chosen]
    return Report(getattr(function, "__qualname__", type(function).__name__), name, framework, tuple(results))


def assert_conforms(function: Callable, as_: str = "nt_xent", **options: Any) -> None:
    """Raise AssertionError with the report if a loss does not pass; arguments as in :func:`check`."""
    report = check(function, as_, **options)
    if not report.passed:
        raise AssertionError(f"\n{report}")
