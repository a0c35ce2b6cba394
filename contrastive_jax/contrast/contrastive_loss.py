"""All contrastive losses for the embeddings of two or more views, for your own training loop.

They use the same comparison, terms and engines as the train step.
"""

import dataclasses
import difflib
import functools
import inspect
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import native, sharding
from contrastive_jax.contrast import candidates as sources
from contrastive_jax.contrast import margin as margins
from contrastive_jax.contrast import temperature as rules
from contrastive_jax.contrast.arguments import (
    check_arrays,
    check_scalar,
    ids_of,
    one_of,
    positive_or_nan,
    whole_number,
)
from contrastive_jax.contrast.candidates import Candidates
from contrastive_jax.contrast.comparison import Compare, Pairs, cosine, dot, ordered_pairs
from contrastive_jax.contrast.guide import Guide, check_guide, guided, unit_queue, unit_views, with_guide
from contrastive_jax.contrast.margin import Margin
from contrastive_jax.contrast.negatives import AllNegatives, Rule
from contrastive_jax.contrast.negatives import random as sampled_negatives
from contrastive_jax.contrast.scores import Transform, check_scalars
from contrastive_jax.contrast.similarity import RING
from contrastive_jax.contrast.temperature import Temperature
from contrastive_jax.contrast.terms import ROWS, Term, make_term
from contrastive_jax.types import Array, Pool

SCORES = {"cosine": cosine, "dot": dot}
DIRECTIONS = ("both", "one_way")
CANDIDATES = ("both_views", "other_view", "own_view", "queue")
SOURCES = {"both_views": sources.both_views, "other_view": sources.other_view, "own_view": sources.own_view}
FORMS = {"exponential": (0.0, float("inf")), "linear": (-1.0, 1.0)}  # open range of MACL's alpha
SUMMATIONS = ("out", "in")
ENGINES = ("auto", "dense", "tiled", RING)
PROVIDED = (
    "positive",
    "count",
    "temperature",
    "cross",
    "same",
    "pair_logits",
    "surplus",
    "mean",
)  # quantities that two arrays of embeddings define


@dataclasses.dataclass(frozen=True, eq=False)
class _OfAlignment:
    """MACL's temperature as a function of the mean cosine of the positives."""

    rule: rules.Temperature

    def __call__(self, alignment: Array) -> Array:
        return self.rule.value((), jnp.zeros(()), alignment)


def macl_temperature(
    tau0: float = 0.1, alpha: float = 2.0, *, form: str = "exponential"
) -> Callable[[Array], Array]:
    """Make MACL's temperature as a function of the batch's alignment A, the mean score of the positives.

    ``exponential`` is tau_a = tau0 alpha^A. ``linear`` is tau_b = tau0 (1 + alpha A), with alpha in (-1, 1),
    for example 0.5 (Huang et al., 2022). A carries no gradient. Returns a function A -> tau; you can also pass
    your own.

    Raises:
      ValueError: an unknown form, a value out of range, or a traced ``tau0`` or ``alpha``.
    """
    one_of("macl_temperature.form", form, FORMS)
    tau0, alpha = check_scalar("macl_temperature.tau0", tau0), check_scalar("macl_temperature.alpha", alpha)
    least, most = FORMS[form]
    try:
        positive, inside = bool(tau0 > 0), bool(least < alpha < most)
    except jax.errors.ConcretizationTypeError:
        raise ValueError(
            "macl_temperature.tau0 or alpha is traced; under jit, pass contrastive_loss a function of"
            " the alignment A instead, lambda A: tau0 * alpha**A."
        ) from None
    if not positive:
        raise ValueError(f"macl_temperature.tau0 is {tau0}; a temperature must be positive.")
    if not inside:
        raise ValueError(
            f"macl_temperature.alpha is {alpha}; with form={form!r} it must be above {least:g} and"
            f" below {most:g}, so that the temperature stays positive."
        )
    if form == "exponential":
        rule = rules.macl_a(1, tau=tau0, alpha=alpha)
    else:
        rule = rules.macl_b(1, tau=tau0, beta=alpha)

    return _OfAlignment(rule)


