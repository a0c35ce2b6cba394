"""Every loss against the numbers of published code: values and gradients, in float64 and float32."""

import functools

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_losses import (
    assert_gradient,
    assert_value,
    both_views,
    cases,
    contrast,
    evaluate,
    other_view,
    unit,
)
from suite import sampled

from contrastive_jax import losses


def contrast_tolerance(case, precision):
    """A contrast may be near 0 while its rounding is that of s / tau."""
    return {"atol": 1e-6 / case.get("temperature", case.get("tau"))} if precision == "float32" else {}


def in_both_precisions(file):
    """Three cases in float64 and one in float32; the others with ``-m run``."""
    found = golden_cases.marked(file, cases(file))

    def of(precision):
        return [pytest.param(*c.values, precision, id=f"{c.id}-{precision}", marks=c.marks) for c in found]

    return sampled(of("float64"), 3) + sampled(of("float32"), 1)


def golden(file):
    def decorate(test):
        @pytest.mark.parametrize(("case", "precision"), in_both_precisions(file))
        @functools.wraps(test)
        def run(case, precision):
            with jax.enable_x64(precision == "float64"):
                test(case, precision)

        return run

    return decorate


def arrays(case, precision, *fields):
    return [jnp.asarray(case(field), precision) for field in fields]


@golden("ntxent_simclr_tf2")
def test_simclr(case, precision):
    def terms(z):
        c, _, _ = both_views(z, case["temperature"], normalize=case["hidden_norm"])
        a, b = jnp.split(losses.info_nce(c), 2)
        return {"a": a, "b": b, "loss": jnp.mean(a + b)}

    ours = evaluate(terms, *arrays(case, precision, "z"))
    assert_value(ours["loss"][0], case("loss"), precision)
    assert_value(ours["loss"][0] / 2, case("loss_mean_2N"), precision)
    assert_value(ours["a"][0], case("loss_a"), precision)
    assert_value(ours["b"][0], case("loss_b"), precision)
    assert_gradient(ours["loss"][1][0], case("grad"), precision)


@golden("flatnce_flatclr")
def test_flatclr(case, precision):
    def terms(z):
        c, _, _ = both_views(z, case["temperature"])
        names = ("info_nce", "flat_nce", "flat_nce_plus", "dcl", "macl")
        out = {name: jnp.mean(getattr(losses, name)(c)) for name in names}
        return out | {"rows": losses.info_nce(c), "c": c}

    ours = evaluate(terms, *arrays(case, precision, "z"))
    assert_value(ours["info_nce"][0], case("flat_loss"), precision)  # printed is InfoNCE's value
    assert_value(ours["info_nce"][0], case("nce_loss"), precision)
    assert_value(ours["rows"][0], case("nce_per_sample"), precision, **contrast_tolerance(case, precision))
    assert_value(ours["c"][0], case("clogit_lse"), precision, **contrast_tolerance(case, precision))
    assert ours["flat_nce"][0] == ours["flat_nce_plus"][0] == 1
    for name in ("flat_nce", "dcl", "macl"):
        assert_gradient(ours[name][1][0], case("flat_grad"), precision)
    # Where it is saturated, the original's InfoNCE gradient is rounding noise: its error is then that of c.
    norm = np.linalg.norm(case("flat_grad")) if case["note"].startswith("saturated") else None
    for name in ("info_nce", "flat_nce_plus"):
        assert_gradient(ours[name][1][0], case("nce_grad"), precision, norm=norm)


