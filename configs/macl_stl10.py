"""MACL and its baselines on STL-10: MACL (Huang et al. 2022), Tables 2 and 4.

    contrastive-jax --config=configs/macl_stl10.py
    contrastive-jax --config=configs/macl_stl10.py:method=simclr

Protocol: as configs/macl_cifar10.py, on the 105,000 training images, labelled or not; tau0 from 0.07 to 0.5
(--config.temperature.tau).
Paper, kNN / linear at tau0 0.1 (Table 2):
    macl 80.13 / 82.68, macl_b 79.81 / 82.16, simclr 77.53 / 81.00, dcl 78.41 / 80.30,
    dual_temperature 78.74 / 80.94, macl_w 80.53 / 81.71 (Table 4), others not printed.
    At tau0 >= 0.15 its own Table 2 has macl's linear below simclr's.

Arguments: ``method`` (macl, macl_b, macl_without_reweighting, macl_w, simclr, dcl, dual_temperature,
linear_tau), ``scale`` (gpu: bfloat16).

Assumed: views of 96 x 96, the images' own size; the rest as in configs/macl_cifar10.py.
"""

from contrastive_jax import config as configs

cifar10 = configs.sibling(__file__, "macl_cifar10")


def get_config(arg=""):
    """The config of ``method`` at ``scale``."""
    options = configs.parse(arg, method=cifar10.METHODS, scale="paper")
    config = cifar10.get_config(f"method={options.method}")
    config.name = "macl_stl10"
    config.data.update({"name": "stl10", "train_split": "train+unlabelled"})
    config.augment.size = 96
    return configs.at_scale(config, options.scale, gpu={"dtype": "bfloat16"})