def contrastive_loss(
    a: Array,
    b: Array,
    loss: str | Callable[..., Array] = "info_nce",
    temperature: float | Array | Callable[[Array], Array] = 0.1,
    *,
    score: str = "cosine",
    candidates: str = "both_views",
    directions: str = "both",
    negatives: int | None = None,
    shared: bool = False,
    key: Array | None = None,
    queue: Array | None = None,
    queue_group: Array | None = None,
    group: Array | None = None,
    positives: Array | None = None,
    summation: str = "out",
    differentiate_temperature: bool = False,
    margin: Margin | None = None,
    transform: Transform | None = None,
    guide: Guide | None = None,
    engine: str = "auto",
    **options: Any,
) -> Array:
    """Compute one loss per query for two views ``a`` and ``b`` [N, D], whose rows i are mutual positives.

    Of more than two views, ``a`` [N, Q, D] are the queries and ``b`` [N, W, D] the keys; see below.

    Works in ``jax.jit``, under ``grad`` (reverse mode) and ``vmap``, and on a mesh of
    :func:`contrastive_jax.sharding.make_mesh`, with sharded rows and the same result as on one device.
    float16, bfloat16 and float32 are computed in true float32 (never TF32), float64 in float64.

    The papers use the mean over the 2N values. The released code of SimCLR and of DCL adds the means of the two
    directions, so its value and gradient are twice that mean. MACL's code is one way.

    **More than two views.** ``contrastive_loss(z, z)`` compares the W views z [N, W, D] of an example. Every ordered
    pair of two views (q, k) is a query with one positive; all such values have one mean (CMC, SwAV, DINO). Each
    has its own denominator: of the positive and the candidates of other examples. Other views of the same
    example are neither. View v of ``a`` and view v of ``b`` are one view, so queries may come from a network
    with a predictor and keys from its moving average. Further views of ``a``, without keys, query all of ``b``:
    local crops (docs/how_to/views.md). Two views give the values and gradients of ``a`` and ``b``
    [N, D]. With ``positives``, all other views of the example are positives in one denominator instead (SupCon;
    ``positives=jnp.arange(N)`` without classes).

    **Several positives.** With ``positives``, ids of groups, the positives P of a query are row i of the other
    view and all other candidates with its id; the remaining candidates are its negatives N. InfoNCE is then the
    supervised contrastive loss in one of its two forms (SupCon, Khosla et al., 2020, eq. 2 and 3), with x = s /
    tau:

        out:  mean_{p in P} -log( e^x_p / sum_{N and P} e^x )  =  softplus(c) + logsumexp_P(x) - mean_P(x)
        in:   -log( mean_{p in P} e^x_p / sum_{N and P} e^x )  =  softplus(c) + log |P|

    with the contrast c = logsumexp_N(x) - logsumexp_P(x). Other losses are their function of this c. DCL is c
    and EqCo softplus(c + log(alpha / K)), each plus the same second summand. Decoupled NT-Xent is lambda
    logsumexp_{N and P}(x) minus mean_P(s) (``out``) or minus tau log mean_P(e^x) (``in``). FlatNCE, FlatNCE+
    and Hoelder-FlatNCE remain 1, with the gradients of DCL, of InfoNCE, and of DCL at tau / gamma, divided by
    gamma. MACL, Dual temperature, ``relative`` and ``scaled`` weight dc by a function of c and accept ``in``
    only, because ``out`` has no single contrast per query. DCLW, MACL-W, ReLIC's divergence and the losses with
    weighted or debiased negatives read the score of one positive and are not defined for several. Positives are
    summed in the same pass as the negatives, per tile. Queries without negatives are 0 here too.

    **The temperature's gradient.** ``differentiate_temperature=True`` enables it. For InfoNCE, DCL, EqCo,
    decoupled NT-Xent, DCLW (whose weights' sigma is separate), ``debiased``, ``hard_nce``, Donsker-Varadhan and
    ReLIC's divergence, dL/dtau at fixed scores is the derivative of the value. c = logsumexp_j((s_j - s+) /
    tau) has dc/dtau = -E_j[s_j - s+] / tau^2, with E the softmax mean over negatives. Losses with a surrogate
    have the surrogate's derivative: FlatNCE, MACL and ``alpha_cl`` dc/dtau; FlatNCE+ sigmoid(c) dc/dtau;
    Hoelder-FlatNCE dc'/dtau / gamma; MACL-W, Dual temperature, ``relative`` and ``scaled`` dc/dtau times their weight;
    ``hardness_weighted`` the derivative at fixed weights. Learn log tau, or, as CLIP does, a bounded
    log(1 / tau) (docs/how_to/own_loop.md). For an array of temperatures, each entry's gradient is the sum over
    its queries.

    **Two encoders.** ``a`` and ``b`` can come from different networks, projected to the same width.
    ``candidates="other_view"`` is CLIP's loss, which compares each encoder's rows with the other's.

    Args:
      a: [N, D] embeddings, not normalised; or queries of several views, [N, Q, D].
      b: [N, D] the other view of the same examples; or keys of several views, [N, W, D].
      loss: name of a function of :mod:`contrastive_jax.losses` that reads contrasts (or ReLIC's ``relic_kl``);
        ``module:function`` or a function for your own loss. Its keyword-only parameters are ``options``.
      temperature: tau > 0, a number or a traced scalar (from a schedule); an array of one tau per example [N]
        or per returned value [V N]; or a function of the mean score of the pairs of rows i, such as
        :func:`macl_temperature`. It carries no gradient unless ``differentiate_temperature``.
      score: ``cosine`` normalises the rows; ``dot`` uses them unchanged.
      candidates: negatives from ``both_views`` of the other examples (2N - 2; SimCLR), of W views all W (N - 1),
        the ``other_view`` only (the positive's, N - 1; MACL, Dual temperature), the query's ``own_view`` (N - 1;
        DHEL, with the loss ``dcl``), or the ``queue`` only (MoCo).
      directions: ``both`` views are queries, or ``one_way``: only the rows of ``a``, of several views of the
        first.
      negatives: number K of negatives per query, drawn without replacement; None uses all.
      shared: whether all queries of a direction share one draw (SiMo's code) instead of one per query.
      key: a JAX random key for ``negatives``; fold your step into it.
      queue: [M, D] additional candidates, from earlier steps or another device; normalised like ``a`` and
        ``b``.
      queue_group: [M] int, the groups of the queue's rows, given with ``group`` or ``positives``; None: no
        groups, so they are negatives of all queries.
      group: [N] int, group of each example; rows of one group are never each other's negatives. None: each
        example is its own group.
      positives: [N] int, ids; rows with the same id are positives of each other, in both views, and so are
        queue rows with that ``queue_group``. None: only rows i of ``a`` and ``b``. Replaces ``group``. More than
        two views need candidates ``both_views``.
      summation: sum several positives outside the logarithm (``out``) or inside (``in``); no effect for one.
      differentiate_temperature: whether gradients flow into ``temperature``.
      margin: rule for a margin added to the contrast, such as ``contrast.margin.eqco(alpha=65536.0)``. Refused
        for losses in whose gradient it cancels (DCL, FlatNCE, MACL), that already have it (EqCo), or that read
        c as an estimate.
      transform: transform of the scores from ``contrast.transform``, ``temperature_free()`` or
        ``margin_mask(margin=0.1)``, or your own ``Transform``.
      guide: another model's embeddings, ``contrast.guide.Guide``, that mask probable false negatives (GISTEmbed).
      engine: ``dense`` forms the score matrix, ``tiled`` does not, ``auto`` chooses by size; drawn negatives
        are picked from all scores and require ``auto``. On a mesh these engines hold all candidates on every
        device. ``ring`` is tiled and passes each device's share of them around, so memory does not grow with
        the number of devices (not with drawn negatives, a queue, or ReLIC's divergence).
      **options: options of the loss; for an unknown name, the error shows the loss's signature.

    Returns:
      [2N] values, for the queries ``a`` and then the queries ``b``, or [N] one way; at least float32. Of more
      views [V N], for the V pairs (0, 1), (0, 2), ..., (1, 0), ... in turn; with ``positives`` for the Q queries
      in turn. Queries without negatives are 0 without a gradient, except with ``sigmoid``, whose positive counts
      alone.

    Raises:
      ValueError: an invalid argument; the message names it, its value and the allowed values.

    Examples:
      The documentation's page of this function has every loss.

      >>> import jax.numpy as jnp
      >>> from contrastive_jax import contrastive_loss
      >>> a = jnp.array([[1.0, 0.2], [-0.3, 1.0], [-1.0, -0.8]])
      >>> b = jnp.array([[0.9, -0.1], [0.2, 1.1], [-0.6, -1.0]])
      >>> print(" ".join(f"{value:.3f}" for value in contrastive_loss(a, b, "info_nce", temperature=0.5)))
      0.404 0.293 0.157 0.292 0.475 0.157
    """
    native.compiler.warn_of_reductions()
    if isinstance(loss, type) or not (isinstance(loss, str) or callable(loss)):
        what = f"the class {loss.__name__}" if isinstance(loss, type) else f"a {type(loss).__name__}"
        raise ValueError(
            f"contrastive_loss.loss is {what}; it must be the name of a loss of contrastive_jax.losses,"
            " or a function of the contrast."
        )
    term = _term(loss, options)
    loss = term.name
    for argument, value, allowed in (
        ("score", score, tuple(SCORES)),
        ("candidates", candidates, CANDIDATES),
        ("directions", directions, DIRECTIONS),
        ("summation", summation, SUMMATIONS),
        ("engine", engine, ENGINES),
    ):
        one_of(f"contrastive_loss.{argument}", value, allowed)
    rows = _check_shapes(a, b, queue, queue_group, group, positives)
    group, positives, queue_group = ids_of(
        "contrastive_loss", group=group, positives=positives, queue_group=queue_group
    )
    if positives is not None:
        _check_several(loss, term, summation)
        group = positives
    if candidates == "queue" and queue is None:
        raise ValueError(
            "contrastive_loss.candidates is 'queue'; it needs the argument queue, an array [M, D]."
        )
    if (negatives is None) != (key is None):
        raise ValueError(
            f"contrastive_loss.negatives is {negatives}; it needs the argument key, a jax random key."
            if key is None
            else (
                "contrastive_loss.key is given without negatives; set negatives to the number to draw, or"
                " leave key out."
            )
        )
    dtype: Any = getattr(key, "dtype", None)
    if key is not None and not (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == np.uint32):
        shown = repr(key) if dtype is None else f"{dtype}{list(key.shape)}"
        raise ValueError(
            f"contrastive_loss.key is {shown}; it must be a jax random key such as jax.random.key(0)."
        )
    if negatives is not None:
        negatives = whole_number("contrastive_loss.negatives", negatives)
    if shared and negatives is None:
        raise ValueError(
            "contrastive_loss.shared is True without negatives; set negatives to the number to draw,"
            " or leave shared out."
        )
    if negatives is not None and engine in ("dense", "tiled"):
        raise ValueError(
            f"contrastive_loss.engine is {engine!r}; it must be 'auto' with negatives={negatives},"
            " which are drawn without an engine."
        )
    if margin is not None and not callable(margin):
        raise ValueError(
            f"contrastive_loss.margin is {margin!r}; it must be a rule of contrast.margin such as"
            " eqco(alpha=...)."
        )
    if margin is not None:
        try:
            inspect.signature(margin).bind(None)
        except (TypeError, ValueError):  # or a builtin without a signature
            raise ValueError(
                f"contrastive_loss.margin is {margin!r}; it must be a function of one array, the number of negatives."
            ) from None
    if margin is not None and term.declared.no_margin:
        raise ValueError(f"contrastive_loss.margin {term.declared.no_margin} {loss!r}; it must be None.")
    if margin is not None and not term.multiples:
        raise ValueError(
            f"contrastive_loss.margin has no effect on {loss!r}, which is not a function of the"
            " contrast; it must be None."
        )
    if transform is not None:
        check_scalars(transform, "contrastive_loss.transform is")
        if why := term.no_transform(transform):
            raise ValueError(f"contrastive_loss.transform {why} {loss!r}; it must be None.")
        if score != "cosine" and transform.cosine_only:
            raise ValueError(f"contrastive_loss.score is {score!r}; it must be 'cosine' with this transform.")
    if score != "cosine" and term.cosine_only:
        raise ValueError(
            f"contrastive_loss.score is {score!r}; it must be 'cosine' with loss {loss!r} and these options."
        )
    if score != "cosine" and isinstance(temperature, _OfAlignment):
        raise ValueError(
            f"contrastive_loss.score is {score!r}; it must be 'cosine' with macl_temperature, which"
            " uses the mean cosine of positives."
        )
    if candidates == "own_view" and "same" in term.quantities:
        raise ValueError(
            f"contrastive_loss.candidates is {candidates!r}; it must be 'other_view' or 'both_views' with loss"
            f" {loss!r}, which needs candidates of the positive's view."
        )
    if guide is not None and term.declared.maximised:
        raise ValueError(
            f"contrastive_loss.guide masks negatives, which would bias the estimate {loss!r}; it must be None."
        )
    if guide is not None:
        check_guide(guide, a, b, queue)
    queries, keys = (sharding.shard_batch(view) for view in (a, b))
    if a.ndim == 2:
        queries = keys = jnp.stack([queries, keys], axis=1)  # [N, 2, D]
    pairs = _pairs(queries.shape[1], keys.shape[1], candidates, directions, positives is not None)
    embed, number = SCORES[score], len(pairs)
    sought = list(dict.fromkeys(k for _, k in pairs))
    group = jnp.arange(rows, dtype=jnp.int32) if group is None else group
    if engine == RING:
        _check_ring(loss, term, negatives, queue)
    extra = None
    if queue is not None:
        if queue_group is None:
            group, queue_group = _places(group), jnp.full(queue.shape[0], -1)
        extra = sharding.replicate(Pool(embed(queue), queue_group))
    group = sharding.shard_batch(group)
    pools = _source(candidates, rows, len(sought), extra, engine)
    if guide is not None:
        known = unit_queue(guide)
        others = None if extra is None or known is None else dataclasses.replace(extra, key=known)
        guides = _source(candidates, rows, len(sought), others, engine)
        pools = with_guide(pools, guides, unit_views(guide)[1], sought)
    if positives is not None:
        views = {"both_views": tuple(range(keys.shape[1])), "queue": ()}.get(candidates, (None,))
        pools = _with_rows(pools, rows, views, pairs)
    choose: Rule = lambda rng, group, pools, same_group: [  # noqa: E731
        AllNegatives(group, pool, same_group, engine) for pool in pools
    ]
    if negatives is not None:
        choose = sampled_negatives(k=negatives, shared=shared)
        if negatives > (most := pools.most(keys.shape[1])):
            raise ValueError(
                f"contrastive_loss.negatives is {negatives}; it must be at most {most}, the negatives"
                f" per query with candidates={candidates!r} and N={rows}."
            )
    if guide is not None:
        choose = guided(choose, guide, pairs)
    compare = Compare(
        embed=embed,
        candidates=pools,
        negatives=choose,
        temperature=_rule(temperature, rows, number),
        margin=margins.none() if margin is None else margin,
        multiples=term.multiples or (1.0,),
        summation="" if positives is None else summation,
        differentiate_temperature=differentiate_temperature,
        transform=transform or Transform(),
        pairs=pairs,
    )
    rng = jax.random.key(0) if key is None else key  # not drawn from where all are negatives
    exact = jnp.promote_types(jnp.promote_types(queries.dtype, keys.dtype), jnp.float32)
    same = queries is keys
    queries = queries.astype(exact)  # here, so that gradients are summed before rounding
    keys = queries if same else keys.astype(exact)
    comparison, _ = compare(queries, keys, group, ((), ()), jnp.zeros((), jnp.int32), rng)
    values = term.values(comparison, {})  # [N, V]
    if jnp.shape(values) != (rows, number):
        raise ValueError(
            f"contrastive_loss.loss is {loss!r}, which returns shape {jnp.shape(values)}; it must"
            f" return one value per query, shape {(rows, number)}."
        )
    return sharding.shard_batch(sharding.replicate(values).T.reshape(-1))