@golden("flatnce_formula_extras")
def test_flatnce_extras(case, precision):
    n = case["n"]
    off_diagonal = ~np.eye(n, dtype=bool)
    gammas = (0.5, 1.0, 2.0, 5.0)

    def terms(g, u):
        c, c_gamma = contrast(g, jnp.diagonal(g), off_diagonal, 1.0), {}
        for gamma in gammas:
            (scale,) = losses.hoelder_flat_nce.declared.multiples(gamma=gamma)
            c_gamma[gamma] = contrast(g, jnp.diagonal(g), off_diagonal, 1.0, scale)
        out = {f"hoelder_{k}": jnp.sum(losses.hoelder_flat_nce(v, gamma=k)) for k, v in c_gamma.items()}
        out |= {f"logmean_{k}": (v - np.log(n - 1)) / k for k, v in c_gamma.items()}
        count = jnp.full(n, n - 1)
        return out | {
            "flat_plus": jnp.sum(losses.flat_nce_plus(c)),
            "bound": -losses.fenchel_legendre(c, count, u),
            "estimate": losses.flat_nce_estimate(c, count),
        }

    ours = evaluate(terms, *arrays(case, precision, "g", "u"))
    for gamma in gammas:
        assert_value(ours[f"hoelder_{gamma}"][0], n, precision)
        assert_gradient(ours[f"hoelder_{gamma}"][1][0], case(f"hoelder_{gamma}.grad_sum"), precision)
        assert_value(ours[f"logmean_{gamma}"][0], case(f"hoelder_{gamma}.logmean"), precision)
    assert_gradient(ours["flat_plus"][1][0], case("flat_plus.grad_sum"), precision)
    assert_value(-ours["estimate"][0], case("log_mean_contrast"), precision)
    assert_value(ours["bound"][0], case("fl_bound_per_row"), precision)


@golden("flatnce_flo_official_snippet")
def test_flo_snippet(case, precision):
    n1, n2 = case["n1"], case["n2"]

    def terms(x1, x2, u):
        score = case["inv_temp"] * (unit(x1) @ unit(x2).T)
        positive, negative, count = losses.row_statistics(score)
        c = contrast(score, positive, ~np.eye(n1, n2, dtype=bool), 1.0)
        flo = losses.fenchel_legendre(c, count, u[:, 0])
        return {
            "flat": jnp.mean(losses.flat_nce(c)),
            "flo": jnp.mean(flo),
            "mi": jnp.mean(losses.info_nce_estimate(negative - positive, count)),
            "rows": flo,
        }

    ours = evaluate(terms, *arrays(case, precision, "x1", "x2", "u"))
    assert_value(ours["flat"][0] - 1, case("flat_loss"), precision)  # the snippet subtracts the constant
    assert_value(ours["mi"][0], case("mi"), precision)
    assert_value(ours["flo"][0], case("flo_loss"), precision)
    assert_value(ours["rows"][0], case("flo_loss_vec"), precision)
    for name, prefix in (("flat", ""), ("flo", "flo_")):
        for i, field in enumerate(("g1", "g2")):
            assert_gradient(ours[name][1][i], case(prefix + field), precision)
    assert_gradient(ours["flo"][1][2], case("flo_gu"), precision)


@golden("eqco_simo")
def test_eqco_simo(case, precision):
    index, alpha, count = case("neg_index"), case["alpha"], jnp.full(case["N"], case["K"])

    def terms(q, k):
        u, v = unit(q), unit(k)
        positive = jnp.sum(u * v, axis=1)
        score = jnp.einsum("nd,nkd->nk", u, v[index])
        c = contrast(score, positive, np.ones(index.shape, bool), case["temperature"])
        rows = losses.eqco(c, count, alpha=alpha)
        return {
            "eqco": jnp.mean(rows),
            "published": jnp.mean(losses.info_nce(c)),  # the factor alpha / K is commented out there
            "bound": jnp.mean(losses.eqco_estimate(c, count, alpha=alpha)),
            "rows": rows,
        }

    ours = evaluate(terms, *arrays(case, precision, "q", "k"))
    assert_value(ours["rows"][0], case("per_sample_eq1"), precision)
    assert_value(ours["bound"][0], case("mi_bound_eq4_empirical"), precision)
    for name, prefix in (("eqco", "alpha_over_k_"), ("published", "published_")):
        assert_value(ours[name][0], case(prefix + "loss"), precision)
        for i, field in enumerate(("g1", "g2")):
            assert_gradient(ours[name][1][i], case(prefix + field), precision)


@golden("eqco_bank_formula")
def test_eqco_bank(case, precision):
    alpha, count = case["alpha"], jnp.full(case["N"], case["K"])

    def terms(q, k0, bank):
        u, positive_key, key = unit(q), unit(k0), unit(bank)
        positive = jnp.sum(u * positive_key, axis=1)
        c = contrast(u @ key.T, positive, np.ones((case["N"], case["K"]), bool), case["temperature"])
        rows = losses.eqco(c, count, alpha=alpha)
        return {
            "sum": jnp.sum(rows),
            "bound": jnp.mean(losses.eqco_estimate(c, count, alpha=alpha)),
            "rows": rows,
        }

    ours = evaluate(terms, *arrays(case, precision, "q", "k0", "bank"))
    assert_value(ours["rows"][0], case("per_sample"), precision)
    assert_value(ours["sum"][0] / case["N"], case("loss"), precision)
    assert_value(ours["bound"][0], case("mi_bound_eq4"), precision)
    assert_gradient(ours["sum"][1][0], case("g_q_sum"), precision)
    assert_gradient(ours["sum"][1][1], case("g_k0_sum"), precision)


