"""The table behind ``docs/who_is_who.md``: losses of the literature, what each equals here, and why.

Run this file to write the page to standard output. ``tests/contrast/test_who_is_who.py`` checks that the page is this
table's, that every expression and every config runs, and that each derivation has its test among the identities.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """One loss or rule of the literature.

    ``ours`` is an expression of two views ``a`` and ``b`` [N, D] and of what ``OWN`` defines. ``config`` is what
    follows ``--config=``, "" where it is none of a run's choices. ``golden`` is a file of ``tests/golden`` with
    numbers of ``code``, which is repository@commit, or the package. ``proofs`` name derivations.
    """

    name: str
    source: str
    form: str
    equals: str
    ours: str
    config: str = ""
    code: str = ""
    golden: str = ""
    proofs: tuple[str, ...] = ()


TABLE: dict[str, list[Row]] = {
    "Functions of the contrast": [
        Row(
            name="InfoNCE, NT-Xent, SimCLR",
            source="van den Oord et al., 2018; Chen et al., 2020",
            form="softplus(c)",
            equals="SimCLR's own code adds the two directions: twice the mean",
            ours='contrastive_loss(a, b, "info_nce", tau)',
            config="digits:method=simclr",
            code="google-research/simclr",
            golden="ntxent_simclr_tf2",
        ),
        Row(
            name="CLIP",
            source="Radford et al., 2021",
            form="softplus(c)",
            equals="InfoNCE, negatives from the other view",
            ours='contrastive_loss(a, b, "info_nce", tau, candidates="other_view")',
            config="digits --config.candidates=other_view",
            code="open-clip-torch 3.3.0",
            golden="losses_of_other_libraries",
        ),
        Row(
            name="MoCo v1, v2",
            source="He et al., 2020; Chen et al., 2020",
            form="softplus(c)",
            equals="InfoNCE, one way, negatives from a queue",
            ours='contrastive_loss(a, b, "info_nce", tau, candidates="queue", queue=queue, directions="one_way")',
            config="digits:method=moco_v2",
            code="facebookresearch/moco",
            golden="moco_steps",
        ),
        Row(
            name="MoCo v3",
            source="Chen, Xie and He, 2021",
            form="2 tau softplus(c)",
            equals="2 tau times InfoNCE with the other view, keys held; summed over both directions",
            ours='2 * tau * contrastive_loss(a, hold(b), "info_nce", tau, **one_way)',
            config="digits:method=moco_v3",
            code="vturrisi/solo-learn@9187ea39",
            golden="family_solo_learn",
        ),
        Row(
            name="NNCLR",
            source="Dwibedi et al., 2021",
            form="softplus(c)",
            equals="InfoNCE with the other view, one way, of neighbours `a` from a queue",
            ours='contrastive_loss(a, b, "info_nce", tau, **one_way)',
            code="vturrisi/solo-learn@9187ea39",
            golden="family_solo_learn",
        ),
        Row(
            name="DCL",
            source="Yeh et al., 2022",
            form="c",
            equals="the gradient of FlatNCE and of MACL",
            ours='contrastive_loss(a, b, "dcl", tau)',
            config="digits:method=dcl",
            code="raminnakhli/Decoupled-Contrastive-Learning",
            golden="dcl",
        ),
        Row(
            name="FlatNCE, FlatCLR",
            source="Chen et al., 2021",
            form="exp(c - sg(c))",
            equals="DCL's gradient; the value is always 1",
            ours='contrastive_loss(a, b, "flat_nce", tau)',
            config="digits:method=flatclr",
            code="Junya-Chen/FlatCLR",
            golden="flatnce_flatclr",
        ),
        Row(
            name="EqCo",
            source="Zhu et al., 2020",
            form="softplus(c + log(alpha / K))",
            equals="InfoNCE with a margin; alpha to infinity: DCL's gradient",
            ours='contrastive_loss(a, b, "eqco", tau, alpha=256.0)',
            config="digits:method=eqco_simclr",
            golden="eqco_simo",
        ),
        Row(
            name="MACL",
            source="Huang et al., 2022",
            form="sg(1 / W) softplus(c), W = sigmoid(c)",
            equals="DCL's gradient at a temperature that follows the alignment",
            ours='contrastive_loss(a, b, "macl", macl_temperature(0.1, 2.0), **one_way)',
            config="digits:method=macl",
            golden="macl",
        ),
        Row(
            name="Dual temperature, SimCo",
            source="Zhang et al., 2022",
            form="sg(W' / W) softplus(c), W' at tau m",
            equals="DCL, its queries weighted by W'",
            ours='contrastive_loss(a, b, "dual_temperature", tau, factor=10.0, candidates="other_view")',
            config="digits:method=dual_temperature",
            golden="dual_temperature",
        ),
        Row(
            name="Decoupled NT-Xent",
            source="Chen, Luo and Li, 2021",
            form="lambda logsumexp(s / tau) - s+",
            equals="lambda = tau: tau times InfoNCE",
            ours='contrastive_loss(a, b, "decoupled_nt_xent", tau, lambda_weight=0.1)',
            config="digits:method=decoupled_nt_xent",
            code="google-research/simclr",
            golden="generalized_contrastive_loss",
        ),
        Row(
            name="IFM",
            source="Robinson et al., 2021",
            form="(softplus(c) + softplus(c + 2 eps / tau)) / 2",
            equals="the mean of InfoNCE and of EqCo with alpha = K exp(2 eps / tau)",
            ours='contrastive_loss(a, b, "ifm", tau, epsilon=0.1)',
            config="digits:method=ifm",
            code="joshr17/IFM@bcec4c38",
            golden="family_ifm",
            proofs=("ifm_second_term", "ifm_is_a_margin"),
        ),
        Row(
            name="RINCE",
            source="Chuang et al., 2022",
            form="e^(q x+) / q ((lam (1 + e^c))^q - 1), x = s / tau",
            equals="q = 0: InfoNCE plus log lam; q = 1: a difference of exponentials",
            ours='contrastive_loss(a, b, "rince", tau, q=0.5, lam=0.025)',
            config="digits:method=rince",
            code="chingyaoc/RINCE@c7f85342",
            golden="family_rince",
            proofs=(
                "rince_at_q_0",
                "rince_at_q_1",
            ),
        ),
        Row(
            name="SINCERE",
            source="Feeney and Hughes, 2023",
            form="mean_p softplus(logsumexp(x_j) - x_p)",
            equals="NT-Xent of classes of equal size; InfoNCE of two views",
            ours="sincere(both, classes, tau)",
            code="tufts-ml/SupContrast@f3077248",
            golden="family_sincere",
            proofs=("sincere_two_views", "sincere_balanced"),
        ),
        Row(
            name="eps-SupInfoNCE",
            source="Barbano et al., 2023",
            form="softplus(c + eps) - eps",
            equals="EqCo with alpha = K e^eps, less eps",
            ours='contrastive_loss(a, b, "eqco", tau, alpha=K * exp(0.25)) - 0.25',
            code="tufts-ml/SupContrast@f3077248",
            golden="family_sincere",
            proofs=("eps_sup_info_nce",),
        ),
        Row(
            name="alpha-CL, exponential weights, exponent 1",
            source="Tian, 2022",
            form="sum_j sg(w_j) (s_j - s+), w = softmax(-(1 - s) / tau)",
            equals="tau times DCL, in the gradient",
            ours='tau * contrastive_loss(a, b, "alpha_cl", tau)',
            config="digits:method=alpha_cl",
            code="facebookresearch/luckmatters@625b5f7d",
            golden="family_alpha_cl",
            proofs=("alpha_cl_exponent_1",),
        ),
        Row(
            name="SupCon",
            source="Khosla et al., 2020",
            form="softplus(c) + logsumexp_p(x) - mean_p(x)",
            equals="InfoNCE of several positives, outside or inside the logarithm",
            ours='contrastive_loss(a, b, "info_nce", tau, positives=classes, summation="out")',
            code="HobbitLong/SupContrast@66a8fe53",
            golden="supcon_supcontrast",
        ),
        Row(
            name="Label smoothing",
            source="Szegedy et al., 2016",
            form="softplus(c) + eps (x+ - mean(x))",
            equals="InfoNCE plus a linear term",
            ours='contrastive_loss(a, b, "label_smoothing", tau, smoothing=0.1)',
            config="digits:method=label_smoothing",
            code="torch 2.14.1",
            golden="family_label_smoothing",
            proofs=("label_smoothing",),
        ),
        Row(
            name="Soft targets",
            source="distillation and captions of CLIP",
            form="sum_j t_j (logsumexp(x) - x_j), t of a row",
            equals="InfoNCE plus a linear term; uniform but for the positive: label smoothing",
            ours="soft_target_loss(a, b, targets, tau)",
            code="torch 2.13.0",
            golden="family_soft_targets",
            proofs=("soft_targets_mix_keys", "smoothed_labels_are_soft_targets"),
        ),
        Row(
            name="i-Mix; mixup and CutMix of two positives",
            source="Lee et al., 2021",
            form="lam (logsumexp(x) - x+) + (1 - lam) (logsumexp(x) - x_partner)",
            equals="soft targets with two shares; no config, as a run augments each image alone",
            ours="soft_target_loss(a, b, (places, shares), tau)",
            code="kibok90/imix@d40fabe0",
            golden="family_imix",
            proofs=("soft_targets_mix_keys",),
        ),
        Row(
            name="Matryoshka",
            source="Kusupati et al., 2022",
            form="sum over widths d of the loss of the first d columns",
            equals="itself",
            ours='matryoshka_loss(a, b, "info_nce", tau, widths=(2, 4))',
            code="sentence-transformers 6.2.0",
            golden="family_sentence_transformers",
        ),
    ],
    "Transforms of scores, and weights of negatives": [
        Row(
            name="Temperature-free",
            source="Kim and Kim, 2025",
            form="phi(s) = 2 artanh(s)",
            equals="cross-entropy of the odds (1 + s) / (1 - s)",
            ours='contrastive_loss(a, b, "info_nce", tau, transform=transform.temperature_free())',
            config="digits:method=temperature_free",
            proofs=("temperature_free_is_a_ratio",),
        ),
        Row(
            name="DySTreSS",
            source="Manna et al., 2023",
            form="phi(s) = s / tau(s), a cosine of s",
            equals="InfoNCE where both limits are tau",
            ours='contrastive_loss(a, b, "info_nce", tau, transform=transform.dystress(min_tau=0.07, max_tau=0.2))',
            config="digits:method=dystress",
            code="sadimanna/DySTreSS@36e878b5",
            golden="family_dystress",
            proofs=("dystress_of_equal_temperatures",),
        ),
        Row(
            name="ADNCE",
            source="Wu et al., 2023",
            form="phi(s) = s / tau + sg(log w), w a Gaussian of s of mean 1",
            equals="wide: InfoNCE; its linear part: hardness",
            ours='contrastive_loss(a, b, "info_nce", tau, transform=transform.adnce(mu=0.7, sigma=1.0))',
            config="digits:method=adnce",
            code="junkangwu/ADNCE@cdd110f8",
            golden="family_adnce",
            proofs=("adnce_of_wide_sigma", "adnce_is_a_tilt_and_a_gaussian"),
        ),
        Row(
            name="LLaVE's hardness weights",
            source="Lan et al., 2025",
            form="phi(s) = s / tau + sg(alpha s / tau)",
            equals="a transform on InfoNCE",
            ours='contrastive_loss(a, b, "hardness_weighted", tau, alpha=1.0)',
            config="digits:method=hardness",
            proofs=("hardness_weight_is_a_transform",),
        ),
        Row(
            name="HCL, hard negatives",
            source="Robinson et al., 2021",
            form="softplus(log K + c' - c'')",
            equals="InfoNCE with weights e^(beta s / tau) of mean 1; beta to 0: InfoNCE",
            ours='contrastive_loss(a, b, "hard_nce", tau, beta=1.0)',
            config="digits --config.loss=hard_nce",
            code="joshr17/HCL@7b4647fa",
            golden="hard_negatives_hcl",
        ),
        Row(
            name="Debiased",
            source="Chuang et al., 2020",
            form="log(1 + (e^c - t K) / (1 - t))",
            equals="t = 0: InfoNCE",
            ours='contrastive_loss(a, b, "debiased", tau, tau_plus=0.1)',
            config="digits --config.loss=debiased",
            code="chingyaoc/DCL@7d6345f6",
            golden="debiased_dcl",
        ),
        Row(
            name="Margin masks (Qwen3 Embedding)",
            source="Zhang et al., 2025",
            form="phi(s) = -inf where s > s+ + m",
            equals="GISTEmbed with the model as its own guide",
            ours='contrastive_loss(a, b, "info_nce", tau, transform=transform.margin_mask(margin=0.1))',
            config="digits:method=margin_mask",
            code="sentence-transformers 6.2.0",
            golden="family_sentence_transformers",
            proofs=("margin_mask_drops_terms",),
        ),
        Row(
            name="GISTEmbed",
            source="Solatorio, 2024",
            form="phi(s) = -inf where a guide's score > its s+ - m",
            equals="guided by the model itself: a margin mask; the library's default row has the positive's pairs too;"
            " no config, as a run loads no second model",
            ours="gist(a, b, tau, guide_a, guide_b)",
            code="sentence-transformers 6.2.0",
            golden="family_sentence_transformers",
            proofs=("gist_adds_the_positives_pairs",),
        ),
    ],
    "Candidates, and means of a function of the score": [
        Row(
            name="DHEL",
            source="Koromilas et al., 2024",
            form="logsumexp_own_view(x) - x+",
            equals="DCL with the query's own view as candidates",
            ours='contrastive_loss(a, b, "dcl", tau, candidates="own_view")',
            config="digits:method=dhel",
            code="pakoromilas/DHEL-KCL@dc5a4779",
            golden="family_dhel_kcl",
            proofs=("dhel_is_dcl_of_the_own_view", "dhels_energy_is_a_gaussian_kernels"),
        ),
        Row(
            name="KCL, Gaussian kernel",
            source="Koromilas et al., 2024",
            form="gamma mean_j k(s_j) - k(s+)",
            equals="gamma times exp(uniformity), less a kernel of the alignment",
            ours='contrastive_loss(a, b, "mean_contrast", tau, gamma=16.0, transform=kcl, candidates="own_view")',
            config="digits:method=kcl",
            code="pakoromilas/DHEL-KCL@dc5a4779",
            golden="family_dhel_kcl",
            proofs=("gaussian_kcl_is_alignment_and_uniformity",),
        ),
        Row(
            name="Spectral",
            source="HaoChen et al., 2021",
            form="mean_j s_j^2 - 2 s+",
            equals="the squared mean plus the variance, less 2 s+",
            ours='contrastive_loss(a, b, "mean_contrast", tau, transform=spectral, candidates="other_view")',
            config="digits:method=spectral",
            code="jhaochenz96/spectral_contrastive_learning@ee431bdb",
            golden="family_spectral",
            proofs=("spectral_is_a_second_moment",),
        ),
        Row(
            name="f-MICL",
            source="Lu et al., 2023",
            form="gamma mean_j (u f'(u) - f(u)) - f'(u+), u = e^(-2 t (1 - s))",
            equals="KL: minus NWJ's estimate; Jensen-Shannon: SigLIP with the bias -2 t",
            ours='contrastive_loss(a, b, "mean_contrast", tau, gamma=16.0, transform=transform.f_micl())',
            config="digits:method=f_micl",
            proofs=("f_micl_of_kl_is_nwj", "f_micl_of_jensen_shannon_is_siglip"),
        ),
        Row(
            name="VRNS",
            source="Lee et al., 2025",
            form="softplus(c) + 30 mean_j (s_j + 1 / (n - 1))^2, n training examples",
            equals="its term: mean_contrast of the squares, which needs no row of scores; at 0 spectral's plus 2 s+",
            ours='contrastive_loss(a, b, "vrns", tau, target=-0.01, candidates="other_view")',
            config="digits:method=vrns",
            code="leechungpa/embedding-similarity-cl@5c354b06",
            golden="family_vrns",
            proofs=("vrns_is_a_variance_and_a_mean", "spectral_is_a_second_moment"),
        ),
        Row(
            name="SigLIP",
            source="Zhai et al., 2023",
            form="sum_j softplus(-+(s_j / tau + bias))",
            equals="no function of c: every pair alone",
            ours="sigmoid_loss(a, b, tau, -10.0)",
            config="digits --config.loss=sigmoid --config.temperature=siglip --config.candidates=other_view",
            code="google-research/big_vision@179d0204",
            golden="sigmoid_siglip",
        ),
        Row(
            name="SigLIP with a relative bias",
            source="Bangachev et al., 2025",
            form="sum_j softplus(-+(s_j - r) / tau)",
            equals="SigLIP with bias = -r / tau",
            ours="sigmoid_loss(a, b, tau, relative_bias=0.2)",
            proofs=("relative_bias_is_a_bias_over_tau",),
        ),
    ],
    "A number u for each example": [
        Row(
            name="SogCLR",
            source="Yuan et al., 2022",
            form="gradient mean(e^x) / u d logsumexp(x) - dx+, u a moving average of mean(e^x)",
            equals="minus TUBA with the baseline log u; at the batch's own u: FlatNCE's gradient",
            ours="contrastive_loss(a, b, sogclr(log_u), tau)",
            config="digits:method=sogclr",
            code="Optimization-AI/LibAUC@812f98f7",
            golden="family_libauc",
            proofs=("sogclr_is_minus_tuba", "sogclr_at_its_own_u"),
        ),
        Row(
            name="FastCLIP-v1",
            source="Wei et al., 2024",
            form="gradient e^(c - log K - u) dc, e^u a moving average of e^c / K",
            equals="Fenchel-Legendre at a held u; at the batch's own u: FlatNCE's gradient",
            ours='contrastive_loss(a, b, fast_clip(log_u), tau, candidates="other_view")',
            config="digits:method=fast_clip_v1",
            code="Optimization-AI/fast_clip@efd89d51",
            golden="family_fast_clip",
            proofs=("fast_clip_at_its_own_u",),
        ),
        Row(
            name="NeuCLIP, AmorLIP",
            source="2026; 2025",
            form="u + e^(c - log K - u) - 1, u from a network",
            equals="Fenchel-Legendre with a learnt u",
            ours="contrastive_loss(a, b, fast_clip(log_u), tau)",
            config="digits:method=fenchel_legendre_baseline",
        ),
    ],
    "Rules for the temperature": [
        Row(
            name="iSogCLR",
            source="Qiu et al., 2023",
            form="tau_i (c - log K + rho), tau_i moves along KL(p_i, uniform) - rho",
            equals="tau_i is the Lagrange multiplier of KL <= rho",
            ours='contrastive_loss(a, b, "robust", tau_i, rho=0.3)',
            config="digits:method=isogclr",
            code="zhqiu/contrastive-learning-iSogCLR@c20903bd",
            golden="family_isogclr",
            proofs=("slope_of_the_robust_objective", "robust_objective_is_a_lagrangian"),
        ),
        Row(
            name="FastCLIP-v2",
            source="Wei et al., 2024",
            form="iSogCLR with u of e^c / K, for each view; Adam moves tau_i",
            equals="iSogCLR's objective, with the slope rho - KL at the batch's own u; the code's gradient of the"
            " network lacks its weight tau_i, and so has the config",
            ours='contrastive_loss(a, b, fast_clip(log_u), tau_i, candidates="other_view")',
            config="digits:method=fast_clip_v2",
            code="Optimization-AI/fast_clip@efd89d51",
            golden="family_fast_clip",
            proofs=("slope_of_the_robust_objective",),
        ),
        Row(
            name="FastCLIP-v3",
            source="Wei et al., 2024",
            form="one tau, at rest where the mean KL is rho",
            equals="holds exp(H(p)) / K, of which the ESS is the same of order 2; the code's own rest point is another",
            ours="",
            config="digits:method=kl_tau",
            code="Optimization-AI/fast_clip@efd89d51",
            golden="family_fast_clip",
            proofs=("kl_share_is_perplexity", "ess_is_the_share_of_order_2"),
        ),
        Row(
            name="TempNet",
            source="Qiu et al., 2024",
            form="tau is a network of the query",
            equals="iSogCLR's objective, amortised; no config, as a rule has no trained parameters, and the network"
            " has an optimizer of its own",
            ours='contrastive_loss(a, b, "robust", tau_i, rho=0.3, candidates="other_view")',
            code="zhqiu/TempNet@35596453",
            golden="family_tempnet",
            proofs=("slope_of_the_robust_objective",),
        ),
        Row(
            name="Temperature schedules",
            source="Kukleva et al., 2023",
            form="a periodic cosine from .1 to .5",
            equals="half a period: the cosine rule",
            ours="",
            config="digits:method=periodic_tau",
            code="Annusha/temperature_schedules@3ac1db63",
            golden="family_temperature_schedules",
        ),
    ],
}

DERIVATIONS: dict[str, str] = {  # a title, then three lines
    "ifm_second_term": """IFM's second term is EqCo
