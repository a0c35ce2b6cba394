"""SimCLR and ReLIC on CIFAR-100 with K negatives: Less can be more (Mitrovic et al. 2020), Figures 1 to 4.

    contrastive-jax --config=configs/few_negatives_cifar100.py:method=relic,k=1
    contrastive-jax --config=configs/few_negatives_cifar100.py:method=simclr,k=2

Protocol: ResNet-50, batch 1,120, 2,000 epochs, LARS, heads 2048-128 (SimCLR) and 4096-2048-1024-512-128
(ReLIC), 5 seeds; linear classifier on the frozen encoder ("as proposed in" Kolesnikov et al. 2019), top-1, the best
of a sweep for each K.
Paper: accuracies not printed. K = 1 is ReLIC's best, 2 is SimCLR's (1 is worse).

Arguments: ``method`` (relic, simclr), ``k`` (negatives a query; 0: all), ``reading``, ``draw``, ``scale``. The
denominators of eq. 2 and 3 have two readings: ``simclr``, the positive is in them (and in ReLIC's divergence), and
``printed``, where it is not, the K are of the other view ("k != i, r != v"), and ReLIC with k = 1 has no divergence.
The K are drawn for each ``query``, or for each ``example`` ("for each datapoint") and both its views.

Assumed: tau 1.0 and learning rate 1.2, the only ones printed (Figure 4, gradient signal-to-noise); the paper
sweeps tau in [0.2, 10] and the rate in [0.2, 1.5] for SimCLR, tau in [0.2, 50], the rate in [0.5, 1.5] and
the weight of the invariance in [0.1, 500] for ReLIC, which is 1 here. Linear scaling x batch / 256,
momentum 0.9, weight decay 1e-6, 10 epochs of warm-up, cosine, colour strength 0.5, no blur, CIFAR stem
(SimCLR's), as is batch norm on every layer of the head. "4092" is read as 4,096. Cosine scores, as SimCLR's
(embeddings are not said to be normalised, and such temperatures suggest dot products: --config.score=dot). Eq.
2 and 3 are read as SimCLR's: K of both views of the other images for each query, ReLIC's of the other view; v =
w is left out of eq. 3. Both sum the two directions, hence the weights of 2. The classifier is SimCLR's, which
names the same source: that one is made for ImageNet.
"""

from contrastive_jax import config as configs

ARGUMENTS = {
    "method": ("relic", "simclr"),
    "reading": ("simclr", "printed"),
    "draw": ("query", "example"),
}


def get_config(arg=""):
    """The config of ``method`` with ``k`` negatives, by a ``reading`` of the equations, at ``scale``."""
    options = configs.parse(arg, k=1, scale="paper", **ARGUMENTS)
    config = configs.base()
    config.name = "few_negatives_cifar100"
    config.data.name = "cifar100"
    config.augment = {"preset": "simclr", "size": 32, "strength": 0.5, "blur": 0.0}
    config.encoder.update({"depth": 50, "variant": "simclr"})
    config.temperature.tau = 1.0
    config.schedule.learning_rate = 1.2
    config.train.update({"duration": "2000 epochs", "batch_size": 1120})
    config.evaluators = {"linear": {"name": "simclr"}, "knn": {"name": "knn"}}
    configs.use_method(config, f"{options.method}_k")
    if options.method == "simclr":
        config.projector.widths = (2048, 128)
        config.loss = {"info_nce": 2.0}
    else:
        config.projector.widths = (4096, 2048, 1024, 512, 128)
        config.loss = {"info_nce": 2.0, "relic_kl": 2.0}
    if options.reading == "printed":
        config.candidates = {"name": "other_view"}
        config.loss = {"dcl": 2.0}
        if options.method == "relic":
            config.loss.relic_kl = {"weight": 2.0, "positive": "excluded"}
    if options.k:
        config.negatives = {"name": "random", "k": options.k, "per_example": options.draw == "example"}
    else:
        config.negatives = {"name": "all"}
    return configs.at_scale(config, options.scale, gpu={"encoder.depth": 18, "train.duration": "200 epochs"})
