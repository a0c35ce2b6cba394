"""Break the package in one place at a time and see that a test fails: ``python tests/mutations.py``.

Each mutation is made in a temporary copy of the tree, never in place; its tests are those of the default tier, then
those of ``run`` where it says so. The table says which test caught it, or SURVIVED; exit status 1 if any did.

    python tests/mutations.py                          # all, about three quarters of an hour on one core
    python tests/mutations.py --only losses            # those whose file or name contains the text
    python tests/mutations.py --out found.json         # go on where a stopped run ended
    python tests/mutations.py --check                  # only that every text occurs once
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parent.parent
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "*.egg-info", "__pycache__", ".*_cache", "runs", "site", "build", "*.whl"
)


class Mutation(NamedTuple):
    """One place: the text that occurs once in the file, what stands there instead, and who should notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str  # files and options of pytest, below tests/
    run: bool = False  # the tier `run` too, where the default does not notice


def of(file, tests, *mutations, run=False):
    """Mutations of one file of the package, each (name, old, new) or with tests of its own at the end."""
    for name, old, new, *own in mutations:
        yield Mutation(name, f"contrastive_jax/{file}", old, new, *(own or [tests]), run)


LOSSES = "losses/test_golden.py losses/test_identities.py"
CONTRASTIVE = of(
    "losses/contrastive.py",
    LOSSES,
    ("InfoNCE is DCL", "return plus(jax.nn.softplus(at_least_float32(c)), surplus)",
     "return plus(at_least_float32(c), surplus)"),
    ("DCL is InfoNCE", "return plus(at_least_float32(c), surplus)",
     "return plus(jax.nn.softplus(at_least_float32(c)), surplus)"),
    ("FlatNCE has InfoNCE's gradient", "value_with_gradient_of(jnp.ones_like(c), plus(c, surplus))",
     "value_with_gradient_of(jnp.ones_like(c), plus(jax.nn.softplus(c), surplus))"),
    ("FlatNCE+ has FlatNCE's gradient",
     "value_with_gradient_of(jnp.ones_like(c), plus(jax.nn.softplus(c), surplus))",
     "value_with_gradient_of(jnp.ones_like(c), plus(c, surplus))"),
    ("Hölder without 1 / gamma", "plus(c_gamma, surplus), 1.0 / order)", "plus(c_gamma, surplus), 1.0)"),
    ("EqCo's ratio turned round", "jnp.log(alpha / jnp.maximum(count, 1).astype(c.dtype))",
     "jnp.log(jnp.maximum(count, 1).astype(c.dtype) / alpha)"),
    ("relative's weights sum to 1", "jnp.sum(some) * share)", "share)"),
    ("scaled's mean is over all queries", "jnp.maximum(jnp.sum(some), 1)", "c.size"),
    ("MACL without its weight in the value", "value_with_gradient_of(softplus_over_sigmoid(c), c)",
     "value_with_gradient_of(jax.nn.softplus(c), c)"),
    ("MACL-w's weight rises with the positive", "2.0 - at_least_float32(positive)",
     "2.0 + at_least_float32(positive)"),
    ("DCLW's weight is around 0", "weight = 2.0 - positive.shape[0]", "weight = 1.0 - positive.shape[0]"),
    ("DCLW detaches where it should not", "stop_gradient(weight) if detach else weight",
     "weight if detach else stop_gradient(weight)"),
    ("dual temperature weighs by its own contrast", "jax.nn.sigmoid(at_least_float32(c_beta))",
     "jax.nn.sigmoid(at_least_float32(c))"),
    ("dual temperature's scale turned round", "(1.0, 1.0 / factor)", "(1.0, factor)"),
    ("decoupled NT-Xent's positive twice", "(weight / temperature - 1.0) * positive",
     "(weight / temperature + 1.0) * positive"),
    ("decoupled NT-Xent's self pair of score -1", "own = (1.0 - positive) / temperature",
     "own = (1.0 + positive) / temperature", f"{LOSSES} contrast/test_contrastive_loss.py losses/test_beside_the_family.py"),
    ("debiased, the bound's sign", "jnp.log(number) - (1.0 + at_least_float32(positive))",
     "jnp.log(number) - (1.0 - at_least_float32(positive))", "contrast/test_published.py"),
    ("hard negatives without K", "c = c_hard - c_beta + jnp.log(", "c = c_hard - c_beta - jnp.log(",
     "contrast/test_published.py"),
    ("hardness-weighted without 1 / (1 + alpha)", "c_alpha / (1.0 + alpha)))", "c_alpha))",
     "losses/test_identities.py contrast/test_contrastive_loss.py contrast/test_learnable_temperature.py contrast/test_published.py"),
    ("a query without negatives is NaN", "surrogate = jnp.where(surrogate == -jnp.inf, 0.0, surrogate)",
     "surrogate = jnp.asarray(surrogate)", "losses/test_identities.py"),
    ("softplus / sigmoid at large contrasts", "jnp.where(c > 0, c + log1p, ratio)", "jnp.where(c > 0, c, ratio)",
     "losses/test_identities.py"),
)  # fmt: skip
BESIDE = "losses/test_golden.py losses/test_beside_the_family.py"
DISTRIBUTION = of(
    "losses/distribution.py",
    BESIDE,
    ("uniformity counts an image with itself", "geometry.uniformity(sums, rows * (rows - 1))", "geometry.uniformity(sums, rows * rows)"),
    ("alignment's power doubled", "** (power / 2)", "** power"),
    ("the distribution term is over its number of rows", "math.log(width) if subtract_log_width",
     "math.log(key.shape[0]) if subtract_log_width"),
    ("the sphere's prior is not on it", 'return unit(sample) if prior == "hypersphere" else sample', "return sample"),
    ("directions of QR's own signs", "jnp.diagonal(triangle) < 0, -1.0, 1.0)",
     "jnp.diagonal(triangle) < 0, 1.0, 1.0)"),
)  # fmt: skip
DEFINITIONS = of(
    "losses/geometry.py",
    "contrast/test_diagnostics.py evaluators/test_measures.py evaluators/test_embedding_geometry.py",
    ("RankMe without its shares", "share = values / library.where(some, total, 1.0) + eps", "share = values + eps"),
    ("the participation ratio turned round", "1.0 / library.where(varies, library.sum(share * share), 1.0)",
     "library.where(varies, library.sum(share * share), 1.0)"),
    ("uniformity is a sum", "return _logsumexp(sums) - library.log(", "return _logsumexp(sums) - 0 * library.log("),
)  # fmt: skip
INFORMATION = of(
    "losses/information.py",
    BESIDE,
    ("pairs are counted in int32", "jnp.sum(count.astype(c.dtype), axis=0)", "jnp.sum(count, axis=0)"),
    ("InfoNCE's estimate below log K", "jnp.log1p(count.astype(c.dtype)) - info_nce(c)",
     "jnp.log(count.astype(c.dtype)) - info_nce(c)", f"{BESIDE} evaluators/test_mutual_information.py"),
    ("Fenchel-Legendre with the paper's misprint", "ratio, 0.0)), 1.0) - 1.0", "ratio, 0.0)), 1.0) + 1.0"),
    ("Donsker-Varadhan with a mean for each query", "logsumexp(marginal, axis=0) - jnp.log(number",
     "marginal - jnp.log(number", "losses/test_identities.py"),
    ("SMILE clips from one side", "jnp.clip(scores, -clip, clip)", "jnp.clip(scores, None, clip)"),
    ("Jensen-Shannon's joint part", "jax.nn.softplus(-jnp.diagonal(scores))", "jax.nn.softplus(jnp.diagonal(scores))"),
    ("the interpolated bound's mean", "leave_one_out(scores) - math.log(rows - 1)",
     "leave_one_out(scores) - math.log(rows)"),
    ("EqCo's estimate", "math.log1p(alpha) - eqco", "math.log(alpha) - eqco", "losses/test_golden.py"),
)  # fmt: skip
INVARIANCE = of(
    "losses/invariance.py",
    BESIDE,
    ("ReLIC compares an image with itself", "jnp.where(itself[:, None, None], -jnp.inf, other)", "other"),
    ("BYOL predicts its own view", "stop_gradient(unit(target))[:, ::-1], axis=-1)",
     "stop_gradient(unit(target)), axis=-1)"),
    ("BYOL's target carries a gradient", "stop_gradient(unit(target))[:, ::-1]", "unit(target)[:, ::-1]"),
    ("ReLIC's divergence the other way round", "jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)",
     "jnp.sum(jnp.exp(log_q) * (log_q - log_p), axis=-1)"),
    ("ReLIC counts one direction twice", "nce[:, 0, 1] + nce[:, 1, 0]", "nce[:, 0, 1] + nce[:, 0, 1]"),
)  # fmt: skip

