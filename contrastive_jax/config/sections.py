"""Sections whose options are not arguments of a function: each field is an option with its type and default."""

import dataclasses
from typing import Annotated, Any, Literal

from contrastive_jax.evaluators.columns import ROWS, RowName
from contrastive_jax.evaluators.table import METRICS
from contrastive_jax.kinds import Count, CountOrZero, Ge, Le, NonNegative, parameters

section = dataclasses.dataclass(frozen=True, kw_only=True)


def defaults(fields: type) -> dict[str, Any]:
    """Return the defaults of a section's options."""
    return {name: parameter.default for name, parameter in parameters(fields).items()}


@section
class General:
    """Options outside all sections.

    Args:
      name: name of the run, used in the default workdir's name.
      seed: random seed of initial weights, data order, augmentation and negatives.
      dtype: floating-point type of the network: float32, bfloat16 or float64; losses and statistics use float32
          or higher.
      directions: both: each view queries the others; one_way: the first view (and local views) queries the others,
          and a target network encodes only those.
      score: similarity of query and key: cosine, or dot (without normalization).
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
      weight: weight of the online linear probe's cross-entropy; 0: no probe.
      gradient: whether gradients of the probe, and of losses on its logits, flow into the encoder (supervised
          training).
    """

    weight: NonNegative = 1.0
    gradient: bool = False


@section
class Train:
    """Length and batches of training.

    Args:
      duration: length of the run: '100 epochs', '1000 steps' or '1e6 examples'.
      batch_size: number of images per step, over all devices.
      microbatches: number of parts in which a step's batch passes through the network, to save memory; batch norm
          has a part's statistics.
      remat: whether blocks are recomputed in the backward pass, to save memory.
      deterministic: whether runs on a GPU are bitwise reproducible; False is faster there, and has no effect
          elsewhere.
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
      every: duration between evaluations during training, rounded up to whole steps; 0: none.
      look: columns of ``evaluators`` that are computed during training.
      final: whether all evaluators run at the end of training.
      rows: features to evaluate: those of the trained encoder, of the untrained encoder, and raw pixels.
      metric: score in the table (top5 is shown beside top-1); auto: the usual score for the data set.
      batch_size: number of images per batch in evaluation.
      checkpoint: encoder that --mode=evaluate evaluates: a workdir or a weights file; '': the workdir's own.
      size: image size in pixels for evaluation; 0: the size of pretraining (for embed and export the run's).
    """

    every: str = "0 epochs"
    look: tuple[str, ...] = ("knn",)
    final: bool = True
    rows: tuple[RowName, ...] = ROWS
    metric: Literal["auto", *METRICS] = "auto"  # type: ignore[valid-type]
    batch_size: Count = 512
    checkpoint: str = ""
    size: CountOrZero = 0


@section
class Log:
    """Interval and destinations of the log.

    Args:
      every: number of steps between log points.
      tensorboard: whether to write TensorBoard files; needs the extra ``tf``.
      wandb: Weights & Biases project to log to; needs the extra ``wandb``; "": none.
      on_log: your function, ``module:function``, called with the step and the metrics of every record; it may
          return "stop" to end training; "": none.
    """

    every: Count = 10
    tensorboard: bool = True
    wandb: str = ""
    on_log: str = ""


@section
class Checkpoint:
    """Checkpoints of the run.

    Args:
      every_seconds: minimum time between two checkpoints, in seconds.
      keep_last: number of latest checkpoints to keep.
      keep_every: duration between checkpoints that are kept permanently, rounded up to whole steps; 0: none.
    """

    every_seconds: NonNegative = 60.0
    keep_last: Count = 3
    keep_every: str = "0 epochs"


@section
class Init:
    """Weights that the run starts from.

    Args:
      checkpoint: workdir or weights file (.safetensors, .pth) to initialize the encoder from, the first of a workdir
        with two encoders; '': random weights.
      second_checkpoint: the same for the second encoder of pairs, from the second of a workdir with two encoders.
    """

    checkpoint: str = ""
    second_checkpoint: str = ""


@section
class Preview:
    """Image sheet of ``--mode=preview``.

    Args:
      images: number of images on the sheet of --mode=preview.
      draws: number of augmentations per image on the sheet.
    """

    images: Count = 8
    draws: Annotated[int, Ge(1), Le(1000)] = 4


@section
class Profile:
    """The profile of a few steps.

    Args:
      steps: first and last step (exclusive) of a profile for TensorBoard or Perfetto; (0, 0): none.
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
      architecture: whether to refuse a ResNet that torchvision would compute differently (torchvision) or to
          write it (own).
      format: file: encoder.safetensors; timm: the folder timm with model.safetensors, config.json and a model card,
          as timm and the Hugging Face Hub read it, for an encoder that timm has.
    """

    architecture: Literal["torchvision", "own"] = "torchvision"
    format: Literal["file", "timm"] = "file"


@section
class Report:
    """The page of ``--mode=report``.

    Args:
      images: number of random test images for the map and neighbours of --mode=report.
      layer: layer of the map and neighbours: pooled, projection_1, ...
      map: method of the two-dimensional map: tsne or pca.
      queries: number of images whose nearest neighbours are shown.
      neighbours: number of nearest neighbours per image.
    """

    images: Annotated[int, Ge(10)] = 1000
    layer: str = "pooled"
    map: Literal["tsne", "pca"] = "tsne"
    queries: CountOrZero = 8
    neighbours: Count = 7
