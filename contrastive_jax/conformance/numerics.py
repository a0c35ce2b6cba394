"""Checks of the numerics: scales, temperatures, precision, micro-batches, ranks, memory, determinism."""

import math

import numpy as np

from contrastive_jax.conformance import inputs, ranks
from contrastive_jax.conformance.bridge import Refused
from contrastive_jax.conformance.formula import GRADIENT, VALUE, cause_of
from contrastive_jax.conformance.results import Failed, NotApplicable, check
from contrastive_jax.conformance.session import Session, error
from contrastive_jax.conformance.specs import LABELS, PAIRS, QUEUE, VIEWS

SATURATED, LOST = 20.0, 0.05  # size of the contrast, and allowed relative error of its gradient
HALVES = {"float16": 0.01, "bfloat16": 0.01}  # allowed gradient errors; float32 scores give 0.002 in bfloat16


def scaled(batch: list, factor: float) -> list:
    """Return a batch with its rows multiplied by a factor."""
    return [x * factor if x.dtype.kind == "f" else x for x in batch]


def needs_normalisation(session: Session) -> None:
    """Raise NotApplicable if the function does not normalise rows."""
    if not session.normalises:
        raise NotApplicable("the function does not normalise rows: normalise them first")


def invariant(session: Session, factor: float) -> float:
    """Check that multiplying rows by a factor keeps the value and divides gradients by it; return the error."""
    batch = session.arrays(inputs.SMALL)
    found, exact = session.call(scaled(batch, factor)), session.call(batch)
    if not found.finite:
        raise Failed(
            f"rows multiplied by {factor:g} give NaN or infinity",
            None,
            scaled(batch, factor),
            session.working_tau,
        )
    wrong = abs(found.value - exact.value) / max(abs(exact.value), 1e-6)
    if wrong > 10 * VALUE:
        raise Failed(
            f"rows multiplied by {factor:g} change the value from {exact.value:.6g} to"
            f" {found.value:.6g}: a constant is added to the norm or bounds it",
            wrong,
            scaled(batch, factor),
            session.working_tau,
        )
    wrong = error(found.gradient * factor, exact.gradient)
    if wrong > 10 * GRADIENT:
        raise Failed(
            f"rows multiplied by {factor:g} do not divide the gradient by it",
            wrong,
            scaled(batch, factor),
            session.working_tau,
        )
    return wrong


@check("The length of rows has no influence if the function normalises them.", "")
def row_scale(session: Session):
    """Compare rows ten times as long."""
    needs_normalisation(session)
    return invariant(session, 10.0), ""


@check("A row of zeros leaves value and gradient finite.", "", needs_form=False)
def zero_rows(session: Session):
    """Call with a row of zeros."""
    batch = session.arrays(inputs.SMALL)
    batch[0][0] = 0.0
    if session.spec.kind == PAIRS:
        batch[1][0] = 0.0
    if not session.call(batch).finite:
        raise Failed(
            "a row of zeros gives NaN: the norm's gradient divides by zero; use rsqrt(max(sum x^2, eps))",
            None,
            batch,
            session.working_tau,
        )
    return None, ""


@check("Rows of norm 1e-6 and 1e6 give the result of rows of norm 1.", "")
def norms(session: Session):
    """Compare very short and very long rows."""
    needs_normalisation(session)
    return max(invariant(session, 1e-6), invariant(session, 1e6)), ""


@check(
    "At temperature 0.01 value and gradient are finite and exact (e^(1 / 0.01) is not a float32).",
    "openai/CLIP#530, kornia/kornia#3480 and #3481 (NaN at scale 100)",
)
def tau_0_01(session: Session):
    """Compare at temperature 0.01."""
    if not session.has_temperature:
        raise NotApplicable("the temperature cannot be set: give the function a parameter temperature")
    return at_temperature(session, 0.01)