@golden("dcl")
def test_dcl(case, precision):
    n, tau = case["N"], case["temperature"]

    def terms(z1, z2):
        c, positive, _ = both_views(jnp.concatenate([z1, z2]), tau)
        c, positive = c.reshape(2, n).T, positive.reshape(2, n).T  # [B, V]
        rows = losses.dcl(c).T.ravel()
        return {
            "dcl": jnp.mean(rows),
            "dclw": jnp.mean(losses.dclw(c, positive, tau, sigma=0.5, detach=False)),
            "dclw_detached": jnp.mean(losses.dclw(c, positive, tau, sigma=0.5)),
            "rows": rows,
        }

    ours = evaluate(terms, *arrays(case, precision, "z1", "z2"))
    assert_value(ours["rows"][0], case("exact_per_sample"), precision, **contrast_tolerance(case, precision))
    assert_value(ours["dcl"][0], case("exact_mean_2N"), precision)
    if case["mask_leak_abs"] > 1e-6:
        return  # the original counts masked scores there, and only the values are given exactly
    for name, field, factor in (
        ("dcl", "dcl", 2),  # sums the two directions
        ("dcl", "lightly_dcl", 1),
        ("dclw", "dclw0.5", 2),
        ("dclw_detached", "lightly_dclw0.5", 1),
    ):
        assert_value(factor * ours[name][0], case(f"{field}.loss"), precision)
        for i in range(2):
            assert_gradient(factor * ours[name][1][i], case(f"{field}.g{i + 1}"), precision)


@golden("macl")
def test_macl(case, precision):
    def terms(z1, z2):
        out = {}
        for form in ("a", "b", "icml"):
            c, _ = other_view(z1, z2, float(case(f"tau_{form}")))
            rows = losses.macl(c)
            out |= {form: jnp.mean(rows), f"{form}_rows": rows}
        c, _, _ = both_views(jnp.concatenate([z1, z2]), float(case("tau_icml")))
        return out | {"lightly": jnp.mean(losses.macl(c))}

    ours = evaluate(terms, *arrays(case, precision, "z1", "z2"))
    for form in ("a", "b"):
        assert_value(ours[f"{form}_rows"][0], case(f"eq14_{form}_per_sample"), precision)
        for i in range(2):
            assert_gradient(ours[form][1][i], case(f"eq14_{form}_g{i + 1}"), precision)
    # lightly adds 1e-8 to what it divides by.
    loose = 1e-5 if precision == "float64" else 1e-4
    assert_value(ours["lightly"][0], case("lightly.loss"), precision, rtol=loose)
    for i in range(2):
        assert_gradient(ours["lightly"][1][i], case(f"lightly.g{i + 1}"), precision, tolerance=loose)
    for name, field in (("a", "macl_a"), ("b", "macl_b"), ("icml", "icml")):  # none of these is unstable
        assert_value(ours[name][0], case(f"{field}.loss"), precision)
        for i in range(2):
            assert_gradient(ours[name][1][i], case(f"{field}.g{i + 1}"), precision)


@golden("dual_temperature")
def test_dual_temperature(case, precision):
    tau, factor = case["temperature"], case["dt_m"]

    def direction(z1, z2):
        c, c_beta = (
            other_view(z1, z2, tau, scale)[0]
            for scale in losses.dual_temperature.declared.multiples(factor=factor)
        )
        return losses.dual_temperature(c, c_beta, factor=factor)

    def terms(z1, z2):
        rows = direction(z1, z2)
        return {
            "one_way": jnp.mean(rows),
            "both": (jnp.mean(rows) + jnp.mean(direction(z2, z1))) / 2,
            "rows": rows,
        }

    ours = evaluate(terms, *arrays(case, precision, "z1", "z2"))
    assert_value(ours["rows"][0], case("exact_per_sample_one_way"), precision)
    for i in range(2):
        assert_gradient(ours["one_way"][1][i], case(f"exact_g{i + 1}_one_way"), precision)
    for name, field in (("one_way", "one_way"), ("both", "sym")):
        assert_value(ours[name][0], case(f"{field}.loss"), precision)
        for i in range(2):
            assert_gradient(ours[name][1][i], case(f"{field}.g{i + 1}"), precision)


