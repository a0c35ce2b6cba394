"""One's own images as tar shards: training on them is training on the same folder."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.training import loop

NARROW = {
    "encoder.width": 0.0625,
    "train.batch_size": 8,
    "train.duration": "6 steps",
    "schedule.warmup": "0 steps",
    "log.every": 1,
    "log.tensorboard": False,
    "evaluate.final": False,
    "data.test_fraction": 0.0,
    "data.stream": "on",
    "data.workers": 0,
}


def forms(root):
    """Sixteen images in a folder and in two shards, in the same order."""
    draw, images = np.random.default_rng(0), []
    for i in range(16):
        file = io.BytesIO()
        Image.fromarray(draw.integers(0, 256, (20 + i, 30, 3), np.uint8)).save(file, "PNG")
        images.append(file.getvalue())
        path = root / f"folder/{i // 8}/{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(images[-1])
    (root / "webdataset").mkdir()
    for part in range(2):
        with tarfile.open(root / f"webdataset/{part}.tar", "w") as archive:
            for i in range(8 * part, 8 * part + 8):
                for suffix, content in {"png": images[i], "cls": b"%d" % part}.items():
                    member = tarfile.TarInfo(f"{i:02}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def config_of(root, form, **leaves):
    config = configs.load(f"folder:dir={root / form},data={form},size=16,scale=smoke")
    with config.unlocked():
        config.update_from_flattened_dict(NARROW | leaves)
    return config


def losses(workdir):
    return {line["step"]: line["loss"] for line in workdirs.read_metrics(workdir)}


@pytest.mark.run
def test_a_run_on_shards_is_stopped_resumed_and_refused(tmp_path):
    forms(tmp_path)
    constant = {"schedule.name": "constant"}
    loop.train(config_of(tmp_path, "folder", **constant), tmp_path / "runs/folder", quiet=True)
    expected, workdir = losses(tmp_path / "runs/folder"), tmp_path / "runs/shards"
    assert len(expected) == 6 and np.isfinite([*expected.values()]).all()
    for steps in ("3 steps", "6 steps"):
        config = config_of(tmp_path, "webdataset", **constant | {"train.duration": steps})
        loop.train(config, workdir, quiet=True)
    assert losses(workdir) == expected  # as if it had never been stopped, and as from a folder
    shard = tmp_path / "webdataset/0.tar"
    whole = bytearray(shard.read_bytes())
    whole[whole.index(b"IDAT") + 40] ^= 1
    shard.write_bytes(whole)
    with pytest.raises(ValueError, match=r"other pixels.*0\.tar/00\.png"):
        loop.train(
            config_of(tmp_path, "webdataset", **constant | {"train.duration": "7 steps"}), workdir, quiet=True
        )
