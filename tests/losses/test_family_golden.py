"""Losses and rules since 2021 against the numbers of their authors' code, by the public functions, in float64.

``tests/golden/README.md`` names the sources, how each was called, and where code and paper differ.
"""

import functools

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_losses import cases, unit
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from suite import one_program, sampled

from contrastive_jax import contrastive_loss, losses, matryoshka_loss, ntxent, sincere, soft_target_loss
from contrastive_jax.contrast import by_example, candidates, margin, normalizer, transform
from contrastive_jax.contrast import temperature as rules
from contrastive_jax.contrast.comparison import Compare, cosine
from contrastive_jax.contrast.guide import Guide
from contrastive_jax.contrast.negatives import all as every
from contrastive_jax.contrast.scores import Transform
from contrastive_jax.contrast.terms import make_term

contrastive_loss, ntxent, sincere, soft_target_loss, matryoshka_loss = map(
    one_program, (contrastive_loss, ntxent, sincere, soft_target_loss, matryoshka_loss)
)

ENGINES = ("dense", pytest.param("tiled", marks=pytest.mark.run))
# Tests compile many small programs once: what XLA would do to make them fast is not worth its time.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def golden(file, such=lambda case: True, first=lambda case: True, by_default=1, **wanted):
    """Parametrize over a file's cases whose settings are as wanted: a few by default, the others with ``-m run``.

    ``first``: what is asked of the first of the few.
    """
    found = [case for case in cases(file) if such(case) and all(case.get(k) == v for k, v in wanted.items())]
    found.sort(key=lambda case: not first(case))
    assert found and first(found[0]), (file, wanted)
    return pytest.mark.parametrize("case", sampled(golden_cases.marked(file, found), by_default))


def assert_is_theirs(case, loss, *inputs, value="loss", gradients=("g1", "g2"), tolerance=1e-10):
    """Value and gradients of a scalar function of embeddings are a case's; an input is a field or an array."""
    inputs = [jnp.asarray(case(x) if isinstance(x, str) else x) for x in inputs or ("z1", "z2")]
    wanted = tuple(range(len(gradients)))
    found, slopes = jit(jax.value_and_grad(loss, wanted))(*inputs)
    if value:
        np.testing.assert_allclose(found, case(value), rtol=tolerance, atol=1e-12)
    for slope, name in zip(slopes, gradients, strict=True):
        assert_norm_close(slope, case(name), tolerance, name)


def assert_norm_close(found, expected, tolerance=1e-10, name=""):
    error = np.linalg.norm(found - expected)
    assert error <= tolerance * np.linalg.norm(expected) + 1e-13, (name, error)


def one_way(a, b, loss, temperature, queue, group=None, queue_group=None, **options):
    """``a`` queries ``b`` beside negatives of its own choice."""
    return contrastive_loss(
        *(a, b, loss, temperature),
        **dict(candidates="queue", directions="one_way", queue=queue, group=group, queue_group=queue_group),
        **options,
    )


def one_direction(a, b, **options):
    return contrastive_loss(a, b, "info_nce", directions="one_way", **options)


def own_view(a, b, loss, temperature, **options):
    """``a`` queries ``b`` with the other rows of ``a`` as negatives."""
    return contrastive_loss(a, b, loss, temperature, candidates="own_view", directions="one_way", **options)


# ------------------------------------------------------------------------------- functions of the contrast


@golden("family_sincere", classes="own")
@pytest.mark.parametrize("engine", ENGINES)
def test_sincere_of_two_views_is_info_nce(case, engine):
    assert_is_theirs(
        case, lambda a, b: contrastive_loss(a, b, "info_nce", case["temperature"], engine=engine).mean()
    )


