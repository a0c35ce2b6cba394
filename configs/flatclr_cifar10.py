"""FlatCLR and SimCLR on CIFAR-10 at any batch size: FlatNCE (Chen et al. 2021), Figures 2, 5 and 6.

    contrastive-jax --config=configs/flatclr_cifar10.py --config.train.batch_size=16
    contrastive-jax --config=configs/flatclr_cifar10.py:method=simclr

Protocol: ResNet-50, 256-d, batches 16 to 256, learning rate linear in the batch; linear classifier on the
frozen encoder "trained to convergence", top-1. Figures 5 and 6 look at epoch 50.
Paper: accuracies not printed (Figure 2 claims that FlatCLR at batch 16 equals SimCLR at 128). ESS: SimCLR
0.06 falling to 0.05, FlatNCE 0.17 rising to 0.35 (Figure 5); targets in [0.15, 0.40] work well (Figure 6).

Arguments: ``method`` (of ``config/methods.py``), ``ess`` (its target for the scheduled temperature,
such as 0.3; 0: fixed), ``scale`` (gpu: ResNet-18, the paper's for learning dynamics).

Assumed: batch 256, the largest printed for CIFAR. 100 epochs, tau 0.1, LARS 0.3 x batch / 256, momentum
0.9, weight decay 1e-6, 10 epochs of warm-up, cosine, a head of 2 layers without batch norm, torchvision's
first weights, colour strength 0.5 and no blur (all: the released code's defaults). A CIFAR stem (3x3, no
max-pool; SimCLR's). Against that code: LARS leaves norms and biases unadapted, batch norm is over the
global batch, views are SimCLR's (boxes, resizing and colours of its TensorFlow code, where that code has
torchvision's), the last gamma of each block starts at 0 (SimCLR's code). ESS schedule: tau starts at 1 and
moves by 1 % a step (Algorithm S1, with its sign put right).
"""

from contrastive_jax import config as configs


def get_config(arg=""):
    """The config of ``method`` at ``scale``."""
    options = configs.parse(arg, method="flatclr", ess=0.0, scale="paper")
    config = configs.base()
    config.name = "flatclr_cifar10"
    config.data.name = "cifar10"
    config.augment = {"preset": "simclr", "size": 32, "strength": 0.5, "blur": 0.0}
    config.encoder.update({"depth": 50, "kernel_init": "fan_out"})
    config.projector.update({"layers": 2, "out": 256, "norm": "none"})
    config.train.update({"duration": "100 epochs", "batch_size": 256})
    config.evaluators = {"linear": {"name": "flatnce_linear"}, "knn": {"name": "knn"}}
    configs.use_method(config, options.method)
    if options.ess:
        config.temperature = {"name": "ess", "tau": 1.0, "target": options.ess, "rate": 0.01}
    return configs.at_scale(config, options.scale, gpu={"encoder.depth": 18, "train.duration": "200 epochs"})
