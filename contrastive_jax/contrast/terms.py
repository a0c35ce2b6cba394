"""The loss as a weighted sum of terms, whose parameters name the quantities that they receive."""

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from contrastive_jax import losses
from contrastive_jax.contrast.arguments import real_array
from contrastive_jax.contrast.comparison import Comparison
from contrastive_jax.contrast.scores import Transform
from contrastive_jax.kinds import basic, parameters
from contrastive_jax.lookup import is_own, own
from contrastive_jax.losses.contrastive import FLAT
from contrastive_jax.losses.supervised import mean_of_labelled
from contrastive_jax.sharding import REPLICATED, automatic, replicate
from contrastive_jax.types import Array


def _row(comparison: Comparison, of: Array) -> Array:
    """Return scores over tau [B, V, 1 + M] of ``of`` with the positive (first) and the candidates."""
    own = jnp.sum(of * comparison.key, axis=-1, keepdims=True)
    score = jnp.concatenate([own, comparison.scores(of)], axis=-1)
    tau = comparison.temperature
    tau = tau[..., None] if tau.ndim else tau
    if not comparison.differentiate_temperature:
        return score / tau
    permitted = score > -jnp.inf  # the derivative of -inf / tau is infinite, and times 0 NaN
    return jnp.where(permitted, jnp.where(permitted, score, 0.0) / tau, -jnp.inf)


def _pair_logits(comparison: Comparison) -> Array:
    """Return scores over tau [B, V, 1 + M] of the queries, plus the temperature rule's bias if it has one."""
    row = _row(comparison, comparison.query)
    return row if comparison.bias is None else row + comparison.bias.astype(row.dtype)


# Parameters that a loss can have besides the contrasts; `extras` are other quantities of the step.
QUANTITIES: dict[str, Callable[[Comparison, Mapping[str, Array]], Array | None]] = {
    "positive": lambda comparison, extras: comparison.soft_positive(),
    "count": lambda comparison, extras: comparison.count,
    "temperature": lambda comparison, extras: comparison.temperature,
    "cross": lambda comparison, extras: _row(comparison, comparison.query),
    "same": lambda comparison, extras: _row(comparison, comparison.key),
    "pair_logits": lambda comparison, extras: _pair_logits(comparison),
    "population": lambda comparison, extras: replicate(extras["projection"]),
    "projection": lambda comparison, extras: extras["projection"],
    "prediction": lambda comparison, extras: extras["prediction"],
    "target": lambda comparison, extras: extras["target"],
    "logits": lambda comparison, extras: extras["logits"],
    "label": lambda comparison, extras: extras["label"],
    "key": lambda comparison, extras: extras["rng"],
    "u": lambda comparison, extras: extras["u"],
    "surplus": lambda comparison, extras: comparison.surplus(),
    "mean": lambda comparison, extras: comparison.mean(),
}
# Scores with each candidate, which only a selection from the batch has.
ROWS = frozenset(("cross", "same", "pair_logits"))
# Quantities at a multiple of 1 / tau -> index into the loss's multiples.
AT_MULTIPLE = {"surplus": 0, "mean": -1}


