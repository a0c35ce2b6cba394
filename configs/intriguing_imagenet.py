"""Generalized contrastive losses on ImageNet: Intriguing Properties (Chen, Luo and Li 2021), Tables A.2, A.3.

    contrastive-jax --config=configs/intriguing_imagenet.py:loss=swd_hypersphere,layers=3

Protocol: ResNet-50, batch 1,024, 100 to 800 epochs; SimCLR's linear classifier on the frozen encoder (SGD on
crops and flips, batch 4,096, 90 epochs), top-1.
Paper, at 100 / 200 / 400 / 800 epochs (--config.train.duration), batch 1,024, 2 layers | 3 layers:
    nt_xent 65.6 67.6 68.8 69.8 | 66.8 68.9 70.1 70.9, decoupled 66.0 67.9 69.0 70.1 | 66.6 68.9 69.9 70.8,
    swd_normal 65.0 67.1 68.2 69.3 | 66.6 68.8 70.1 71.1, swd_hypercube 64.2 66.5 67.9 68.9 |
    66.3 68.5 70.0 71.3, swd_hypersphere 65.8 67.9 69.0 69.6 | 66.6 68.6 69.8 70.8;
4 layers (Table 2), nt_xent 67.0 69.0 70.4 70.9, others not printed.

Arguments: ``loss`` (nt_xent, decoupled, swd_normal, swd_hypercube, swd_hypersphere), ``layers`` of the head
(2, 3, 4), ``scale``.

Assumed: LARS 0.075 x sqrt(batch) and tau 0.2 (the authors, google-research/simclr issue 166; lost in the text
at hand); colour strength 1 with blur (SimCLR's). The rest as in configs/intriguing_cifar10.py.
"""

from contrastive_jax import config as configs

cifar10 = configs.sibling(__file__, "intriguing_cifar10")


def get_config(arg=""):
    """The config of ``loss`` with a head of ``layers`` at ``scale``."""
    options = configs.parse(arg, loss=tuple(cifar10.LOSSES), layers=(2, 3, 4), scale="paper")
    config = cifar10.get_config(f"loss={options.loss},layers={options.layers}")
    config.name = "intriguing_imagenet"
    config.data.name = "imagenet2012"
    config.augment = {"preset": "simclr", "size": 224}
    config.encoder.stem = "imagenet"
    config.projector.out = 128
    config.schedule.learning_rate = 0.075
    config.train.batch_size = 1024
    config.evaluators.linear = {"name": "simclr", "batch_size": 4096, "epochs": 90, "weight_decay": 1e-6}
    config.evaluate.rows = ("trained",)
    if options.loss == "decoupled":
        config.loss.decoupled_nt_xent.weight = 1000 / 128
    return configs.at_scale(
        config,
        options.scale,
        gpu={"train.duration": "20 epochs", "train.batch_size": 512, "dtype": "bfloat16"},
    )