@golden("family_sincere", lambda case: "classes" in case, lambda case: case["classes"] == "unbalanced")
@pytest.mark.parametrize("engine", ENGINES)
def test_sincere_averages_the_positives_of_an_anchor_first(case, engine):
    """Of classes of one size that is the mean over all pairs, NT-Xent of labels; else it is not."""
    tau, ids = case["temperature"], jnp.tile(case("labels"), 2)
    assert_is_theirs(case, lambda a, b: sincere(jnp.concatenate([a, b]), ids, tau, engine=engine))
    pairs = ntxent(jnp.concatenate([case("z1"), case("z2")]), ids, tau, engine=engine)
    same = abs(pairs / case("loss") - 1) < 1e-12
    assert same == (case["classes"] != "unbalanced")


@golden("family_sincere", lambda case: "epsilon" in case)
@pytest.mark.parametrize("engine", ENGINES)
def test_eps_sup_info_nce_is_eqco_less_a_constant(case, engine):
    alpha = (2 * case["N"] - 2) * np.exp(case["epsilon"])

    def loss(a, b):
        values = contrastive_loss(a, b, "eqco", case["temperature"], alpha=alpha, engine=engine)
        return values.mean() - case["epsilon"]

    assert_is_theirs(case, loss)


@golden("family_sincere", lambda case: "views" in case)
@pytest.mark.parametrize("engine", ENGINES)
def test_sincere_of_several_views_is_ntxent(case, engine):
    """And the mean over ordered pairs of views, each with a denominator of its own."""
    tau = case["temperature"]
    assert_is_theirs(
        case, lambda z: contrastive_loss(z, z, "info_nce", tau, engine=engine).mean(), "z", gradients=("g1",)
    )
    ids = jnp.repeat(jnp.arange(case["N"]), case["views"])

    def loss(z):
        return ntxent(z.reshape(-1, case["D"]), ids, case["temperature"], engine=engine)

    assert_is_theirs(case, loss, "z", gradients=("g1",))


@golden("family_solo_learn", first=lambda case: case["views"] == 4, form="simclr")
@pytest.mark.parametrize("engine", ENGINES)
def test_solo_learn_adds_several_positives_inside_the_logarithm(case, engine):
    """Half of the views beside the other half, all of one example positives; their sum is not divided by its number.

    All views as one array give the same.
    """
    half = case["views"] // 2
    options = dict(summation="in", engine=engine)

    def halves(z):
        a, b = z[:half].reshape(-1, case["D"]), z[half:].reshape(-1, case["D"])
        ids = jnp.tile(jnp.arange(case["N"]), half)
        return contrastive_loss(a, b, "info_nce", case["temperature"], positives=ids, **options)

    def whole(z):
        z, ids = jnp.moveaxis(z, 0, 1), jnp.arange(case["N"])
        return contrastive_loss(z, z, "info_nce", case["temperature"], positives=ids, **options)

    for values in (halves, whole):
        assert_is_theirs(
            case, lambda z, of=values: of(z).mean() - jnp.log(case["views"] - 1.0), "z", gradients=("g1",)
        )


@golden("family_solo_learn", form="mocov3")
@pytest.mark.parametrize("engine", ENGINES)
def test_moco_v3_is_2_tau_times_info_nce(case, engine):
    tau, options = case["temperature"], dict(candidates="other_view", directions="one_way", engine=engine)
    assert_is_theirs(
        case, lambda a, b: 2 * tau * contrastive_loss(a, stop_gradient(b), "info_nce", tau, **options).mean()
    )


@golden("family_solo_learn", form="nnclr")
@pytest.mark.parametrize("engine", ENGINES)
def test_nnclr_is_info_nce_of_neighbours(case, engine):
    options = dict(candidates="other_view", directions="one_way", engine=engine)
    assert_is_theirs(
        case, lambda a, b: contrastive_loss(a, b, "info_nce", case["temperature"], **options).mean()
    )


@golden("family_rince", form="simclr")
@pytest.mark.parametrize("engine", ENGINES)
def test_rince_on_simclr(case, engine):
    options = {"q": case["q"], "lam": case["lam"], "engine": engine}
    assert_is_theirs(
        case, lambda a, b: contrastive_loss(a, b, "rince", case["temperature"], **options).mean()
    )


