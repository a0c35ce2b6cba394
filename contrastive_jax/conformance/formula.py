"""Checks of the formula: values, gradients, conventions, and the rows in each sum."""

import numpy as np

from contrastive_jax.conformance import inputs
from contrastive_jax.conformance.references import Variant
from contrastive_jax.conformance.results import Failed, NotApplicable, check
from contrastive_jax.conformance.session import Outcome, Session, error
from contrastive_jax.conformance.specs import LABELS, PAIRS, QUEUE, VIEWS

VALUE, GRADIENT = 3e-4, 2e-3  # allowed relative errors in float32 without saturation

WRONG = {
    ("candidates", "same"): "negatives are from the query's own view only; add those of the other view",
    (
        "candidates",
        "other",
    ): "negatives are from the other view only, N - 1; this loss has 2N - 2 from both views",
    ("positive", "out"): "the positive is missing from the sum over candidates (that is DCL)",
    ("positive", "in"): "the positive is in the sum over negatives (that is InfoNCE)",
    ("own", "in"): "the query itself is among its candidates; mask the diagonal of the same-view scores",
    (
        "sums",
        "two",
    ): (
        "the logarithms of two sums, one for each view, are added; use the logarithm of one sum over"
        " both views"
    ),
    ("directions", "a"): "only the first array's rows are queries; add the other direction",
    ("directions", "b"): "only the second array's rows are queries; add the other direction",
    ("held", False): "a gradient flows through a part that the definition holds constant; detach it",
    (
        "keys",
        "in",
    ): "the batch's own keys are in the queue, so a positive is also a negative; enqueue after the loss",
    ("reading", "out"): "positives are averaged outside the logarithm (SupCon, eq. 2)",
    ("reading", "in"): "positives are averaged inside the logarithm (SupCon, eq. 3)",
    ("reading", "in_sum"): "positives are summed inside the logarithm",
    ("reading", "sincere"): "the other positives are missing from the denominator (SINCERE)",
    (
        "reading",
        "pairs",
    ): (
        "other positives are missing from the denominator, and all pairs have equal weight (NT-Xent of pairs)"
    ),
}


def mistake(session: Session, field: str) -> str:
    """Return the description of the function's mistake in a field; empty if there is none."""
    form = session.convention
    if form is None or field not in form.mistakes:
        return ""
    if field == "temperature":
        return f"its temperature is {form.tau:.3g}, not {session.tau:g}"
    return WRONG[field, getattr(form.variant, field)]


def refuse(session: Session, *fields: str) -> None:
    """Raise Failed, with the smallest batch, if the function's form is wrong in one of the fields."""
    for field in fields:
        if words := mistake(session, field):
            batch = session.arrays(inputs.SMALL)
            usual = session.spec.usual()
            right = Variant(**{**usual.__dict__, "score": session.form.variant.score})
            expected, _ = session.expected(batch, variant=right)
            found = session.call(batch)
            raise Failed(
                words, abs(found.value - expected) / max(abs(expected), 1e-12), batch, session.working_tau
            )


def cause_of(found: list, exact: list) -> str:
    """Return the likely cause of a wrong gradient, in one sentence."""
    vectors = [np.concatenate([x.ravel() for x in xs]) for xs in (found, exact)]
    if not np.isfinite(vectors[0]).all():
        return "the gradient is NaN or infinite"
    if not np.any(vectors[0]):
        return "the gradient is zero: everything is detached"
    ratio = float(vectors[0] @ vectors[1] / (vectors[1] @ vectors[1]))
    if error(vectors[0], ratio * vectors[1]) < GRADIENT:
        return (
            f"the gradient is {ratio:.4g} x the exact one, but the value is correct: the gradient alone is"
            " scaled"
        )
    for name, mine in zip("ab", found, strict=False):
        if not np.any(mine):
            return f"array {name} has no gradient: it is detached"
    cosine = float(vectors[0] @ vectors[1] / np.prod([np.linalg.norm(v) for v in vectors]))
    return (
        f"the gradient does not belong to the value (cosine {cosine:.3f}): a part is detached or counted"
        " twice"
    )


