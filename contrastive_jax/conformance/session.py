"""Function under test: the convention that it follows, and its expected values and gradients."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from contrastive_jax.conformance import inputs, references
from contrastive_jax.conformance.bridge import Bridge, Refused
from contrastive_jax.conformance.references import Array, Variant
from contrastive_jax.conformance.specs import (
    FACTORS,
    LABELS,
    PAIRS,
    QUEUE,
    TEMPERATURES,
    USUAL_TAUS,
    VIEWS,
    Factor,
    Spec,
    Temperature,
)

SAME = 1e-4  # relative tolerance for matching float32 values with a convention
TAU = 0.2  # default temperature of the checks
BATCHES = (
    (inputs.SMALL, 0),
    (inputs.MIDDLE, 1),
    (inputs.SMALL, 6),
)  # sizes and seeds of the batches that identify a form


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of one call: mean, returned array, gradient per array, and derivative by the temperature."""

    value: float
    returned: np.ndarray
    gradients: list[np.ndarray]
    slope: float | None

    @property
    def finite(self) -> bool:
        """True if the value and every gradient is finite."""
        return bool(np.isfinite(self.value) and all(np.isfinite(x).all() for x in self.gradients))

    @property
    def gradient(self) -> np.ndarray:
        """All gradients as one vector."""
        return np.concatenate([x.ravel() for x in self.gradients])


@dataclasses.dataclass(frozen=True)
class Convention:
    """Form of a loss that a function follows.

    Attributes:
      variant: variant of its formula.
      mistakes: fields of ``variant`` that contradict the loss; ``temperature`` if another one was declared.
      factor: ratio of its mean value to the mean over queries.
      temperature: meaning of its temperature argument.
      tau: its temperature, if it has no such argument.
      unit: whether it is correct only for rows of unit length.
    """

    variant: Variant
    mistakes: tuple[str, ...]
    factor: Factor
    temperature: Temperature
    tau: float
    unit: bool


def error(found: Any, exact: Any) -> float:
    """Return the relative error |found - exact| / |exact| by Euclidean norms; infinity if not all finite."""
    found, exact = np.asarray(found, float).ravel(), np.asarray(exact, float).ravel()
    if not (np.isfinite(found).all() and np.isfinite(exact).all()):
        return math.inf
    size = float(np.linalg.norm(exact))
    return float(np.linalg.norm(found - exact)) / (size if size > 0 else 1.0)