@golden("family_rince", form="moco")
@pytest.mark.parametrize("engine", ENGINES)
def test_rince_on_moco_v3_is_one_way_and_2_tau_times_it(case, engine):
    options = {"q": case["q"], "lam": case["lam"], "engine": engine}
    options |= {"candidates": "other_view", "directions": "one_way"}
    tau = case["temperature"]
    assert_is_theirs(
        case, lambda a, b: 2 * tau * contrastive_loss(a, stop_gradient(b), "rince", tau, **options).mean()
    )


@golden("family_ifm")
@pytest.mark.parametrize("engine", ENGINES)
def test_ifms_second_term_is_eqco(case, engine):
    tau, share = case["temperature"], 1 / (1 + case["alpha"])
    alpha = case["K"] * np.exp(2 * case["epsilon"] / tau)

    def term(name, **options):
        return lambda a, b: one_way(
            *(a, stop_gradient(b), name, tau, jnp.asarray(case("queue"))), engine=engine, **options
        ).mean()

    original, second = term("info_nce"), term("eqco", alpha=alpha)
    if share == 0.5:
        assert_is_theirs(case, term("ifm", epsilon=case["epsilon"]))
    assert_is_theirs(case, lambda a, b: share * original(a, b) + (1 - share) * second(a, b))
    np.testing.assert_allclose(original(case("z1"), case("z2")), case("original"), rtol=1e-12)
    np.testing.assert_allclose(second(case("z1"), case("z2")), case("adversarial"), rtol=1e-12)


# --------------------------------------------------------------------------------------- transforms of scores


def of_row(logit):
    """A loss of one query's scores [1 + K] over tau, the positive first; -inf for no negative."""

    def loss(cross):
        permitted = cross[..., 1:] > -jnp.inf
        negative = jnp.where(permitted, cross[..., 1:], 0.0)
        return logit(cross[..., 0], negative, permitted)

    return loss


def masked_logsumexp(x, permitted):
    return logsumexp(jnp.where(permitted, x, -jnp.inf), axis=-1)


@golden("family_adnce")
@pytest.mark.parametrize("engine", ENGINES)
def test_adnce_weighs_negatives_by_a_gaussian_of_the_score(case, engine):
    tau, rule = case["temperature"], transform.adnce(mu=case["mu"], sigma=case["sigma"])
    assert_is_theirs(
        case, lambda a, b: contrastive_loss(a, b, "info_nce", tau, transform=rule, engine=engine).mean()
    )
    if case["sigma"] == 1e4:
        plain = contrastive_loss(case("z1"), case("z2"), "info_nce", tau).mean()
        np.testing.assert_allclose(plain, case("loss"), rtol=1e-7)


@golden("family_alpha_cl")
def test_alpha_cl_with_exponent_1_is_tau_times_dcl(case):
    """Weights of the distance 1 - s, held; the gradient of exponential ones with exponent 1 is DCL's."""
    tau, exponent, exponential = case["temperature"], case["exponent"], case["alpha_type"] == "exp"

    def alpha_cl(positive, x, permitted):
        distance = (1 - tau * x) ** exponent
        cost = -distance / tau if exponential else -2 * jnp.log(distance + tau)
        share = jax.nn.softmax(jnp.where(permitted, cost, -jnp.inf), axis=-1)
        return jnp.sum(stop_gradient(share) * tau * (x - positive[..., None]), axis=-1)

    loss = of_row(alpha_cl)
    assert_is_theirs(case, lambda a, b: contrastive_loss(a, b, loss, tau).mean())
    if exponential and exponent == 1:
        assert_is_theirs(case, lambda a, b: tau * contrastive_loss(a, b, "dcl", tau).mean(), value=None)
        for engine in ("dense", "tiled"):
            assert_is_theirs(
                case, lambda a, b, e=engine: tau * contrastive_loss(a, b, "alpha_cl", tau, engine=e).mean()
            )


@golden("family_label_smoothing")
@pytest.mark.parametrize("engine", ENGINES)
def test_label_smoothing_is_torchs(case, engine):
    options = dict(smoothing=case["smoothing"], engine=engine)
    assert_is_theirs(
        case, lambda a, b: contrastive_loss(a, b, "label_smoothing", case["temperature"], **options).mean()
    )


