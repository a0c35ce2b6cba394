"""RandBit on MNIST: Intriguing Properties (Chen, Luo and Li 2021), section 4.4, Figure 7.

    contrastive-jax --config=configs/randbit_mnist.py:bits=10
    contrastive-jax --config=configs/randbit_mnist.py:bits=10,method=byol
    contrastive-jax --config=configs/randbit_mnist.py:bits=4,scale=cpu

Protocol: b channels of random bits, the same in both views, behind the image's own; SimCLR's linear classifier on
the frozen encoder (which sees the bits in the test too), on crops as in pretraining, top-1, over b. ``mi_floor``,
the entropy of the bits in nats, is logged beside ``mi_estimate`` = log(K + 1) - InfoNCE.
Paper: a curve without printed numbers; a few bits ruin the representation, less so a VAE's
(``experiments/intriguing/vae.py``).

Arguments: ``bits`` (0 to 24), ``method`` (of ``config/methods.py``), ``scale`` (cpu and smoke:
scikit-learn's digits).

Assumed: nearly everything. ResNet-18 with a CIFAR stem, 2-layer head with 64 outputs (that of appendix B.2),
tau 0.2, batch 512, 100 epochs; crops of at least half of the area, bilinear (the authors' notebook for
RandBit), no colours, as MNIST has none, and no flips; LARS 0.2 x sqrt(batch), CIFAR-10's
(configs/intriguing_cifar10.py says where from), and SimCLR's schedule. The ResNet is torchvision's.
"""

from contrastive_jax import config as configs


def get_config(arg=""):
    """The config of ``method`` with ``bits`` at ``scale``."""
    options = configs.parse(arg, bits=8, method="simclr", scale="paper")
    config = configs.base()
    config.name = "randbit_mnist"
    config.data.name = "mnist"
    config.compose = {"name": "rand_bit", "bits": options.bits}
    config.augment = {"preset": "crop_only", "size": 28, "crop_min": 0.5, "method": "bilinear"}
    config.projector.out = 64
    config.temperature.tau = 0.2
    config.schedule.update({"learning_rate": 0.2, "scaling": "sqrt"})
    config.train.update({"duration": "100 epochs", "batch_size": 512})
    linear = {"name": "simclr", "crop_min": 0.5, "flip": 0.0}
    config.evaluators = {"linear": linear, "knn": {"name": "knn"}}
    configs.use_method(config, options.method)
    return before_the_bits(configs.at_scale(config, options.scale))


def before_the_bits(config):
    """Take off what blackens margins on digits, and end colours before the bits."""
    if config.augment.preset == "digits":
        config.augment.update({"shift": 0.0, "slant": 0.0, "color_channels": 1})
    return config