-log softmax of x+ - eps/tau beside x_j + eps/tau
  = log(1 + sum_j exp(x_j - x+ + 2 eps/tau)) = softplus(c + 2 eps/tau)
  = softplus(c + log(alpha/K)) with alpha = K exp(2 eps/tau): EqCo.""",
    "ifm_is_a_margin": """EqCo, so IFM's second term, is a margin on InfoNCE
EqCo(alpha) is softplus(c + log(alpha/K)).
The margin rule eqco(alpha) adds log(alpha/K) to the contrast.
InfoNCE of that contrast is the same softplus.""",
    "rince_at_q_0": """RINCE at q = 0 is InfoNCE
(y^q - 1) / q tends to log y as q tends to 0, and e^(q x+) to 1.
RINCE tends to log(lam (1 + e^c)).
  = softplus(c) + log lam: InfoNCE and a constant.""",
    "rince_at_q_1": """RINCE at q = 1 is a difference of exponentials
RINCE = e^(x+) (lam (1 + e^c) - 1), and e^(x+) e^c = sum_j e^(x_j).
  = lam e^(x+) + lam sum_j e^(x_j) - e^(x+)
  = lam sum_j e^(x_j) - (1 - lam) e^(x+).""",
    "sincere_two_views": """SINCERE of two views is InfoNCE