# Names of the arguments in other libraries.
ELSEWHERE = {
    "tau": "temperature",
    "t": "temperature",
    "labels": "positives",
    "label": "positives",
    "memory": "queue",
}


def _term(loss: str | Callable[..., Array], options: dict[str, Any]) -> Term:
    """Return the loss with its options; errors suggest arguments of :func:`contrastive_loss`."""
    own = [name for name in inspect.signature(contrastive_loss).parameters if name != "options"]
    if "weight" in options:
        raise ValueError("contrastive_loss has no option weight; multiply its result by the weight.")
    try:
        while isinstance(loss, functools.partial) and not loss.args:  # its function has the declaration
            options, loss = loss.keywords | options, loss.func
        if isinstance(loss, str):
            term = make_term(loss, options)
        else:
            term = make_term(getattr(loss, "__name__", "loss"), options, loss)
    except ValueError as error:
        near = [
            match
            for name in options
            for match in difflib.get_close_matches(ELSEWHERE.get(name, name), own, 1, cutoff=0.75)
        ]
        hint = f" Did you mean the argument {near[0]!r} of contrastive_loss?" if near else ""
        if "reduction" in options:
            hint = " contrastive_loss returns one value per query: apply jnp.mean to the result."
        raise ValueError(f"{error}{hint}") from None
    if other := [name for name in term.quantities if name not in PROVIDED]:
        whose = "contrastive_jax.losses." if isinstance(loss, str) else ""
        raise ValueError(
            f"contrastive_loss.loss is {term.name!r}; it needs {other[0]!r}, which contrastive_loss"
            " does not compute from two views: call"
            f" {whose}{term.name}{inspect.signature(term.function)} directly."
        )
    return term


