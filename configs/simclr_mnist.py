"""SimCLR on MNIST: the smallest prepared data set, minutes on two CPU cores.

    contrastive-jax --config=configs/simclr_mnist.py:scale=cpu

Protocol: linear (L-BFGS) on all labels and on 10 a class, kNN (k = 10, cosine), last epoch.
Paper: not printed; MNIST is one of FlatNCE's trials (Chen et al. 2021, appendix D), without settings.

Arguments: ``method`` (of ``config/methods.py``), ``scale`` (paper and gpu: ResNet-18, 100 epochs;
cpu: a quarter of its width, views of 14 x 14, 20,000 of the images, 10 epochs; small: an eighth of its
width, all images, 20 epochs; smoke: digits).

Assumed: everything. Crop, slant, shifts of up to 3 pixels and erased patches instead of SimCLR's colours and
flips, which make other characters or do nothing to grey ones; LARS and schedule are SimCLR's for CIFAR-10.
"""

from contrastive_jax import config as configs

VIEWS = {"preset": "digits", "size": 28, "shift": 3.0, "erase": 0.5, "erase_sides": (6, 10)}


def get_config(arg=""):
    """The config of ``method`` at ``scale``."""
    options = configs.parse(arg, method="simclr", scale="paper")
    config = configs.base()
    config.name = "simclr_mnist"
    config.data.name = "mnist"
    config.augment = VIEWS
    config.schedule.learning_rate = 1.0
    config.train.update({"duration": "100 epochs", "batch_size": 512})
    configs.use_method(config, options.method)
    configs.at_scale(config, options.scale)
    if options.scale == "cpu":
        config.data = {"name": "mnist", "train_split": "train[:20000]"}
        config.augment.update({"size": 14, "shift": 1.5, "erase_sides": (3, 5)})
        config.train.duration = "10 epochs"
        config.schedule.warmup = "1 epoch"
        config.evaluators.linear.tolerance = 1e-4  # raw pixels reach the default's 1e-5 after minutes
    return configs.complete(config)
