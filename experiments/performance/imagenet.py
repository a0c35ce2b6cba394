"""The pretraining step on ImageNet for any devices, without ImageNet: what is compiled needs shapes only."""

import dataclasses
import pathlib
from collections.abc import Sequence

import jax

from contrastive_jax import config as configs
from contrastive_jax import data
from contrastive_jax.training import run as runs

IMAGES, CLASSES = 1_281_167, 1000


@dataclasses.dataclass(frozen=True)
class Records:
    """As many images as ImageNet has, none of which can be read."""

    shape: tuple = (None, None, 3)
    label_shape: tuple = ()
    chunk: int = 1

    def __len__(self) -> int:
        return IMAGES

    def read(self, rows):
        """Refuse."""
        raise NotImplementedError("these images are not here")


def step(
    batch_size: int, devices: Sequence[jax.Device] | None = None, depth: int = 50, size: int = 224, **leaves
) -> runs.Run:
    """Prepare the run of ``configs/simclr_imagenet.py`` at a batch size; ``leaves``: section.option -> value."""
    config = configs.load(str(pathlib.Path(__file__).parents[2] / "configs/simclr_imagenet.py"))
    changes = leaves | {"train.batch_size": batch_size, "encoder.depth": depth, "augment.size": size}
    with config.unlocked():
        config.update_from_flattened_dict(changes)
        config.evaluators = {}
        config.evaluate.look = ()
    train = data.Streamed(Records())
    source = data.Source("imagenet2012", train, None, tuple(map(str, range(CLASSES))))
    return runs.prepare(configs.plain(configs.complete(config)), devices, source=source)
