"""What pyproject.toml cannot say: the wheel carries ``configs/`` as ``contrastive_jax.configs``."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["contrastive_jax*"]), "contrastive_jax.configs"],
    package_dir={"contrastive_jax.configs": "configs"},
)
