"""MoCo v2 on ImageNet with K negatives, with and without EqCo: EqCo (Zhu et al. 2020), Figure 2, Tables 1, 6.

    contrastive-jax --config=configs/moco_v2_imagenet.py
    contrastive-jax --config=configs/moco_v2_imagenet.py:k=256,alpha=65536

Protocol: ResNet-50, 128-d, N = 256 queries a batch, 200 epochs, augmentation as in MoCo v2 (Chen et al.
2020); linear classifier on the frozen pooled features, top-1 (MoCo's: SGD, learning rate 30, 100 epochs).
Paper: 67.5 with K = 65,536 (text on Table 2, perhaps quoted); 71.1 at 800 epochs (SiMo's 72.1 less the printed
1.0). Other K, and other N (Table 1): not printed; with EqCo it still degrades for K <= 16.

Arguments: ``k`` (size of the queue; a multiple of 256, or less: then K random keys of the previous batch),
``alpha`` (EqCo's; 0: no margin), ``scale``.

Assumed: MoCo's published code where the paper says "the original settings": SGD with momentum 0.9, weight
decay 1e-4, learning rate 0.03 x N / 256, a cosine that moves once an epoch, no warm-up, tau 0.2, target
decay 0.999, a head of 2 layers without batch norm, torchvision's first weights (Kaiming, fan-out), no
zero-initialised gammas. Batch norm in 8 groups of 32 (8 GPUs), shuffled for the keys.
"""

from contrastive_jax import config as configs


def get_config(arg=""):
    """The config of ``k`` negatives and margin ``alpha`` at ``scale``."""
    options = configs.parse(arg, k=65536, alpha=0.0, scale="paper")
    config = configs.base()
    config.name = "moco_v2_imagenet"
    config.data.name = "imagenet2012"
    config.augment = {"preset": "moco_v2", "size": 224}
    config.encoder.update({"depth": 50, "stem": "imagenet", "zero_init": False, "kernel_init": "fan_out"})
    config.optimizer = {"name": "sgd", "momentum": 0.9, "weight_decay": 1e-4}
    config.schedule.update({"name": "cosine", "learning_rate": 0.03, "warmup": "0 epochs", "per_epoch": True})
    config.train.update({"duration": "200 epochs", "batch_size": 256})
    config.evaluators = {"linear": {"name": "moco"}, "knn": {"name": "knn", "k": 200, "temperature": 0.1}}
    config.evaluate.rows = ("trained",)
    configs.use_method(config, "moco_v2")
    config.candidates.size = options.k
    if options.alpha:
        config.margin = {"name": "eqco", "alpha": options.alpha}
    return configs.at_scale(config, options.scale, gpu={"train.duration": "20 epochs", "dtype": "bfloat16"})