@golden("family_imix")
@pytest.mark.parametrize("engine", ENGINES)
def test_imix_has_two_positives(case, engine):
    """Its MoCo has the keys of the batch and of the queue as candidates; a symmetric loss adds the two directions."""
    partner, share = case("partner"), case("share")
    places = jnp.stack(
        [jnp.broadcast_to(jnp.arange(case["N"]), partner.shape), jnp.asarray(partner)], axis=-1
    )
    shares = jnp.stack([share, 1 - share], axis=-1)
    moco = case["method"] == "mocon"
    queue = jnp.asarray(case("queue")) if moco else None

    def loss(a, b):
        one = lambda i, a, b: soft_target_loss(  # noqa: E731
            *(a, b, (places[i], shares[i]), case["temperature"]), queue=queue, engine=engine
        ).mean()
        first = one(0, a, stop_gradient(b) if moco else b)
        return first + one(1, b, a) if case["sym"] else first

    assert_is_theirs(case, loss)


@golden("family_soft_targets")
@pytest.mark.parametrize("engine", ENGINES)
def test_soft_targets_are_torchs(case, engine):
    def loss(a, b, targets):
        options = dict(candidates=case["candidates"], engine=engine)
        return soft_target_loss(a, b, targets, case["temperature"], **options).mean()

    assert_is_theirs(case, loss, "z1", "z2", "targets", gradients=("g1", "g2", "gt"))


@golden("family_dystress")
@pytest.mark.parametrize("engine", ENGINES)
def test_dystress_divides_a_score_by_a_temperature_of_its_own(case, engine):
    rule = transform.dystress(min_tau=case["tmin"], max_tau=case["tmax"])
    assert_is_theirs(
        case, lambda a, b: contrastive_loss(a, b, "info_nce", 1.0, transform=rule, engine=engine).mean()
    )


@golden("family_sentence_transformers", form="gist", own_guide=True)
@pytest.mark.parametrize("engine", ENGINES)
def test_gist_guided_by_the_model_itself_is_a_margin_mask(case, engine):
    options = dict(
        directions="one_way", candidates="both_views" if case["contrast_anchors"] else "other_view"
    )
    options |= dict(transform=transform.margin_mask(margin=-case["margin"]), engine=engine)
    assert_is_theirs(
        case, lambda a, b: contrastive_loss(a, b, "info_nce", case["temperature"], **options).mean()
    )


@golden("family_sentence_transformers", form="gist")
@pytest.mark.parametrize("engine", ENGINES)
def test_gists_guide_takes_negatives_out(case, engine):
    """By default their row of an anchor also has its positive's scores with the other positives."""
    guides = jnp.asarray(case("guide1")), jnp.asarray(case("guide2"))
    options = dict(margin=-case["margin"], relative=case["strategy"] == "relative")
    info_nce = functools.partial(one_direction, temperature=case["temperature"], engine=engine)
    candidates = "both_views" if case["contrast_anchors"] else "other_view"

    def loss(a, b):
        anchors = info_nce(a, b, candidates=candidates, guide=Guide(*guides, **options))
        if not case["contrast_positives"]:
            return anchors.mean()
        positives = info_nce(b, a, candidates="own_view", guide=Guide(*guides[::-1], **options))
        return (anchors + jnp.log1p(jnp.exp(positives - anchors) - jnp.exp(-anchors))).mean()

    assert_is_theirs(case, loss)
    plain = info_nce(case("z1"), case("z2"), candidates=candidates).mean()
    assert abs(plain / case("loss") - 1) > 1e-6, "the guide of the case masks something"


@golden("family_sentence_transformers", form="matryoshka")
@pytest.mark.parametrize("engine", ENGINES)
def test_matryoshka_is_a_sum_over_widths(case, engine):
    options = dict(candidates="other_view", directions="one_way", engine=engine)
    options |= {"widths": case["widths"], "weights": case["weights"]}
    assert_is_theirs(
        case, lambda a, b: matryoshka_loss(a, b, "info_nce", case["temperature"], **options).mean()
    )