ONE_CALL = "contrast/test_contrastive_loss.py"
COMPARISON = of(
    "contrast/comparison.py",
    ONE_CALL,
    ("a view is its own positive", "for k in range(keys) if q != k)", "for k in range(keys) if q == k)"),
    ("all positives have the first one's negatives", 'pools[n if by == "pair" else q if by == "query" else sought.index(k)]', "pools[0]",
     "contrast/test_many_views.py"),
    ("tau carries a gradient", "tau = tau if self.differentiate_temperature else jax.lax.stop_gradient(tau)",
     "tau = tau", f"contrast/test_temperature.py {ONE_CALL}"),
    ("negative orders of the scores as they are", "statistics(-1, mirrored(transform), [-m for m in below])",
     "statistics(1, transform, [-m for m in below])"),
    ("logits of queries are scores", "negatives, further = _in_scores(negatives, further, tau)", "pass",
     "contrast/test_query_temperature.py"),
    ("a query is not divided by its tau", "query / tau[..., None], positive / tau", "query, positive / tau",
     "contrast/test_query_temperature.py"),
    ("the margin is taken off", "c + (self.margin if margin else 0.0)", "c - (self.margin if margin else 0.0)"),
    ("several positives inside the logarithm", "return jnp.log(number)", "return -jnp.log(number)",
     "contrast/test_several_positives.py"),
    ("one positive too many", "number = 1.0 + self.further.count", "number = 2.0 + self.further.count",
     "contrast/test_several_positives.py"),
    ("scores of masked queries are not 0", "jnp.where(self.count > 0, c + (self.margin", "jnp.where(self.count > -1, c + (self.margin",
     f"{ONE_CALL} contrast/test_diagnostics.py"),
)  # fmt: skip
CANDIDATES = of(
    "contrast/candidates.py",
    "training/test_golden_moco.py",
    ("the queue moves by one", '"next": (slot + new.group.shape[0]) % size', '"next": (slot + 1) % size'),
    ("queries meet the keys of their own step", "return [pool] * positive_keys.shape[1], state",
     'return [Pool(key=state["key"], group=state["group"])] * positive_keys.shape[1], state'),
    ("the first keys are of a group of the data", "jnp.full((size,), NO_GROUP, jnp.int32)", "jnp.full((size,), -1, jnp.int32)",
     "contrast/test_candidates.py"),
    ("a short queue holds the first keys", "jax.random.permutation(rng, entering)[:size]",
     "jnp.arange(entering)[:size]", "contrast/test_candidates.py"),
    ("the other view is always the first", "for v in range(keys.shape[1])]", "for v in [0] * keys.shape[1]]",
     ONE_CALL),
    ("the own view is always the first", "for v in range(positive_keys.shape[1])]", "for v in [0] * positive_keys.shape[1]]",
     "contrast/test_family_rules.py"),
    ("both views have one candidate less", "lambda views: views * (batch_size - 1))", "lambda views: views * batch_size - 1)",
     "training/test_loop.py -k wrong_option"),
)  # fmt: skip
MARGIN = of(
    "contrast/margin.py",
    f"{ONE_CALL} losses/test_eqco_gradient_bound.py",
    (
        "EqCo's margin turned round",
        "jnp.log(alpha / jnp.maximum(count, 1))",
        "jnp.log(jnp.maximum(count, 1) / alpha)",
    ),
)
TEMPERATURE = of(
    "contrast/temperature.py",
    "contrast/test_temperature.py",
    ("linear goes on beyond the end", "tau + (end - tau) * jnp.minimum(step / total_steps, 1.0)",
     "tau + (end - tau) * (step / total_steps)"),
    ("replay a step late", "np.arange(1, total_steps + 1)", "np.arange(total_steps)"),
    ("cosine turned round", "(1.0 + jnp.cos(jnp.pi * progress))", "(1.0 - jnp.cos(jnp.pi * progress))"),
    ("KL with the other sign", "rate * (divergence - target)", "rate * (target - divergence)", "contrast/test_family_rules.py"),
    ("ESS with the printed sign", "jnp.where(ess > goal, 1.0 + rate, 1.0 - rate)",
     "jnp.where(ess < goal, 1.0 + rate, 1.0 - rate)"),
    ("ESS without its upper clamp", "jnp.clip(beta, 1.0 / max_tau, 1.0 / min_tau)", "jnp.maximum(beta, 1.0 / max_tau)"),
    ("ESS holds its first target", "goal = target + (end - target) * jnp.minimum(step / total_steps, 1.0)",
     "goal = target + 0 * step"),
    ("MACL's power is a product", "tau * alpha**alignment", "tau * alpha * alignment"),
    ("MACL's A0 is added", "(alignment - a0)", "(alignment + a0)"),
    ("KL's tau of a whole number is one", '{"tau": jnp.asarray(1.0 * tau)}', '{"tau": jnp.asarray(tau)}'),
    ("Adam's first slope is weighted", "beta = jnp.where(first, 0.0, beta)", "beta = beta + 0 * visits",
     "contrast/test_by_example.py"),
)  # fmt: skip
TARGET = of(
    "contrast/target.py",
    "training/test_golden_moco.py contrast/test_target.py",
    ("the cosine of the decay turned round", "(jnp.cos(jnp.pi * progress) + 1.0) / 2.0",
     "(1.0 - jnp.cos(jnp.pi * progress)) / 2.0"),
    ("the average keeps 1 - m", "1.0 - decay_at(step))", "decay_at(step))"),
    ("keys of the average before the step", 'network_apply(slow, state["stats"]', 'network_apply(state["params"], state["stats"]'),
    ("the groups are not shuffled", "jax.random.permutation(rng, rows) // (rows // norm_groups)",
     "jax.numpy.arange(rows) // (rows // norm_groups)"),
    ("statistics of the average stand still", '{"params": slow, "stats": stats}', '{"params": slow, "stats": state["stats"]}'),
)  # fmt: skip
TERMS = of(
    "contrast/terms.py",
    "contrast/test_contrastive_loss.py contrast/test_several_positives.py contrast/test_terms.py",
    (
        "weights of a mean over negatives",
        "default=1.0) <= FLAT",
        "default=1.0) < 0",
        "contrast/test_family_transforms.py",
    ),
    (
        "queries without negatives count",
        "jnp.where(comparison.count > 0, value, 0.0) if self.multiples else value",
        "value",
    ),
    (
        "weights are left out",
        "[term.weight * values[term.name] for term in terms if term.weight]",
        "[values[term.name] for term in terms if term.weight]",
    ),
)
NEGATIVES = of(
    "contrast/negatives.py",
    f"contrast/test_subsets.py {ONE_CALL}",
    ("both directions draw alike", "0 if per_example else v", "0"),
)
SUBSETS = of(
    "contrast/subsets.py",
    "contrast/test_subsets.py",
    (
        "a negative too many is permitted",
        "permitted = jnp.arange(k) < m[:, None]",
        "permitted = jnp.arange(k) <= m[:, None]",
    ),
    (
        "places beyond the candidates",
        "m = (candidates - (high - low))",
        "m = (candidates - 0 * (high - low))",
    ),
    ("all queries share one draw", "key if shared else jax.random.fold_in(key, row)", "key"),
    ("the run of the own group is not jumped", "rank + jnp.where(rank >= low, high - low, 0)", "rank"),
    (
        "the shuffle forgets earlier steps",
        "return jnp.where(earlier < 0, swap, place[earlier])",
        "return swap",
    ),
)
DENSE = of(
    "contrast/dense.py",
    "contrast/test_similarity.py",
    ("own group is kept", 'permitted = different if same_group == "exclude"', 'permitted = different if same_group == "keep"'),
    ("a guide masks nothing", "return permitted & ~(scores > guide.limit[:, None])", "return permitted",
     "contrast/test_guide.py"),
    ("the contrast is rounded twice", "return scale_high * high + (small + logsumexp)", "return scale * above + logsumexp",
     "contrast/test_similarity.py losses/test_precision.py contrast/test_several_positives.py"),
    ("further positives include the query", "& (asks.row[:, None] != shown.row[None, :])", "& (asks.row[:, None] > -1)",
     "contrast/test_several_positives.py"),
    ("the sum of further positives is absolute", "jnp.where(permitted, score - reference[:, None], 0), axis=-1))",
     "jnp.where(permitted, score, 0), axis=-1))", "contrast/test_several_positives.py"),
    run=True,
)  # fmt: skip
TILED = of(
    "contrast/tiled.py",
    "contrast/test_similarity.py",
    ("the tiled mean about its peak", "jnp.where(count > 0, peak + first /", "jnp.where(count > 0, first /"),
    ("the tiled slope in the scale", "jnp.sum(slope * (mean - reference), axis=-1)", "jnp.sum(slope * mean, axis=-1)",
     "contrast/test_similarity.py contrast/test_learnable_temperature.py"),
    ("a tile's padding has a gradient", " & valid & real[:, None]", " & valid", "contrast/test_query_temperature.py -k padding"),
    run=True,
)  # fmt: skip
GUIDE = of(
    "contrast/guide.py",
    "contrast/test_guide.py",
    ("a relative margin is absolute", "(jnp.abs(positive) if self.relative else 1.0)", "1.0"),
    ("the guide's own views are exchanged", "pools, own, strict=True", "pools, own[::-1], strict=True"),
    run=True,
)
SOFT_TARGETS = of(
    "contrast/soft_targets.py",
    "contrast/test_soft_targets.py losses/test_family_golden.py -k soft",
    ("rows have the sum 1", "total[:, None] * key - _mixed(", "key - _mixed("),
    ("both directions query a", "[views, views[::-1]]", "[views, views]"),
)
VARIANTS = of(
    "losses/variants.py",
    "losses/test_family_functions.py",
    ("VRNS draws scores to 0", "(score - target) ** 2", "score**2"),
)
BY_EXAMPLE = of(
    "contrast/by_example.py",
    "contrast/test_by_example.py losses/test_family_golden.py",
    ("ESS of the wrong weights", "OF_BATCH[rule.reads](comparison, dtype)", 'OF_BATCH["ess_with_positive"](comparison, dtype)',
     "contrast/test_temperature.py training/test_step.py"),
    ("the first of two rows is kept", "last = jnp.append(ids[order[1:]] != ids[order[:-1]], True)",
     "last = jnp.insert(ids[order[1:]] != ids[order[:-1]], 0, True)"),
    ("a query without negatives moves", "jnp.where(some, after, before)", "after"),
    ("u is the positive's too", "return log_u - offset(comparison), write", "return log_u, write"),
    ("the average carries a gradient", "jax.lax.stop_gradient(rule.update(rows, log_mean(comparison), some))",
     "rule.update(rows, log_mean(comparison), some)"),
    ("KL of the average with another sign", "* logit - log_u, 0.0)", "* logit + log_u, 0.0)"),
)  # fmt: skip
NORMALIZER = of(
    "contrast/normalizer.py",
    "contrast/test_by_example.py",
    ("gamma is the share that stays", "now + math.log(gamma)", "log_u + math.log(gamma)"),
    ("a first visit is no first", "jnp.where(log_u <= UNMET, now,", "jnp.where(log_u < UNMET, now,"),
)
SCORES = of(
    "contrast/scores.py",
    "contrast/test_family_transforms.py",
    ("what does not count has a slope", "jnp.where(values == -jnp.inf, 0, slope)", "slope"),
    ("the positive's part is left out", "of_score * score + of_positive * positive[:, None] + of_tau * tau[:, None]",
     "of_score * score + of_tau * tau[:, None]"),
    ("a mask counts below 0", "jnp.where(value == -jnp.inf, -jnp.inf, -value)", "-value"),
    run=True,
)  # fmt: skip
PAIRWISE = of(
    "contrast/pairwise.py",
    "contrast/test_pairwise.py",
    (
        "positives and negatives exchanged",
        "jax.nn.softplus(jnp.where(alike, -x, x))",
        "jax.nn.softplus(jnp.where(alike, x, -x))",
    ),
    ("the mean is a sum", "/ jnp.maximum(number, 1.0)", "/ 1.0"),
    (
        "the level's gradient reaches the reference with its sign",
        "of_level, -scale * of_level)",
        "of_level, scale * of_level)",
    ),
)
DIAGNOSTICS = of(
    "contrast/diagnostics.py",
    "contrast/test_diagnostics.py",
    ("ESS with the positive over K", "jnp.logaddexp(twice, 0.0), count + 1", "jnp.logaddexp(twice, 0.0), count"),
    ("the queries' ESS of squares alone", "1.0 / (jnp.sum(valid) * jnp.sum(share**2))", "1.0 / jnp.sum(share**2)"),
    ("ESS leaves the margin out", "comparison.contrast(2.0, margin=False) + 2.0 * comparison.margin",
     "comparison.contrast(2.0, margin=False) + comparison.margin"),
    ("the estimate below log K", "jnp.log1p(comparison.count) - jax.nn.softplus(c)", "jnp.log(comparison.count) - jax.nn.softplus(c)"),
    ("accuracy against the mean negative", "comparison.positive > comparison.negatives.hardest",
     "comparison.positive > comparison.negatives.mean[0]"),
    ("saturation without the margin", "comparison.contrast()) <= rounds_to_zero", "comparison.contrast(margin=False)) <= rounds_to_zero"),
    ("embedding_std without sqrt(D)", "* z.shape[-1] ** 0.5", "* 1.0"),
    ("uniformity off by 4 t", "sums = statistics.logsumexp[0] - 2.0 * t", "sums = statistics.logsumexp[0] + 2.0 * t"),
    ("the rank of what is not centred", "_gram(z - jnp.mean(z, axis=(0, 1)))", "_gram(z)",
     "contrast/test_diagnostics.py training/test_alarms.py"),
    ("a query's gradient by examples", "gradient.shape[0] * gradient.shape[1] * jnp.sqrt", "gradient.shape[0] * jnp.sqrt"),
    ("entropy of another sign", "jax.nn.softplus(c) - jax.nn.sigmoid(c) * logit", "jax.nn.softplus(c) + jax.nn.sigmoid(c) * logit"),
)  # fmt: skip

