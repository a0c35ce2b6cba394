"""What ``--mode=describe`` says of runs whose data are not here."""

import jax
import pytest
from suite import over

from contrastive_jax import config as configs
from contrastive_jax.commands import describe
from contrastive_jax.config.files import names

HERE = ("digits", "flatclr_digits", "saturation")  # scikit-learn's digits, and nothing but bits
SAID = {
    "flatclr_imagenet": (
        "1,281,167 images of different sizes, 1000 classes",
        "250,228 in all",
        "2 of 224x224x3; 2 pairs",
    ),
    "macl_stl10": ("105,000 images 96x96x3, 10 classes",),
    "randbit_mnist": ("60,000 images 28x28x9, 10 classes",),
    "digit_on_imagenet": ("like mnist on synthetic", "mnist is not prepared", "images 224x224x3"),
    "multidigits": ("60,000 images 112x112x1, 10 classes",),
    "folder": (
        "data.dir is photos; there is no such folder in ",
        "; described with synthetic images like folder",
    ),
}


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No set is prepared, and there is no folder of photos."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def is_described(name):
    run, missing = describe.prepared(configs.plain(configs.load(f"{name}:scale=paper")))
    said = "\n".join(describe.outline(run, missing))
    assert bool(missing) == (name not in HERE)
    assert ("described with synthetic" in said) == bool(missing)
    for words in SAID.get(name, ()):
        assert words in said, words


def test_the_state_of_each_example_is_counted():
    config = configs.load("digits:method=isogclr,scale=smoke")
    said = "\n".join(describe.outline(*describe.prepared(configs.plain(configs.complete(config)))))
    assert "temperature\n  8 bytes for each image, 0.011 MiB on each device" in said
    assert "normalizer\n  4 bytes for each image, 0.00548 MiB on each device" in said


def outlined(config, *overrides):
    return "\n".join(describe.outline(*describe.prepared(configs.resolve(config, overrides))))


def test_views_of_two_sizes_are_described():
    several = (
        ("augment.views", "3"),
        ("augment.local_views", "4"),
        ("augment.size", "32"),
        ("augment.local_size", "16"),
    )
    said = outlined("digits:method=simclr,scale=smoke", *several)
    assert "views of an example: 3 of 32x32x1 and 4 of 16x16x1; 18 pairs of a query and a key" in said


@over(list(SAID))
def test_a_config_of_every_kind_is_described_without_its_data(name):
    is_described(name)


@pytest.mark.run
@over([name for name in names() if name not in ("arrays", "pairs")])  # nobody knows arrays that are not there
def test_every_config_is_described_without_its_data(name):
    is_described(name)


def test_a_set_of_which_too_little_is_known_has_to_be_here():
    config = configs.load("digits:scale=smoke")
    config.data = {"name": "sun397", "dir": ""}
    with pytest.raises(FileNotFoundError, match="sun397 is not prepared"):
        describe.prepared(configs.plain(configs.complete(config)))


@pytest.mark.run
def test_a_step_that_does_not_fit_is_described_without_its_speed(tmp_path, monkeypatch, capsys):
    def too_large(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 160639008808 bytes.")

    monkeypatch.setattr(describe, "race", too_large)
    facts = describe.describe("digits:scale=smoke", str(tmp_path / "run"))
    assert facts["temp_mib"] > 0 and not any("images_per_second" in name for name in facts)
    printed = capsys.readouterr().out.partition("summary\n")[2]
    assert "time: about" in printed and "memory: train.batch_size=32 does not fit: the step needs" in printed


@pytest.mark.run
def test_quiet_prints_the_summary_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(describe, "SECONDS", 0.1)
    describe.describe("digits:scale=smoke", str(tmp_path / "run"), quiet=True)
    first, time, memory = capsys.readouterr().out.splitlines()
    assert first == "summary" and " for 4 steps (measured" in time and memory.endswith("batch_size=32 fits")


def test_the_command_says_so(tmp_path, monkeypatch, capsys):
    def compiles(*_):
        raise InterruptedError

    monkeypatch.setattr(describe.compilation, "compiled_step", compiles)
    config = configs.plain(configs.load("simclr_mnist:scale=small_mnist"))
    with pytest.raises(InterruptedError):
        describe.describe(config, str(tmp_path / "run"))
    assert "mnist is not prepared" in capsys.readouterr().out
