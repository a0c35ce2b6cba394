"""One's own images: the how-to page's four commands, literally, from a folder to a file that other programs load."""

import pathlib
import re
import shlex
import shutil

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

import contrastive_jax
from contrastive_jax import config as configs
from contrastive_jax import main
from contrastive_jax.commands import embed, evaluate, export, preview, report
from contrastive_jax.training import loop

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "docs/how_to/images.md").read_text()
COMMANDS = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)[1].strip().split("\n")
MODES = {"train": loop, "preview": preview, "report": report, "export": export}
SHORT = (
    "--config.encoder.width=0.125",
    "--config.train.batch_size=8",
    "--config.train.duration=2 steps",
    "--config.schedule.warmup=0 steps",
)


def photographs(root, labelled):
    """24 images of odd sizes, grey ones and one with transparency among them."""
    draw = np.random.default_rng(0)
    for i in range(24):
        shape = (int(draw.integers(9, 90)), int(draw.integers(9, 90)))
        image = draw.integers(0, 256, shape if i % 5 == 0 else (*shape, 4 if i == 7 else 3), np.uint8)
        path = root / (("cat", "dog")[i % 2] if labelled else "") / f"{i}.png"
        path.parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray(image).save(path)


def run(command):
    """Run a line of the page in this process, with a short training."""
    words = shlex.split(command)[1:]
    spec, overrides, rest = main.split(
        [*words, *SHORT] if any("config=" in word for word in words) else words
    )
    options = dict(word.removeprefix("--").split("=") for word in rest)
    mode = options.get("mode", "train")
    given = [f"--config={spec}"] * bool(spec) + [f"--config.{name}={text}" for name, text in overrides]
    (config,) = main.resolved(given, options["workdir"], mode)
    return config, getattr(MODES[mode], mode)(config, options["workdir"])


@pytest.mark.run
@pytest.mark.parametrize("labelled", [True, False], ids=["labelled", "unlabelled"])
def test_the_pages_commands(labelled, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "photos", labelled)
    done = [run(command) for command in COMMANDS]
    folder = tmp_path / "runs/photos"
    assert {"preview.png", "result.json", "report.html", "encoder.safetensors"} <= {
        f.name for f in folder.iterdir()
    }
    config, result = done[1]
    if labelled:
        assert set(result["evaluations"]) == {"trained", "untrained"}
        again = evaluate.evaluate(config, str(folder), quiet=True)
        assert again["results"]["trained"] == result["evaluations"]["trained"] and again["notes"] == []
        removed = tmp_path / "photos/cat/0.png"
        removed.rename(tmp_path / "0.png")
        (note,) = evaluate.evaluate(config, str(folder), quiet=True)["notes"]
        assert "data has 21 training images; the run began with 22" in note
        shutil.copy(tmp_path / "0.png", tmp_path / "photos/cat/new.png")  # another has come
        (note,) = evaluate.evaluate(config, str(folder), quiet=True)["notes"]
        assert "22 training images, as many as the run began with" in note
        (tmp_path / "photos/cat/new.png").unlink()
        (tmp_path / "0.png").rename(removed)
    else:
        assert result["evaluations"] == {} and "evaluations are skipped" in capsys.readouterr().out
        with pytest.raises(ValueError, match="nothing to evaluate: no labelled test examples"):
            evaluate.evaluate(config, str(folder), quiet=True)
    embed.embed(config, str(folder), quiet=True)
    with np.load(folder / "embeddings_train.npz") as found:
        assert len(found["pooled"]) == len(found["path"]) == 22
        expected, path = found["pooled"][0], str(found["path"][0])
    assert {"conv1.weight", "layer4.1.bn2.running_var"} <= set(load_file(folder / "encoder.safetensors"))
    encoder = contrastive_jax.load_encoder(str(folder / "encoder.safetensors"))
    picture = encoder.open(tmp_path / "photos" / path)
    np.testing.assert_allclose(encoder(picture)[0], expected, rtol=1e-4, atol=1e-5)


def test_the_size_sets_what_is_kept_and_what_is_seen():
    for size, stored, stem in (
        (32, 64, "cifar"),
        (96, 192, "imagenet"),
        (224, 256, "imagenet"),
        (320, 320, "imagenet"),
    ):
        config = configs.load(f"folder:size={size}")
        assert (config.augment.size, config.data.size, config.encoder.stem) == (size, stored, stem)
