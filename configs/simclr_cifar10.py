"""SimCLR on CIFAR-10 as its authors' README runs it (Chen et al. 2020; google-research/simclr).

    contrastive-jax --config=configs/simclr_cifar10.py

Protocol: ResNet-18, batch 512, 1,000 epochs; linear classifier on the frozen pooled features, top-1 (theirs:
SGD with Nesterov momentum, 0.1 x batch / 256, batch 512, 100 epochs, crop and flip).
Paper: not printed for ResNet-18; the README says "around 91 %", since its first version, whose head had two
layers and whose weight decay was 1e-6.

Arguments: ``scale`` (gpu: 200 epochs, 2 of them warm-up; the code has 10 whatever the length).

Assumed: from the command: learning rate 1.0 x batch / 256, weight decay 1e-4 (earlier versions of the README
say 1e-6), tau 0.5, colour strength 0.5, no blur. From the code's defaults, as the command does not set them:
LARS with momentum 0.9, 10 epochs of warm-up, cosine, a head of 3 layers to 128 with batch norm after each.
The code adds the losses of the two directions, so InfoNCE has weight 2.
"""

from contrastive_jax import config as configs


def get_config(arg=""):
    """The config at ``scale``."""
    options = configs.parse(arg, scale="paper")
    config = configs.base()
    config.name = "simclr_cifar10"
    config.data.name = "cifar10"
    config.augment = {"preset": "simclr", "size": 32, "strength": 0.5, "blur": 0.0}
    config.encoder.variant = "simclr"
    config.projector.layers = 3
    config.temperature.tau = 0.5
    config.loss.info_nce.weight = 2.0
    config.optimizer.weight_decay = 1e-4
    config.schedule.learning_rate = 1.0
    config.train.update({"duration": "1000 epochs", "batch_size": 512})
    config.evaluators = {"linear": {"name": "simclr"}, "knn": {"name": "knn"}}
    return configs.at_scale(config, options.scale, gpu={"train.duration": "200 epochs"})
