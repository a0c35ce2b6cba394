"""The papers' losses as pure functions of arrays, unreduced, independent of devices, configuration and state.

Almost all of them are functions of one number per query, the contrast of its negatives with its positive,

    c_i = logsumexp_j((s_ij - s_i+) / tau)        (j over the negatives of query i, K_i of them)

    loss                  value                                         gradient
    --------------------  --------------------------------------------  ------------------------------------
    info_nce              softplus(c)                                   sigmoid(c) dc
    dcl                   c                                             dc
    flat_nce              1                                             dc
    flat_nce_plus         1                                             sigmoid(c) dc, as info_nce
    hoelder_flat_nce      1                                             dc' / gamma, c' at tau / gamma; any gamma
    eqco                  softplus(c + log(alpha / K))                  alpha = K: info_nce; alpha -> inf: dcl
    relative              softplus(c)                                   W / mean(W) dc, W = sigmoid(c)
    scaled                softplus(c)                                   mean(W) dc
    macl                  softplus(c) / sigmoid(c)                      dc
    macl_w                (2 - s+) softplus(c) / sigmoid(c)             (2 - s+) dc
    dclw                  c + (1 - w) s+ / tau                          dcl with the positive weighted by w
    dual_temperature      sigmoid(c_beta) softplus(c) / sigmoid(c)      sigmoid(c_beta) dc, c_beta at tau m
    decoupled_nt_xent     lambda logsumexp_all(s / tau) - s+            lambda = tau: tau times info_nce
    debiased              log(1 + max((e^c - t K) / (1 - t), least))    t = 0: info_nce
    hard_nce              softplus(log K + c' - c'')                    c' at tau / (1 + beta), c'' at tau / beta
    hardness_weighted     softplus(c' + alpha s+ / tau)                 sigmoid(value's c) dc' / (1 + alpha)
    ifm                   (softplus(c) + softplus(c + 2 e / tau)) / 2     e = 0: info_nce
    rince                 e^(q s+ / tau) ((l (1 + e^c))^q - 1) / q      q = 0: info_nce + log l
    alpha_cl              sum_j sg(w_j) (s_j - s+) / tau                dc, as dcl
    label_smoothing       softplus(c) - e K / (K + 1) mean_j(s_j - s+) / tau      e = 0: info_nce
    mean_contrast         w mean_j s_j - s+                             no softmax: spectral, KCL by a transform
    vrns                  mean_j (s_j - target)^2                       to be added to another loss
    fenchel_legendre      u + e^(c - log K - u) - 1                     e^(c - log K - u) (dc - du) + du
    sogclr                tau (u + e^(c - log K - u) - 1)               tau times fenchel_legendre's
    robust                tau (c - log K + rho)                         tau dc
    donsker_varadhan      log mean_ij e^(s_ij / tau) - s+ / tau         dcl's, negatives by their shares of the mean

Other losses: alignment, logsumexp_distribution, uniformity and sliced_wasserstein on the embeddings;
byol and relic_kl between views; sigmoid (SigLIP) on each pair by itself; cross_entropy, sigmoid_cross_entropy and
cross_entropy_of_parts on labels; and the estimates of mutual information (see ``information`` for those that are
bounds).

Means of W are over all queries of a step, on all devices and in all micro-batches: ``relative``, ``scaled`` and
the weights of ``dclw`` depend on the other queries too.

Losses are looked up by name. Positional parameters are quantities (``c``, ``positive``, ``count``, ...),
keyword-only parameters are options. A loss that reads contrasts at other multiples of 1/tau declares them with
:func:`loss`; its first parameters are then those contrasts.
"""

from contrastive_jax.losses.contrastive import (
    dcl,
    dclw,
    debiased,
    decoupled_nt_xent,
    dual_temperature,
    eqco,
    flat_nce,
    flat_nce_plus,
    hard_nce,
    hardness_weighted,
    hoelder_flat_nce,
    info_nce,
    macl,
    macl_w,
    relative,
    scaled,
    value_with_gradient_of,
)
from contrastive_jax.losses.declaration import Declaration, declaration, loss
from contrastive_jax.losses.distribution import (
    alignment,
    logsumexp_distribution,
    orthogonal_directions,
    prior_samples,
    sliced_wasserstein,
    sliced_wasserstein_distance,
    uniformity,
)
from contrastive_jax.losses.information import (
    donsker_varadhan,
    donsker_varadhan_estimate,
    eqco_estimate,
    fenchel_legendre,
    flat_nce_estimate,
    info_nce_estimate,
    interpolated,
    jensen_shannon,
    nwj,
    robust,
    row_statistics,
    smile,
    sogclr,
    tuba,
)
from contrastive_jax.losses.invariance import byol, relic, relic_kl
from contrastive_jax.losses.sigmoid_pairs import sigmoid
from contrastive_jax.losses.supervised import cross_entropy, cross_entropy_of_parts, sigmoid_cross_entropy
from contrastive_jax.losses.variants import alpha_cl, ifm, label_smoothing, mean_contrast, rince, vrns

__all__ = [
    "Declaration",
    "alignment",
    "alpha_cl",
    "byol",
    "cross_entropy",
    "dcl",
    "dclw",
    "debiased",
    "declaration",
    "decoupled_nt_xent",
    "donsker_varadhan",
    "donsker_varadhan_estimate",
    "dual_temperature",
    "eqco",
    "eqco_estimate",
    "fenchel_legendre",
    "flat_nce",
    "flat_nce_estimate",
    "flat_nce_plus",
    "hard_nce",
    "hardness_weighted",
    "hoelder_flat_nce",
    "ifm",
    "info_nce",
    "info_nce_estimate",
    "interpolated",
    "jensen_shannon",
    "label_smoothing",
    "logsumexp_distribution",
    "loss",
    "macl",
    "macl_w",
    "mean_contrast",
    "nwj",
    "orthogonal_directions",
    "prior_samples",
    "relative",
    "relic",
    "relic_kl",
    "rince",
    "robust",
    "row_statistics",
    "scaled",
    "sigmoid",
    "sigmoid_cross_entropy",
    "cross_entropy_of_parts",
    "sliced_wasserstein",
    "sliced_wasserstein_distance",
    "smile",
    "sogclr",
    "tuba",
    "uniformity",
    "value_with_gradient_of",
    "vrns",
]