SUPERVISED = of(
    "losses/supervised.py",
    "contrast/test_diagnostics.py",
    ("unlabelled images count as wrong", "jnp.sum(label >= 0) * value.shape[1]", "value.size"),
)  # fmt: skip

ORDER = of(
    "data/order.py",
    "data/test_order.py data/test_resident.py",
    ("every epoch in the order of the first", "_kept(seed, int(epoch), n)", "_kept(seed, 0, n)"),
    ("the order of every seed", "np.argsort(raw(seed, epoch, n)", "np.argsort(raw(0, epoch, n)"),
    ("places within an epoch shift by one", "[positions[here] % n]", "[(positions[here] + 1) % n]"),
)
RESIDENT = of(
    "data/resident.py",
    "data/test_resident.py",
    (
        "chunks overlap",
        "rows(seed, self.examples, chunk * count, count)",
        "rows(seed, self.examples, chunk * self.steps, count)",
    ),
    (
        "steps are off by one",
        "row = step % arrays.index.shape[0]",
        "row = (step + 1) % arrays.index.shape[0]",
    ),
)
SPLIT = of(
    "data/split.py",
    "data/test_validation.py data/test_folder.py data/test_digits.py data/test_groups.py",
    (
        "classes are not stratified alike",
        'np.argsort(draw[members], kind="stable")[:count]',
        "np.arange(count)",
    ),
    (
        "near duplicates are torn apart",
        "test = stratified(label[first], fraction, seed=seed)[member]",
        "test = stratified(label, fraction, seed=seed)",
    ),
    ("a class is held out whole, by its group", "test &= member != member[examples[0]]", "pass"),
)
NOISE = of(
    "data/noise.py",
    "data/test_synthetic.py",
    ("training and test images are the same", 'number_of("synthetic", part, "which")', 'number_of("synthetic", "train", "which")'),
    ("a label that its image shows", "_labels(np.arange(count), classes), made=noise",
     "_labels(_which(part, count), classes), made=noise"),
    ("splits are counted whole", "[part.from_ : part.to]", ""),
    ("a stream as another is in memory", 'make = _streamed if stream == "on"', 'make = _streamed if stream == "off"'),
)  # fmt: skip
COMPOSITES = of(
    "data/composites.py",
    "data/test_compose.py",
    (
        "the highest bit first",
        ">> xp.arange(self.bits, dtype=xp.int32)) & 1",
        ">> xp.arange(self.bits, dtype=xp.int32)[::-1]) & 1",
    ),
    ("digits that overlap wrap round", "return xp.minimum(one + other, 255)", "return one + other"),
)