@golden("generalized_contrastive_loss")
def test_generalized_contrastive_loss(case, precision):
    normalise, scale = case["hidden_norm"], case["loss_scaling"]

    def terms(z1, z2, *prior_and_directions):
        z = jnp.stack([z1, z2], axis=1)
        align = losses.alignment(z, normalize=normalise, mean_over_width=True, scale=0.5)
        if case["dist"] == "logsumexp":
            distance = losses.logsumexp_distribution(z, z, case["temperature"], normalize=normalise)
        else:
            prior, directions = prior_and_directions
            sample = z.reshape(-1, z.shape[-1])
            sample, prior = (unit(sample), unit(prior)) if normalise else (sample, prior)
            distance = losses.sliced_wasserstein_distance(sample, prior, directions)
        align, distance = jnp.mean(align), jnp.mean(distance)
        return {"align": align, "dist": distance, "loss": scale * (align + case["lambda_weight"] * distance)}

    fields = ("z1", "z2") if case["dist"] == "logsumexp" else ("z1", "z2", "prior", "rand_w")
    ours = evaluate(terms, *arrays(case, precision, *fields))
    for name, field in (("align", "loss_align"), ("dist", "loss_dist"), ("loss", "loss")):
        assert_value(ours[name][0], case(field), precision)
    for i in range(2):
        assert_gradient(ours["loss"][1][i], case(f"g{i + 1}"), precision)


@golden("align_uniform")
def test_align_uniform(case, precision):
    def terms(z1, z2):
        z = jnp.stack([z1, z2], axis=1)
        out = {f"align_a{a}": jnp.mean(losses.alignment(z, power=a)) for a in (1, 2)}
        for t in (1, 2, 3):
            out[f"uniform_t{t}"], out[f"uniform_t{t}_view2"] = losses.uniformity(z, t=t)
        return out

    ours = evaluate(terms, *arrays(case, precision, "z1", "z2"))
    for name, (value, gradient) in ours.items():
        assert_value(value, case(name), precision)
        if not name.endswith("view2"):
            assert_gradient(gradient[0], case(name + "_g1"), precision)
        if name.startswith("align"):
            assert_gradient(gradient[1], case(name + "_g2"), precision)


@golden("relic_formula")
def test_relic(case, precision):
    tau, alpha, index = case["tau"], case["alpha"], case("neg_index")
    variants = {
        f"{candidates}.{pairs}{stop}": dict(
            positive="included" if candidates == "posneg" else "excluded",
            same_view=pairs == "all4",
            stop_gradient_same=stop == ".sg",
        )
        for candidates in ("posneg", "negonly")
        for pairs in ("cross", "all4")
        for stop in ("", ".sg")
        if (candidates == "posneg" or not stop) and (precision == "float64" or pairs == "cross")
    }

    def terms(z_s, z_t):
        z = jnp.stack([z_s, z_t], axis=1)
        out = {
            name: jnp.mean(losses.relic(z, z, tau, index, alpha=alpha, **options))
            for name, options in variants.items()
        }
        if index.shape[1] == len(z) - 1:
            out["all_others"] = jnp.mean(losses.relic(z, z, tau, alpha=alpha))
        # An unofficial penalty: rows of the cross-view matrix against its columns.
        score = unit(z_s) @ unit(z_t).T / tau
        out["invariance"] = jnp.mean(losses.relic_kl(score.T, score))
        out["thirdparty"] = (
            jnp.mean(jax.nn.logsumexp(score, axis=1) - jnp.diagonal(score)) + alpha * out["invariance"]
        )
        out["kl_st"] = losses.relic_kl(*rows(z_s, z_t))
        return out

    def rows(v, w):
        v, w = unit(v), unit(w)
        candidates = np.concatenate([np.arange(len(index))[:, None], index], axis=1)
        return [jnp.einsum("nd,nkd->nk", query, w[candidates]) / tau for query in (v, w)]

    ours = evaluate(terms, *arrays(case, precision, "z_s", "z_t"))
    for name in variants:
        # A stopped gradient leaves the value.
        assert_value(ours[name][0], case(f"{name.removesuffix('.sg')}.loss"), precision)
        for i in range(2):
            assert_gradient(ours[name][1][i], case(f"{name}.g{i + 1}"), precision)
    assert_value(ours["kl_st"][0], case("posneg.kl_st"), precision)
    assert_value(ours["invariance"][0], case("thirdparty.invariance"), precision)
    assert_value(ours["thirdparty"][0], case("thirdparty.loss"), precision)
    for i in range(2):
        assert_gradient(ours["thirdparty"][1][i], case(f"thirdparty.g{i + 1}"), precision)
    if "all_others" in ours:
        assert_value(ours["all_others"][0], case("posneg.cross.loss"), precision)


