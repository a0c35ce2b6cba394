"""MoCo v3 on ImageNet as its authors' commands run it (Chen, Xie and He 2021; facebookresearch/moco-v3, CONFIG.md).

    contrastive-jax --config=configs/moco_v3_imagenet.py
    contrastive-jax --config=configs/moco_v3_imagenet.py:epochs=300
    contrastive-jax --config=configs/moco_v3_imagenet.py:encoder=vit_small

Protocol: batch 4,096; linear classifier on the frozen pooled features, top-1 (theirs: SGD, learning rate
0.1 x batch / 256, for a ViT 3 x batch / 256, batch 1,024, 90 epochs, crop and flip).
Paper: not printed in the five papers; CONFIG.md has ResNet-50 68.9 at 100 epochs, 72.8 at 300, 74.6 at 1,000; at 300
epochs ViT-S/16 73.2, ViT-B/16 76.7.

Arguments: ``encoder`` (resnet, vit_small, vit_base), ``epochs`` (resnet: 100, 300 or 1000; a ViT has 300), ``scale``
(gpu: batch 512, 20 epochs; smaller scales have their ResNet-18 with every ``encoder``).

Assumed: nothing; the commands and the code's defaults have all settings. Differences from the code: a ViT's feature
is the mean of its tokens (theirs: a class token); blur is a true Gaussian; the predictor's last layer has a bias if
no batch norm follows it. A ViT's weight decay reaches norms and biases, as theirs.
"""

from contrastive_jax import config as configs

# epochs -> base learning rate, weight decay, first decay of the target
RESNET = {100: (0.6, 1e-6, 0.99), 300: (0.3, 1e-6, 0.99), 1000: (0.3, 1.5e-6, 0.996)}
VITS = {"vit_small": 384, "vit_base": 768}
ENCODERS = ("resnet", *VITS)


def get_config(arg=""):
    """The config of an ``encoder`` and a number of ``epochs`` at ``scale``."""
    options = configs.parse(arg, encoder="resnet", epochs=0, scale="paper")
    if options.encoder not in ENCODERS:
        raise ValueError(f"encoder is {options.encoder!r}; it must be one of {', '.join(ENCODERS)}.")
    lengths = tuple(RESNET) if options.encoder == "resnet" else (300,)
    epochs = options.epochs or lengths[0]
    if epochs not in lengths:
        raise ValueError(f"epochs is {epochs}; with encoder={options.encoder} it must be one of {lengths}.")
    config = configs.base()
    config.name = "moco_v3_imagenet"
    config.data.name = "imagenet2012"
    config.augment = {"preset": "moco_v3", "size": 224}
    config.train.update({"duration": f"{epochs} epochs", "batch_size": 4096})
    linear = {"name": "moco_v3"}
    configs.use_method(config, "moco_v3")
    if options.encoder == "resnet":
        rate, decay, config.target.decay = RESNET[epochs]
        config.augment.crop_min = 0.2
        config.encoder.update({"depth": 50, "stem": "imagenet", "kernel_init": "fan_out"})
        config.optimizer = {"name": "lars", "weight_decay": decay, "momentum_order": "lr_last"}
        config.schedule.update({"learning_rate": rate, "warmup": "10 epochs"})
    else:
        if options.scale in ("paper", "gpu"):
            dim = VITS[options.encoder]
            config.encoder = {"name": "vit", "patch": 16, "dim": dim, "heads": 12, "frozen_patches": True}
        config.projector.layers = 3
        config.predictor.norm = "all_without_scale"
        config.temperature.tau, config.loss.info_nce = 0.2, 0.8
        config.optimizer = {"name": "adamw", "weight_decay": 0.1, "exclude": ()}
        config.schedule.update({"learning_rate": 1.5e-4, "warmup": "40 epochs"})
        linear["learning_rate"] = 3.0
    config.evaluators = {"linear": linear, "knn": {"name": "knn", "k": 200, "temperature": 0.1}}
    config.evaluate.rows = ("trained",)
    return configs.at_scale(
        config,
        options.scale,
        gpu={"train.duration": "20 epochs", "train.batch_size": 512, "dtype": "bfloat16"},
    )
