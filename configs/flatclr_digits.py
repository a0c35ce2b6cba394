"""FlatCLR on scikit-learn's handwritten digits: the first run, about a minute on two CPU cores.

    contrastive-jax --config=configs/flatclr_digits.py --workdir=runs/flatclr

Method of FlatNCE (Chen et al. 2021); the data and scale are ours, so no number of the paper compares.
Protocol: fixed stratified split into training and test images, ResNet-18 of width 16, 60 epochs; linear
(L-BFGS) on all labels and on 10 a class, kNN (k=10, cosine), last epoch.
"""

from contrastive_jax import config as configs


def get_config(arg=""):
    """``scale``: cpu (all others but smoke are the same), smoke."""
    options = configs.parse(arg, scale="cpu")
    config = configs.sibling(__file__, "digits").get_config(f"method=flatclr,scale={options.scale}")
    config.name = "flatclr_digits"
    if options.scale != "smoke":
        config.train.duration = "60 epochs"
    return config
