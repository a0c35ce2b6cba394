"""Recipe of a run: the functions that its config selects, built once before compilation."""

import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from contrastive_jax import augment, models
from contrastive_jax import config as configs
from contrastive_jax.config import Settings
from contrastive_jax.contrast import by_example, target, temperature
from contrastive_jax.contrast.candidates import Candidates
from contrastive_jax.contrast.comparison import Compare, Comparison, Pairs, cosine, dot, ordered_pairs
from contrastive_jax.contrast.diagnostics import OUTCOMES
from contrastive_jax.contrast.normalizer import Normalizer
from contrastive_jax.contrast.scores import Transform, check_scalars
from contrastive_jax.contrast.terms import ROWS, Term, make_terms
from contrastive_jax.lookup import Section, is_own, placed
from contrastive_jax.losses.declaration import CANCELS
from contrastive_jax.optim.gradient_snr import GradientSNR
from contrastive_jax.training import pairs
from contrastive_jax.types import Array, Example, Outputs, PyTree

PER = ("batch", "example", "query")  # scopes of a temperature


class Recipe(NamedTuple):
    """Functions of a run, without arrays or config."""

    network: models.Network
    init_network: Callable[[int], tuple[PyTree, PyTree]]
    views: augment.Views  # (key, image) -> views; for streamed images, split between host and device
    # (key, an example of the batch) -> views of each size, or of each array of a pair: all augmentation, or the
    # device's part of it
    augment: Callable[[Array, Any], tuple[Array, ...]]
    target: target.Target
    compare: Compare
    keep_temperature: Callable[[temperature.Temperature], by_example.KeptTemperature]
    normalizer: by_example.KeptNormalizer
    terms: tuple[Term, ...]
    optimizer: optax.GradientTransformation
    learning_rate: Callable[[Array], Array]
    gradient_snr: GradientSNR
    diagnose: Callable[[Comparison, Outputs, Array], dict[str, Array]]
    online_views: slice  # of the views that are not local; local views are all the online network's
    target_views: slice
    directions: int  # number of pairs of views that are compared
    view: Any  # spec of one view, as the network reads it; of pairs a tuple of two
    # For each size, or array of a pair, a view, and the numbers of views of an example that the online network and a
    # target of its own encode.
    encoded: tuple[tuple[jax.ShapeDtypeStruct, int, int], ...]
    embedding_width: int
    probe_weight: float
    parameter_dtype: str

    @property
    def temperature(self) -> by_example.KeptTemperature:
        """State of the comparison's temperature rule over the run."""
        return self.keep_temperature(self.compare.temperature)


def _check_labels(terms: tuple[Term, ...], classes: int, several: bool) -> bool:
    """Return whether a loss reads labels; refuse a loss whose labels do not match the data's."""
    reading = [term for term in terms if "logits" in term.quantities]
    for term in reading:
        if not classes:
            raise ValueError(f"loss.{term.name} needs labels, but the data has none.")
        if several and term.declared.labels == "one":
            raise ValueError(
                f"loss.{term.name} needs one label per image, but these images have several: use"
                " loss.sigmoid_cross_entropy with probe.gradient=True."
            )
        if not several and term.declared.labels == "several":
            raise ValueError(
                f"loss.{term.name} needs several labels per image, but these images have one: use"
                " loss.cross_entropy with probe.gradient=True."
            )
    return bool(reading)


def _check_gradient(terms: tuple[Term, ...], gradient: bool, probe_weight: float) -> None:
    """Refuse losses that do not train the encoder: all weights are 0, or all gradients end at the probe."""
    weighed = [term for term in terms if term.weight]
    if not weighed and not (gradient and probe_weight):
        raise ValueError(
            f"loss.{terms[0].name}.weight is 0, like all weights of losses; at least one must be"
            " nonzero to train the encoder."
        )
    read = {name for term in weighed for name in (*term.quantities, *term.multiples)}
    if read and read <= {"logits", "label"} and not gradient:
        raise ValueError(
            f"loss.{weighed[0].name} trains only the probe while probe.gradient is False, and no other"
            " loss trains the encoder: set probe.gradient=True, and probe.weight=0.0 to avoid a second"
            " cross-entropy."
        )