def _check_several(loss: str, term: Term, summation: str) -> None:
    """Raise ValueError unless the loss is defined for several positives with this summation."""
    if term.declared.maximised:
        raise ValueError(
            f"contrastive_loss.positives is given to {loss!r}, an estimate with one positive per query."
        )
    one = [name for name in term.quantities if name in ("positive", *ROWS, "mean")]
    if "surplus" in term.quantities or not one and summation == "in":
        return
    if one:
        why = f"which uses {one[0]!r} and is not defined for several positives"
    else:
        why = "which weights a query by a single contrast; with several positives it needs summation='in'"
    raise ValueError(f"contrastive_loss.positives is given to {loss!r}, {why}.")


def _check_shapes(a, b, queue, queue_group, group, positives) -> int:
    """Return N after checking all shapes."""
    check_arrays("contrastive_loss", a=a, b=b, queue=queue)
    several = a.ndim == b.ndim == 3 and (a.shape[0], a.shape[2]) == (b.shape[0], b.shape[2])
    if not several and (a.ndim != 2 or a.shape != b.shape) or not a.size or not b.size:
        raise ValueError(
            f"contrastive_loss: a {a.shape} and b {b.shape} must both be [N, D], or [N, Q, D] and [N, W, D] of"
            " several views, with equal N and D and not empty."
        )
    rows, width = a.shape[0], a.shape[-1]
    if queue is not None and (queue.ndim != 2 or queue.shape[1] != width or not queue.size):
        raise ValueError(
            f"contrastive_loss.queue has shape {queue.shape}; it must be [M, {width}], not empty."
        )
    if queue_group is not None and (queue is None or np.shape(queue_group) != queue.shape[:1]):
        needed = "it needs the argument queue" if queue is None else f"it must be {queue.shape[:1]}"
        raise ValueError(f"contrastive_loss.queue_group has shape {np.shape(queue_group)}; {needed}.")
    if queue_group is not None and group is None and positives is None:
        raise ValueError(
            "contrastive_loss.queue_group is given without ids of the rows of a and b; pass them as"
            " group (or positives)."
        )
    if group is not None and np.shape(group) != (rows,):
        raise ValueError(f"contrastive_loss.group has shape {np.shape(group)}; it must be ({rows},).")
    if positives is not None and np.shape(positives) != (rows,):
        raise ValueError(f"contrastive_loss.positives has shape {np.shape(positives)}; it must be ({rows},).")
    if positives is not None and group is not None:
        raise ValueError(
            "contrastive_loss.positives and contrastive_loss.group are both given; pass one (rows with"
            " equal ids in positives are a group)."
        )
    if rows % (devices := sharding.devices()):
        raise ValueError(
            f"contrastive_loss.a has N={rows} rows; N must be a multiple of the {devices} devices."
        )
    return rows