def both(
    session: Session, batch: list, tau: float | None = None, value=VALUE, gradient=GRADIENT, **extra
) -> tuple:
    """Compare a batch's value and gradient with float64; return the larger error and the outcome.

    Raises:
      Failed: an error exceeds its tolerance.
    """
    outcome = session.call(batch, tau, **extra)
    expected = session.expected(batch, tau)
    wrong_value, wrong_gradient = session.compared(outcome, expected)
    tau = session.working_tau if tau is None else tau
    if wrong_value > value:
        raise Failed(
            f"the value is {outcome.value:.6g}, and the exact one is {expected[0]:.6g}",
            wrong_value,
            batch,
            tau,
        )
    if wrong_gradient > gradient:
        raise Failed(cause_of(outcome.gradients, expected[1]), wrong_gradient, batch, tau)
    return max(wrong_value, wrong_gradient), outcome


@check(
    (
        "The value equals the loss computed by separate code in float64, up to the factor given by"
        " `convention`."
    ),
    "jsboige/CoursIA#13003 (expected values of a test were wrong)",
    needs_form=False,
)
def value(session: Session):
    """Compare values."""
    batch = session.arrays(inputs.SMALL)
    if session.convention is None:
        raise Failed(session.problem, None, batch, session.working_tau)
    if session.convention.mistakes:
        refuse(session, *session.convention.mistakes)
    largest = 0.0
    for size, seed in ((inputs.SMALL, 2), (inputs.MIDDLE, 3)):
        batch = session.arrays(size, seed)
        outcome, expected = session.call(batch), session.expected(batch)
        wrong, _ = session.compared(outcome, expected)
        if wrong > VALUE:
            raise Failed(
                f"the value is {outcome.value:.6g}, and the exact one is {expected[0]:.6g}",
                wrong,
                batch,
                session.working_tau,
            )
        largest = max(largest, wrong)
    return largest, ""


@check(
    "Factor, meaning of the temperature and normalisation match a known convention, which is reported.",
    "raminnakhli/DCL#1 (DCLW times N), raminnakhli/DCL#13 (sum or mean), HobbitLong/SupContrast#1 (base temperature)",
)
def convention(session: Session):
    """Return the factor and the description of the convention."""
    refuse(session, "temperature")
    form = session.form
    rows, queries = inputs.MIDDLE[0], session.queries(session.arrays(), form.variant)
    return form.factor.of(rows, queries, session.working_tau), described(session)


def described(session: Session) -> str:
    """Return the convention in words."""
    form, spec = session.form, session.spec
    words = [f"your loss is {form.factor.words}"]
    if spec.kind == PAIRS and "candidates" in spec.allowed:
        words.append(
            {
                "both": "negatives of both views",
                "other": "negatives of the other view",
                "same": "of one view",
            }[form.variant.candidates]
        )
        words.append(
            {"both": "both directions", "a": "a queries b", "b": "b queries a"}[form.variant.directions]
        )
    if spec.kind == LABELS and "lone" in spec.allowed:
        words.append(
            "the mean is over rows with a positive"
            if form.variant.lone == "left_out"
            else "rows without a positive count as 0"
        )
    if session.name == "flatnce":
        words.append(
            {"defined": "its value is 1", "zero": "its value is 0", "info_nce": "its value is InfoNCE's"}[
                form.variant.value
            ]
        )
    words.append(
        "rows are normalised"
        if session.normalises
        else "rows are used without normalisation"
        if not session.unit
        else "rows must have unit length"
    )
    words.append(
        f"its argument {session.bridge.temperature} is {form.temperature.words}"
        if session.has_temperature
        else f"tau {form.tau:.3g}"
    )
    return "; ".join(words)