An anchor's only positive is the other view of its example, its negatives all other rows.
mean_p softplus(logsumexp_j(x_j) - x_p) has then one term.
logsumexp_j(x_j) - x+ = c, so that it is softplus(c).""",
    "sincere_balanced": """SINCERE of balanced classes is NT-Xent of labels
SINCERE: mean over anchors i of 1/|P_i| sum_p softplus(L_i - x_ip), L_i over other classes.
With |P_i| = P for all i this is 1/(n P) times the sum over all pairs (i, p).
n P is the number of pairs: the mean over pairs, NT-Xent of labels.""",
    "eps_sup_info_nce": """eps-SupInfoNCE is EqCo
-log(e^(x+) / (e^(x+ - eps) + sum_j e^(x_j)))
  = log(e^(-eps) + e^c) = log(1 + e^(c + eps)) - eps
  = softplus(c + log(alpha/K)) - eps with alpha = K e^eps.""",
    "alpha_cl_exponent_1": """alpha-CL with exponent 1 has DCL's gradient
w_j = e^(-(1 - s_j)/tau) / sum_k e^(-(1 - s_k)/tau): e^(-1/tau) cancels.
So w is the softmax p of s/tau over negatives; held, the gradient is sum_j p_j (ds_j - ds+).
dc = sum_j p_j (ds_j - ds+) / tau: the gradient is tau dc, tau times DCL's.""",
    "label_smoothing": """Label smoothing adds a linear term to InfoNCE
-(1 - eps) log p+ - eps mean_k log p_k, over K + 1 candidates k, log p_k = x_k - L.
  = L - x+ + eps (x+ - mean_k x_k), L the logsumexp over all candidates.
L - x+ = softplus(c): InfoNCE plus eps (x+ - mean_k x_k).""",
    "soft_targets_mix_keys": """Soft targets are InfoNCE of the positive and a mixture of keys
sum_j t_j (L - x_j) with sum_j t_j = 1 is L - sum_j t_j x_j, L the logsumexp over all candidates.
L - x+ = softplus(c), and sum_j t_j x_j = q . (sum_j t_j k_j) / tau, as scores are linear in the keys.
softplus(c) + q . (k+ - sum_j t_j k_j) / tau: InfoNCE plus a linear term.""",
    "smoothed_labels_are_soft_targets": """Label smoothing is a soft target
t has 1 - eps + eps/(K + 1) on the positive and eps/(K + 1) on each of K negatives.
softplus(c) + x+ - sum_j t_j x_j = softplus(c) + eps/(K + 1) sum_j (x+ - x_j).
That is label smoothing.""",
    "temperature_free_is_a_ratio": """The temperature-free loss is a cross-entropy of odds
phi(s) = 2 artanh(s) = log r with the odds r = (1 + s) / (1 - s).
softplus(logsumexp_j phi(s_j) - phi(s+)) = log(1 + sum_j r_j / r+)
  = -log(r+ / (r+ + sum_j r_j)): a cross-entropy of odds.""",
    "dystress_of_equal_temperatures": """DySTreSS of equal limits is InfoNCE
tau(s) = tmin + (tmax - tmin) (1 + cos(pi (1 + s))) / 2.
With tmin = tmax = tau it is tau for every s.
phi(s) = s / tau: InfoNCE.""",
    "adnce_of_wide_sigma": """ADNCE with a large sigma is InfoNCE
w_j is exp(-(s_j - mu)^2 / (2 sigma^2)) over its mean.
|s_j - mu| is bounded, so every exponent tends to 0 as sigma grows, and every w_j to 1.
phi(s) = s / tau + log 1: InfoNCE.""",
    "adnce_is_a_tilt_and_a_gaussian": """ADNCE's weights are a tilt and a Gaussian around 0
-(s - mu)^2 / (2 v) = s mu / v - s^2 / (2 v) - mu^2 / (2 v), v = sigma^2.
The last term is one constant, which the mean of the weights divides out.
The first is hardness with alpha = tau mu / v, the second a Gaussian around 0.""",
    "hardness_weight_is_a_transform": """Hardness weights are a transform of scores
The weight e^(alpha s/tau), held, is alpha sg(s/tau) added to the logit.
Value: the contrast at (1 + alpha)/tau plus alpha x+; gradient: that of the logits with weights held.
The loss takes it from one logsumexp at (1 + alpha)/tau, the transform entry by entry.""",
    "margin_mask_drops_terms": """A margin mask drops terms of the sum
A logit of -inf is a term e^(-inf) = 0 in the sum over negatives.
c = log of the sum over the negatives with s_j <= s+ + m, over e^(x+).
softplus(c) = log(1 + that sum of e^(x_j - x+)).""",
    "gist_adds_the_positives_pairs": """GISTEmbed's default row is that of two InfoNCE losses
Its row of an anchor has x+, the kept x_j of the anchor and the kept y_j of the positive with other positives.
Loss: log(1 + e^c + e^c'), c of the x_j, c' of the y_j, both relative to x+; two InfoNCE are v = log(1 + e^c), v'.
e^c' = e^v' - 1: the loss is log(e^v + e^v' - 1) = v + log(1 + e^(v' - v) - e^-v).""",
    "dhel_is_dcl_of_the_own_view": """DHEL is DCL with the own view as candidates
DHEL_i = -log(e^(x+) / sum_{j != i} e^(s(a_i, a_j)/tau)).
  = logsumexp_j(s(a_i, a_j)/tau) - x+
  = c with the rows of the own view as candidates: DCL.""",
    "dhels_energy_is_a_gaussian_kernels": """DHEL's energy is a Gaussian kernel's
|u - v|^2 = 2 - 2 s for unit rows.
e^(s/tau) = e^(1/tau) exp(-t |u - v|^2) with t = 1/(2 tau).
The mean of DHEL's sum is e^(1/tau) times the mean Gaussian, the exponential of uniformity at t.""",
    "gaussian_kcl_is_alignment_and_uniformity": """KCL of the Gaussian kernel is alignment and uniformity
k(s) = exp(-t |u - v|^2), t the kernel's.
mean_i mean_{j != i} k(s_ij) within a view = exp(uniformity(t)).
The sum over views of gamma times it, less 2 mean_i k(s_i+), is KCL.""",
    "spectral_is_a_second_moment": """The spectral loss has the mean and the variance of negative scores
mean_j s_j^2 = (mean_j s_j)^2 + mean_j (s_j - mean s)^2.
The second part is the variance of a query's negative scores; the sum is VRNS's term at the target 0.
Less 2 s+ it is the spectral loss, up to its constant.""",
    "vrns_is_a_variance_and_a_mean": """VRNS's term is a variance, and a mean of squares
mean_j (s_j - t)^2 = mean_j (s_j - mean s)^2 + (mean s - t)^2.
The first part is the variance of a query's negative scores, the second draws their mean to t.
As a mean over negatives it is mean_contrast, negatives as (s - t)^2 and the positive as 0.""",
    "f_micl_of_kl_is_nwj": """f-MICL of the KL divergence is minus NWJ's estimate
f(u) = u log u has f'(u) = 1 + log u and u f'(u) - f(u) = u.
With the critic T = 1 + log u, mean_j u_j - f'(u+) = mean_j e^(T_j - 1) - T+.
NWJ's estimate is the mean of T+ less that of e^(T - 1).""",
    "f_micl_of_jensen_shannon_is_siglip": """f-MICL of the Jensen-Shannon divergence is SigLIP
f'(u) = log 2 - softplus(-x), u f'(u) - f(u) = softplus(x) - log 2, x = log u = 2 t s - 2 t.
With gamma = K: sum_j softplus(x_j) + softplus(-x+) - (K + 1) log 2.
That is SigLIP at tau = 1 / (2 t) with the bias -2 t, less a constant.""",
    "relative_bias_is_a_bias_over_tau": """SigLIP's relative bias is a bias over tau
(s - r) / tau = s / tau + b with b = -r / tau.
SigLIP's logit is s / tau + b.
At a fixed r the cosine at which a pair counts as positive stays where it is when tau moves.""",
    "sogclr_is_minus_tuba": """SogCLR is minus TUBA
v + e^(c - log K - v) - 1 at v = log u - x+, where c + x+ = logsumexp_j(x_j),
  = log u - x+ + mean_j e^(x_j) / u - 1
  = -(1 + x+ - log u - mean_j e^(x_j) / u): minus TUBA of the critic x and the baseline log u.""",
    "sogclr_at_its_own_u": """SogCLR at the batch's own u is FlatNCE
The gradient is r dlogsumexp_j(x_j) - dx+ with r = mean_j e^(x_j) / u.
At u = mean_j e^(x_j) of the batch, r = 1.
dlogsumexp_j(x_j) - dx+ = dc: DCL's and FlatNCE's gradient.""",
    "fast_clip_at_its_own_u": """FastCLIP at the batch's own u is FlatNCE
The gradient of u + e^(c - log K - u) - 1 with u held is e^(c - log K - u) dc.
At u = c - log K the factor is 1.
What is left is dc: FlatNCE's gradient.""",
    "slope_of_the_robust_objective": """The robust objective's derivative in tau is rho - KL
F = tau (log mean_j e^(d_j/tau) + rho), d_j = s_j - s+.
dF/dtau = log mean_j e^(d_j/tau) + rho - sum_j p_j d_j / tau, p the softmax of d/tau.
KL(p || uniform) = sum_j p_j d_j / tau - log mean_j e^(d_j/tau): dF/dtau = rho - KL.""",
    "robust_objective_is_a_lagrangian": """The robust objective is a Lagrangian
The same KL, times tau: tau KL = sum_j p_j d_j - tau log mean_j e^(d_j/tau).
So tau (c - log K) = sum_j p_j d_j - tau KL(p || uniform).
It is the largest mean of d under a penalty tau on KL: DRO, with tau the multiplier.""",
    "kl_share_is_perplexity": """exp(-KL) is the perplexity's share of the negatives
KL(p || uniform) = sum_j p_j log(K p_j) = log K - H(p).
exp(-KL) = exp(H(p)) / K: the perplexity of p as a share of the negatives.
A tau that holds KL at rho holds this share at e^-rho.""",
    "ess_is_the_share_of_order_2": """The ESS is the same share of order 2
The ESS is exp(2 logsumexp(x) - logsumexp(2 x)) / K = 1 / (K sum_j p_j^2).
log of it is -D_2(p || uniform), Renyi's divergence of order 2, as -KL is of order 1.
D_2 >= KL: the ESS is at most exp(H(p)) / K.""",
}