CROPS = of(
    "augment/crops.py",
    "augment/test_presets.py augment/test_crops.py",
    ("every epoch sees the same views", "jax.random.fold_in(jax.random.fold_in(root, epoch), id)", "jax.random.fold_in(root, id)"),
    ("every image has the same draws", "jax.random.fold_in(jax.random.fold_in(root, epoch), id)", "jax.random.fold_in(root, epoch)"),
    ("the host's box of another key", "jax.random.split(jax.random.fold_in(key, view), steps)[place]",
     "jax.random.split(jax.random.fold_in(key, view), steps)[0]"),
    run=True,
)  # fmt: skip
ARRAY_VIEWS = of(
    "augment/arrays.py",
    "augment/test_array_views.py",
    ("all features have one donor", "jax.random.randint(donor, (width,), 0, len(rows))", "jax.random.randint(donor, (), 0, len(rows))"),
    ("padding is deleted", "& (ids != padding_id)", ""),
    ("pairs train on SCARF's clean row", 'OF_PAIRS = {"scarf": 1}', "OF_PAIRS = {}", "training/test_two_towers.py -k scarf"),
)  # fmt: skip
LISTING = of(
    "data/listing.py",
    "data/test_listing.py",
    ("a multi-hot list is one of names", "if len(values) > 1 and", "if len(values) > 99 and"),
)  # fmt: skip
TFDS = of(
    "data/tfds_images.py",
    "data/test_tfds_images.py data/test_tfds_schemas.py",
    ("-1 is the last class", "label[found[found >= 0]] = 1", "label[found] = 1"),
    ("labels by position are a set", "return len(lists[0]) if alike", "return len(lists[0]) if False"),
)  # fmt: skip
ARRAY_FILES = of(
    "data/array_files.py",
    "data/test_array_files.py",
    ("pickles are read", "np.load(path, allow_pickle=False)", "np.load(path, allow_pickle=True)"),
    ("lengths may disagree", "(not array.ndim or len(array) != len(rows))", "not array.ndim"),
)  # fmt: skip
VIEWS = of(
    "augment/views.py",
    "augment/test_presets.py",
    ("both views are alike", "key, jnp.arange(self._first, self._first + len(self._chains))", "key, jnp.zeros(len(self._chains), jnp.int32)"),
)  # fmt: skip
PIPELINE = of(
    "augment/pipeline.py",
    "augment/test_presets.py evaluators/test_protocols.py",
    ("an image that is not blurred is, a little", "none = 0.1, 2.0, 0.01", "none = 0.1, 2.0, 0.2"),
    ("classifiers train without the normalization", "*steps, *seen.steps[seen.crop + 1 :])", "*steps)"),
    ("classifiers train with another kernel", "dataclasses.replace(box, area=(crop_min, 1.0), shift=0.0)",
     'dataclasses.replace(box, area=(crop_min, 1.0), shift=0.0, method="bicubic")'),
)  # fmt: skip
OPERATIONS = "augment/test_operations.py"
COLOR = of(
    "augment/color.py",
    OPERATIONS,
    ("contrast about black", "return factor * (image - values) + values", "return factor * image + 0 * values"),
    ("hue turns the other way", "+ sextant + 6 * delta", "+ sextant - 6 * delta"),
    ("solarise inverts the dark", "jnp.where(image < threshold, image, 1 - image)", "jnp.where(image > threshold, image, 1 - image)"),
    ("blur is not normalised", "gaussian = jnp.exp(-(distance.astype(image.dtype) ** 2) / (2 * sigma**2)) / total",
     "gaussian = jnp.exp(-(distance.astype(image.dtype) ** 2) / (2 * sigma**2))"),
    ("factors below 0", "else max(0.0, 1 - strength)", "else 1 - strength", f"{OPERATIONS} augment/test_presets.py"),
    ("saturation beyond its limit", "jnp.minimum(factor, limit)", "factor"),
    ("the order of a grey image's jitter", "jnp.argmax(order == BRIGHTNESS) < jnp.argmax(order == CONTRAST)",
     "jnp.argmax(order == BRIGHTNESS) > jnp.argmax(order == CONTRAST)"),
)  # fmt: skip
GEOMETRY = of(
    "augment/geometry.py",
    "augment/test_geometry.py",
    ("upside down for a mirror image", "probability, image[:, ::-1], image)", "probability, image[::-1], image)",
     "augment/test_geometry.py augment/test_operations.py augment/test_presets.py"),
    ("tf's box reaches the last row", "top = jnp.floor(top_draw * (height - h))  #", "top = jnp.floor(top_draw * (height - h + 1))  #"),
    ("pixels without their half", "dtype=step.dtype) + 0.5) * step - 0.5", "dtype=step.dtype) + 0.0) * step - 0.0"),
    ("a last place too few", "positions = int(whole_pixels)", "positions = 0"),
    ("the slant is not centred", "(height - 1) / 2)", "0)"),
    ("Keys' kernel of OpenCV", "near = (1.5 * distance - 2.5) * distance**2 + 1", "near = (1.25 * distance - 2.25) * distance**2 + 1"),
)  # fmt: skip