# --------------------------------------------------------------------------- own-view candidates, and means of g


@golden("family_vrns")
@pytest.mark.parametrize("engine", ENGINES)
def test_vrns_is_a_mean_of_squares(case, engine):
    """Of the row of scores, or by a transform in tiles; examples of one label are no negatives."""
    target = -1 / (case["instances"] - 1)
    options = dict(group=jnp.asarray(case("group")), candidates="other_view", engine=engine)
    squares = Transform(lambda s, positive, tau: (s - target) ** 2, lambda s, tau: 0.0 * s)
    for term in (dict(loss="vrns", target=target), dict(loss="mean_contrast", transform=squares)):
        assert_is_theirs(
            case, lambda a, b, term=term: contrastive_loss(a, b, temperature=0.3, **options, **term).mean()
        )


@golden("family_dhel_kcl", form="dhel")
@pytest.mark.parametrize("engine", ENGINES)
def test_dhel_is_dcl_with_the_own_view_as_candidates(case, engine):
    """With both views in the denominator, the code has the positive once and not twice."""
    tau = case["temperature"]

    def loss(a, b):
        total = own_view(a, b, "dcl", tau, engine=engine)
        if case["include_augs"]:
            both = contrastive_loss(a, b, "dcl", tau, candidates="own_view", engine=engine)
            total = both.reshape(2, -1).sum(0) + jnp.sum(unit(a) * unit(b), axis=1) / tau
        return total.mean()

    assert_is_theirs(case, loss)


KERNELS = {  # of the squared distance, for an alignment and for an energy: the code's log halves one of them
    "gaussian": lambda d, t: jnp.exp(-t * d),
    "log": lambda d, t: -jnp.log1p(t * d),
    "imq": lambda d, t: t / jnp.sqrt(t**2 + d),
    "riesz": lambda d, t: jnp.sign(t) * d ** (-t / 2),
}


@golden("family_dhel_kcl", by_default=7, form="kcl")
@pytest.mark.parametrize("engine", ENGINES)
def test_kernel_losses_are_means_of_a_function_of_the_score(case, engine):
    t, gamma, name = case["t"], case["gamma"], case["kernel"]
    align, energy = KERNELS["gaussian" if name == "gaussian_riesz" else name], KERNELS[name.split("_")[-1]]
    align_t = 2.0 if name == "gaussian_riesz" else t
    kernel = Transform(
        lambda score, positive, tau: energy(2 - 2 * score, t),
        lambda score, tau: align(2 - 2 * score, align_t),
    )
    options = dict(candidates="own_view", engine=engine, gamma=gamma / 2 if name == "log" else gamma)
    named = [transform.gaussian_kernel(t=t)] if name == "gaussian" else []
    for rule in (kernel, *named):
        assert_is_theirs(
            case,
            lambda a, b, rule=rule: (
                2 * contrastive_loss(a, b, "mean_contrast", 1.0, transform=rule, **options).mean()
            ),
        )


@golden("family_dhel_kcl", kernel="gaussian")
def test_the_gaussian_kernel_is_alignment_and_uniformity(case):
    def loss(a, b):
        z, distance = jnp.stack([a, b], axis=1), jnp.sum((unit(a) - unit(b)) ** 2, axis=1)
        energy = jnp.exp(losses.uniformity(z, t=case["t"])).sum()
        return case["gamma"] * energy - 2 * jnp.exp(-case["t"] * distance).mean()

    assert_is_theirs(case, loss)


@golden("family_spectral")
@pytest.mark.parametrize("engine", ENGINES)
def test_spectral_is_a_mean_of_squared_scores(case, engine):
    mu = case["mu"]

    def shortened(z):
        return z * jnp.minimum(1.0, jnp.sqrt(mu) / jnp.linalg.norm(z, axis=1, keepdims=True))

    options = dict(candidates="other_view", score="dot", transform=transform.spectral(), engine=engine)

    def loss(a, b):
        return contrastive_loss(shortened(a), shortened(b), "mean_contrast", 1.0, **options).mean() / mu

    assert_is_theirs(case, loss)