INTRODUCTION = """# Who is who

A loss that you know by name: its formula, what it equals, and how to call it here. $s$ is the score of a query with a
candidate, $s_+$ that with its positive, and $x = s / \\tau$. A query with $K$ negatives has the contrast
$c = \\log \\sum_j e^{x_j - x_+}$, and $W$ is the sigmoid of $c$. "sg" stops the gradient. A transform $\\phi$ takes the
place of $x$.

"Here" has two entries. The first is an expression, one value per query, of two views `a` and `b`, a temperature `tau`,
`both` views one below the other with their `classes`, further embeddings `queue`, those of another model `guide_a` and
`guide_b`, a matrix of `targets` or numbers `places` of examples with `shares`, one number per query `log_u` and one
temperature an example `tau_i`; names that are not in the package are [below](#losses-of-your-own). The second is for
`--config=` of a run.

"Code" is that of the authors, or of a library. Below it is the file of `tests/golden` with its values and gradients,
which tests compare with ours. [The page of these files](../tests/golden/README.md) has the functions, how
they were called, and where code and paper differ.

"Why" leads to a [derivation](#derivations) in three lines. Each is tested in float64 to 1e-12, values and gradients.
[Which loss am I using?](how_to/which_loss.md) has the classes and functions of other libraries.
"""