def _pairs(queries: int, keys: int, candidates: str, directions: str, several: bool) -> Pairs:
    """Return the views that are compared; if ``several`` positives, each query once, with one of them."""
    pairs = ordered_pairs(1 if directions == "one_way" else queries, keys)
    if not pairs and queries > 1:
        raise ValueError(
            "contrastive_loss.directions is 'one_way', which compares the first view of a alone, and that is the one"
            " view of b; it must be 'both'."
        )
    if not pairs:
        raise ValueError(
            "contrastive_loss: a and b have one view, the same, which has no positive; use two or more views."
        )
    if candidates == "own_view" and (without := next((q for q, _ in pairs if q >= keys), None)):
        raise ValueError(
            f"contrastive_loss.candidates is 'own_view', and view {without} of a has no keys in b, which has {keys}"
            " views."
        )
    if not several:
        return pairs
    if candidates != "both_views" and (queries, keys) != (2, 2):
        raise ValueError(
            f"contrastive_loss.candidates is {candidates!r}, and positives are all views of an example; of more than"
            " two views it must be 'both_views'."
        )
    return tuple({q: (q, k) for q, k in reversed(pairs)}.values())[::-1]


def _places(group: Array) -> Array:
    """Return equivalent ids from 0 up, so that -1 is free for rows without a group."""
    group = sharding.replicate(group)
    return jnp.searchsorted(jnp.sort(group), group)