SCHEDULES = of(
    "optim/schedules.py",
    "optim/test_optimizers.py",
    ("half a batch is the unit", '"linear": batch_size / 256', '"linear": batch_size / 128'),
    ("the cosine's root", "jnp.sin(jnp.pi / 2 * left) ** 2", "jnp.sin(jnp.pi / 2 * left)"),
    (
        "warm-up a step ahead",
        "step / max(start, 1), factor(at, left))",
        "(step + 1) / max(start, 1), factor(at, left))",
    ),
    ("milestones a step late", 'side="right"', 'side="left"'),
    (
        "per_epoch moves at each step",
        "step // steps_per_epoch * steps_per_epoch if per_epoch else step",
        "step",
    ),
    ("linear ends at 0", "return end_factor + (1 - end_factor) * left", "return left"),
)
OPTIMIZERS = of(
    "optim/optimizers.py",
    "optim/test_optimizers.py",
    ("LARS in another order", '"classic": (decay, ratio, rate, trace)', '"classic": (decay, trace, ratio, rate)'),
    ("AdamW is Adam", "lambda rate: (moments, decay, rate)", "lambda rate: (decay, moments, rate)"),
    ("norms are decayed and kernels not", '"bias" if path[:-1] in with_weight else "norm"', '"norm"'),
    ("a weight must be called kernel", 'or (axes > 1 and OF_A_NORM.isdisjoint(path[-1:]))', "or False"),
    ("turns are of one half", "rate(2 * count + turn)", "rate(count)"),
    ("gradients are not clipped", "_clip(clip_norm, apart) if clip_norm", "optax.identity() if clip_norm"),
    ("nothing is adapted by its norm", "trust_coefficient=trust_coefficient), _mask(unadapted)",
     "trust_coefficient=trust_coefficient), _mask(exclude)"),
)  # fmt: skip
SNR = of(
    "optim/gradient_snr.py",
    "optim/test_gradient_snr.py",
    (
        "moments are not corrected",
        "jnp.where(steps == 1, 1.0, (decay - 1.0) / whole)",
        "jnp.asarray(1.0 - decay)",
    ),
    ("probe and critic count", 'if module not in ("probe", "critic")', "if module"),
)

