"""MultiDigits: Intriguing Properties (Chen, Luo and Li 2021), sections 3.1 and 4.3, Tables 3 and 4.

    contrastive-jax --config=configs/multidigits.py:count=8,placement=grid
    contrastive-jax --config=configs/multidigits.py:size=60
    contrastive-jax --config=configs/multidigits.py:size=60,method=supervised
    contrastive-jax --config=configs/multidigits.py:count=4,scale=cpu

Protocol: ResNet-18 on MNIST digits of 28 pixels (or one of 20 and one of ``size``) on a canvas of 112; crop and
resize alone; linear classifiers on the frozen encoder, trained and tested on canvases with one digit, top-1.
Columns: ``linear`` is on digits of 28 pixels, or on the first digit's size, 20; ``linear@60`` on those of
``size`` = 60. At cpu and smoke pixels are 2/7 of these: 8 of 28, ``linear`` on 6 and ``linear@17`` of 60.
Paper, top-1. Table 3, 1 / 2 / 4 / 8 / 12 / 16 digits: SimCLR random 98.9 98.9 99.0 98.9 98.2 96.4, grid 98.3
98.6 99.1 99.2 99.1 98.3; supervised random 99.5 99.5 99.3 99.4 98.9 98.3, grid 99.5 99.6 99.5 99.3 98.6 92.4.
Table 4, seven sizes of the second digit: supervised first 99.0 to 99.2, second 99.1 to 99.6; SimCLR at two
temperatures (lost) first 97.8 97.6 96.2 96.5 88.5 74.5 39.9 and 98.7 98.8 98.3 87.5 24.9 19.8 20.3.

Arguments: ``count`` (1 to 16), ``placement`` (random, grid), ``size`` (of the second of two digits, 20 to 80, in
pixels of the paper's canvas; 0: all digits are of 28), ``method`` (of ``config/methods.py``), ``scale``
(gpu: 50 epochs; small: half of all pixels, 10 epochs of ResNet-18 x 0.125; cpu and smoke: scikit-learn's digits,
8 pixels on 32).

The supervised baseline predicts the set of classes on the canvas (one logistic loss a class); with two sizes it
has one softmax a size, and with two digits of 20 pixels the set again, as nothing tells these apart.

Assumed: batch 1,024 for both tables (printed for sizes), 100 epochs, 60,000 canvases, on which digit i is the
first of canvas i and the others are drawn; overlapping digits show their maximum; crop areas from 0.08
(SimCLR's); SimCLR's linear classifier on clean features, as a crop may show no digit; a 2-layer head with 128
outputs, tau 0.2, LARS 0.075 x sqrt(batch), 10 epochs of warm-up (configs/intriguing_imagenet.py); an ImageNet stem;
sizes of 20 to 80 in steps of 10, on 112 pixels (seven columns are printed, their sizes are lost).
"""

from contrastive_jax import config as configs

SIDE = 112
SHRUNK = {"small": 1 / 2, "small_mnist": 1 / 2, "cpu": 2 / 7, "smoke": 2 / 7}  # 56 or 32 pixels of 112


def get_config(arg=""):
    """The config of ``count`` digits, or of two of which the second has ``size``, at ``scale``."""
    options = configs.parse(
        arg, count=2, placement=("random", "grid"), size=0, method="simclr", scale="paper"
    )
    if not 1 <= options.count <= 16:
        raise ValueError(f"config argument count={options.count}. Allowed: 1 to 16.")
    if options.size and not 20 <= options.size <= 80:
        raise ValueError(f"config argument size={options.size}. Allowed: 20 to 80, or 0.")
    if options.size and (options.count != 2 or options.placement != "random"):
        raise ValueError(f"config argument size={options.size} is of two digits at random: leave the others.")
    config = configs.base()
    config.name = "multidigits"
    config.data.name = "mnist"
    config.augment = {"preset": "crop_only", "size": SIDE}
    config.encoder.stem = "imagenet"
    config.temperature.tau = 0.2
    config.schedule.update({"learning_rate": 0.075, "scaling": "sqrt"})
    config.train.update({"duration": "100 epochs", "batch_size": 1024})
    config.evaluators = {"linear": {"name": "simclr", "augment": False}, "knn": {"name": "knn"}}
    configs.use_method(config, options.method)
    if options.method == "supervised":
        one_a_size = {"cross_entropy_of_parts": {"weight": 1.0, "parts": 2}}
        config.loss = one_a_size if options.size > 20 else {"sigmoid_cross_entropy": 1.0}
    configs.at_scale(config, options.scale, gpu={"train.duration": "50 epochs"})
    pixels = SHRUNK.get(options.scale, 1.0)
    config.compose = {
        "name": "multi_digits",
        "count": options.count,
        "placement": options.placement,
        "side": round(pixels * SIDE),
        "size": round(pixels * (20 if options.size else 28)),
        "second_size": round(pixels * options.size),
    }
    config.augment = {"preset": "crop_only", "size": round(pixels * SIDE)}
    if options.scale in configs.SMALL:
        config.data.name, config.encoder.stem = "mnist", "imagenet"
        config.train.duration = "10 epochs"
    elif options.scale in ("cpu", "smoke"):
        config.encoder.width = 0.125
        if options.scale == "cpu":
            config.train.duration = "20 epochs"
    return configs.complete(config)