# ------------------------------------------------------- a number for each example, a temperature for each query


def decay_of(case, step):
    """Share of a batch's own value in u: two epochs of two steps, the first with nothing to average with."""
    schedule = case.get("gamma_schedule", "constant")
    second = {"constant": case["gamma"], "cosine": (1 + case["gamma"]) / 2}[
        schedule
    ]  # half of two epochs' way
    return second if step > 1 else 1.0


class Steps:
    """The comparison, u and temperature of a training step on a case's embeddings, with their states by example."""

    def __init__(self, case, loss, average, rule, source=candidates.both_views, engine="dense"):
        rows, many = case["N"], case["data"]
        normalizer = by_example.keep_normalizer(average, many, 2)
        temperature = by_example.keep_temperature(rule, normalizer, many, 2)
        everything = (cosine, source(rows, 2), every(engine=engine), rule, margin.none(), (1.0, 2.0))
        compare, term = Compare(*everything), make_term(loss, 1.0)
        self.states, group, start = (temperature.init(), normalizer.init()), jnp.arange(rows), jnp.asarray(0)

        @jit
        def step(states, a, b, ids):
            def mean(a, b):
                views, read = jnp.stack([a, b], axis=1), temperature.read(states[0], ids)
                comparison, _ = compare(views, views, group, ((), read), start, jax.random.key(0))
                u, after = normalizer.apply(states[1], ids, comparison, None)
                outcome = temperature.outcome(comparison, u)
                return term.values(comparison, {"u": u}).mean(), (after, outcome)

            slopes, (after, outcome) = jax.jit(jax.grad(mean, (0, 1), has_aux=True))(a, b)
            return slopes, (temperature.update(states[0], ids, start, outcome), after)

        self._step = step

    def __call__(self, *batch):
        """The gradients of the mean over queries; the states of all examples move on."""
        slopes, self.states = self._step(self.states, *map(jnp.asarray, batch))
        return slopes

    def u(self):
        """Averages of all examples, [views, examples]; 0 of those that were not met."""
        return np.exp(self.states[1]["log_u"]).T


@golden("family_libauc", form="sogclr")
@pytest.mark.parametrize("engine", ENGINES)
def test_sogclr_has_a_u_for_each_example(case, engine):
    """Its gradient is 2 tau times the mean of r d logsumexp - ds+ / tau, with r = mean e^(s / tau) / u."""
    rule = rules.fixed(1, tau=case["temperature"])
    steps = Steps(case, "sogclr", normalizer.sogclr(gamma=decay_of(case, 2)), rule, engine=engine)
    for step in range(case["steps"]):
        slopes = steps(*(case(name)[step] for name in ("z1", "z2", "index")))
        np.testing.assert_allclose(steps.u()[0], case("u")[step], rtol=1e-12)
        for slope, name in zip(slopes, ("g1", "g2"), strict=True):
            assert_norm_close(2 * slope, case(name)[step], 1e-10)


@pytest.mark.parametrize(
    "case",
    [
        *sampled(
            golden_cases.marked(
                "family_libauc", [c for c in cases("family_libauc") if c["form"] == "isogclr"]
            ),
            1,
        ),
        *sampled(golden_cases.marked("family_isogclr", cases("family_isogclr")), 1),
    ],
)
def test_isogclr_moves_a_temperature_for_each_example(case):
    """d/dtau_i = log u + rho - r E[s] / tau, E the softmax mean over negatives, r as SogCLR has it."""
    libauc = "form" in case
    rate, weight = (case["eta"], case["beta"]) if libauc else (case["eta_init"], case["beta_u"])
    options = dict(tau=case["temperature"], target=case["rho"], rate=rate, momentum=1 - weight)
    options |= dict(min_tau=case["tau_min"], max_tau=case["tau_max"], clip=0.0 if libauc else 3.0)
    average = normalizer.sogclr(gamma=decay_of(case, 2))
    steps = Steps(case, "sogclr", average, rules.isogclr(1, **options))
    for step in range(case["steps"]):
        slopes = steps(*(case(name)[step] for name in ("z1", "z2", "index")))
        for slope, name in zip(slopes, ("g1", "g2"), strict=True):
            assert_norm_close(2 * slope, case(name)[step], 1e-10)
        state = {name: x[:, 0] for name, x in steps.states[0].items()}
        for ours, name in ((steps.u()[0], "u"), (state["slope"], "grad_tau"), (state["tau"], "tau")):
            np.testing.assert_allclose(ours, case(name)[step], rtol=1e-10, atol=1e-12, err_msg=name)
    assert len(set(state["tau"].tolist())) == case["data"]