class Term(NamedTuple):
    """One summand of the loss: a function of :mod:`contrastive_jax.losses`, its options and its weight."""

    name: str
    weight: float
    function: Callable[..., Array]
    options: dict[str, Any]
    multiples: tuple[float, ...]  # of 1 / tau, for the contrasts, its first parameters
    quantities: tuple[str, ...]

    @property
    def declared(self) -> losses.Declaration:
        """Properties that the loss declares beside its signature."""
        return losses.declaration(self.function)

    @property
    def cosine_only(self) -> bool:
        """True if the loss, with its options, is defined for cosine scores only."""
        says = self.declared.cosine_only
        return says(**self.options) if callable(says) else says

    def no_transform(self, transform: Transform) -> str:
        """Return why the loss does not take a transform, as a verb phrase for messages; "" if it does."""
        if transform[:3] == (None, None, None):
            return ""
        one_sided = (transform.negative is None) != (transform.positive is None)
        if self.declared.maximised and (one_sided or transform.log_weight is not None):
            return "changes negatives alone, which would bias the estimate"
        if self.cosine_only:
            return "does not return the cosines required by"
        if ROWS & set(self.quantities):
            return "has no effect on"
        if transform.log_weight is not None and min(self.multiples, default=1.0) <= FLAT:
            return "has weights of mean 1, which are undefined at multiples of 1 / tau of 0 or less in"
        if transform.log_weight is not None and "mean" in self.quantities:
            return "has weights, for which the mean score is undefined in"
        return ""

    def values(self, comparison: Comparison, extras: Mapping[str, Array]) -> Array:
        """Compute the unreduced loss; if it reads contrasts, [B, V] with 0 for queries without negatives."""
        value = self._called(self._read(comparison, extras))
        return jnp.where(comparison.count > 0, value, 0.0) if self.multiples else value

    def _called(self, read: Sequence[Array | None]) -> Array:
        """Return the function's value; raise ValueError unless it is an array of real numbers."""
        return real_array(f"loss.{self.name}", self.function(*read, **self.options))

    def _read(self, comparison: Comparison, extras: Mapping[str, Array]) -> list[Array | None]:
        """Return the contrasts and quantities that the loss reads."""
        return [comparison.contrast(multiple) for multiple in self.multiples] + [
            getattr(comparison, name)(self.multiples[AT_MULTIPLE[name]])
            if name in AT_MULTIPLE and self.multiples
            else QUANTITIES[name](comparison, extras)
            for name in self.quantities
        ]

    def __call__(self, comparison: Comparison, extras: Mapping[str, Array]) -> Array:
        """Return the mean of the loss over queries (or examples), of the package's ``cross_entropy`` over
        labelled examples."""
        if not is_own(self.name):
            values = self.values(comparison, extras)
            return (
                mean_of_labelled(values, extras["label"])
                if self.declared.labels == "one"
                else jnp.mean(values)
            )

        def mean(count, *read):
            value = self._called(read)
            return jnp.mean(jnp.where(count > 0, value, 0.0) if self.multiples else value)

        # A user's loss ignores sharding: it may combine rows of the batch from different devices.
        return automatic(mean, REPLICATED)(comparison.count, *self._read(comparison, extras))


# Common names of the package's losses, in the spelling of `canonical`.
ALIASES = {
    "ntxent": "info_nce",
    "simclr": "info_nce",
    "moco": "info_nce",
    "decoupledcontrastive": "dcl",
    "decoupledcontrastiveloss": "dcl",
    "hcl": "hard_nce",
    "hardnegative": "hard_nce",
    "debiasedcontrastive": "debiased",
    "swd": "sliced_wasserstein",
    "siglip": "sigmoid",
    "sigmoidloss": "sigmoid",
}


def known_losses() -> list[str]:
    """Return the names of all losses of the package that a step can compute."""
    return [name for name in losses.__all__ if is_loss(getattr(losses, name))]


def is_loss(function: Any) -> bool:
    """Return whether a step has all quantities that the function's parameters name."""
    if not inspect.isfunction(function):
        return False
    read = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    return bool(read) and all(name in QUANTITIES or re.fullmatch(r"c(_\w+)?", name) for name in read)


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


def canonical(name: str) -> str:
    """Return the function name of a loss for a common name, such as ``InfoNCE`` or ``nt_xent``, in any case.

    Unknown names are returned unchanged. In ``module:function``, dots of the module become slashes, because the
    name is a section of the config.
    """
    if is_own(name):
        module, _, function = name.partition(":")
        return f"{module.replace('.', '/')}:{function}"
    names = {_letters(known): known for known in losses.__all__}
    return names.get(_letters(name), ALIASES.get(_letters(name), name))


