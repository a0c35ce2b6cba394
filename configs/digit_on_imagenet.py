"""DigitOnImageNet: Intriguing Properties (Chen, Luo and Li 2021), section 4.2, Figure 6.

    contrastive-jax --config=configs/digit_on_imagenet.py:unique=1000
    contrastive-jax --config=configs/digit_on_imagenet.py:unique=1000,method=supervised
    contrastive-jax --config=configs/digit_on_imagenet.py:unique=100,scale=cpu

Protocol: ResNet-50 on ImageNet images of 224 pixels, each with an MNIST digit at nine fixed places, added
before augmentation: one of ``unique`` digits in training, any test digit in validation. Linear classifiers on
the frozen encoder, top-1: column ``linear`` of the images' classes, ``linear@digit`` of the digits'.
Paper: curves without printed numbers; as ``unique`` grows digits are recognised better, objects much worse, at
every temperature; a supervised network loses nothing.

Arguments: ``unique`` (digits in training; 0: all), ``tau``, ``method`` (of ``config/methods.py``),
``scale`` (gpu: 20 epochs in bfloat16; small: CIFAR-10 at 32 pixels with MNIST digits of 8; cpu and smoke:
scikit-learn's digits alone).

At cpu and smoke an "image" is a digit of scikit-learn enlarged from 8 to 32 pixels, with another digit of 8
pixels at the nine places: both are digits, the two labels are independent, and both are known. Where both are
white the small one cannot be seen, as sums are clipped. It is a stand-in for the mechanism, not for ImageNet.

Assumed: 100 epochs, batch 1,024, 2-layer head with 128 outputs, tau 0.1 of several that are lost, LARS
0.075 x sqrt(batch) (configs/intriguing_imagenet.py); images have their short side resized to 224 and the centre
cropped before digits are added; each image draws its digit uniformly; places at 0.15, 0.45, 0.75 of the side
(the notebook, which takes the maximum: --config.compose.overlap=maximum). Linear evaluation on cached clean
features (simclr's schedule), as crops show no more of digits; the classifier of digits learns from training images
with any training digit on them, the encoder alone from ``unique``.
"""

from contrastive_jax import config as configs


def get_config(arg=""):
    """The config of ``method`` with ``unique`` digits at ``scale``."""
    options = configs.parse(arg, unique=0, tau=0.1, method="simclr", scale="paper")
    config = configs.base()
    config.name = "digit_on_imagenet"
    config.data = {"name": "imagenet2012", "size": 224}
    config.compose = {"name": "digit_on_image", "digits": "mnist", "unique": options.unique}
    config.augment = {"preset": "simclr", "size": 224}
    config.encoder.update({"depth": 50, "stem": "imagenet", "variant": "simclr"})
    config.schedule.update({"learning_rate": 0.075, "scaling": "sqrt"})
    config.train.update({"duration": "100 epochs", "batch_size": 1024})
    linear = {"name": "simclr", "batch_size": 4096, "epochs": 90, "weight_decay": 1e-6, "augment": False}
    config.evaluators = {"linear": linear}
    config.evaluate.rows = ("trained",)
    configs.use_method(config, options.method)
    config.temperature.tau = options.tau
    configs.at_scale(
        config,
        options.scale,
        gpu={"train.duration": "20 epochs", "train.batch_size": 512, "dtype": "bfloat16"},
    )
    if options.scale in configs.SMALL:
        config.data.name = "cifar10"
        config.compose.update({"side": 32, "size": 8})
        config.augment = {"preset": "simclr", "size": 32, "crop_min": 0.2, "strength": 0.5, "blur": 0.0}
    elif options.scale in ("cpu", "smoke"):
        config.compose.update({"digits": "digits", "side": 32})
        config.augment.update({"size": 32, "shift": 4.0})
        config.encoder.width = 0.125
        if options.scale == "cpu":
            config.train.duration = "20 epochs"
    return configs.complete(config)
