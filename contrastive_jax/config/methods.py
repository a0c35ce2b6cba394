"""Methods as changes to the base config, SimCLR.

A choice (critic, target, candidates, negatives, margin, transform, temperature, normalizer, loss) replaces its
section; in other sections a method sets single leaves. The values are those published, but for the widths
of heads, which are the base config's unless a method has them (``byol``: published 4096, 256 and 4096); a data set's
config may scale queue and alpha.
"""

from typing import Any

EMA = {"name": "ema", "decay": 0.999}
ONE_WAY_MOMENTUM = {"target": EMA, "directions": "one_way"}
MLP_WITHOUT_NORM = {"layers": 2, "norm": "none"}
QUEUE = {"name": "queue", "size": 65536, "same_group": "keep"}
SHUFFLED = {"norm": {"scope": "groups", "groups": 8}, "target": EMA | {"shuffle": True}}
ACROSS = {"candidates": {"name": "other_view"}}

MOCO_V1 = (
    ONE_WAY_MOMENTUM
    | SHUFFLED
    | {
        "candidates": QUEUE,
        "projector": {"layers": 1, "norm": "none"},
        "temperature": {"name": "fixed", "tau": 0.07},
    }
)
# The loss of a ResNet-50 at tau = 1. The code multiplies InfoNCE by 2 tau and adds both directions, so that the weight
# is 4 tau. LARS and AdamW normalise the gradient, so that the factor hardly matters.
MOCO_V3 = ACROSS | {
    "target": {"name": "ema", "decay": 0.99, "schedule": "cosine"},
    "norm": {"scope": "per_view"},
    "projector": {"layers": 2, "hidden": 4096, "out": 256, "norm": "all_without_scale"},
    "predictor": {"layers": 2, "hidden": 4096, "out": 0, "norm": "hidden"},
    "temperature": {"name": "fixed", "tau": 1.0},
    "loss": {"info_nce": 4.0},
}
MOCO_V2 = MOCO_V1 | {"projector": MLP_WITHOUT_NORM, "temperature": {"name": "fixed", "tau": 0.2}}
# FlatNCE, appendix D: one negative. The temperature is not given there; the paper's default is 1.
FENCHEL_LEGENDRE = {
    "negatives": {"name": "random", "k": 1},
    "temperature": {"name": "fixed", "tau": 1.0},
    "loss": {"fenchel_legendre": 1.0},
}
FAST_CLIP = ACROSS | {"normalizer": {"name": "fast_clip"}, "loss": {"fenchel_legendre": 1.0}}
SOGCLR = {"normalizer": {"name": "sogclr"}, "loss": {"sogclr": 1.0}}


def generalized(prior: str, weight: float) -> dict:
    """Combine alignment with the sliced Wasserstein distance to a prior; constants of the authors' notebook."""
    on_sphere = prior == "hypersphere"
    scale = 1000.0 if on_sphere else 1.0
    mean_squared = {"normalize": on_sphere, "mean_over_width": True, "scale": 0.5}
    return {
        "loss": {
            "alignment": {"weight": scale} | mean_squared,
            "sliced_wasserstein": {"weight": scale * weight, "prior": prior},
        }
    }