ROBUST = """$\\tau (c - \\log K)$ is the largest value of $\\sum_j p_j (s_j - s_+) - \\tau D(p)$ over weights $p$
of the negatives, with $D(p)$ the divergence KL(p, uniform). Contrastive learning is in this sense distributionally
robust optimisation, with $\\tau$ as a Lagrange multiplier; the rules below choose the divergence in its place.
"""

OWN = '''import jax
import jax.numpy as jnp

from contrastive_jax import contrastive_loss, losses
from contrastive_jax.contrast import transform
from contrastive_jax.contrast.guide import Guide

kcl, spectral = transform.gaussian_kernel(t=2.0), transform.spectral()
one_way = dict(candidates="other_view", directions="one_way")
hold = jax.lax.stop_gradient


def sogclr(log_u):
    """u is a moving average of the mean of e^x over an example's negatives."""

    def loss(c, count, positive, temperature):
        return losses.fenchel_legendre(c, count, log_u - positive / temperature)

    return loss


def fast_clip(log_u):
    """u is a moving average of e^c / K of an example."""
    return lambda c, count: losses.fenchel_legendre(c, count, log_u)


def gist(a, b, tau, guide_a, guide_b, margin=0.0):
    """The row of an anchor has its positive's scores with the other positives too; margin is sentence-transformers'."""
    guides = Guide(guide_a, guide_b, margin=-margin), Guide(guide_b, guide_a, margin=-margin)
    one = contrastive_loss(a, b, "info_nce", tau, directions="one_way", guide=guides[0])
    two = contrastive_loss(
        b, a, "info_nce", tau, directions="one_way", guide=guides[1], candidates="own_view"
    )
    return one + jnp.log1p(jnp.exp(two - one) - jnp.exp(-one))
'''


