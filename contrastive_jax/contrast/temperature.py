"""Temperature schedules and controllers.

A rule is three functions: ``init() -> state``; ``value(state, step, alignment) -> tau``, called before the
comparison; and ``update(state, step, outcome) -> state``, called after it with a scalar of the comparison
(``reads``, a key of ``diagnostics.OUTCOMES``, by default the ESS), or with the loss's derivatives, :class:`Slopes`
(``reads`` is ``slopes``). No gradient of the network flows through tau.

A fourth, ``bias(state) -> bias``, is optional: a scalar that is added to the ``pair_logits`` of losses that classify
each pair of a query and a candidate by itself.

A rule ``per`` example has a state for each example, and a rule ``per`` query one for each view of an example;
``init`` returns the state of one. ``value`` and ``update`` work elementwise on the arrays of a batch: states,
outcomes and tau are [B, 1] per example and [B, V] per query. The outcome is that of the query (``kl_uniform``,
``contrast`` or ``positive``), per example its mean over the views. Queries without negatives change no state.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

from contrastive_jax.contrast import temperature_logs
from contrastive_jax.kinds import Decay, Fraction, Gt, Lt, NonNegative, Positive, PositiveFraction, checked
from contrastive_jax.types import Array, PyTree

SLOPES = "slopes"  # what a rule ``reads`` whose outcome is :class:`Slopes`


class Slopes(NamedTuple):
    """Derivatives of the loss, with its weights, in log(1 / tau) and in the bias; scalars.

    A step obtains them as gradients in two zeros, which a comparison adds to log(1 / tau) and to the bias.
    """

    log_scale: Array
    bias: Array


class Temperature(NamedTuple):
    """A temperature rule; see the module."""

    init: Callable[[], PyTree]
    value: Callable[[PyTree, Array, Array], Array]  # (state, step [], alignment []) -> tau []
    update: Callable[[PyTree, Array, Any], PyTree]  # (state, step [], outcome [] or Slopes) -> state
    reads: str = "ess"  # the outcome, a key of diagnostics.OUTCOMES, or of by_example.READABLE; or SLOPES
    per: Literal["batch", "example", "query"] = "batch"  # unit that has its own state and tau
    cosine_only: bool = False  # requires cosine scores
    bias: Callable[[PyTree], Array] | None = None  # state -> bias [] of pair_logits; only per batch


def _stateless(value: Callable[[Array, Array], Array], cosine_only: bool = False) -> Temperature:
    return Temperature(
        lambda: (),
        lambda state, step, alignment: value(step, alignment),
        lambda state, step, ess: state,
        cosine_only=cosine_only,
    )


def _of_alignment(value: Callable[[Array], Array]) -> Temperature:
    """Return a rule of the mean cosine of positives A, in [-1, 1]; without cosines A and tau have no bounds."""
    return _stateless(lambda step, alignment: value(alignment), cosine_only=True)


@checked("temperature")
def fixed(total_steps: int, *, tau: Positive = 0.1) -> Temperature:
    """Constant tau.

    Args:
      total_steps: length of the run.
      tau: the temperature: scores are divided by it.
    """
    return _stateless(lambda step, alignment: jnp.asarray(1.0 * tau))


@checked("temperature")
def linear(total_steps: int, *, tau: Positive = 0.07, end: Positive = 0.1) -> Temperature:
    """Linear schedule from ``tau`` at the first step to ``end`` after the last (MACL, Table 1: from 0.07).

    Args:
      total_steps: length of the run.
      tau: temperature at the first step.
      end: temperature after the last step.
    """
    return _stateless(lambda step, alignment: tau + (end - tau) * jnp.minimum(step / total_steps, 1.0))


@checked("temperature")
def cosine(total_steps: int, *, tau: Positive = 0.1, end: Positive = 0.5) -> Temperature:
    """Half-cosine schedule from ``tau`` at the first step to ``end`` after the last.

    Args:
      total_steps: length of the run.
      tau: temperature at the first step.
      end: temperature after the last step.
    """

    def value(step, alignment):
        progress = jnp.minimum(step / total_steps, 1.0)
        return end + (tau - end) * (1.0 + jnp.cos(jnp.pi * progress)) / 2.0

    return _stateless(value)


@checked("temperature")
def periodic(
    total_steps: int, *, tau: Positive = 0.5, end: Positive = 0.1, periods: Positive = 5.0
) -> Temperature:
    """Cosine schedule from ``tau`` to ``end`` and back, ``periods`` times (Kukleva et al. 2023).

    ``end + (tau - end) (1 + cos(2 pi periods t)) / 2`` at the fraction t of the run.

    Args:
      total_steps: length of the run.
      tau: temperature at the start of a period.
      end: temperature in the middle of a period.
      periods: number of periods in the run.
    """

    def value(step, alignment):
        return end + (tau - end) * (1.0 + jnp.cos(2.0 * jnp.pi * periods * step / total_steps)) / 2.0

    return _stateless(value)


@checked("temperature")
def replay(total_steps: int, *, file: str = "", values: str = "") -> Temperature:
    """Temperatures logged by another run, step for step.

    They are interpolated linearly between log points and constant before the first. This repeats the
    temperatures of an adaptive rule (``macl_a``, ``ess``) independently of the network that is trained now.

    Args:
      total_steps: length of the run.
      file: the other run's workdir, or a file with a line {"step": 10, "tau": 0.1} per log point; it must
        reach this run's last step.
      values: twelve-digit hash of the values in the file, which makes them part of this run's config; the error
        for a wrong hash shows that of the file.
    """
    steps, taus = temperature_logs.logged(file)
    if steps[-1] < total_steps:
        raise ValueError(
            f"temperature.file is {file!r}, which ends at step {steps[-1]}; it must reach step"
            f" {total_steps}, the last of this run."
        )
    digits = temperature_logs.digits_of(steps, taus)
    if values != digits:
        raise ValueError(
            f"temperature.values is {values!r}; the hash of the {len(steps)} values of tau in {file!r},"
            f" from {min(taus):.4g} to {max(taus):.4g}, is {digits!r}: set temperature.values to it to"
            " use them."
        )
    # A log line counts the steps done; its tau is that of the last of them.
    tau = jnp.asarray(np.interp(np.arange(1, total_steps + 1), steps, taus))
    return _stateless(lambda step, alignment: tau[jnp.minimum(step, total_steps - 1)])


@checked("temperature")
def ess(
    total_steps: int,
    *,
    tau: Positive = 0.1,
    target: PositiveFraction = 0.3,
    target_end: Fraction = 0.0,
    rate: Annotated[float, Gt(0), Lt(1)] = 0.01,
    min_tau: Positive = 0.005,
    max_tau: Positive = 10.0,
) -> Temperature:
    """ESS-scheduled temperature (FlatNCE, Chen et al. 2021, Algorithm S1, with its sign corrected).

    After each step beta = 1 / tau is multiplied by 1 + rate if the effective sample size of the negatives is
    above its target, else by 1 - rate: a larger beta sharpens the weights and lowers the ESS. As printed, the
    algorithm does the opposite and diverges.

    Args:
      total_steps: length of the run.
      tau: initial temperature.
      target: ESS to hold, in (0, 1], as a share of the number of negatives.
      target_end: where the target ends, in a straight line; 0 keeps it constant.
      rate: relative change of beta per step.
      min_tau: lower clamp.
      max_tau: upper clamp.
    """
    _check_clamps(tau, min_tau, max_tau)
    end = target_end or target

    def init():
        return {"beta": jnp.asarray(1.0 / tau)}

    def value(state, step, alignment):
        return 1.0 / state["beta"]

    def update(state, step, ess):
        goal = target + (end - target) * jnp.minimum(step / total_steps, 1.0)
        beta = state["beta"] * jnp.where(ess > goal, 1.0 + rate, 1.0 - rate)
        return {"beta": jnp.clip(beta, 1.0 / max_tau, 1.0 / min_tau).astype(state["beta"].dtype)}

    return Temperature(init, value, update)


@checked("temperature")
def learnt(
    total_steps: int,
    *,
    tau: Positive = 0.07,
    rate: Positive = 1e-3,
    min_tau: Positive = 0.01,
    max_tau: Positive = 10.0,
) -> Temperature:
    """Temperature learnt by gradient descent on the loss, as CLIP does (Radford et al. 2021, section 2.3).

    log(1 / tau) takes steps of Adam with CLIP's decays, 0.9 and 0.98, and its epsilon, 1e-6, along the derivative of
    the training loss: the weighted sum of all its terms. CLIP's schedule also applies to it; here the rate is constant.

    Args:
      total_steps: length of the run.
      tau: initial temperature.
      rate: Adam's learning rate of log(1 / tau).
      min_tau: lower clamp.
      max_tau: upper clamp.
    """
    _check_clamps(tau, min_tau, max_tau)
    return _descending(
        {"log_scale": -np.log(tau)}, optax.adam(rate, b1=0.9, b2=0.98, eps=1e-6), min_tau, max_tau
    )


@checked("temperature")
def siglip(
    total_steps: int,
    *,
    tau: Positive = 0.1,
    rate: Positive = 1e-3,
    min_tau: Positive = 0.01,
    max_tau: Positive = 10.0,
) -> Temperature:
    """Temperature and bias learnt by gradient descent on the loss, as SigLIP does (Zhai et al. 2023, algorithm 1).

    log(1 / tau) and the bias take steps of Adam with decays 0.9 and 0.95 and epsilon 1e-8, at a constant rate. The
    bias is added to the logits of losses that classify each pair, ``sigmoid``; it starts at 0 beside the option
    ``loss.sigmoid.bias``, so that SigLIP's bias is their sum. The clamps are our own.

    Args:
      total_steps: length of the run.
      tau: initial temperature.
      rate: Adam's learning rate of log(1 / tau) and of the bias.
      min_tau: lower clamp.
      max_tau: upper clamp.
    """
    _check_clamps(tau, min_tau, max_tau)
    first = {"log_scale": -np.log(tau), "bias": 0.0}
    rule = _descending(first, optax.adam(rate, b1=0.9, b2=0.95), min_tau, max_tau)
    return rule._replace(bias=lambda state: state["bias"])


def _descending(
    first: dict[str, float], adam: optax.GradientTransformation, min_tau: float, max_tau: float
) -> Temperature:
    """Return a rule that descends on the loss in the fields ``first`` of :class:`Slopes`, with their first values."""

    def init():
        numbers = {name: jnp.asarray(value, jnp.result_type(float)) for name, value in first.items()}
        return numbers | {"adam": adam.init(numbers)}

    def update(state, step, slopes):
        numbers = {name: state[name] for name in first}
        of_loss = {name: getattr(slopes, name).astype(x.dtype) for name, x in numbers.items()}
        changes, moments = adam.update(of_loss, state["adam"])
        numbers = {name: x + changes[name] for name, x in numbers.items()}
        scale = numbers["log_scale"]
        numbers["log_scale"] = jnp.clip(scale, -np.log(max_tau), -np.log(min_tau)).astype(scale.dtype)
        return numbers | {"adam": moments}

    return Temperature(
        init, lambda state, step, alignment: jnp.exp(-state["log_scale"]), update, reads=SLOPES
    )


@checked("temperature")
def kl(
    total_steps: int,
    *,
    tau: Positive = 0.1,
    target: Positive = 0.5,
    rate: Positive = 1e-3,
    min_tau: Positive = 0.005,
    max_tau: Positive = 10.0,
) -> Temperature:
    """Descent on a robust objective in one tau (FastCLIP-v3, Wei et al. 2024; iSogCLR, Qiu et al. 2023).

    The objective ``tau (log mean_j e^((s_j - s+) / tau) + target)``, averaged over queries, has as its minimum
    over tau the worst case over weights p of the negatives with mean KL(p || uniform) <= target. Its derivative
    in tau is ``target - KL``, so after each step tau changes by ``rate (KL - target)``. At equilibrium the
    effective number of negatives, e to the entropy of p, is a share e^-target of all. FastCLIP's released code
    passes Adam a derivative that subtracts the softmax mean of the scores twice. The defaults of ``target`` and
    ``rate`` are our own.

    Args:
      total_steps: length of the run.
      tau: initial temperature.
      target: KL divergence of the negatives' weights from uniform ones to hold, in nats.
      rate: change of tau per step and nat of divergence above the target.
      min_tau: lower clamp.
      max_tau: upper clamp.
    """
    _check_clamps(tau, min_tau, max_tau)

    def update(state, step, divergence):
        moved = state["tau"] + rate * (divergence - target)
        return {"tau": jnp.clip(moved, min_tau, max_tau).astype(state["tau"].dtype)}

    return Temperature(
        lambda: {"tau": jnp.asarray(1.0 * tau)},
        lambda state, step, alignment: state["tau"],
        update,
        reads="kl_uniform",
    )


@checked("temperature")
def isogclr(
    total_steps: int,
    *,
    tau: Positive = 0.1,
    target: Positive = 0.5,
    rate: Positive = 0.01,
    momentum: Decay = 0.1,
    clip: NonNegative = 0.0,
    min_tau: Positive = 0.05,
    max_tau: Positive = 1.0,
    per: Literal["example", "query"] = "example",
) -> Temperature:
    """One temperature per example, by gradient descent on its robust objective (iSogCLR, Qiu et al. 2023).

    The objective is that of ``kl`` for one example, averaged over its views. Its slope in tau is target -
    KL(p || uniform), or target - (r E_p[x] - log u) with the moving average u of a ``normalizer``. A moving
    average of the slope updates tau, so examples whose negatives have very different scores get a large tau.
    The authors' code clips the slope at 3. The defaults are our own.

    Args:
      total_steps: length of the run.
      tau: initial temperature of every example.
      target: rho, KL divergence of the negatives' weights from uniform ones to hold, in nats.
      rate: decrease of tau per visit for an average slope of 1.
      momentum: weight of earlier visits' slopes in the average, which starts at 0.
      clip: largest slope of a visit, either way; 0: any.
      min_tau: lower clamp.
      max_tau: upper clamp.
      per: example: its views share a temperature; query: each view has its own, as in FastCLIP-v2.
    """
    _check_clamps(tau, min_tau, max_tau)

    def update(state, step, divergence):
        slope = target - divergence
        slope = jnp.clip(slope, -clip, clip) if clip else slope
        slope = momentum * state["slope"] + (1.0 - momentum) * slope
        return {"tau": jnp.clip(state["tau"] - rate * slope, min_tau, max_tau), "slope": slope}

    return Temperature(
        lambda: {"tau": jnp.asarray(1.0 * tau), "slope": jnp.zeros(())},
        lambda state, step, alignment: state["tau"],
        update,
        reads="kl_uniform",
        per=per,
    )


@checked("temperature")
def fast_clip_v2(
    total_steps: int,
    *,
    tau: Positive = 0.1,
    target: Positive = 0.5,
    rate: Positive = 0.01,
    beta1: Decay = 0.9,
    beta2: Decay = 0.999,
    clip: Positive = 5.0,
    min_tau: Positive = 0.01,
    max_tau: Positive = 1.0,
) -> Temperature:
    """One temperature per view of an example, by Adam on its robust objective (FastCLIP-v2, Wei et al. 2024).

    The slope is that of ``isogclr``, with the average u of ``normalizer=fast_clip`` as published. The objective
    weights each query's loss by its tau: that is the loss ``sogclr``. The authors' code leaves the weight out of
    the network's gradient, and so does ``method=fast_clip_v2``, by the loss ``fenchel_legendre``. As in that code,
    the first visit's slope enters Adam's means whole, and an example's later visits are counted from 2; the code
    counts epochs, which is the same where each epoch visits each example once. Published, for captioned images
    and large batches: tau 0.03, target 7, rate 0.0133.

    Args:
      total_steps: length of the run.
      tau: initial temperature of every view.
      target: rho, KL divergence of the negatives' weights from uniform ones to hold, in nats.
      rate: Adam's learning rate: about the change of tau per visit while the slope keeps its sign.
      beta1: weight of earlier visits in the mean of the slope.
      beta2: weight of earlier visits in the mean of the squared slope.
      clip: largest slope of a visit, either way.
      min_tau: lower clamp.
      max_tau: upper clamp.
    """
    _check_clamps(tau, min_tau, max_tau)

    def update(state, step, divergence):
        slope = jnp.clip(target - divergence, -clip, clip)
        visits, first = state["visits"] + 1.0, state["visits"] == 0.0

        def mean(name, beta, value):
            """Return the mean with this visit, and the same without its bias."""
            beta = jnp.where(first, 0.0, beta)
            now = beta * state[name] + (1.0 - beta) * value
            return now, now / (1.0 - beta**visits)

        (of_slope, slope), (of_square, square) = mean("slope", beta1, slope), mean("square", beta2, slope**2)
        tau = jnp.clip(state["tau"] - rate * slope / (jnp.sqrt(square) + 1e-8), min_tau, max_tau)
        return {"tau": tau, "slope": of_slope, "square": of_square, "visits": visits}

    zero = jnp.zeros(())
    return Temperature(
        lambda: {"tau": jnp.asarray(1.0 * tau), "slope": zero, "square": zero, "visits": zero},
        lambda state, step, alignment: state["tau"],
        update,
        reads="kl_uniform",
        per="query",
    )


def _check_clamps(tau: float, min_tau: float, max_tau: float) -> None:
    """Refuse an initial temperature outside its clamps."""
    if not min_tau <= tau <= max_tau:
        raise ValueError(
            f"temperature.tau is {tau}; it must be from temperature.min_tau={min_tau} to"
            f" temperature.max_tau={max_tau}."
        )


@checked("temperature")
def macl_a(total_steps: int, *, tau: Positive = 0.1, alpha: Positive = 2.0) -> Temperature:
    """MACL's exponential form: tau0 alpha^A, A the batch's mean positive cosine (Huang et al. 2022, tau_a).

    Args:
      total_steps: length of the run.
      tau: tau0, the temperature at alignment 0.
      alpha: base of the power: the temperature at alignment 1 is alpha times tau0.
    """
    return _of_alignment(lambda alignment: tau * alpha**alignment)


@checked("temperature")
def macl_b(
    total_steps: int, *, tau: Positive = 0.1, beta: Annotated[float, Gt(-1), Lt(1)] = 0.5
) -> Temperature:
    """MACL's linear form: tau0 (1 + beta A) (Huang et al. 2022, tau_b); positive for beta in (-1, 1).

    Args:
      total_steps: length of the run.
      tau: tau0, the temperature at alignment 0.
      beta: slope: the temperature at alignment 1 is 1 + beta times tau0; in (-1, 1).
    """
    return _of_alignment(lambda alignment: tau * (1.0 + beta * alignment))


@checked("temperature")
def macl_icml(
    total_steps: int, *, tau: Positive = 0.1, alpha: float = 0.5, a0: float = 0.0, min_tau: Positive = 0.005
) -> Temperature:
    """MACL as published at ICML 2023: tau0 (1 + alpha (A - A0)), at least ``min_tau``.

    Args:
      total_steps: length of the run.
      tau: tau0, the temperature at alignment A0.
      alpha: slope of the temperature, relative to tau0, in the alignment.
      a0: A0, the alignment at which the temperature is tau0.
      min_tau: lower clamp.
    """
    return _of_alignment(lambda alignment: jnp.maximum(tau * (1.0 + alpha * (alignment - a0)), min_tau))