def find_loss(name: str) -> Callable[..., Array]:
    """Return a loss by its name in :mod:`contrastive_jax.losses`, a common name, or ``module:function``.

    Raises:
      ValueError: an unknown name.
    """
    if is_own(name):
        module, _, function = name.partition(":")
        module = module.replace("/", ".") if all(module.split("/")) else module  # slashes from `canonical`
        return own(f"{module}:{function}", "loss")
    known_as = canonical(name)
    if "," in name:
        raise ValueError(
            f"loss is {name!r}, several losses; replicas may differ in the seed and in numbers only:"
            " run the command once for each loss."
        )
    if known_as not in losses.__all__ or not is_loss(getattr(losses, known_as)):
        near = difflib.get_close_matches(known_as, known_losses(), 1, cutoff=0.65)
        near = near or [name[::-1].replace(".", ":", 1)[::-1]] * ("." in name)
        hint = f" Did you mean {near[0]!r}?" if near else f" Allowed: {', '.join(known_losses())}."
        raise ValueError(f"loss {name!r} does not exist.{hint} (Write your own loss as 'module:function'.)")
    return getattr(losses, known_as)


def make_term(
    name: str, settings: Mapping[str, Any] | float, function: Callable[..., Array] | None = None
) -> Term:
    """Make one term from its entry in the config's ``loss`` section: a weight, or ``weight`` and options.

    ``function``: the loss itself; None: the loss of that name.

    Raises:
      ValueError: unknown loss or option; the message shows the loss's signature.
    """
    settings = dict(settings) if isinstance(settings, Mapping) else {"weight": settings}
    weight = settings.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ValueError(f"loss.{name}.weight is {weight!r}; it must be a number.")
    function = function or find_loss(name)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin or compiled function
        raise ValueError(
            f"loss.{name} has no signature that Python can read; wrap it in a function of your own."
        ) from None
    options = {p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    required = {n for n in options if signature.parameters[n].default is inspect.Parameter.empty}
    if set(settings) - options or required - set(settings):
        wrong = sorted(set(settings) - options)
        what = (
            f"there is no option {wrong[0]!r}"
            if wrong
            else f"the option {sorted(required - set(settings))[0]!r} is missing"
        )
        raise ValueError(f"loss.{name}: {what}; its signature is {name}{_shown(signature)}.")
    for option, value in settings.items():
        kinds = basic(parameters(function)[option].annotation) | {type(signature.parameters[option].default)}
        if isinstance(value, str) and kinds & {bool, int, float}:
            what = "True or False" if bool in kinds else "a number"
            raise ValueError(f"loss.{name}.{option} is {value!r}; it must be {what}.")
    inputs = [p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    if declared := losses.declaration(function).multiples:
        try:
            multiples = tuple(float(m) for m in declared(**settings))
        except (TypeError, jax.errors.ConcretizationTypeError) as error:
            shown = ", ".join(f"{option} is {value}" for option, value in settings.items())
            raise ValueError(
                f"loss.{name}: {shown}; it must be a number, and a constant under jit."
            ) from error
    else:
        multiples = (1.0,) if inputs[:1] == ["c"] else ()
    quantities = tuple(inputs[len(multiples) :])
    if unknown := [q for q in quantities if q not in QUANTITIES]:
        raise ValueError(
            f"loss.{name} has the argument {unknown[0]!r}; allowed arguments: c,"
            f" {', '.join(QUANTITIES)}. Its signature is {name}{_shown(signature)}."
        )
    return Term(name, float(weight), function, settings, multiples, quantities)


def _shown(signature: inspect.Signature) -> str:
    """Return a signature without types: ``(c, *, alpha)``."""
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(bare))


def make_terms(
    section: Mapping[str, Any], function_of: Callable[[str], Callable] = find_loss
) -> tuple[Term, ...]:
    """Make the terms of a config's ``loss`` section; ``function_of`` returns a loss by name."""
    if not section:
        raise ValueError("loss is empty; name at least one term, for example loss.info_nce.weight=1.0.")
    return tuple(make_term(name, settings, function_of(name)) for name, settings in section.items())


def total_loss(
    terms: tuple[Term, ...], comparison: Comparison, extras: Mapping[str, Array]
) -> tuple[Array, dict]:
    """Compute the weighted sum of the terms, and each term's own value."""
    values = {term.name: term(comparison, extras) for term in terms}
    # Not 0 times a value that is only logged: it may be infinite.
    trained = [term.weight * values[term.name] for term in terms if term.weight]
    return jnp.asarray(sum(trained) if trained else jnp.zeros((), comparison.positive.dtype)), values
