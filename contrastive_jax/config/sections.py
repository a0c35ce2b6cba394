"""Sections whose options no function of the package takes: a field is an option, with its kind and its default."""

import dataclasses
from typing import Annotated, Any, Literal

from contrastive_jax.evaluators import ROWS
from contrastive_jax.evaluators.table import METRICS
from contrastive_jax.kinds import Count, CountOrZero, Ge, Le, NonNegative, parameters

section = dataclasses.dataclass(frozen=True, kw_only=True)


def defaults(fields: type) -> dict[str, Any]:
    """Return the defaults of a section's options."""
    return {name: parameter.default for name, parameter in parameters(fields).items()}


@section
class General:
    """Options outside of all sections.

    Args:
      name: what the run is called, in its workdir's name.
      seed: of everything random: first weights, order of the images, augmentation, negatives.
      dtype: that the network computes in: float32, bfloat16 or float64; losses and statistics have float32 at least.
      directions: both: each view queries the other; one_way: the first queries the second, all a slow target sees.
      score: how a query is compared with a key: cosine, or dot (embeddings as they are).
    """

    name: str = "base"
    seed: CountOrZero = 0
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    directions: Literal["both", "one_way"] = "both"
    score: Literal["cosine", "dot"] = "cosine"


@section
class Probe:
    """The online linear probe.

    Args:
      weight: weight of the online linear probe's cross-entropy; 0: no probe is trained.
      gradient: whether the gradient of the probe and of losses on its logits reaches the encoder (supervised).
    """

    weight: NonNegative = 1.0
    gradient: bool = False


@section
class Train:
    """Length and batches of the training.

    Args:
      duration: length of the run: '100 epochs', '1000 steps' or '1e6 examples'.
      batch_size: images a step, of all devices together.
      microbatches: parts in which a step's batch passes the network, to save memory.
      remat: blocks are computed again in the backward pass, to save memory.
      deterministic: on a GPU: the same run has the same bits; False is faster there, and nothing elsewhere.
    """

    duration: str = "100 epochs"
    batch_size: Annotated[int, Ge(2)] = 256
    microbatches: Count = 1
    remat: bool = False
    deterministic: bool = True


@section
class Evaluate:
    """Evaluation during training and after it.

    Args:
      every: duration between two looks while the run trains, in whole steps, rounded up; 0: none.
      look: columns of evaluators that such a look shows.
      final: run all evaluators at the end of training.
      rows: features to evaluate: of the trained encoder, of the untrained one, raw pixels.
      metric: score that the table shows (top5 with top-1 beside it); auto: that of the set's literature.
      batch_size: images that the encoder sees at once.
      checkpoint: what --mode=evaluate judges: a workdir or a file of weights; '': the workdir's own.
      size: of the images that a judged encoder sees; 0: its pretraining's (embed, export: the run's).
    """

    every: str = "0 epochs"
    look: tuple[str, ...] = ("knn",)
    final: bool = True
    rows: tuple[Literal["trained", "untrained", "raw pixels"], ...] = ROWS
    metric: Literal["auto", *METRICS] = "auto"  # type: ignore[valid-type]
    batch_size: Count = 512
    checkpoint: str = ""
    size: CountOrZero = 0


@section
class Log:
    """The log: how often, and where to.

    Args:
      every: steps between two log points.
      tensorboard: TensorBoard files too, where the extra `tf` is installed.
      wandb: project of Weights & Biases to log to (extra wandb); "" does not.
    """

    every: Count = 10
    tensorboard: bool = True
    wandb: str = ""


@section
class Checkpoint:
    """Checkpoints of the run.

    Args:
      every_seconds: least time between two checkpoints.
      keep_last: how many of the latest checkpoints are kept.
      keep_every: duration between checkpoints kept for good, in whole steps, rounded up; 0: none.
    """

    every_seconds: NonNegative = 60.0
    keep_last: Count = 3
    keep_every: str = "0 epochs"


@section
class Init:
    """Weights that the run starts from.

    Args:
      checkpoint: a workdir or a file of weights whose encoder the run starts from; '': random weights.
    """

    checkpoint: str = ""


@section
class Preview:
    """The sheet of ``--mode=preview``.

    Args:
      images: rows of --mode=preview's sheet.
      draws: draws of each image on that sheet.
    """

    images: Count = 8
    draws: Annotated[int, Ge(1), Le(1000)] = 4


@section
class Profile:
    """The profile of a few steps.

    Args:
      steps: first step of a profile for TensorBoard or Perfetto, and the one to end before.
    """

    steps: tuple[int, ...] = (0, 0)


@section
class Embed:
    """The files of ``--mode=embed``.

    Args:
      layers: layers that --mode=embed writes: pooled, projection_1, ...
      splits: splits that --mode=embed writes: train, test.
    """

    layers: tuple[str, ...] = ("pooled",)
    splits: tuple[Literal["train", "test"], ...] = ("train", "test")


@section
class Export:
    """The file of ``--mode=export``.

    Args:
      architecture: names of the weights that --mode=export writes.
    """

    architecture: Literal["torchvision", "own"] = "torchvision"


@section
class Report:
    """The page of ``--mode=report``.

    Args:
      images: test images, drawn at random, of --mode=report's map and neighbours.
      layer: layer that they are compared in: pooled, projection_1, ...
      map: how they are laid out on a plane: tsne or pca.
      queries: images whose nearest neighbours are shown.
      neighbours: of each of them.
    """

    images: Annotated[int, Ge(10)] = 1000
    layer: str = "pooled"
    map: Literal["tsne", "pca"] = "tsne"
    queries: CountOrZero = 8
    neighbours: Count = 7