KNN = of(
    "evaluators/knn.py",
    "evaluators/test_knn.py",
    ("weights times T", "/ cosine.dtype.type(temperature)", "* cosine.dtype.type(temperature)"),
    ("what fills a tile may be nearest", "jnp.where(row < count, cosine, -jnp.inf)", "cosine"),
    (
        "of equals the later",
        "cosine = jnp.concatenate([nearest[0], cosine], axis=1)\n",
        "cosine = jnp.concatenate([cosine, nearest[0]], axis=1)\n",
    ),
    (
        "features are not brought to length 1",
        "cosine = _cosines(queries, directions(rows))",
        "cosine = _cosines(queries, rows)",
    ),
)
FEATURES = of(
    "evaluators/features.py",
    "evaluators/test_features.py",
    ("the mean per class is the mean", '"mean_per_class": float(np.mean(per_class))', '"mean_per_class": float(correct.mean())'),
    ("top-5 is top-6", 'kind="stable")[:, :5]', 'kind="stable")[:, :6]'),
    ("the test set is standardised by itself", "Standardized(part, scaler.mean_, scaler.scale_)",
     "Standardized(part, part.mean(0), scaler.scale_)", "evaluators/test_features.py evaluators/test_linear_probe.py"),
    ("no vote is among the top 5", " & named).any", ").any"),
    ("a constant by the number of rows", "(8 * jnp.finfo(mean.dtype).eps * mean)", "(rows.count * jnp.finfo(mean.dtype).eps * mean)"),
    ("a positive's precision counts the next recall", "np.diff(recall) * precision[:-1]", "np.diff(recall) * precision[1:]"),
)  # fmt: skip
PROBE = of(
    "evaluators/linear_probe.py",
    "evaluators/test_linear_probe.py",
    ("the penalty's inverse", "(2 * C * count)", "(2 / C * count)"),
    ("every block has the first one's labels", "first += len(here)", "first += 0"),
    ("every draw is the first", "key=[seed, draw]", "key=[seed, 0 * draw]"),
    ("the worst option is chosen", "return Cs[int(np.argmax(worth))]", "return Cs[int(np.argmin(worth))]"),
    ("a rate that diverged scores", "worth.append(-math.inf)  # it diverged", "worth.append(1.0)"),
)
SHAPE = of(
    "evaluators/geometry.py",
    "evaluators/test_embedding_geometry.py evaluators/test_measures.py",
    ("uniformity's kernel", "kernel_sums(2 - 2 * cosine, wanted, t)", "kernel_sums(1 - cosine, wanted, t)"),
    ("an image is its own pair", "if not self_pairs:\n", "if self_pairs:\n"),
    ("tolerance over one class", "if same_class_only else wanted.sum()", "if not same_class_only else wanted.sum()"),
    ("sensitivity of the other sign", "np.where(same, 1.0, -1.0)", "np.where(same, -1.0, 1.0)"),
)  # fmt: skip