class Session:
    """Function under test, the loss that it is compared with, and its convention.

    Args:
      bridge: wrapper that calls the function.
      name: name of the loss.
      spec: specification of the loss.
      tau: temperature of a function without a temperature argument; None: detected among usual ones.
      options: options of the loss.
      memory: allowed growth of memory, ``square`` (N x N) or ``linear``.
      ranks: number of ranks.
    """

    def __init__(
        self,
        bridge: Bridge,
        name: str,
        spec: Spec,
        tau: float | None,
        options: Mapping[str, Any],
        memory: str = "square",
        ranks: int = 2,
    ):
        self.bridge, self.name, self.spec, self.tau = bridge, name, spec, tau
        self.options, self.memory, self.ranks = dict(options), memory, ranks
        self.problem = ""  # why no convention was found
        self.refused = False  # whether the function cannot be called at all
        self.convention: Convention | None = None
        try:
            self.convention = self._find()
        except Refused as refused:
            self.problem, self.refused = f"the function {refused}", True

    # -------------------------------------------------------------------------------------- calls

    def call(self, arrays: Sequence[Array], tau: float | None = None, **options: Any) -> Outcome:
        """Call the function at a temperature (None: ``working_tau``)."""
        argument = None
        if self.bridge.temperature is not None:
            tau = self.working_tau if tau is None else tau
            argument = self.convention.temperature.to_argument(tau) if self.convention else tau
        returned, gradients, slope = self.bridge.differentiate(arrays, argument, **options)
        return Outcome(float(np.mean(returned)), returned, gradients, slope)

    def arrays(self, size: Sequence[int] = inputs.MIDDLE, seed: int = 0) -> list[Array]:
        """Return a batch, with rows of unit length if the function requires them."""
        return inputs.arrays(self.spec, size, seed, unit=self.unit)

    @property
    def unit(self) -> bool:
        """True if inputs have rows of unit length."""
        return self.convention is not None and self.convention.unit

    @property
    def working_tau(self) -> float:
        """Default temperature of the checks: ``TAU``, or the function's own if it has no argument for it."""
        if self.bridge.temperature is None and self.convention is not None:
            return self.convention.tau
        return TAU

    @property
    def has_temperature(self) -> bool:
        """True if the temperature can be set."""
        return self.bridge.temperature is not None

    @property
    def normalises(self) -> bool:
        """True if the function normalises rows itself."""
        return self.convention is not None and self.convention.variant.score == "cosine" and not self.unit

    def queries(self, arrays: Sequence[Array], variant: Variant) -> int:
        """Return the number of queries of a batch."""
        if self.spec.kind == LABELS:
            labels = arrays[1]
            alone = sum(int((labels == label).sum() == 1) for label in labels)
            return len(labels) - (alone if variant.lone == "left_out" else 0)
        if self.spec.kind == VIEWS:
            return 2 * len(arrays[0])
        both = self.spec.kind == PAIRS and variant.directions == "both" and self.spec.allowed
        return len(arrays[0]) * (2 if both else 1)

    # -------------------------------------------------------------------------------------- expectation

    def reference(self, variant: Variant, tau: float) -> Callable[..., Array]:
        """Return the float64 reference loss, a function of the arrays."""
        return lambda *arrays: self.spec.loss(*arrays, tau, variant, **self.options)

    @property
    def form(self) -> Convention:
        """The convention, for checks that need one."""
        if self.convention is None:
            raise RuntimeError("no convention was found")
        return self.convention

    def expected(
        self, arrays: Sequence[Array], tau: float | None = None, variant: Variant | None = None
    ) -> tuple[float, list[Array]]:
        """Return the exact value and gradients in the function's convention, or in another ``variant``."""
        convention = self.form
        variant = convention.variant if variant is None else variant
        tau = self.working_tau if tau is None else tau
        loss = self.reference(variant, tau)
        factor = convention.factor.of(len(arrays[0]), self.queries(arrays, variant), tau)
        floating = [i for i, x in enumerate(arrays) if x.dtype.kind == "f"]
        return factor * float(loss(*arrays)), [
            factor * references.gradient(loss, arrays, i) for i in floating
        ]

    def expected_slope(self, arrays: Sequence[Array]) -> float:
        """Return the exact derivative with respect to the temperature argument."""
        convention = self.form
        tau = self.working_tau
        complex_tau = tau + 1j * references.STEP
        derivative = np.imag(self.spec.loss(*arrays, complex_tau, convention.variant, **self.options))
        rows, queries = len(arrays[0]), self.queries(arrays, convention.variant)
        factor = convention.factor.of(rows, queries, tau)
        step = 1e-6 * tau
        of_factor = convention.factor.of(rows, queries, tau + step) - convention.factor.of(
            rows, queries, tau - step
        )
        value = float(self.spec.loss(*arrays, tau, convention.variant, **self.options))
        by_tau = factor * float(derivative) / references.STEP + value * of_factor / (2 * step)
        argument, small = convention.temperature.to_argument(tau), 1e-6
        ends = [convention.temperature.of_argument(argument + sign * small) for sign in (1, -1)]
        return by_tau * (ends[0] - ends[1]) / (2 * small)

    def compared(self, outcome: Outcome, expected: tuple[float, list[Array]]) -> tuple[float, float]:
        """Return the relative errors of value and gradient; arrays of MoCo without a gradient are left out."""
        value, gradients = expected
        found = list(outcome.gradients)
        if self.spec.kind == QUEUE:  # keys and queue need not have a gradient
            pairs = [
                (f, e)
                for number, (f, e) in enumerate(zip(found, gradients, strict=True))
                if number == 0 or np.any(f)  # the query, which has one
            ]
            found, gradients = [f for f, _ in pairs], [e for _, e in pairs]
        flat = self.name == "flatnce"
        size = max(abs(value), 1e-3 if not flat else 1.0)
        wrong = abs(outcome.value - value) / size if np.isfinite([outcome.value, value]).all() else math.inf
        return wrong, error(*(np.concatenate([x.ravel() for x in xs]) for xs in (found, gradients)))

    # -------------------------------------------------------------------------------------- the convention

    def _find(self) -> Convention | None:
        """Return the matching form with the fewest mistakes, over all meanings of the temperature argument.

        The argument of each meaning is that of temperature ``TAU``: at 5, all forms would be close to log N.
        """
        found: list[Convention] = []
        first: tuple | None = None
        for unit, (meaning, argument) in itertools.product((False, True), self._arguments()):
            batches = [inputs.arrays(self.spec, size, seed, unit) for size, seed in BATCHES]
            try:
                outcomes = [self._outcome(batch, argument) for batch in batches]
            except Refused:
                if first is None and meaning is TEMPERATURES[0]:
                    raise
                continue  # for instance at a negative temperature
            first = (batches, outcomes) if first is None else first
            if form := self._match(batches, outcomes, unit, self._temperatures(meaning)):
                found.append(form)
                if not form.mistakes:
                    break
        if not found and first is not None:
            self.problem = self._unknown(*first)
        return min(found, key=lambda form: len(form.mistakes)) if found else None

    def _outcome(self, batch, argument) -> Outcome:
        returned, gradients, slope = self.bridge.differentiate(batch, argument)
        return Outcome(float(np.mean(returned)), returned, gradients, slope)

    def _arguments(self) -> list[tuple[Temperature, float | None]]:
        if not self.has_temperature:
            return [(TEMPERATURES[0], None)]
        return [(meaning, meaning.to_argument(TAU)) for meaning in TEMPERATURES]

    def _temperatures(self, meaning: Temperature) -> list[tuple[Temperature, float, tuple[str, ...]]]:
        if self.has_temperature:
            return [(meaning, TAU, ())]
        usual = list(dict.fromkeys([*USUAL_TAUS, *(1.0 / tau for tau in USUAL_TAUS)]))
        if self.tau is None:
            return [(meaning, tau, ()) for tau in usual]
        others = [tau for tau in dict.fromkeys([1.0 / self.tau, *usual]) if tau != self.tau]
        return [(meaning, self.tau, ()), *((meaning, tau, ("temperature",)) for tau in others)]

    def _match(self, batches, outcomes, unit: bool, temperatures) -> Convention | None:
        """Return the form with the fewest mistakes that matches the values (FlatNCE: gradients)."""
        if not all(outcome.finite for outcome in outcomes):
            return None
        found: list[tuple[int, int, int, Convention]] = []
        for (variant, wrong), (i, (meaning, tau, other)) in itertools.product(
            self.spec.variants(), enumerate(temperatures)
        ):
            if unit and variant.score == "dot" or found and len(wrong) + len(other) > found[0][0]:
                continue
            exact = [
                self._measured(batch, variant, tau, outcome)
                for batch, outcome in zip(batches, outcomes, strict=True)
            ]
            for j, factor in enumerate(FACTORS):
                differences = [
                    error(
                        seen, factor.of(len(batch[0]), self.queries(batch, variant), tau) * np.asarray(right)
                    )
                    for batch, (seen, right) in zip(batches, exact, strict=True)
                ]
                if max(differences) < SAME and not self._other_value(variant, outcomes, factor, batches, tau):
                    mistakes = (*wrong, *other)
                    form = Convention(variant, mistakes, factor, meaning, tau, unit)
                    found.append((len(mistakes), j, i, form))
        return min(found, key=lambda entry: entry[:3])[3] if found else None

    def _measured(self, batch, variant: Variant, tau: float, outcome: Outcome) -> tuple[Any, Any]:
        if self.name != "flatnce":
            return outcome.value, float(self.spec.loss(*batch, tau, variant, **self.options))
        loss = self.reference(variant, tau)
        return outcome.gradient, np.concatenate([references.gradient(loss, batch, i).ravel() for i in (0, 1)])

    def _other_value(self, variant, outcomes, factor, batches, tau) -> bool:
        """Return whether FlatNCE's value differs from the variant's."""
        if self.name != "flatnce":
            return False
        return any(
            abs(
                outcome.value
                - factor.of(len(batch[0]), self.queries(batch, variant), tau)
                * float(self.spec.loss(*batch, tau, variant, **self.options))
            )
            > SAME
            for outcome, batch in zip(outcomes, batches, strict=True)
        )

    def _unknown(self, batches, outcomes) -> str:
        """Return a description of values that match no known form."""
        if not all(outcome.finite for outcome in outcomes):
            return "the value or the gradient is not finite on plain rows of norm one"
        variant = self.spec.usual()
        _, tau, _ = self._temperatures(TEMPERATURES[0])[0]
        exact = [float(self.spec.loss(*batch, tau, variant, **self.options)) for batch in batches]
        ratios = [outcome.value / value for outcome, value in zip(outcomes, exact, strict=True)]
        if max(ratios) - min(ratios) < SAME * abs(ratios[0]):
            return (
                f"the value is {ratios[0]:.6g} x the mean over queries; no known convention has this factor"
            )
        return (
            f"the value is {outcomes[0].value:.6g}, and the reference is {exact[0]:.6g} (float64, mean"
            f" over queries, tau {tau:g}); no known convention explains the difference"
        )