def at_temperature(session: Session, tau: float, value: float = 1e-2, gradient: float = 2e-2):
    """Compare at a temperature; some positives score below negatives, so that the gradient does not vanish."""
    batch = session.arrays(inputs.SMALL)
    if session.spec.kind in (PAIRS, QUEUE):
        batch[1] = np.roll(batch[1], 1, axis=0)
    outcome, expected = session.call(batch, tau), session.expected(batch, tau)
    if not outcome.finite:
        raise Failed(
            f"NaN or infinity at temperature {tau:g}: use a logsumexp that subtracts the largest logit",
            None,
            batch,
            tau,
        )
    wrong_value, wrong_gradient = session.compared(outcome, expected)
    if wrong_value > value:
        raise Failed(
            f"the value is {outcome.value:.6g}, and the exact one is {expected[0]:.6g}: exponentials"
            " are clipped, or masked entries are finite and count",
            wrong_value,
            batch,
            tau,
        )
    if wrong_gradient > gradient:
        raise Failed(cause_of(outcome.gradients, expected[1]), wrong_gradient, batch, tau)
    return max(wrong_value, wrong_gradient), ""


@check("Logits of 1e4 are summed without overflow.", "kornia/kornia#3480 and #3481, openai/CLIP#530")
def large_logits(session: Session):
    """Compare at logits of 1e4."""
    if session.has_temperature:
        return at_temperature(session, 1e-4)
    if session.normalises or session.unit:
        raise NotApplicable("cosines at a fixed temperature: logits cannot be that large")
    factor = math.sqrt(1e4 * session.working_tau)
    batch = scaled(session.arrays(inputs.SMALL), factor)
    batch[1] = np.roll(batch[1], 1, axis=0) if session.spec.kind in (PAIRS, QUEUE) else batch[1]
    outcome, expected = session.call(batch), session.expected(batch)
    if not outcome.finite:
        raise Failed(
            "NaN or infinity at logits of 1e4: use a logsumexp that subtracts the largest logit",
            None,
            batch,
            session.working_tau,
        )
    wrong = max(session.compared(outcome, expected))
    if wrong > 2e-2:
        raise Failed("logits of 1e4 are not summed exactly", wrong, batch, session.working_tau)
    return wrong, ""


@check(
    "The small gradient of positives that score far above negatives is not lost to rounding.",
    "HobbitLong/SupContrast#14 and #45 (a saturated loss)",
)
def saturated_positives(session: Session):
    """Compare the gradient at a contrast near -20."""
    if session.bridge.framework == "numpy":
        raise NotApplicable("differences of values do not resolve a gradient of 1e-9")
    corners = np.array([[1.0, 0.0], [-1.0, 0.0]])
    turned = np.array([[0.995, 0.0999], [-0.995, 0.0999]])
    gap, tau = 2.0, None
    if session.has_temperature:
        tau = gap / SATURATED
    elif gap / session.working_tau < 0.9 * SATURATED:
        raise NotApplicable(f"cosines at a fixed temperature of {session.working_tau:g} do not saturate")
    if session.spec.kind == LABELS:
        batch = [np.concatenate([corners, turned]), np.array([0, 1, 0, 1])]
    else:
        third = {VIEWS: [np.array([0, 1])]}
        batch = [corners, turned, *third.get(session.spec.kind, [])]
        if session.spec.kind == QUEUE:
            batch = [corners[:1], turned[:1], corners[1:]]
    outcome, expected = session.call(batch, tau), session.expected(batch, tau)
    size = np.linalg.norm(np.concatenate([x.ravel() for x in expected[1]]))
    _, wrong = session.compared(outcome, expected)
    if wrong > LOST:
        lost = "zero" if not np.any(outcome.gradient) else f"wrong by {wrong:.0%}"
        raise Failed(
            f"the gradient is {lost}, and the exact one is {size:.1e}: 1 - softmax cancels; use"
            " softplus of the contrast",
            wrong,
            batch,
            session.working_tau if tau is None else tau,
        )
    return wrong, ""