@check(
    "The gradient equals the exact one (complex step in float64), times the value's factor.",
    "huggingface/sentence-transformers#3862 (gradients of all micro-batches but the last were dropped)",
)
def gradient(session: Session):
    """Compare gradients."""
    largest = 0.0
    for size, seed in ((inputs.SMALL, 2), (inputs.MIDDLE, 3)):
        batch = session.arrays(size, seed)
        outcome, (expected_value, expected) = session.call(batch), session.expected(batch)
        _, wrong = session.compared(outcome, (expected_value, expected))
        if wrong > GRADIENT:
            raise Failed(cause_of(outcome.gradients, expected), wrong, batch, session.working_tau)
        largest = max(largest, wrong)
    return largest, ""


@check(
    (
        "Negatives are from the views that the loss defines, the other one or both, in the logarithm of"
        " one sum."
    ),
    "lightly-ai/lightly#1827 (DCL's negatives in two logarithms, for three years)",
)
def candidates(session: Session):
    """Check the candidates."""
    if session.spec.kind != PAIRS or not session.spec.allowed:
        raise NotApplicable("the loss has one set of candidates")
    refuse(session, "candidates", "sums")
    number = session.arrays()[0].shape[0]
    return float(
        2 * number - 2 if session.form.variant.candidates == "both" else number - 1
    ), "negatives per query at N = 6"


@check("A query is not its own candidate.", "")
def self_pair(session: Session):
    """Check that the query is masked."""
    if "own" not in session.spec.mistakes:
        raise NotApplicable("no query is among the candidates of this loss")
    refuse(session, "own")
    if session.spec.kind == PAIRS and session.form.variant.candidates == "other":
        raise NotApplicable("candidates are from the other view, which does not contain the query")
    return None, ""


@check("The positive is in the sum over candidates (InfoNCE) or not (DCL), as the loss defines.", "")
def positive(session: Session):
    """Check whether the positive is in the sum over candidates."""
    if "positive" not in session.spec.mistakes:
        raise NotApplicable("the loss has one form")
    refuse(session, "positive")
    return None, f"the positive is {session.form.variant.positive} the sum"


@check(
    "Equal rows of different examples are negatives of each other, with finite gradients.",
    "huggingface/sentence-transformers#3189 (duplicates as negatives; no defect of the formula)",
)
def duplicates(session: Session):
    """Compare a batch with equal rows."""
    batch = session.arrays()
    if session.spec.kind == LABELS:
        batch[0][1] = batch[0][0]  # same class
        batch[0][7] = batch[0][2]  # different classes
    else:
        batch[0][1], batch[1][1] = batch[0][0], batch[1][0]
        batch[1][3] = batch[0][2]
    return both(session, batch)[0], ""


@check(
    (
        "Several positives are averaged outside the logarithm, inside it, or as in SINCERE, as the loss"
        " defines."
    ),
    "",
)
def several_positives(session: Session):
    """Check how several positives are combined."""
    if session.spec.kind not in (LABELS, VIEWS):
        raise NotApplicable("a query has one positive")
    refuse(session, "reading")
    return None, {
        "out": "averaged outside the logarithm",
        "in": "averaged inside the logarithm",
        "in_sum": "summed inside the logarithm",
        "sincere": "one by one, without the other positives",
        "pairs": "all pairs have equal weight",
    }[session.form.variant.reading]


@check(
    "A row without a positive leaves value and gradient finite; its effect on the mean is reported.",
    "huggingface/sentence-transformers#3668 (no second class), lightly-ai/lightly#1938 (a silent NaN)",
)
def class_of_one(session: Session):
    """Compare a batch in which some classes have one row."""
    if session.spec.kind != LABELS:
        raise NotApplicable("every row has its positive in the other array")
    batch = session.arrays()
    batch[1] = np.array([0, 0, 0, 1, 1, 2, 3, 3, 4, 4, 4, 5])
    outcome = session.call(batch)
    if not outcome.finite:
        raise Failed(
            "the value or gradient is not finite: a mean over no positives divides by zero",
            None,
            batch,
            session.working_tau,
        )
    form, seen = session.form, {}
    for lone in session.spec.allowed.get("lone", ("left_out",)):
        variant = Variant(**{**form.variant.__dict__, "lone": lone})
        seen[lone] = max(session.compared(outcome, session.expected(batch, variant=variant)))
    best = min(seen, key=lambda lone: seen[lone])
    if seen[best] > GRADIENT:
        raise Failed(
            "rows without a positive are neither left out of the mean nor counted as 0 in it",
            seen[best],
            batch,
            session.working_tau,
        )
    return seen[
        best
    ], "left out of the mean" if best == "left_out" else "counted as 0 in the mean over all rows"