METHODS: dict[str, dict[str, Any]] = {
    "simclr": {},
    # FlatNCE (Chen et al. 2021)
    "flatclr": {"loss": {"flat_nce": 1.0}},
    "flatclr_ess": {"loss": {"flat_nce": 1.0}, "temperature": {"name": "ess", "target": 0.3}},
    "flat_nce_plus": {"loss": {"flat_nce_plus": 1.0}},
    "hoelder": {
        "loss": {"hoelder_flat_nce": {"weight": 1.0, "gamma": 2.0}},
        "temperature": {"name": "fixed", "tau": 0.2},
    },
    "donsker_varadhan": {"loss": {"donsker_varadhan": 1.0}},
    "fenchel_legendre": FENCHEL_LEGENDRE | {"critic": {"name": "pair"}},
    "fenchel_legendre_baseline": FENCHEL_LEGENDRE | {"critic": {"name": "baseline"}},
    # Decoupled contrastive learning (Yeh et al. 2021); Dual temperature (Zhang et al. 2022)
    "dcl": {"loss": {"dcl": 1.0}},
    "dclw": {"loss": {"dclw": 1.0}},
    "dual_temperature": ACROSS | {"loss": {"dual_temperature": {"weight": 1.0, "factor": 10.0}}},
    # MACL (Huang et al. 2022) and its ablations
    "macl": ACROSS | {"loss": {"macl": 1.0}, "temperature": {"name": "macl_a", "alpha": 2.0}},
    "macl_b": ACROSS | {"loss": {"macl": 1.0}, "temperature": {"name": "macl_b", "beta": 0.5}},
    "macl_without_reweighting": ACROSS | {"temperature": {"name": "macl_a", "alpha": 2.0}},
    "macl_w": ACROSS | {"loss": {"macl_w": 1.0}, "temperature": {"name": "macl_a", "alpha": 2.0}},
    "linear_tau": {"temperature": {"name": "linear", "tau": 0.07, "end": 0.098}},
    # EqCo (Zhu et al. 2020)
    "eqco_simclr": {"negatives": {"name": "random", "k": 64}, "margin": {"name": "eqco", "alpha": 256.0}},
    "eqco_moco": MOCO_V1 | {"margin": {"name": "eqco", "alpha": 65536.0}},
    "eqco_moco_v2": MOCO_V2 | {"margin": {"name": "eqco", "alpha": 65536.0}},
    "simo": ONE_WAY_MOMENTUM
    | ACROSS
    | {
        "negatives": {"name": "random", "k": 16, "shared": True},
        "margin": {"name": "eqco", "alpha": 256.0},
        "projector": {"layers": 2, "norm": "all"},
        "temperature": {"name": "fixed", "tau": 0.2},
    },
    # MoCo (He et al. 2020; Chen et al. 2020; Chen, Xie and He 2021)
    "moco_v1": MOCO_V1,
    "moco_v2": MOCO_V2,
    "moco_v3": MOCO_V3,
    # Less can be more
    "simclr_k": {"negatives": {"name": "random", "k": 2}},
    "relic_k": ACROSS
    | {
        "negatives": {"name": "random", "k": 1},
        "loss": {"info_nce": 1.0, "relic_kl": 1.0},
    },
    # Intriguing Properties of Contrastive Losses (Chen, Luo and Li 2021)
    "decoupled_nt_xent": {"loss": {"decoupled_nt_xent": {"weight": 1.0, "lambda_weight": 0.1}}},
    "swd_normal": generalized("normal", 1.0),
    "swd_hypercube": generalized("hypercube", 1.0),
    "swd_hypersphere": generalized("hypersphere", 1.0),
    # Robinson et al. 2021; Chuang et al. 2022; Tian 2022; Szegedy et al. 2016
    "ifm": {"loss": {"ifm": 1.0}},
    "rince": {"loss": {"rince": 1.0}, "temperature": {"name": "fixed", "tau": 0.5}},
    "alpha_cl": {"loss": {"alpha_cl": 1.0}},
    "label_smoothing": {"loss": {"label_smoothing": 1.0}},
    # Lee et al. 2025: other views, whose negatives alone the authors' term has
    "vrns": ACROSS | {"loss": {"info_nce": 1.0, "vrns": 30.0}},
    # Wei et al. 2024 (FastCLIP-v3's temperature); Kukleva et al. 2023; Koromilas et al. 2024
    "kl_tau": {"temperature": {"name": "kl"}},
    "periodic_tau": {"temperature": {"name": "periodic"}},
    # Values per example: u (Yuan et al. 2022; Wei et al. 2024), and a temperature (Qiu et al. 2023)
    "sogclr": SOGCLR,
    "isogclr": SOGCLR | {"temperature": {"name": "isogclr"}},
    "fast_clip_v1": FAST_CLIP,
    "fast_clip_v2": FAST_CLIP | {"temperature": {"name": "fast_clip_v2"}},
    "robust": {"loss": {"robust": 1.0}, "temperature": {"name": "isogclr"}},
    "dhel": {
        "candidates": {"name": "own_view"},
        "loss": {"dcl": 1.0},
        "temperature": {"name": "fixed", "tau": 0.5},
    },
    # Means over pairs, without a softmax: HaoChen et al. 2021; Koromilas et al. 2024
    "spectral": ACROSS
    | {
        "loss": {"mean_contrast": 1.0},
        "transform": {"name": "spectral"},
        "temperature": {"name": "fixed", "tau": 1.0},
    },
    "kcl": {
        "candidates": {"name": "own_view"},
        "loss": {"mean_contrast": {"weight": 1.0, "gamma": 16.0}},
        "transform": {"name": "gaussian_kernel"},
        "temperature": {"name": "fixed", "tau": 1.0},
    },
    # Lu et al. 2023; the weight is KCL's
    "f_micl": {
        "loss": {"mean_contrast": {"weight": 1.0, "gamma": 16.0}},
        "transform": {"name": "f_micl"},
        "temperature": {"name": "fixed", "tau": 1.0},
    },
    # Transforms of scores: 2501.17683; Manna et al. 2023; Wu et al. 2023; Zhang et al. 2025; Lan et al. 2025
    "temperature_free": {"transform": {"name": "temperature_free"}},
    "dystress": {"transform": {"name": "dystress"}},
    "adnce": {"transform": {"name": "adnce"}},
    "margin_mask": {"transform": {"name": "margin_mask"}},
    "hardness": {"transform": {"name": "hardness"}},
    # Without negatives, and with labels
    "byol": {
        "target": {"name": "ema", "decay": 0.99, "schedule": "cosine"},
        "norm": {"scope": "per_view"},
        "projector": {"layers": 2, "norm": "hidden"},
        "predictor": {"layers": 2, "out": 0, "norm": "hidden"},
        "loss": {"byol": 1.0},
    },
    "supervised": {"loss": {"cross_entropy": 1.0}, "probe": {"weight": 0.0, "gradient": True}},
}