CHECKPOINT = of(
    "workdir/checkpoint.py",
    "workdir/test_checkpoint.py",
    (
        "an exchange of values shows in no bit",
        "(2 * np.arange(words.size, dtype=np.uint32) + 1)",
        "np.uint32(1)",
    ),
    ("damaged arrays are restored", "        if differ:\n", "        if False:\n"),
    ("a NaN is saved", "        if not_finite:\n", "        if False:\n"),
    (
        "the oldest is restored",
        "for step in reversed(steps):\n            try:\n                record, trouble",
        "for step in steps:\n            try:\n                record, trouble",
    ),
    ("an altered meta is read", "        if not intact:\n", "        if False:\n"),
    (
        "another structure is restored",
        "    if paths:\n        first = paths[0]",
        "    if False:\n        first = paths[0]",
    ),
    ("all checkpoints are kept", "keep = [LatestN(keep_last)]", "keep = [LatestN(keep_last + 1)]"),
)
METRICS = of(
    "workdir/metrics.py",
    "workdir/test_records.py",
    (
        "a resumed run loses its last record",
        'if record["step"] <= start_step:',
        'if record["step"] < start_step:',
    ),
    ("records repeat", "if _identity(record) in self._written:", "if False:"),
)
STORY = "training/test_story.py"
LOOP = of(
    "training/loop.py",
    STORY,
    ("a resumed run begins its data anew", "batch = feed.feed(step)", "batch = feed.feed(step - start)"),
    ("a divergence is saved", "recorder.fetch()  # check all pending", "pass  # nothing is saved", "training/test_loop.py"),
    ("a signal is not heeded", "if stop and step < end:", "if False:"),
    ("an interrupted evaluation stays lost", "agreed(recorder.unevaluated(step))", "agreed(False)"),
    ("the last state is not saved", "if stop or save_due or keep_due or step == end:", "if stop or save_due or keep_due:"),
    run=True,
)  # fmt: skip
RESUME = of(
    "training/resume.py",
    "training/test_loop.py -k changed_config",
    ("a changed config goes on", "wrong = configs.forbidden_changes(had[\"config\"], now[\"config\"])", "wrong = {}"),
    ("a run goes on beyond its end", "if step <= run.total_steps:", "if True:"),
    ("other random numbers go on", "if was == is_now:", "if True:"),
    run=True,
)  # fmt: skip
STEP = of(
    "training/step.py",
    f"{STORY} training/test_golden_moco.py training/test_step.py",
    (
        "every step draws alike",
        "jax.random.fold_in(jax.random.key(seed), step), zlib",
        "jax.random.key(seed), zlib",
    ),
    ("uses of randomness draw alike", "zlib.crc32(name.encode())", "0 * zlib.crc32(name.encode())"),
    ("the step stands still", "step=state.step + 1,", "step=state.step,"),
    (
        "the average follows the weights after the step",
        "state.target, outputs, params, views",
        "state.target, outputs, state.params, views",
    ),
    run=True,
)
RECORDER = of(
    "training/recorder.py",
    "training/test_loop.py -k not_finite",
    (
        "a NaN goes on",
        "if not _finite(metrics[number]):",
        "if False:",
    ),
    (
        "a longer run shows the shorter one's result",
        "enumerate(self._records) if self._active else ():",
        "():",
        "training/test_loop.py -k changed_config",
    ),
    run=True,
)
RESULT = of(
    "workdir/result.py",
    "workdir/test_broken.py",
    (
        "scores have the config's evaluators",
        "leaves(settings) | _evaluated_by(result or {})",
        "leaves(settings)",
    ),
)
REPLICAS = [
    *of(
        "training/lifting.py",
        "training/test_lifting.py",
        ("numbers that differ are the first program's", 'values.get(index, values[0])', 'values[0]'),
        ("operands are not compared", "elif names[0][one] != names[1][two]:", "elif False:"),
        ("options of operations are not compared", "if not _programs(values[0]) and not _same(*values):", "if False:"),
        ("a loop's numbers are left out", "if one.primitive.name not in ENTERED:", "if False:"),
    ),
    *of(
        "training/replicas.py",
        "training/test_replicas.py",
        ("every replica has the first one's seed", 'seeds=[run.settings.seed for run in runs],',
         'seeds=[first.settings.seed for run in runs],'),
        ("every replica is left the first one's state", "lambda x: jnp.asarray(x[number])", "lambda x: jnp.asarray(x[0])"),
        ("any leaf may differ", 'if name != "seed" and any(', 'if False and any('),
        ("a number that no step reads may differ", "if _same_bits(state, init_state(runs[number].recipe, runs[0].settings.seed)):", "if False:"),
        ("every replica is judged as the first", "lambda x, number=number: x[number]", "lambda x, number=number: x[0]"),
        run=True,
    ),
    *of(
        "training/resume.py",
        "training/test_replicas.py",
        ("other replicas go on", "if before == these:", "if True:"),
        run=True,
    ),
    *of(
        "training/recorder.py",
        "training/test_replicas.py",
        ("every replica has the first one's metrics", "self._step, record.last = step, metrics[number]", "self._step, record.last = step, metrics[0]"),
        run=True,
    ),
    *of(
        "config/overrides.py",
        "training/test_replicas.py -k combination",
        ("numbers are paired, not combined", "itertools.product(*values)", "zip(*values)"),
    ),
]  # fmt: skip
ALARMS = of(
    "training/alarms.py",
    "training/test_alarms.py",
    (
        "collapse rings where all is well",
        'not record["embedding_std"] < STD',
        'not record["embedding_std"] > STD',
    ),
    (
        "stuck where it has learnt",
        'record["contrast_accuracy"] > chance + luck',
        'record["contrast_accuracy"] < chance + luck',
    ),
    ("any ESS target is reached", 'if goal * record["negatives"] < 1:', "if False:"),
    ("an alarm is said at every look", "if name not in self._silent:", "if True:"),
)
ENCODERS = [
    *of(
        "models/adapters.py",
        "models/test_encoders.py",
        ("batch statistics that nobody tells of training", 'if stats and "train" not in takes:', "if False:"),
        ("whole numbers become fractions", "if jnp.issubdtype(dtype, jnp.floating) else dtype", "if True else dtype"),
        ("a statistic may change its type", "if (old.shape, old.dtype) != (new.shape, new.dtype):", "if old.shape != new.shape:"),
    ),
    *of(
        "data/shards.py",
        "data/test_shards.py",
        ("a shard that is cut off is read", 'if not rest.startswith(b"\\0" * BLOCK):', "if False:"),
        ("joined archives lose images", 'if rest.strip(b"\\0"):', "if False:"),
        ("a path leaves the archive", 'if name.startswith("/") or ".." in name.split("/") or "\\0" in name:', "if False:"),
        ("a link is an image", "if not one.isreg() or one.issparse():", "if False:"),
        ("a member beyond the end", "if one.offset_data <= after or one.size < 0 or one.offset_data + one.size > length:", "if False:"),
        ("a member occurs twice", "if own.setdefault(extension.lower(), member) is not member:", "if own.setdefault(extension.lower(), member) is None:"),
        ("a label may be of any size", "if member.size > TEXT:", "if False:"),
        ("an image goes on behind its end", "some = self._read(min(len(buffer), self._size - self._at))", "some = self._read(len(buffer))"),
        ("a shorter shard is an image", "if len(some) < count:", "if False:"),
        ("test shards are trained on", "if both := sorted({*train} & {*test}):", "if both := []:"),
        ("only the first JSON has labels", "                return f\"{JSON}{name}\"\n    return", "                return f\"{JSON}{name}\"\n        break\n    return"),
        ("shards without a word are left out", "if (worded and neither) or (tests and not worded):", "if tests and not worded:"),
    ),
    *of(
        "data/arrow_tables.py",
        "data/test_arrow_tables.py",
        ("offsets are not checked", "table.validate(full=True)", "table.validate()"),
        ("a file outside the folder", ' and not {*name} & {*"/', ' and not {*""} & {*"/'),
        ("a file is read twice", "if len({*names}) < len(names):\n        raise ValueError(\n", "if False:\n        raise ValueError(\n"),
        ("a label outside its classes", "or not 0 <= one < len(classes)]", "]"),
        ("the second batch is the first", "return batch, stored - int(self._starts[batch])", "return batch, 0"),
        ("a test split without labels", "if any(one.labels) or not any(train.labels)), None)", "), None)"),
    ),
    *of(
        "data/same.py",
        "data/test_same.py data/test_shards.py",
        ("an image is the start of its shard", "digest.update(file.read())", "digest.update(b'')"),
    ),
    *of(
        "commands/export.py",
        "commands/test_timm_folder.py",
        ("numbers of another step on the card", 'measured = result if result.get("step") == saved.step else {}', "measured = result"),
        ("timm computes another function", "if for_timm and (otherwise := differences(trained)):", "if False:"),
    ),
    *of(
        "training/encoder.py",
        "commands/test_export.py",
        ("replicas are read as one run", 'if count := len(meta.get("replicas", ())):', "if count := 0:"),
        ("evaluation's size is not seen", "size = command.evaluate.size or saved.settings.evaluate.size", "size = 0"),
        ("the run's size is not seen", "size = command.evaluate.size or saved.settings.evaluate.size", "size = command.evaluate.size"),
    ),
    *of(
        "training/initial.py",
        "commands/test_export.py",
        ("another max-pooling reads the weights", 'if "encoder.variant" in changed and settings.encoder.name == "resnet":', "if False:"),
        ("one's own option called variant is refused", ' and settings.encoder.name == "resnet":', ":"),
        ("statistics are not compared", "in zip((saved.params, saved.stats), wanted, strict=True):", "in zip((saved.params,), wanted):"),
    ),
]  # fmt: skip
NETWORK = of(
    "models/network.py",
    "models/test_network.py",
    ("the probe reaches the encoder", "jax.lax.stop_gradient(of_sizes[0])\n", "of_sizes[0]\n"),
)
NORM = of(
    "models/norm.py",
    "models/test_norm.py models/test_resnet_golden.py",
    ("running variance is biased", "values / jnp.maximum(values - 1, 1) if self.norm.unbiased", "1.0 if self.norm.unbiased"),
    ("momentum exchanged", "self.norm.momentum * running.value + (1 - self.norm.momentum) * new",
     "(1 - self.norm.momentum) * running.value + self.norm.momentum * new"),
    ("the kernel's slope of the square", "(of_mean + 2 * of_square * (x", "(of_mean + of_square * (x"),
    ("evaluation forgets epsilon", "jax.lax.rsqrt(var + self.norm.epsilon) * scale) + bias)", "jax.lax.rsqrt(var) * scale) + bias)"),
)  # fmt: skip
PROGRAMS = (
    *of(
        "training/compilation.py",
        "native/test_compiler.py",
        ("a GPU's step adds in any order", 'if deterministic and platform == "gpu" else', "if not deterministic else"),
        ("train.deterministic is not read", 'compiler_options(program.mesh, program.runs[0].settings.train.deterministic)',
         "compiler_options(program.mesh)"),
    ),
    *of(
        "training/cost.py",
        "training/test_utilisation.py",
        ("a scan's body counts once", '* equation.params.get("length", 1)', "* 1"),
        ("grouped kernels count whole", "/ kernel[output]", "/ kernel[-1] * kernel[-2]"),
    ),
)  # fmt: skip
CONFIG = of(
    "config/settings.py",
    "config/test_configs.py config/test_overrides.py training/test_loop.py data/test_stream.py -k steps_of",
    ("a part of a step is dropped", "math.ceil(float(match", "math.floor(float(match"),
)