def _cell(row: Row) -> str:
    proofs = ", ".join(f"[why](#{name})" for name in row.proofs)
    here = [f"`{row.ours}`"] * bool(row.ours) + [f"`{row.config}`"] * bool(row.config)
    code = [row.code.replace("@", " @ ")] * bool(row.code) + [f"`{row.golden}`"] * bool(row.golden)
    cells = (
        f"**{row.name}**<br>{row.source}".removesuffix("<br>-"),
        f"`{row.form}`",
        f"{row.equals} ({proofs})" if proofs else row.equals,
        "<br>".join(here) or "not here by name",
        "<br>".join(code),
    )
    assert not any("|" in cell for cell in cells), row.name
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """Write the text of ``docs/who_is_who.md``."""
    lines = [INTRODUCTION]
    for title, rows in TABLE.items():
        lines += [f"## {title}\n"] + [ROBUST] * (title == "Rules for the temperature")
        lines += ["| loss | form | equals | here | code |", "| --- | --- | --- | --- | --- |"]
        lines += [*map(_cell, rows), ""]
    lines += ["## Losses of your own\n", "[How to](how_to/loss.md) use one.\n", f"```python\n{OWN}```\n"]
    lines += ["## Derivations\n"]
    for name, text in DERIVATIONS.items():
        title, three = text.split("\n", 1)
        lines += [f"### {title} {{#{name}}}\n", f"```text\n{three}\n```\n"]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
