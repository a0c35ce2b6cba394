"""RandBit on CIFAR-10: Intriguing Properties (Chen, Luo and Li 2021), appendix B.1, Figure B.1.

    contrastive-jax --config=configs/randbit_cifar10.py:bits=10
    contrastive-jax --config=configs/randbit_cifar10.py:bits=10,method=moco_v2

Protocol: as configs/randbit_mnist.py: bits behind RGB, SimCLR's augmentation on RGB alone, SimCLR's linear
classifier on the frozen encoder (SGD on crops and flips, 100 epochs), top-1, over b, losses, batch sizes
(--config.train.batch_size) and tau (--config.temperature.tau).
Paper: curves without printed numbers; fewer than 15 bits suffice to ruin the representation, whatever the
loss, the batch or the queue.

Arguments: ``bits`` (0 to 24), ``method`` (of ``config/methods.py``), ``scale`` (gpu: 200 epochs; cpu
and smoke: scikit-learn's digits).

Assumed: ResNet-18 and a 2-layer head with 64 outputs (appendix B.2's, "the same architecture as one for
CIFAR-10"), batch 512, 400 epochs, LARS 0.2 x sqrt(batch) and tau 0.2 (configs/intriguing_cifar10.py says
where from), colour strength 0.5 without blur (SimCLR's), torchvision's ResNet. Methods with their own temperature
keep it.
"""

from contrastive_jax import config as configs

mnist = configs.sibling(__file__, "randbit_mnist")


def get_config(arg=""):
    """The config of ``method`` with ``bits`` at ``scale``."""
    options = configs.parse(arg, bits=8, method="simclr", scale="paper")
    config = configs.base()
    config.name = "randbit_cifar10"
    config.data.name = "cifar10"
    config.compose = {"name": "rand_bit", "bits": options.bits}
    config.augment = {"preset": "simclr", "size": 32, "strength": 0.5, "blur": 0.0}
    config.projector.out = 64
    config.temperature.tau = 0.2
    config.schedule.update({"learning_rate": 0.2, "scaling": "sqrt"})
    config.train.update({"duration": "400 epochs", "batch_size": 512})
    config.evaluators = {"linear": {"name": "simclr"}, "knn": {"name": "knn"}}
    configs.use_method(config, options.method)
    config = configs.at_scale(config, options.scale, gpu={"train.duration": "200 epochs"})
    return mnist.before_the_bits(config)
