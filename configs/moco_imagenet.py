"""MoCo on ImageNet with K negatives, with and without EqCo: EqCo (Zhu et al. 2020), Figure 2a.

    contrastive-jax --config=configs/moco_imagenet.py
    contrastive-jax --config=configs/moco_imagenet.py:k=256,alpha=65536

Protocol: ResNet-50, 128-d, N = 256 queries a batch, 200 epochs, augmentation as in MoCo (He et al. 2020);
linear classifier on the frozen pooled features, top-1 (MoCo's: SGD, learning rate 30, 100 epochs).
Paper: 60.6 with K = 65,536 and 54.7 with K = 256 (quoted from He et al.); the gap of
6.1 points in EqCo's own runs is 0.2 with EqCo (alpha = 65,536). Other K: not printed.

Arguments: ``k`` (size of the queue; a multiple of 256, or less: then K random keys of the previous batch),
``alpha`` (EqCo's; 0: no margin), ``scale``.

Assumed: MoCo's published code where the paper says "the original settings": SGD with momentum 0.9, weight
decay 1e-4, learning rate 0.03 x N / 256, a tenth at epochs 120 and 160, tau 0.07, target decay 0.999, a
linear head, torchvision's first weights (Kaiming, fan-out), no zero-initialised gammas. Batch norm in 8
groups of 32 (8 GPUs), shuffled for the keys.
"""

from contrastive_jax import config as configs


def get_config(arg=""):
    """The config of ``k`` negatives and margin ``alpha`` at ``scale``."""
    options = configs.parse(arg, k=65536, alpha=0.0, scale="paper")
    config = configs.base()
    config.name = "moco_imagenet"
    config.data.name = "imagenet2012"
    config.augment = {"preset": "moco_v1", "size": 224}
    config.encoder.update({"depth": 50, "stem": "imagenet", "zero_init": False, "kernel_init": "fan_out"})
    config.optimizer = {"name": "sgd", "momentum": 0.9, "weight_decay": 1e-4}
    config.schedule.update(
        {
            "name": "step",
            "learning_rate": 0.03,
            "warmup": "0 epochs",
            "milestones": ("120 epochs", "160 epochs"),
        }
    )
    config.train.update({"duration": "200 epochs", "batch_size": 256})
    config.evaluators = {"linear": {"name": "moco"}, "knn": {"name": "knn", "k": 200, "temperature": 0.1}}
    config.evaluate.rows = ("trained",)
    configs.use_method(config, "moco_v1")
    config.candidates.size = options.k
    if options.alpha:
        config.margin = {"name": "eqco", "alpha": options.alpha}
    return configs.at_scale(config, options.scale, gpu={"train.duration": "20 epochs", "dtype": "bfloat16"})
