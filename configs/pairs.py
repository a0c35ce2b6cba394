"""Two encoders on pairs of arrays, from an .npz, .npy or .safetensors file: images and texts, audio and video features.

    contrastive-jax --config=configs/pairs.py:file=digit_names.npz,size=8,vocabulary=27

Not a replication: a start for data of your own, on a laptop. The loss is CLIP's (Radford et al., 2021): InfoNCE both
ways, whose negatives are the other encoder's, at a learnt temperature. The only augmentation is an image's random
crop. The encoders are evaluated by retrieval of held-out pairs, beside untrained encoders and chance; with labels also
each of them by a linear classifier (L-BFGS) and kNN.

Arguments: ``file``; ``key`` and ``pair_key``, the pairs' arrays in it; ``first`` and ``second``, their kinds: image,
table, series, tokens; ``size`` of the images' views in pixels; ``vocabulary`` of tokens; ``scale``
(cpu or smoke; all others are cpu).
"""

from contrastive_jax import config as configs

ENCODERS = {
    "image": {"name": "resnet", "depth": 18, "width": 0.25, "stem": "cifar", "zero_init": False},
    "table": {"name": "mlp"},
    "series": {"name": "conv1d"},
    "tokens": {"name": "transformer"},
}
KINDS = tuple(ENCODERS)


def get_config(arg=""):
    """The config of the pairs in ``file``."""
    options = configs.parse(
        arg, file="pairs.npz", key="image", pair_key="text", first=KINDS, second=KINDS[::-1], size=32, vocabulary=0,
        scale="cpu",
    )  # fmt: skip
    config = configs.base()
    config.name = "pairs"
    config.data = {"name": "arrays", "file": options.file, "key": options.key, "pair_key": options.pair_key}
    crops = {"size": options.size, "crop_min": 0.6}
    config.augment = {"preset": "unchanged"}
    if options.first == "image":
        config.augment = {"preset": "crop_only", "views": 1, **crops}
    if options.second == "image":
        config.second_augment = {"name": "crop_only", **crops}
    for section, kind in (("encoder", options.first), ("second_encoder", options.second)):
        config[section] = dict(ENCODERS[kind])
        if kind == "tokens":
            config[section].vocabulary = options.vocabulary
    config.projector.update({"layers": 1, "out": 64, "norm": "none"})
    config.candidates = {"name": "other_view"}
    config.temperature = {"name": "learnt"}
    config.probe.weight = 0.0
    config.optimizer = {"name": "adamw", "weight_decay": 0.0}
    config.schedule = {"name": "cosine", "learning_rate": 1e-3, "scaling": "none", "warmup": "0 steps"}
    config.train.update({"batch_size": 128, "duration": "50 epochs"})
    config.evaluate.look = ("retrieval",)
    config.evaluators = {
        "retrieval": {"name": "pair_retrieval"},
        "linear": {"name": "lbfgs"},
        "knn": {"name": "knn", "k": 10, "temperature": 0.0},
    }
    if options.scale == "smoke":
        config.train.update({"batch_size": 32, "duration": "4 steps"})
    return configs.complete(configs.limit(config, "smoke" if options.scale == "smoke" else "cpu"))