def half(session: Session, dtype: str):
    """Compare the gradient on half-precision inputs with float64 on the same inputs."""
    import ml_dtypes

    if session.bridge.framework == "numpy":
        raise NotApplicable("a NumPy function is differentiated in float64")
    number = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    tau = 0.02 if session.has_temperature else None
    batch = [x.astype(number).astype(float) if x.dtype.kind == "f" else x for x in session.arrays()]
    try:
        outcome = session.call(batch, tau, dtype=dtype)
    except Refused as refused:
        raise NotApplicable(f"it raises an error for {dtype}: {refused}"[:200]) from None
    expected = session.expected(batch, tau)
    if not outcome.finite:
        raise Failed(
            f"NaN or infinity in {dtype}: convert the rows to float32 before the scores",
            None,
            batch,
            tau or session.working_tau,
        )
    _, wrong = session.compared(outcome, expected)
    if wrong > HALVES[dtype]:
        raise Failed(
            f"the gradient is wrong by {wrong:.1%} in {dtype}: convert the rows to float32 before the scores",
            wrong,
            batch,
            tau or session.working_tau,
        )
    return wrong, ""


PRECISION = (
    "vllm-project/speculators#951 (15.1 % of gradient error in bfloat16), huggingface/sentence-transformers#3800,"
    " KevinMusgrave/pytorch-metric-learning#6"
)


@check("The gradient of float16 rows is within 1 % of float64's on the same rows.", PRECISION)
def float16(session: Session):
    """Compare in float16."""
    return half(session, "float16")


@check("The gradient of bfloat16 rows is within 1 % of float64's on the same rows.", PRECISION)
def bfloat16(session: Session):
    """Compare in bfloat16."""
    return half(session, "bfloat16")


@check(
    "The derivative with respect to a learnt temperature is exact.",
    "openai/CLIP#530 (a learnt scale overflows)",
)
def temperature_gradient(session: Session):
    """Compare the temperature's derivative."""
    if not session.has_temperature:
        raise NotApplicable("it has no parameter for the temperature")
    batch = session.arrays(inputs.SMALL)
    outcome, expected = session.call(batch), session.expected_slope(batch)
    if outcome.slope is None:
        raise NotApplicable("its temperature is a plain number")
    wrong = (
        abs(outcome.slope - expected) / max(abs(expected), 1e-9) if math.isfinite(outcome.slope) else math.inf
    )
    if session.spec.parts and outcome.slope == 0.0 or expected == 0.0:
        raise NotApplicable("the definition holds the temperature constant")
    if wrong > 5 * GRADIENT:
        cause = (
            "it is zero: the temperature is detached"
            if outcome.slope == 0
            else f"it is {outcome.slope:.6g}, and the exact one is {expected:.6g}"
        )
        raise Failed(f"the temperature's derivative: {cause}", wrong, batch, session.working_tau)
    return wrong, ""


@check(
    (
        "With a parameter for micro-batches (parts, mini_batch_size, ...), every number of parts gives the"
        " gradient of the whole batch."
    ),
    "huggingface/sentence-transformers#3862 (every micro-batch's gradient but the last was dropped)",
    needs_form=False,
)
def microbatches(session: Session):
    """Compare the values 1, 2, 3 and 6 of the parameter."""
    name = session.bridge.parts
    if name is None:
        raise NotApplicable(
            "it has no parameter for micro-batches (parts, mini_batch_size, microbatches or chunks)"
        )
    batch = session.arrays()
    outcomes = {parts: session.call(batch, **{name: parts}) for parts in (6, 3, 2, 1)}
    reference = (
        session.expected(batch)
        if session.convention is not None
        else (
            outcomes[6 if name == "mini_batch_size" else 1].value,
            outcomes[6 if name == "mini_batch_size" else 1].gradients,
        )
    )
    largest = 0.0
    for parts, outcome in outcomes.items():
        wrong_value, wrong = session.compared(outcome, reference)
        if max(wrong_value, wrong) > GRADIENT:
            missing = sum(not np.any(row) for x in outcome.gradients for row in x)
            cause = (
                f"{missing} of {sum(map(len, outcome.gradients))} rows have no gradient: parts are dropped"
                if missing
                else "the sum of the parts' gradients is not the gradient of the whole batch"
            )
            raise Failed(f"{name}={parts}: {cause}", max(wrong_value, wrong), batch, session.working_tau)
        largest = max(largest, wrong)
    return largest, f"{name} = 1, 2, 3, 6"