@golden("family_fast_clip", version="v1")
@pytest.mark.parametrize("engine", ENGINES)
def test_fast_clip_v1_has_a_u_for_each_image_and_each_text(case, engine):
    """Its gradients are half of those of the directions' means, added."""
    rule, average = rules.fixed(1, tau=case["temperature"]), normalizer.fast_clip(gamma=decay_of(case, 2))
    steps = Steps(case, "fenchel_legendre", average, rule, candidates.other_view, engine)
    for step in range(case["steps"]):
        slopes = steps(*(case(name)[step] for name in ("z1", "z2", "index")))
        for ours, name in zip(steps.u(), ("u1", "u2"), strict=True):
            np.testing.assert_allclose(ours, case(name)[step], rtol=1e-11)
        for slope, name in zip(slopes, ("g1", "g2"), strict=True):
            assert_norm_close(slope, case(name)[step], 1e-8)


@golden("family_fast_clip", lambda case: case["version"] != "v2", lambda case: case["version"] == "v3")
@pytest.mark.parametrize("engine", ENGINES)
def test_fast_clip_is_fenchel_legendre_at_a_u_for_each_example(case, engine):
    """u is of e^((s - s+) / tau), so that e^(c - log K - u) dc is the gradient; v3 moves one tau by the same u."""
    tau, rho, n = case["temperature"], case["rho"], case["N"]
    options = dict(candidates="other_view", engine=engine)
    u = np.zeros((2, case["data"]))

    @jit
    def now(a, b):
        """u of a query: the mean of e^((s - s+) / tau)."""
        values = contrastive_loss(a, b, lambda c, count: c - jnp.log(count.astype(c.dtype)), tau, **options)
        return jnp.exp(values).reshape(2, -1)

    @jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2))
    def theirs(a, b, scale, log_u):
        """The directions' means of r, added: fenchel_legendre is log u + r - 1."""
        loss = lambda c, count: losses.fenchel_legendre(c, count, log_u.T) - log_u.T + 1  # noqa: E731
        values = contrastive_loss(a, b, loss, 1 / scale, differentiate_temperature=True, **options)
        return 2 * values.mean()

    for step in range(case["steps"]):
        z1, z2, index = case("z1")[step], case("z2")[step], case("index")[step]
        decay = decay_of(case, step)
        queries = (1 - decay) * u[:, index] + decay * now(z1, z2)
        u[:, index] = queries
        for ours, name in zip(u, ("u1", "u2"), strict=True):
            np.testing.assert_allclose(ours, case(name)[step], rtol=1e-11)
        log_u = jnp.log(queries)
        value, (g1, g2, by_scale) = theirs(z1, z2, 1 / tau, log_u)
        g1, g2 = g1 / 2, g2 / 2  # the code halves queries and keys; 1 / tau is in both halves
        if case["version"] == "v3":  # tau (r + rho + log u), the directions' mean of log u
            rest = rho + log_u.sum() / (2 * n)
            if step == 0:  # u is the batch's own: the code's slope is not rho - KL
                logit = by_scale / (2 * tau)  # mean of E[s - s+] / tau
                kl = logit - log_u.mean()
                np.testing.assert_allclose(-case("gscale")[0] / tau**2, rho - kl - logit, rtol=1e-8)
            g1, g2 = tau * g1, tau * g2
            value, by_scale = tau * (value + rest), tau * by_scale - tau**2 * rest
        np.testing.assert_allclose(value, case("loss")[step], rtol=1e-8)  # their 1e-14 beside a u of 1e-6
        for found, name in ((g1, "g1"), (g2, "g2"), (by_scale, "gscale")):
            assert_norm_close(found, case(name)[step], 1e-8, name)


