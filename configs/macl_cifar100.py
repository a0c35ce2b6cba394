"""MACL and its baselines on CIFAR-100: MACL (Huang et al. 2022), Tables 3 and 4.

    contrastive-jax --config=configs/macl_cifar100.py
    contrastive-jax --config=configs/macl_cifar100.py:method=simclr

Protocol: as configs/macl_cifar10.py, on CIFAR-100; 100, 200, 300 or 500 epochs (--config.train.duration).
Paper, kNN / linear at 200 epochs (Table 3):
    macl 55.70 / 60.81, macl_b 55.99 / 60.69, simclr 50.74 / 58.33, dcl 54.68 / 59.61,
    dual_temperature 55.20 / 60.34, macl_w 54.87 / 59.64 (Table 4), others not printed.

Arguments: ``method`` (macl, macl_b, macl_without_reweighting, macl_w, simclr, dcl, dual_temperature,
linear_tau), ``scale``.

Assumed: the 100 fine labels; the rest as in configs/macl_cifar10.py.
"""

from contrastive_jax import config as configs

cifar10 = configs.sibling(__file__, "macl_cifar10")


def get_config(arg=""):
    """The config of ``method`` at ``scale``."""
    options = configs.parse(arg, method=cifar10.METHODS, scale="paper")
    config = cifar10.get_config(f"method={options.method}")
    config.name = "macl_cifar100"
    config.data.name = "cifar100"
    return configs.at_scale(config, options.scale)