@check("The smallest batch with a negative, two examples, has the exact value and gradient.", "")
def batch_of_two(session: Session):
    """Compare a batch of two examples."""
    return both(session, session.arrays((2, 2)))[0], ""


@check("Permuting the rows keeps the value and permutes the gradients.", "", needs_form=False)
def row_order(session: Session):
    """Compare the results before and after permuting the rows."""
    batch = session.arrays()
    order = np.random.default_rng(7).permutation(len(batch[0]))
    moved = [x[order] if len(x) == len(order) else x for x in batch]
    first, second = session.call(batch), session.call(moved)
    if (wrong := error(second.value, first.value)) > VALUE:
        raise Failed(
            f"the value is {first.value:.6g}, and {second.value:.6g} with the rows in another order",
            wrong,
            batch,
            session.working_tau,
        )
    expected = [x[order] if len(x) == len(order) else x for x in first.gradients]
    wrong = error(second.gradient, np.concatenate([x.ravel() for x in expected]))
    if wrong > GRADIENT:
        raise Failed("the gradient depends on the order of the rows", wrong, batch, session.working_tau)
    return wrong, ""


@check(
    (
        "Exchanging the two arrays keeps the value and exchanges the gradients, unless the loss has one"
        " direction."
    ),
    "",
    needs_form=False,
)
def symmetry(session: Session):
    """Compare the results before and after exchanging the views."""
    if session.spec.kind != PAIRS:
        raise NotApplicable("its arrays have different roles")
    refuse(session, "directions")
    batch = session.arrays()
    first, second = session.call(batch), session.call(batch[::-1])
    wrong = max(
        error(second.value, first.value),
        error(np.concatenate([x.ravel() for x in second.gradients[::-1]]), first.gradient),
    )
    form = session.convention
    if wrong > GRADIENT:
        if form is not None and form.variant.directions != "both":
            query = form.variant.directions
            raise NotApplicable(f"one direction: rows of {query} are queries")
        raise Failed(
            "exchanging the two arrays changes the result: one direction differs from the other",
            wrong,
            batch,
            session.working_tau,
        )
    return wrong, ""


@check("No gradient flows through the constant parts of FlatNCE, DCLW and MACL.", "", needs_form=False)
def detached_parts(session: Session):
    """Check that no gradient flows through the parts held constant."""
    if not session.spec.parts:
        raise NotApplicable("the definition holds nothing constant")
    batch = session.arrays(inputs.SMALL)
    outcome: Outcome = session.call(batch)
    if not np.any(outcome.gradient):
        raise Failed(
            f"the gradient is zero: more than {session.spec.parts} is held constant, or that is not",
            0.0,
            batch,
            session.working_tau,
        )
    if session.convention is None:
        raise NotApplicable("no known form of the loss has these values: see the check value")
    expected = session.expected(batch)
    _, right = session.compared(outcome, expected)
    if session.name == "flatnce":
        return right, f"held: {session.spec.parts}"
    _, other = session.compared(
        outcome,
        session.expected(batch, variant=Variant(**{**session.form.variant.__dict__, "held": False})),
    )
    if right > GRADIENT and other < GRADIENT:
        raise Failed(
            f"a gradient flows through a part that the definition holds constant: {session.spec.parts}",
            right,
            batch,
            session.working_tau,
        )
    if right > GRADIENT:
        raise Failed(cause_of(outcome.gradients, expected[1]), right, batch, session.working_tau)
    return right, f"held: {session.spec.parts}"


@check("Keys of the batch are not in the queue while its loss is computed.", "")
def queue_keys(session: Session):
    """Check that the positive is not also in the queue."""
    if session.spec.kind != QUEUE:
        raise NotApplicable("the loss has no queue")
    refuse(session, "keys")
    return None, ""