@golden("family_fast_clip", version="v2")
def test_fast_clip_v2_moves_a_temperature_for_each_image_and_each_text(case):
    """As iSogCLR with u of e^((s - s+) / tau), and Adam in the place of momentum; u is kept over e^bound."""
    options = dict(rate=case["lr_tau"], beta1=case["beta1"], beta2=case["beta2"], target=case["rho"])
    options |= dict(tau=case["temperature"], min_tau=case["tau_min"], max_tau=case["tau_max"])
    average = normalizer.fast_clip(gamma=decay_of(case, 2))
    steps = Steps(case, "fenchel_legendre", average, rules.fast_clip_v2(1, **options), candidates.other_view)
    for step in range(case["steps"]):
        slopes = steps(*(case(name)[step] for name in ("z1", "z2", "index")))
        for slope, name in zip(slopes, ("g1", "g2"), strict=True):
            assert_norm_close(slope, case(name)[step], 1e-9, name)
        for view in (1, 2):
            kept = case(f"u{view}")[step] * np.exp(case(f"bound{view}")[step])
            np.testing.assert_allclose(steps.u()[view - 1], kept, rtol=1e-9)
            tau = steps.states[0]["tau"][:, view - 1]
            np.testing.assert_allclose(tau, case(f"tau{view}")[step], rtol=1e-9)
    assert len(set(tau.tolist())) == case["data"]


@golden("family_tempnet")
def test_tempnets_objective_is_dcl_at_a_temperature_for_each_query(case):
    """Its networks move tau along rho - KL(p || uniform), the slope of tau (log mean e^((s - s+) / tau) + rho)."""
    rho, taus = case["rho"], jnp.stack([jnp.asarray(case(f"tau_{side}")) for side in ("image", "text")])

    def sides(a, b, taus, loss, **more):
        options = dict(candidates="other_view", differentiate_temperature=True) | more
        return contrastive_loss(a, b, loss, taus.reshape(-1), **options).reshape(taus.shape)

    def printed(cross):
        """The softmax mean of s - s+ over the negatives, in units of tau."""
        share = jax.nn.softmax(cross[..., 1:], axis=-1)
        return jnp.sum(jnp.where(share > 0, share * (cross[..., 1:] - cross[..., :1]), 0.0), axis=-1)

    def total(a, b):
        value, shown = ((taus * sides(a, b, taus, loss)).mean(1).sum() for loss in ("dcl", printed))
        return losses.value_with_gradient_of(shown, value)

    assert_is_theirs(case, total)
    slopes = jax.jit(jax.grad(lambda taus: sides(case("z1"), case("z2"), taus, "robust", rho=rho).sum()))(
        taus
    )
    np.testing.assert_allclose((taus * slopes).mean(1).sum(), case("temperature_loss"), rtol=1e-9)


@golden("family_temperature_schedules")
def test_the_temperature_schedule_is_periodic(case):
    """Their t_max is half a period, one value an epoch; the first half is the cosine rule."""
    half, epochs = case["t_max"], len(case("tau"))
    rule = rules.periodic(epochs, tau=case["tau_max"], end=case["tau_min"], periods=epochs / (2 * half))
    first = rules.cosine(half, tau=case["tau_max"], end=case["tau_min"])
    for expected, found, many in ((case("tau"), rule, epochs), (case("tau")[: half + 1], first, half + 1)):
        steps = jnp.arange(many, dtype=jnp.float64)
        np.testing.assert_allclose(found.value((), steps, jnp.zeros(())), expected, rtol=1e-12)
