"""What FlatCLR learns of digits, while it learns: an embedding map over epochs.

    python -m experiments.digits.figure_map       # a minute of training, resumable; then results/map.png

One run of ``configs/digits.py:method=flatclr`` (30 epochs, seed 0), no label is used. The axes of all panels are the
two leading principal components of the *last* epoch's features (pooled, L2-normalised, of all 1,797 images), so a
point moves from panel to panel as its embedding does. Above each panel: kNN (k = 10, cosine, unweighted) of the 360
test images, bank = training images. Before training: the first weights, with
batch-norm statistics of the training images.
"""

import argparse
import json
import pathlib

import jax
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax import data
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import evaluate
from contrastive_jax.evaluators import knn
from contrastive_jax.training import loop
from contrastive_jax.training import run as runs
from contrastive_jax.training.encoder import LoadedEncoder, Saved, load_encoder
from contrastive_jax.workdir import checkpoint

ROOT = pathlib.Path(__file__).parents[2]
EVERY, SHOWN = 11, (0, 11, 33, 110, None)  # steps, of which 11.2 are an epoch; None: the last


def trained(workdir: pathlib.Path) -> dict:
    """Train the run, or go on with it; return its config."""
    config = configs.load(f"{ROOT}/configs/digits.py:method=flatclr")
    config.checkpoint.keep_every = f"{EVERY} steps"
    config.evaluate.final, config.log.tensorboard = False, False
    config = configs.plain(config)
    loop.train(config, str(workdir))
    return config


def untrained(config: dict, source: data.Source) -> LoadedEncoder:
    """Return the encoder of step 0."""
    run = runs.prepare(config, source=source)
    with jax.set_mesh(run.mesh):
        params, stats = jax.device_get(evaluate.Evaluator(run.settings, source, run.mesh).untrained())
    return LoadedEncoder(Saved(params, stats, 0, config, source.train.shape[2]), config["augment"])


def normalised(features: np.ndarray) -> np.ndarray:
    """Bring rows to length 1, [n, F]."""
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def measured(workdir: pathlib.Path, config: dict) -> dict:
    """Compute, for every step that is shown, features of training and test images, and the kNN's accuracy."""
    source = data.load(name="digits")
    with checkpoint.Checkpoints(workdir / "checkpoints", read_only=True) as there:
        last = there.steps()[-1]
    found = {}
    for step in SHOWN:
        step = last if step is None else step
        encoder = load_encoder(workdir, step=step) if step else untrained(config, source)
        train_rows, test_rows = (normalised(encoder(part.image)) for part in (source.train, source.test))
        score = knn.evaluate(train_rows, source.train.label, test_rows, source.test.label, k=10)
        found[step] = np.concatenate([train_rows, test_rows]), score["top1"]
    return found


def principal_axes(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the mean and the two leading principal components [2, F] of rows [n, F]."""
    mean = features.mean(axis=0)
    return mean, np.linalg.svd(features - mean, full_matrices=False)[2][:2]


def draw(found: dict, labels: np.ndarray, steps_per_epoch: float):
    """Draw a panel a step; colours are the classes, which training did not see."""
    from matplotlib.figure import Figure

    mean, axes = principal_axes(found[max(found)][0])
    figure = Figure(figsize=(2.35 * len(found), 2.9), layout="constrained")
    panels = figure.subplots(1, len(found), sharex=True, sharey=True)
    for panel, (step, (features, top1)) in zip(panels, found.items(), strict=True):
        x, y = ((features - mean) @ axes.T).T
        dots = panel.scatter(x, y, c=labels, cmap="tab10", vmin=-0.5, vmax=9.5, s=3, linewidths=0)
        when = "before training" if not step else f"epoch {step / steps_per_epoch:.0f}"
        panel.set_title(f"{when}\nkNN {100 * top1:.1f} %", fontsize=9)
        panel.set(xticks=[], yticks=[], aspect="equal")
    figure.colorbar(dots, ax=panels, ticks=range(10), shrink=0.7, label="digit")
    return figure


def main() -> None:
    """Train what is not yet trained, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=pathlib.Path, default=ROOT / "runs" / "experiments" / "digits_map")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results")
    arguments = parser.parse_args()
    config = trained(arguments.workdir)
    found = measured(arguments.workdir, config)
    source = data.load(name="digits")
    labels = np.concatenate([source.train.label, source.test.label])
    figure = draw(found, labels, len(source.train) / config["train"]["batch_size"])
    arguments.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out / "map.png", dpi=110)
    report = {
        "what": "kNN top-1 on the 360 test images by step",
        "top1": {str(step): float(top1) for step, (_, top1) in found.items()},
    }
    (arguments.out / "map.json").write_text(json.dumps(report | workdirs.environment(), indent=1) + "\n")
    for step, (_, top1) in found.items():
        print(f"step {step:4d}  kNN {100 * top1:.1f} %")


if __name__ == "__main__":
    main()
