"""RandBit on ImageNet: Intriguing Properties (Chen, Luo and Li 2021), section 4.4 and appendix B.1, Figure B.2.

    contrastive-jax --config=configs/randbit_imagenet.py:bits=10

Protocol: as configs/randbit_cifar10.py; top-1 by SimCLR's linear evaluation on ImageNet.
Paper: curves without printed numbers; fewer than 15 bits suffice to ruin the representation.

Arguments: ``bits`` (0 to 24), ``method`` (of ``config/methods.py``), ``scale`` (gpu: 20 epochs in
bfloat16; cpu and smoke: scikit-learn's digits).

Assumed: as configs/intriguing_imagenet.py: ResNet-50, 2-layer head with 128 outputs, tau 0.2, LARS
0.075 x sqrt(batch), batch 1,024; 100 epochs. The streamed views get their bits on the host, so that with
b bits (3 + b) / 3 times the bytes go to the device.
"""

from contrastive_jax import config as configs

mnist = configs.sibling(__file__, "randbit_mnist")


def get_config(arg=""):
    """The config of ``method`` with ``bits`` at ``scale``."""
    options = configs.parse(arg, bits=8, method="simclr", scale="paper")
    config = configs.base()
    config.name = "randbit_imagenet"
    config.data.name = "imagenet2012"
    config.compose = {"name": "rand_bit", "bits": options.bits}
    config.augment = {"preset": "simclr", "size": 224}
    config.encoder.update({"depth": 50, "stem": "imagenet", "variant": "simclr"})
    config.temperature.tau = 0.2
    config.schedule.update({"learning_rate": 0.075, "scaling": "sqrt"})
    config.train.update({"duration": "100 epochs", "batch_size": 1024})
    config.evaluators = {
        "linear": {"name": "simclr", "batch_size": 4096, "epochs": 90, "weight_decay": 1e-6},
    }
    config.evaluate.rows = ("trained",)
    configs.use_method(config, options.method)
    config = configs.at_scale(
        config,
        options.scale,
        gpu={"train.duration": "20 epochs", "train.batch_size": 512, "dtype": "bfloat16"},
    )
    return mnist.before_the_bits(config)
