"""SimCLR on ImageNet as its authors' README runs it (Chen et al. 2020; google-research/simclr).

    contrastive-jax --config=configs/simclr_imagenet.py

Protocol: ResNet-50, batch 4,096, 100 epochs; linear classifier on the frozen pooled features, top-1 (theirs:
SGD with Nesterov momentum, 0.1 x batch / 256, batch 4,096, 90 epochs, crop and flip).
Paper: not printed in the five papers at this length; the README says "around 64.5 %".

Arguments: ``scale`` (gpu: batch 512, 20 epochs).

Assumed: from the command: learning rate 0.3 x batch / 256, weight decay 1e-4 (the paper, and earlier versions
of the README: 1e-6), tau 0.1. From the code's defaults, as the command does not set them: LARS with momentum
0.9, 10 epochs of warm-up, cosine, a head of 3 layers to 128 with batch norm after each, colour strength 1.
The code adds the losses of the two directions, so InfoNCE has weight 2.
"""

from contrastive_jax import config as configs


def get_config(arg=""):
    """The config at ``scale``."""
    options = configs.parse(arg, scale="paper")
    config = configs.base()
    config.name = "simclr_imagenet"
    config.data.name = "imagenet2012"
    config.augment = {"preset": "simclr", "size": 224}
    config.encoder.update({"depth": 50, "stem": "imagenet", "variant": "simclr"})
    config.projector.layers = 3
    config.loss.info_nce.weight = 2.0
    config.optimizer.weight_decay = 1e-4
    config.train.update({"duration": "100 epochs", "batch_size": 4096})
    linear = {"name": "simclr", "batch_size": 4096, "epochs": 90, "weight_decay": 1e-6}
    config.evaluators = {"linear": linear, "knn": {"name": "knn"}}
    config.evaluate.rows = ("trained",)
    return configs.at_scale(
        config,
        options.scale,
        gpu={"train.duration": "20 epochs", "train.batch_size": 512, "dtype": "bfloat16"},
    )