def _source(name: str, rows: int, directions: int, extra: Pool | None, engine: str) -> Candidates:
    """Return the source of candidates, with the ``extra`` ones after those of the batch."""
    if engine == RING:
        return _sharded(SOURCES[name](rows, directions), name)
    if extra is None:
        return SOURCES[name](rows, directions)
    if name == "queue":
        return Candidates(
            lambda rng, width: (),
            lambda *step: ([extra] * directions, ()),
            "exclude",
            lambda views: extra.group.size,
        )
    batch = SOURCES[name](rows, directions)

    def apply(*step):
        pools, state = batch.apply(*step)
        join = lambda own, further: jnp.concatenate([own, further])  # noqa: E731
        return [jax.tree.map(join, pool, extra) for pool in pools], state

    most = lambda views: batch.most(views) + extra.group.size  # noqa: E731
    return Candidates(batch.init, apply, batch.same_group, most, batch.by)


def _check_ring(loss: str, term: Term, negatives: int | None, queue: Array | None) -> None:
    """Raise ValueError unless all candidates are from the batch and the loss reads only sums over them."""
    if negatives is not None or queue is not None or ROWS & set(term.quantities):
        what = (
            f"negatives={negatives}"
            if negatives is not None
            else "a queue"
            if queue is not None
            else repr(loss)
        )
        raise ValueError(
            "contrastive_loss.engine is 'ring', which works on shards of the batch and does not"
            f" support {what}; use auto, dense or tiled."
        )