def _check_signs(terms: tuple[Term, ...]) -> None:
    """Refuse to minimise an estimate that should be maximised."""
    for term in terms:
        if term.weight > 0 and term.declared.maximised:
            raise ValueError(
                f"loss.{term.name}.weight is {term.weight}; it must be at most 0 for this estimate of"
                " mutual information, which is maximised; to minimise, use"
                f" loss.{term.function.__name__.removesuffix('_estimate')}."
            )


class _Numbers(NamedTuple):
    """Views of an example: the numbers of those with an embedding, with logits, and with keys."""

    online: int
    logits: int
    keys: int


def _shapes(
    batch_size: int,
    directions: int,
    width: int,
    classes: int,
    several: bool,
    tau: tuple[int, ...],
    views: _Numbers,
) -> dict[str, Any]:
    """Return the shapes of the quantities that a loss may read."""

    def of(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch_size, *shape), dtype)

    return {
        **dict.fromkeys(("c", "positive", "count", "mean", "u"), of(directions)),
        **dict.fromkeys(ROWS, of(directions, batch_size)),  # stands for any number of candidates
        **dict.fromkeys(("population", "projection", "prediction"), of(views.online, width)),
        "target": of(views.keys, width),
        "temperature": jax.ShapeDtypeStruct(tau, "float32"),
        "logits": of(views.logits, classes),
        "label": of(*[classes] * several, dtype="int32"),
        "key": jax.eval_shape(jax.random.key, 0),
        "surplus": None,  # only with several positives
    }


def _refusal(term: Term, shapes: Mapping[str, Any]) -> str:
    """Return the error message of a loss for its options or these shapes; "" if it accepts them."""
    read = [shapes[name] for name in (*["c"] * len(term.multiples), *term.quantities)]
    try:
        value = jax.eval_shape(functools.partial(term.function, **term.options), *read)
    except Exception as error:  # a loss may be user-defined
        if not (isinstance(error, ValueError) or is_own(term.name)):
            raise
        return placed(error, term.function)
    shape, wanted = getattr(value, "shape", None), shapes["c"].shape
    if term.multiples and shape not in (None, wanted):
        return f"it returns shape {shape}; it must return one value per query, shape {wanted}."
    return ""


def _check_quantities(
    terms: tuple[Term, ...],
    shapes: Callable[[_Numbers], dict[str, Any]],
    views: _Numbers,
    target: str,
    one_way: bool,
    apart: bool,
) -> None:
    """Refuse a loss that rejects its options or the shapes of a step, or both directions of one (``one_way``).

    ``apart``: no view has a query and a key.
    """
    two = _Numbers(2, 2, 2)
    for term in terms:
        refusal = _refusal(term, shapes(views))
        by_number = views != (1, 1, 1) and {"prediction", "target"} <= {*term.quantities}
        if one_way and not apart and by_number:
            raise ValueError(
                f"directions is 'one_way', but loss.{term.name} compares the views in both directions; it must be"
                " both."
            )
        if apart and (refusal or by_number) and not _refusal(term, shapes(two)):
            raise ValueError(
                f"directions is 'one_way', so that with target={target} each network encodes one view,"
                f" but loss.{term.name} needs two: set directions=both."
            )
        if refusal and views != two and not _refusal(term, shapes(two)):
            raise ValueError(f"loss.{term.name}: {refusal} Set augment.views=2 and augment.local_views=0.")
        if refusal:
            raise ValueError(f"loss.{term.name}: {refusal}")