@check(
    "With the rows divided among ranks, the gradient averaged over ranks equals that of one rank with"
    " all rows; factors of the number of ranks are reported.",
    "lightly-ai/lightly#1977, #1980, #1923, #1531 and #1528 (1 / world size), lightonai/pylate#156 (times world size),"
    " huggingface/sentence-transformers#3817, vturrisi/solo-learn#206 (positives masked wrongly)",
    needs_form=False,
)
def n_ranks(session: Session):
    """Compare several ranks with one."""
    return ranks.compare(session)


@check(
    "Measured memory grows at most as N x N; with `memory=linear` N x N fails too.",
    "mlfoundations/open_clip#1125 (SigLIP out of memory), huggingface/sentence-transformers#3816,"
    " illuin-tech/colpali#412",
    needs_form=False,
)
def memory(session: Session):
    """Measure the memory of growing batches."""
    argument = None
    if session.has_temperature:
        tau = session.working_tau
        argument = session.convention.temperature.to_argument(tau) if session.convention else tau

    def bytes_of(number: int, width: int) -> int:
        return session.bridge.memory(inputs.arrays(session.spec, (number, width), unit=True), argument)

    try:
        small, large, wide, both = (bytes_of(n, d) for n, d in ((64, 16), (128, 16), (64, 128), (128, 128)))
    except Refused as refused:
        raise NotApplicable(f"not measured: {refused}"[:200]) from None
    if not (small and large and wide and both):
        raise NotApplicable("too small to measure: it forms no scores")
    growth, by_width = math.log2(large / small), wide / small
    square, measured = growth > 1.5, f"{large / 1e6:.1f} MB at N = 128, D = 16"
    if growth > 2.5:
        raise Failed(f"memory grows as N^{growth:.1f}: {measured}", growth)
    if math.log2(both / wide) > 1.8 and by_width > 3.0:  # memory of N x D only doubles with N
        raise Failed(
            (
                f"memory grows as N x N x D: {both / 1e6:.0f} MB at N = 128 = D; compute the scores by a"
                " matrix product"
            ),
            by_width,
        )
    if square and session.memory == "linear":  # small batches fit in one tile
        large = bytes_of(4096, 16)
        growth, measured = math.log2(large / bytes_of(2048, 16)), f"{large / 1e6:.1f} MB at N = 4096, D = 16"
        if growth > 1.5:
            raise Failed(f"memory grows as N^{growth:.1f}: {measured}", growth)
    return growth, f"as N^{growth:.1f}: {measured}"


@check(
    "The same arrays give the same bits again, also after other arrays, and are not changed.",
    "",
    needs_form=False,
)
def determinism(session: Session):
    """Compare repeated calls, and the arguments before and after any call."""
    batch, other = session.arrays(), session.arrays(seed=5)
    first, _, third = session.call(batch), session.call(other), session.call(batch)
    if not np.array_equal(first.returned, third.returned, equal_nan=True) or not np.array_equal(
        first.gradient, third.gradient, equal_nan=True
    ):
        raise Failed(
            (
                "a second call with the same arrays gives another result: the function has state or random"
                " numbers"
            ),
            abs(first.value - third.value),
            batch,
            session.working_tau,
        )
    if session.bridge.changes_arguments:
        raise Failed("the function changes its arguments", None, batch, session.working_tau)
    return 0.0, ""
