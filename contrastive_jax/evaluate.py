"""``--mode=evaluate``: an encoder, judged on labelled images that its training may never have seen."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.tree_util import Partial

from contrastive_jax import augment, checkpoint, logbook, sharding
from contrastive_jax.evaluators import features, knn, report
from contrastive_jax.recipe import call
from contrastive_jax.run import Run, checkpoints_of, prepare, replicate
from contrastive_jax.types import PyTree, TrainState


def encoder_of(run: Run) -> Callable[[PyTree, np.ndarray], dict[str, np.ndarray]]:
    """``(params and stats, images [n, h, w, c]) -> {layer: [n, F]}``, by running statistics, compiled once."""
    prepare_image = call(augment.make_eval, "augment", run.config["augment"])

    def encode(weights: tuple[PyTree, PyTree], images: np.ndarray) -> dict[str, np.ndarray]:
        bound = Partial(run.recipe.network.encode, *weights)
        return features.encode_all(bound, images, prepare_image, run.config["evaluate"]["batch_size"])

    return encode


class Judge:
    """Evaluates encoders of a run on its labelled data, and checks that judging changed nothing."""

    def __init__(self, run: Run):
        self.run, self.encode = run, encoder_of(run)
        prepare_image = call(augment.make_eval, "augment", run.config["augment"])
        self._calibrated = jax.jit(
            lambda params, stats, images: run.recipe.calibrate(params, stats, jax.vmap(prepare_image)(images))
        )
        self.settings = run.config["evaluate"]
        train, test = run.source.train, run.source.test
        self.possible = test is not None and len(run.source.classes) > 0 and bool((train.label >= 0).any())

    def encoded(self, weights: tuple[PyTree, PyTree]) -> report.Encoded:
        """Both splits at the layer that ``evaluate.layer`` names; unlabelled training images are left out."""
        layer, train = self.settings["layer"], self.run.source.train
        both = (train.image[train.label >= 0], self.run.source.test.image)
        return report.Encoded(*(self.encode(weights, images)[layer] for images in both), layer=layer)

    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the labelled training images, and of the test images."""
        train = self.run.source.train.label
        return train[train >= 0], self.run.source.test.label

    def knn(self, state: TrainState) -> dict[str, float]:
        """The quick look while a run trains."""
        seen = self.encoded((state.params, state.stats))
        train_labels, test_labels = self.labels()
        scores = knn.evaluate(
            seen.train, train_labels, seen.test, test_labels, k=self.settings["k"],
            temperature=self.settings["temperature"],
        )  # fmt: skip
        return {"eval/knn_top1": scores["top1"]}

    def untrained(self, seed: int | None = None) -> tuple[PyTree, PyTree]:
        """The initial weights (of the run's seed), with batch-norm statistics of up to 1,024 clean training images.

        With the initial statistics (mean 0, variance 1) nothing would be normalised, and the baseline would
        say less of the architecture than of that.
        """
        seed = self.run.config["seed"] if seed is None else seed
        params, stats = replicate(self.run.recipe.init_network(seed), self.run.mesh)
        count = min(1024, len(self.run.source.train)) // self.run.mesh.size * self.run.mesh.size
        rows = sharding.named(self.run.mesh, sharding.ROWS)
        images = self.run.source.train.image[:count]
        images = jax.make_array_from_callback(images.shape, rows, lambda index: images[index])
        return params, self._calibrated(params, stats, images)

    def table(self, weights: tuple[PyTree, PyTree], quiet: bool = False) -> dict:
        """Trained encoder, untrained encoder and raw pixels under every protocol, printed and returned.

        Raises:
          RuntimeError: the encoder's bits are not what they were before.
        """
        before = checkpoint.fingerprint(weights)
        train, test = self.run.source.train, self.run.source.test
        encoders = {
            "trained": self.encoded(weights),
            "untrained": self.encoded(self.untrained()),
            "raw pixels": report.Encoded(
                features.raw_pixels(train.image[train.label >= 0]),
                features.raw_pixels(test.image),
                layer="pixels",
            ),
        }
        options = {
            name: self.settings[name] for name in ("C", "labels_per_class", "draws", "k", "temperature")
        }
        results = report.report(encoders, *self.labels(), **options, quiet=quiet)
        if checkpoint.fingerprint(weights) != before:
            raise RuntimeError("the encoder changed while it was evaluated; its numbers are void.")
        return results


def evaluate(config: Mapping[str, Any], workdir: str, *, quiet: bool = False) -> dict[str, Any]:
    """Judges the encoder of ``evaluate.checkpoint`` (default: the workdir's) on the config's labelled data."""
    run = prepare(config)
    path = config["evaluate"]["checkpoint"] or workdir
    everywhere = sharding.named(run.mesh, sharding.REPLICATED)
    with jax.set_mesh(run.mesh), checkpoint.Checkpoints(checkpoints_of(path), read_only=True) as saved:
        found, step, _ = saved.restore_part(("params", "stats"), sharding=everywhere, report=logbook.say)
        if not quiet:
            logbook.say(f"step {step} of {path}")
        judge = Judge(run)
        if not judge.possible:
            raise ValueError(
                f"data.name={config['data']['name']!r} has no labelled test images to evaluate on."
            )
        return judge.table((found["params"], found["stats"]))
