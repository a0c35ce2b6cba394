"""SimCLR on ImageNet with K negatives, with and without EqCo: EqCo (Zhu et al. 2020), Figure 2b.

    contrastive-jax --config=configs/eqco_simclr_imagenet.py:k=64
    contrastive-jax --config=configs/eqco_simclr_imagenet.py:alpha=4096

Protocol: ResNet-50, 128-d, N = 256 queries a batch, 200 epochs, SGD with momentum instead of LARS, K random
negatives for each query; linear classifier on the frozen pooled features, top-1.
Paper: K = 256: 62.0 (alpha = 256), 65.3 (alpha = 4,096); quoted: 66.6 with 4,096 images a batch. Other K: not
printed.

Arguments: ``k`` (negatives a query, at most 510; 0: all 510), ``alpha`` (EqCo's; 0: no margin), ``scale``.

Assumed: K = 256 is half of the 510 negatives that two views of 256 images have, drawn anew for each query
(the paper counts K by the batch). MoCo's SGD: learning rate 0.03 x N / 256, momentum 0.9, weight decay 1e-4.
SimCLR's (its paper and code): 10 epochs of warm-up, cosine, tau 0.1, a head of 2 layers with batch norm,
colour strength 1, global batch norm (a footnote credits SimCLR's 66.6 to its own: EqCo's may be each GPU's;
--config.norm.scope=groups --config.norm.groups=8 has 8 parts of the batch, each view by itself).
"""

from contrastive_jax import config as configs


def get_config(arg=""):
    """The config of ``k`` negatives and margin ``alpha`` at ``scale``."""
    options = configs.parse(arg, k=256, alpha=256.0, scale="paper")
    config = configs.base()
    config.name = "eqco_simclr_imagenet"
    config.data.name = "imagenet2012"
    config.augment = {"preset": "simclr", "size": 224}
    config.encoder.update({"depth": 50, "stem": "imagenet", "variant": "simclr"})
    config.optimizer = {"name": "sgd", "momentum": 0.9, "weight_decay": 1e-4}
    config.schedule.learning_rate = 0.03
    config.train.update({"duration": "200 epochs", "batch_size": 256})
    linear = {"name": "simclr", "batch_size": 4096, "epochs": 90, "weight_decay": 1e-6}
    config.evaluators = {"linear": linear, "knn": {"name": "knn"}}
    config.evaluate.rows = ("trained",)
    if options.k:
        config.negatives = {"name": "random", "k": options.k}
    if options.alpha:
        config.margin = {"name": "eqco", "alpha": options.alpha}
    return configs.at_scale(config, options.scale, gpu={"train.duration": "20 epochs", "dtype": "bfloat16"})