def _sharded(source: Candidates, name: str) -> Candidates:
    """Return the source without its gather; candidates stay sharded."""

    def apply(state, keys, positive_keys, group, rng):
        directions, views = positive_keys.shape[1], keys.shape[1]
        if name != "both_views":
            views_of = {"other_view": positive_keys, "own_view": keys}[name]
            return [Pool(views_of[:, v], group) for v in range(directions)], state
        ids = jnp.stack([group] * views, axis=1)
        return [Pool(keys.reshape(-1, keys.shape[-1]), ids.reshape(-1))] * directions, state

    return source._replace(apply=apply)


def _with_rows(source: Candidates, rows: int, views: Sequence[int | None], pairs: Pairs) -> Candidates:
    """Return the source with the example of each candidate in its pools, one pool per pair.

    The first ``rows`` examples' ``views`` are the batch. Of a query's own example only the query and its
    positive have its row. All other candidates of its group, other views included, are further positives.
    """

    def apply(*step):
        pools, state = source.apply(*step)
        place = jnp.arange(pools[0].group.size, dtype=jnp.int32)
        sought = list(dict.fromkeys(k for _, k in pairs))

        def with_row(q: int, k: int) -> Pool:
            known = jnp.asarray([view in (None, q, k) for view in views] or [False])
            inside = (place < len(views) * rows) & known[place % known.size]
            row = jnp.where(inside, place // known.size, -1)
            return dataclasses.replace(pools[q if source.by == "query" else sought.index(k)], row=row)

        return [with_row(q, k) for q, k in pairs], state

    return source._replace(apply=apply, by="pair")


def _rule(temperature: float | Array | Callable[[Array], Array], rows: int, directions: int) -> Temperature:
    """Return the temperature rule for a number, an array, or a function of the alignment."""
    if isinstance(temperature, numbers.Real) and not isinstance(temperature, bool):
        temperature = check_scalar("contrastive_loss.temperature", temperature)
        if not temperature > 0:
            raise ValueError(
                f"contrastive_loss.temperature is {temperature}; a temperature must be positive."
            )
        return rules.fixed(1, tau=float(temperature))
    if callable(temperature):
        return _of_batch(lambda mean_positive: _one(temperature(mean_positive)))
    shape, dtype = getattr(temperature, "shape", None), getattr(temperature, "dtype", None)
    if dtype is None or dtype.kind not in "fiuV":
        raise ValueError(
            f"contrastive_loss.temperature is {temperature!r}; it must be a positive number, an array, or a"
            " function of the alignment such as macl_temperature(tau0, alpha)."
        )
    if shape not in ((), (rows,), (directions * rows,)):
        each = f"({rows},), one for each example" + f", or ({directions * rows},), one for each value" * (
            directions > 1
        )
        raise ValueError(f"contrastive_loss.temperature has shape {shape}; it must be a scalar, {each}.")
    tau = jnp.asarray(temperature)
    if shape:  # to [N, V], the layout of the queries
        tau = sharding.shard_batch(sharding.replicate(tau).reshape(-1, rows).T)  # or [N, 1], per example
    return _of_batch(lambda mean_positive: tau)


def _of_batch(given: Callable[[Array], Array]) -> Temperature:
    """Return a rule without state; temperatures that are not positive become NaN, as they are traced."""

    def value(state, step, mean_positive):
        return positive_or_nan(given(mean_positive))

    return Temperature(lambda: (), value, lambda state, step, ess: state)


def _one(tau: Any) -> Array:
    """Return the result of a function of the alignment; raise ValueError unless it is a scalar."""
    if tau is None or isinstance(tau, str):
        raise ValueError(
            f"contrastive_loss.temperature returns {tau!r}; a function of the alignment must return a scalar."
        )
    if jnp.ndim(tau):
        raise ValueError(
            f"contrastive_loss.temperature returns an array of shape {jnp.shape(tau)}; a function of"
            " the alignment must return a scalar."
        )
    return tau