def _check_temperature(
    rule: temperature.Temperature, name: str, examples: int, rows: tuple[int, int]
) -> None:
    """Refuse a temperature whose shape does not match its ``per``, or that reads an unknown outcome.

    ``rows``: numbers of examples and directions of a batch.
    """
    if rule.per not in PER:
        raise ValueError(
            f"temperature.name is {name!r}, whose per is {rule.per!r}; it must be one of {', '.join(PER)}."
        )
    shape: tuple[int, ...] = ()
    readable: tuple[str, ...] = (*OUTCOMES, temperature.SLOPES)
    if rule.per != "batch":
        _check_examples(f"temperature.name is {name!r}", examples)
        shape, readable = (rows[0], rows[1] if rule.per == "query" else 1), tuple(by_example.READABLE)

    def of(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    step, number = of(dtype="int32"), of()
    try:
        state = jax.eval_shape(lambda: jax.tree.map(lambda x: jnp.broadcast_to(x, shape), rule.init()))
        tau = jax.eval_shape(lambda *at: jnp.asarray(rule.value(*at)), state, step, number)
        bias = jax.eval_shape(lambda state: rule.bias(state) if rule.bias else jnp.zeros(()), state)
    except (TypeError, ValueError) as error:
        raise ValueError(f"temperature.name is {name!r}, which fails in the step: {error}") from error
    if tau.shape != shape:
        wanted = f"an array {shape}, the shape of its states" if shape else "a scalar"
        raise ValueError(
            f"temperature.name is {name!r}, which returns an array {tau.shape}; it must return {wanted}."
        )
    if bias.shape:
        raise ValueError(
            f"temperature.name is {name!r}, whose bias is an array {bias.shape}; it must be a scalar, of a rule per"
            " batch."
        )
    if rule.reads not in readable:
        raise ValueError(
            f"temperature.name is {name!r}, whose reads is {rule.reads!r}; it must be one of"
            f" {', '.join(readable)}."
        )


def _check_bias(terms: tuple[Term, ...], rule: temperature.Temperature, name: str) -> None:
    """Refuse a bias that no loss reads."""
    if rule.bias and not any(term.weight and "pair_logits" in term.quantities for term in terms):
        raise ValueError(
            f"temperature.name is {name!r}, whose bias no loss reads: set loss=sigmoid, or temperature=learnt."
        )


def _check_own_view(terms: tuple[Term, ...], pool: Candidates, name: str) -> None:
    """Refuse candidates of the query's own view for a loss that compares the positive's view with itself."""
    reading = [term.name for term in terms if "same" in term.quantities]
    if reading and pool.by == "query":
        raise ValueError(
            f"candidates.name is {name!r}; it must be other_view or both_views with loss.{reading[0]}, which needs"
            " candidates of the positive's view."
        )


def _check_examples(what: str, examples: int) -> None:
    """Refuse a state per example if the number of examples is unknown."""
    if examples < 1:
        raise ValueError(
            f"{what}, which keeps a number for each example; it needs data with a known number of examples."
        )


def _check_transform(terms: tuple[Term, ...], transform: Transform, name: str, score: str) -> None:
    """Refuse a transform that is not defined for the losses or the score."""
    check_scalars(transform, f"transform.name is {name!r}, which returns")
    for term in terms:
        if why := term.no_transform(transform):
            raise ValueError(f"transform.name is {name!r}, which {why} loss.{term.name}; it must be none.")
    if name != "none" and not any(term.weight and term.multiples for term in terms):
        raise ValueError(f"transform.name is {name!r}, but no loss uses a contrast; it must be none.")
    if score != "cosine" and transform.cosine_only:
        raise ValueError(f"score is {score!r}; it must be cosine with transform={name}.")


def _check_rule(
    terms: tuple[Term, ...], rule: temperature.Temperature, name: str, transform: Transform, changes: str
) -> None:
    """Refuse a rule that follows a quantity which no loss trains, or which the transform ``changes`` distorts."""
    if transform.log_weight is not None and rule.reads == "kl_uniform":
        raise ValueError(
            f"transform.name is {changes!r}, whose weights are not in the divergence that temperature={name} reads; one"
            " of them must be none or fixed."
        )
    if transform.cancels_temperature and jax.tree.leaves(rule.init()):
        raise ValueError(
            f"transform.name is {changes!r}, in which the temperature cancels; temperature.name is {name!r}; it must"
            " be fixed or a schedule."
        )
    of_tau = {"temperature", *ROWS}
    if rule.reads == temperature.SLOPES and not any(
        term.weight and (term.multiples or of_tau & set(term.quantities)) for term in terms
    ):
        raise ValueError(
            f"temperature.name is {name!r}, but no loss depends on the temperature; it must be fixed."
        )


def _check_u(terms: tuple[Term, ...], critic: str, normalizer: str, per: str) -> None:
    """Refuse a loss that reads u without a source of u, a u that nothing reads, and two sources of u.

    A temperature ``per`` example or query counts as a reader of the normalizer's u.
    """
    reading = [term.name for term in terms if "u" in term.quantities]
    if reading and critic == normalizer == "none":
        raise ValueError(
            f"loss.{reading[0]} needs u from a second critic or a normalizer, but both are none: set"
            " critic=pair or baseline, or normalizer=sogclr or fast_clip."
        )
    if "none" not in (critic, normalizer):
        raise ValueError(
            f"normalizer.name is {normalizer!r} and critic.name is {critic!r}; both return u; one of"
            " them must be none."
        )
    if critic != "none" and not any(term.weight and "u" in term.quantities for term in terms):
        raise ValueError(
            f"critic.name is {critic!r}, but no loss trains its u: set critic=none or loss=fenchel_legendre."
        )
    if not reading and normalizer != "none" and per == "batch":
        raise ValueError(
            f"normalizer.name is {normalizer!r}, but no loss uses its u: set normalizer=none or"
            " loss=fenchel_legendre."
        )


def _check_normalizer(rule: Normalizer, name: str, examples: int, rows: tuple[int, int]) -> None:
    """Refuse a normalizer that does not return log u of every query and states of unchanged shapes."""
    if not isinstance(rule, Normalizer):
        raise ValueError(
            f"normalizer.name is {name!r}, which returned a {type(rule).__name__}; it must return a"
            " contrast.normalizer.Normalizer."
        )
    if rule.per not in (known := ("none", "example", "query")):
        raise ValueError(
            f"normalizer.name is {name!r}, whose per is {rule.per!r}; it must be one of {', '.join(known)}."
        )
    if rule.per == "none":
        return
    _check_examples(f"normalizer.name is {name!r}", examples)
    now, some = (jax.ShapeDtypeStruct(rows, dtype) for dtype in ("float32", "bool"))
    try:
        state = jax.eval_shape(lambda: by_example.first(rule.init(), rule.per, *rows))
        log_u, after = jax.eval_shape(rule.update, state, now, some)
    except (TypeError, ValueError) as error:
        raise ValueError(f"normalizer.name is {name!r}, which fails in the step: {error}") from error
    shapes = [jax.tree.map(lambda x: x.shape, tree) for tree in (state, after)]
    if log_u.shape != rows or shapes[0] != shapes[1]:
        raise ValueError(
            f"normalizer.name is {name!r}, which returns log u {log_u.shape} and states {shapes[1]};"
            f" they must be {rows} and {shapes[0]}."
        )


class _Compared(NamedTuple):
    """Views that are encoded and compared; pairs count the views of each network's outputs."""

    pairs: Pairs
    online: slice
    target: slice
    apart: bool  # queries and keys are different views, of different networks


def _compared(views: int, local: int, one_way: bool, shared: bool) -> _Compared:
    """Return the pairs of views: all of two, or one way those of view 0 and local views with views 1, 2, ...

    Args:
      views: number of views with keys.
      local: number of local views.
      one_way: whether only view 0 and local views are queries.
      shared: whether the online network computes the keys.
    """
    whole = slice(0, views)
    if not one_way:
        return _Compared(ordered_pairs(views + local, views), whole, whole, False)
    if shared:
        queries = (0, *range(views, views + local))
        return _Compared(tuple((q, k) for q in queries for k in range(1, views)), whole, whole, False)
    pairs = tuple((q, k) for q in range(1 + local) for k in range(views - 1))
    return _Compared(pairs, slice(0, 1), slice(1, views), True)


class _Views(NamedTuple):
    """Views of an example: how they are made, and which the step encodes and compares."""

    augment: Callable  # (key, an example) -> views of each size, or of each array of a pair
    view: Any  # spec of one view, as the network reads it; of pairs a tuple of two
    local: tuple[jax.ShapeDtypeStruct, ...]  # spec of one local view, if there are any
    counts: tuple[int, int]  # numbers of views with keys, and of local views
    probed: bool = True  # whether the online probe reads their features
    keys: Callable[[target.Target], target.Target] = lambda made: made  # the target of these views

    def encoded(self, online: int, keys: int) -> tuple[tuple[jax.ShapeDtypeStruct, int, int], ...]:
        """Return ``Recipe.encoded`` for numbers of views that the online network and the target encode."""
        if isinstance(self.view, tuple):
            return tuple((view, 1, 0) for view in self.view)
        return (self.view, online, keys), *((view, self.counts[1], 0) for view in self.local)


def _views(views: augment.Views, made: Callable, example: jax.ShapeDtypeStruct, preset: str) -> _Views:
    """Return the views of examples that are no pairs; ``made`` makes those that are not local.

    Raises:
      ValueError: fewer than two views, or equal ones.
    """
    if views.count < 2:
        raise ValueError(f"augment.views is {views.count}; it must be at least 2 for training.")
    if preset == "unchanged":
        raise ValueError("augment.preset is 'unchanged', so that both views are equal; it is only for pairs.")
    local = views.local

    def augmented(key: Array, image: Array) -> tuple[Array, ...]:
        return (made(key, image), local(key, image)) if local else (made(key, image),)

    one, *others = _specs(augmented, example)
    return _Views(augmented, one, tuple(others), (views.count, local.count if local else 0))


def _views_of_pairs(
    settings: Settings, first: augment.Views, examples: np.ndarray, pair: tuple[jax.ShapeDtypeStruct, ...]
) -> _Views:
    """Return the views of pairs: one of each array. ``examples`` are the second arrays [n, ...].

    Raises:
      ValueError: an option that is not defined for pairs.
    """
    pairs.refusals(settings)
    section = settings.second_augment
    try:
        second = augment.make_second_views(examples, preset=section.name, **section.options)
        augment.seen({"preset": section.name, **section.options}, Example(pair[1].shape, str(pair[1].dtype)))
    except ValueError as error:
        raise ValueError(f"second_augment: {error}") from None

    places = [augment.arrays.OF_PAIRS.get(part.name, 0) for part in (settings.augment, section)]

    def augmented(key: Array, pair: tuple[Array, Array]) -> tuple[Array, ...]:
        other = jax.random.fold_in(key, zlib.crc32(b"second"))
        made = first(key, pair[0]), second(other, pair[1])
        return tuple(views[place : place + 1] for views, place in zip(made, places, strict=True))

    keys = lambda made: made._replace(apply=_both_keys)  # noqa: E731
    return _Views(augmented, _specs(augmented, pair), (), (2, 0), probed=False, keys=keys)


def _both_keys(state: PyTree, outputs: Outputs, *rest: Any) -> tuple[Array, PyTree]:
    """Return the projections of both encoders as keys: the online target of pairs."""
    return outputs.projection, state


def _specs(augmented: Callable, example: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the spec of one view of each size, or of each array."""
    made = jax.eval_shape(augmented, jax.random.key(0), example)
    return tuple(jax.ShapeDtypeStruct(size.shape[1:], size.dtype) for size in made)


def _networks(settings: Settings, classes: int) -> models.Network:
    """Return the network: an encoder with its heads, or two for pairs."""

    def network(encoder: Section, classes: int, **heads: Any) -> models.Network:
        return models.network(
            encoder={"name": encoder.name, **encoder.options},
            projector=dict(settings.projector.options),
            norm=dict(settings.norm.options),
            classes=classes,
            probe_gradient=settings.probe.gradient,
            dtype=settings.dtype,
            microbatches=settings.train.microbatches,
            remat=settings.train.remat,
            **heads,
        )

    section = settings.encoder
    try:
        first = network(
            section,
            classes,
            predictor=dict(settings.predictor.options),
            critic={"name": settings.critic.name, **settings.critic.options},
            functions={"encoder": section.function, "critic": settings.critic.function},
        )
        if not pairs.paired(settings):
            return first
    except TypeError as error:  # an unknown option
        raise ValueError(f"encoder, projector, predictor or norm: {error}.") from None
    section = settings.second_encoder
    try:
        return models.towers(
            first, network(section, 0, predictor={"layers": 0}, functions={"encoder": section.function})
        )
    except ValueError as error:
        raise ValueError(f"second_encoder: {error}") from None


def _check_local_view(
    network: models.Network,
    settings: Settings,
    view: jax.ShapeDtypeStruct,
    local: jax.ShapeDtypeStruct | None = None,
) -> None:
    """Refuse local views of a size that the network cannot encode with the weights of the other views."""
    if local is None:
        return
    size = local.shape[0]
    try:
        expected, shapes = (jax.tree.map(lambda x: x.shape, network.shapes(v)) for v in (view, local))
    except ValueError as error:
        raise ValueError(f"augment.local_views have {size} pixels (augment.local_size): {error}") from None
    if shapes != expected:
        raise ValueError(
            f"augment.local_views have {size} pixels (augment.local_size), and the weights of encoder.name="
            f"{settings.encoder.name!r} are for images of {view.shape[0]} pixels alone: set augment.local_views=0."
        )


def build(
    config: Settings | Mapping[str, Any],
    *,
    schedule: Section | None = None,
    image_shape: tuple[int | None, ...],
    image_dtype: str = "uint8",
    examples: np.ndarray | None = None,
    second: np.ndarray | None = None,
    classes: int,
    several_labels: bool = False,
    streamed: bool = False,
    total_steps: int,
    steps_per_epoch: int,
    example_count: int = 0,
) -> Recipe:
    """Build the recipe of a resolved config.

    Args:
      config: settings, or every section of :func:`contrastive_jax.config.base` as plain dictionaries.
      schedule: schedule section with durations (warmup, milestones) in steps; None: the config has it in steps.
      image_shape: shape of a stored example, (h, w, c) for images; for streamed images only c is read.
      image_dtype: dtype of a stored example.
      examples: training examples [n, ...], if they are in memory; some views draw from them.
      second: second arrays [n, ...] of the training examples, if these are pairs.
      classes: width of the online probe; 0 without labels.
      several_labels: labels are multi-label, [n, C]; logits then exist only for a loss that reads them.
      streamed: the host already crops the views.
      total_steps: length of the run in steps.
      steps_per_epoch: whole number of steps per epoch, for schedules that change once per epoch.
      example_count: number of training examples (ids are smaller), for rules with a state per example.

    Raises:
      ValueError: an invalid option; the message contains the option, its value and the allowed values.
    """
    settings = configs.as_settings(config)
    batch_size = settings.train.batch_size
    scores = {"cosine": cosine, "dot": dot}

    views = settings.augment(examples)
    if streamed:
        views.check_streamed()
        size = views.cut.size  # raises if the host cannot crop
        image_shape = (views.count, size, size, image_shape[-1])
    augment.seen(
        settings.augment.options, Example(tuple(image_shape[-3:]) if streamed else image_shape, image_dtype)
    )
    example = jax.ShapeDtypeStruct(image_shape, image_dtype)
    if second is None:
        made = _views(views, views.finish if streamed else views, example, settings.augment.name)
    else:
        pair = example, jax.ShapeDtypeStruct(second.shape[1:], second.dtype)
        made = _views_of_pairs(settings, views, second, pair)
    (count, local), one_way = made.counts, settings.directions == "one_way"
    classes = classes if made.probed else 0
    directions = len(_compared(count, local, one_way, shared=True).pairs)
    chosen = settings.loss
    terms = make_terms({name: chosen[name].options for name in chosen}, lambda name: chosen[name].function)
    _check_signs(terms)
    if not _check_labels(terms, classes, several_labels) and several_labels:
        classes = 0
    _check_gradient(terms, settings.probe.gradient, settings.probe.weight)
    if not settings.probe.weight and not any("logits" in term.quantities for term in terms):
        classes = 0  # nothing trains the probe
    tau = settings.temperature(total_steps)
    _check_temperature(tau, settings.temperature.name, example_count, (batch_size, directions))
    _check_bias(terms, tau, settings.temperature.name)
    normalizer = settings.normalizer()
    _check_normalizer(normalizer, settings.normalizer.name, example_count, (batch_size, directions))
    _check_u(terms, settings.critic.name, settings.normalizer.name, tau.per)
    norm, microbatches = settings.norm.options, settings.train.microbatches
    network = _networks(settings, classes)
    _check_local_view(network, settings, made.view, *made.local)
    groups = norm.get("groups", 1) if norm.get("scope") == "groups" else 1
    if microbatches > 1 and batch_size % microbatches:
        raise ValueError(
            f"train.microbatches is {microbatches}; it must divide train.batch_size, {batch_size}."
        )
    if batch_size % groups:
        raise ValueError(f"norm.groups is {groups}; it must divide train.batch_size, {batch_size}.")
    keys_from = made.keys(settings.target(network.apply, total_steps, groups))
    compared = _compared(count, local, one_way, keys_from.shared)
    pool = settings.candidates(batch_size, len({k for _, k in compared.pairs}))
    if local and pool.by == "query":
        raise ValueError(
            f"candidates.name is {settings.candidates.name!r}, and augment.local_views is {local}; it must be 0, since"
            " local views have no keys: or set candidates=both_views or other_view."
        )
    if compared.apart and pool.by == "query":
        raise ValueError(
            f"candidates.name is {settings.candidates.name!r}, but the target network encodes other views than the"
            " queries'; set directions=both or target=online."
        )
    _check_own_view(terms, pool, settings.candidates.name)
    choose = settings.negatives()
    width = network.width(made.view)
    of_tau = () if tau.per == "batch" else (batch_size, directions)
    shapes = functools.partial(_shapes, batch_size, directions, width, classes, several_labels, of_tau)
    seen, keyed = (len(range(count)[part]) for part in (compared.online, compared.target))
    views_of = _Numbers(seen + local, seen, keyed)
    _check_quantities(terms, shapes, views_of, settings.target.name, one_way, compared.apart)
    wanted, most = settings.negatives.options.get("k", 0), pool.most(keyed)
    if wanted > most:
        raise ValueError(
            f"negatives.k is {wanted}; it must be at most {most}, the negatives per query with"
            f" candidates={settings.candidates.name}, train.batch_size={batch_size},"
            f" directions={settings.directions} and target={settings.target.name}; or set"
            " negatives.name=all."
        )
    shift = settings.margin.name
    # A margin that cancels in the gradient is harmless for a loss that is only logged.
    refusing = [t for t in terms if t.declared.no_margin and (t.weight or t.declared.no_margin != CANCELS)]
    if refusing and shift != "none":
        raise ValueError(
            f"margin.name is {shift!r}, which {refusing[0].declared.no_margin} loss.{refusing[0].name}; it must"
            " be none."
        )
    if shift != "none" and not any(t.weight and t.multiples for t in terms):
        raise ValueError(f"margin.name is {shift!r}, but no loss uses a contrast; it must be none.")
    bounded = [t.name for t in terms if t.cosine_only]
    if bounded and settings.score != "cosine":
        raise ValueError(
            f"score is {settings.score!r}; it must be cosine with loss.{bounded[0]} and its options."
        )
    if settings.score != "cosine" and tau.cosine_only:
        raise ValueError(
            f"score is {settings.score!r}; it must be cosine with"
            f" temperature={settings.temperature.name}, which uses the mean cosine of positives."
        )
    transform = settings.transform()
    _check_transform(terms, transform, settings.transform.name, settings.score)
    _check_rule(terms, tau, settings.temperature.name, transform, settings.transform.name)
    multiples = sorted({1.0, 2.0, *(m for term in terms for m in term.multiples)})
    compare = Compare(
        embed=scores[settings.score],
        candidates=pool,
        negatives=choose,
        temperature=tau,
        margin=settings.margin(),
        multiples=tuple(multiples),
        transform=transform,
        pairs=compared.pairs,
    )
    kept = by_example.keep_normalizer(normalizer, example_count, directions)
    learning_rate = (schedule or settings.schedule)(total_steps, batch_size, steps_per_epoch)
    watching = () if settings.probe.gradient else ("probe",)  # its gradient does not reach the encoder
    optimizer = settings.optimizer(learning_rate, watching)

    def init_network(seed: int) -> tuple[PyTree, PyTree]:
        return network.init(seed, made.view)

    return Recipe(
        network=network,
        init_network=init_network,
        views=views,
        augment=made.augment,
        target=keys_from,
        compare=compare,
        keep_temperature=functools.partial(
            by_example.keep_temperature,
            normalizer=kept,
            examples=example_count,
            directions=directions,
            dtype=settings.dtype,
        ),
        normalizer=kept,
        terms=terms,
        optimizer=optimizer,
        learning_rate=learning_rate,
        diagnose=settings.diagnostics(settings.dtype, second is not None),
        gradient_snr=settings.gradient_snr(),
        online_views=compared.online,
        target_views=compared.target,
        directions=directions,
        view=made.view,
        encoded=made.encoded(seen, 0 if keys_from.shared else keyed),
        embedding_width=width,
        probe_weight=float(settings.probe.weight) if classes and not several_labels else 0.0,
        parameter_dtype="float64" if settings.dtype == "float64" else "float32",
    )