@golden("subset_negatives_formula")
def test_subset_of_negatives(case, precision):
    index = case("neg_index")

    def terms(z):
        u = unit(z)
        positive = jnp.sum(u * jnp.roll(u, case["B"], axis=0), axis=1)
        score = jnp.einsum("nd,nkd->nk", u, u[index])
        c = contrast(score, positive, np.ones(index.shape, bool), case["tau"])
        out = {}
        for name, loss in (("incl_pos", losses.info_nce(c)), ("excl_pos", losses.dcl(c))):
            out |= {name: jnp.mean(loss), f"{name}_rows": loss}
        return out

    ours = evaluate(terms, *arrays(case, precision, "z"))
    tolerance = contrast_tolerance(case, precision)
    for name in ("incl_pos", "excl_pos"):
        assert_value(ours[f"{name}_rows"][0], case(f"{name}.per_sample"), precision, **tolerance)
        assert_value(ours[name][0], case(f"{name}.mean_2B"), precision)
        assert_gradient(ours[name][1][0], case(f"{name}.grad_of_mean"), precision)


def assert_bounds(case, precision, terms, names):
    ours = evaluate(terms, *arrays(case, precision, "scores"))
    for name, field in names.items():
        assert_value(ours[name][0], case(field), precision)
        assert_gradient(ours[name][1][0], case(f"g_{name.removesuffix('_loss')}"), precision)


@golden("mi_bounds_vbmi_tf")
def test_vbmi(case, precision):
    (baseline,) = arrays(case, precision, "log_baseline")

    def terms(scores):
        positive, negative, count = statistics = losses.row_statistics(scores)
        c = negative - positive
        return {
            "nwj": losses.nwj(*statistics),
            "tuba": losses.tuba(*statistics, baseline),
            "tuba_loss": -jnp.mean(losses.fenchel_legendre(c, count, baseline - positive)),
            "infonce": jnp.mean(losses.info_nce_estimate(c, count)),
            "js": losses.jensen_shannon(scores),
            "interpolated": losses.interpolated(scores, baseline, alpha_logit=case["alpha_logit"]),
        }

    names = ("nwj", "tuba", "infonce", "js", "interpolated")
    assert_bounds(case, precision, terms, dict(zip(names, names, strict=True)) | {"tuba_loss": "tuba"})


@golden("mi_bounds_smile_torch")
def test_smile(case, precision):
    (baseline,) = arrays(case, precision, "log_baseline")

    def terms(scores):
        positive, negative, count = statistics = losses.row_statistics(scores)
        return {
            "dv": losses.donsker_varadhan_estimate(*statistics),
            "dv_loss": -jnp.mean(losses.donsker_varadhan(negative - positive, count, positive, 1.0)),
            "nwj": losses.nwj(*statistics),
            "tuba": losses.tuba(*statistics, baseline),
            "infonce": jnp.mean(losses.info_nce_estimate(negative - positive, count)),
            "js": losses.jensen_shannon(scores),
        } | {f"smile_{clip}": losses.smile(scores, clip=float(clip)) for clip in ("1", "5", "inf")}

    names = {name: name for name in ("dv", "nwj", "tuba", "js", "smile_1", "smile_5", "smile_inf")}
    assert_bounds(case, precision, terms, names | {"dv_loss": "dv", "infonce": "infonce_exact"})
