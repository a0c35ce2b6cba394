"""What a run starts from when no checkpoint of its workdir is intact."""

import pathlib

import jax

from contrastive_jax import config as configs
from contrastive_jax import run, train

ROOT = pathlib.Path(__file__).parent.parent


class Damaged:
    """Checkpoints whose meta can be read, and whose arrays cannot."""

    def __init__(self, config):
        self.config = config

    def read_meta(self):
        return 4, {"config": self.config}

    def restore(self, like, report):
        report("damaged")


def test_a_run_whose_checkpoints_are_all_damaged_starts_afresh():
    config = configs.plain(configs.load(f"{ROOT}/configs/digits.py:scale=smoke"))
    made, said = run.prepare(config, jax.devices()[:1]), []
    with jax.set_mesh(made.mesh):
        assert int(train.restored(made, Damaged(config), said.append).step) == 0
    assert said == ["damaged"]