DEVICES = [
    *of(
        "models/pooling.py",
        "models/test_pooling.py",
        ("every pixel that is the maximum has the gradient", "(seen == largest) & ~taken", "seen == largest"),
        (
            "the maximum's gradient a row lower",
            "(i, padded.shape[1] - 1 - rows, STRIDE - 1)",
            "(i + 1, padded.shape[1] - 2 - rows, STRIDE - 1)",
        ),
    ),
    *of(
        "models/resnet.py",
        "training/test_compilation.py",
        (
            "the stem's gradient is XLA's scatter",
            "x = max_pool(x, padding)",
            "x = nn.max_pool(x, (3, 3), (2, 2), padding)",
        ),
    ),
    *of(
        "sharding.py",
        "training/test_compilation.py test_sharding.py",
        ("picked as if an index came twice", "unique_indices=True, mode", "unique_indices=False, mode"),
        ("no index is one of the last", "FILL_OR_DROP", "CLIP"),
    ),
    *of(
        "models/convolution.py",
        "models/test_convolution.py",
        ("devices sum bfloat16", "return found.astype(jnp.float32)", "return found"),
    ),
    *of(
        "distributed.py",
        "test_distributed.py",
        ("a task of several takes all GPUs", 'r"1(\\(x\\d+\\))?"', 'r".+"'),
    ),
]
TWO_TOWERS = [
    *of(
        "models/towers.py",
        "training/test_two_towers.py",
        ("equal encoders begin alike", "networks[1].init(second_seed(seed), views[1])", "networks[1].init(seed, views[1])"),
    ),
    *of(
        "evaluators/retrieval.py",
        "training/test_two_towers.py",
        ("equal cosines are found", "((cosine == best) & (np.arange(len(candidates)) < place))", "((cosine == best) & (place < 0))"),
        ("chance draws with replacement", "wrong = len(candidates) - right[:, None] - np.arange(k)",
         "wrong = len(candidates) - right[:, None] - 0 * np.arange(k)"),
    ),
    *of(
        "contrast/comparison.py",
        "training/test_two_towers.py",
        ("tau learns the other way", "tau * jnp.exp(-slopes.log_scale)", "tau * jnp.exp(slopes.log_scale)"),
        ("the bias is not learnt", "else bias + slopes.bias", "else bias"),
    ),
    *of(
        "losses/sigmoid_pairs.py",
        "training/test_two_towers.py",
        ("the positive has no bias", "jax.nn.softplus(-(positive + bias))", "jax.nn.softplus(-positive)"),
    ),
    *of(
        "training/recipe.py",
        "training/test_two_towers.py",
        ("views of a pair share a key", 'zlib.crc32(b"second")', "0"),
        ("the own view of another network", 'if compared.apart and pool.by == "query"', 'if keyed < 2 and pool.by == "query"',
         "contrast/test_family_rules.py"),
        run=True,
    ),
]  # fmt: skip
MUTATIONS = [
    *CONTRASTIVE, *DISTRIBUTION, *DEFINITIONS, *INFORMATION, *INVARIANCE,
    *COMPARISON, *CANDIDATES, *MARGIN, *TEMPERATURE, *TARGET, *TERMS, *NEGATIVES, *SUBSETS, *DENSE, *TILED, *SCORES, *PAIRWISE, *DIAGNOSTICS,
    *BY_EXAMPLE, *NORMALIZER, *GUIDE, *SOFT_TARGETS, *VARIANTS,
    *SUPERVISED, *ORDER, *RESIDENT, *SPLIT, *COMPOSITES, *NOISE, *CROPS, *VIEWS, *ARRAY_VIEWS, *LISTING, *TFDS, *ARRAY_FILES, *PIPELINE, *COLOR, *GEOMETRY, *SCHEDULES, *OPTIMIZERS,
    *SNR, *KNN, *FEATURES, *PROBE, *SHAPE, *CHECKPOINT, *METRICS, *LOOP, *RESUME, *STEP, *RECORDER, *RESULT, *REPLICAS, *ALARMS, *ENCODERS, *NETWORK, *NORM, *PROGRAMS, *DEVICES, *CONFIG, *TWO_TOWERS,
]  # fmt: skip


def misplaced(mutation):
    """A sentence, unless the text occurs exactly once and would be another."""
    found = (ROOT / mutation.file).read_text().count(mutation.old)
    if found != 1 or mutation.old == mutation.new:
        return f"{mutation.file}, {mutation.name}: {mutation.old!r} occurs {found} times, not once"


def caught_by(tree, tests, tier):
    """The first test of a tier that fails in a tree, or what pytest says of it; "" where all pass, or there is none."""
    paths = [
        f"tests/{word}" if word.endswith(".py") or (tree / "tests" / word).is_dir() else word
        for word in tests
    ]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *paths]
    command += ["-m", "not run and not slow" if tier == "default" else tier]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode in (0, 5):  # 5: no test of the tier is there
        return ""
    if failed := re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE):
        return failed[1]
    if done.returncode == 4:  # a file that is not there: a mistake of this table
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return f"exit status {done.returncode}"


def outcome(tree, mutation):
    """What became of one mutation; the tree is then as it was."""
    file = tree / mutation.file
    before = file.read_text()
    file.write_text(before.replace(mutation.old, mutation.new))
    try:
        for tier in ("default", "run") if mutation.run else ("default",):
            if found := caught_by(tree, mutation.tests.split(), tier):
                return {"caught": found, "tier": tier}
        return {"caught": "", "tier": ""}
    finally:
        file.write_text(before)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="mutations whose file or name contains this")
    parser.add_argument("--out", type=pathlib.Path, help="results so far: what is in it is not run again")
    parser.add_argument("--check", action="store_true", help="only look whether each text occurs once")
    given = parser.parse_args()
    if wrong := list(filter(None, map(misplaced, MUTATIONS))):
        sys.exit("\n".join(wrong))
    chosen = [m for m in MUTATIONS if given.only in m.file or given.only in m.name]
    if given.check:
        return print(f"{len(chosen)} mutations, each of a text that occurs once")
    found = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        tree = shutil.copytree(ROOT, pathlib.Path(folder) / "tree", ignore=LEFT_OUT)
        for mutation in chosen:
            key, began = f"{mutation.file}: {mutation.name}", time.monotonic()
            if key not in found:
                found[key] = outcome(tree, mutation) | {"seconds": round(time.monotonic() - began)}
                if given.out:
                    given.out.write_text(json.dumps(found, indent=1, ensure_ascii=False))
            who = found[key]["caught"] or "SURVIVED"
            tier = f" ({found[key]['tier']})" if found[key]["tier"] == "run" else ""
            print(
                f"| {key.removeprefix('contrastive_jax/')} | {who.removeprefix('tests/')}{tier} |", flush=True
            )
    survivors = [m.name for m in chosen if not found[f"{m.file}: {m.name}"]["caught"]]
    print(f"{len(chosen)} mutations, {len(survivors)} survived")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
