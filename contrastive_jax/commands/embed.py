"""``--mode=embed``: embeddings of the images of a data set or folder, as npz files.

    contrastive-jax --mode=embed --config=configs/digits.py --workdir=runs/digits \\
      --config.data.name=folder --config.data.dir=photographs
    np.load("runs/digits/embeddings_train.npz")["pooled"]

The checkpoint's own config sets the network and the preprocessing; the given config sets the images (``data``),
layers and splits (``embed``). Labels are not needed.
"""

import json
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.tree_util import Partial

from contrastive_jax import augment, data, distributed, models, sharding
from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.config import Settings
from contrastive_jax.evaluators import features
from contrastive_jax.lookup import call
from contrastive_jax.training import encoder, pairs
from contrastive_jax.training.run import source_of
from contrastive_jax.workdir import remote

SPLITS = ("train", "test")


@remote.supports_remote
def embed(
    config: Settings | Mapping[str, Any], workdir: str, *, quiet: bool = False, output: str | None = None
) -> dict[str, pathlib.Path]:
    """Write ``embeddings_<split>.npz`` for each split of ``embed.splits`` that the data has.

    The files go to the folder ``output``, default: the workdir.

    Each file holds, for n images in the order of the data set: one array [n, F] float32 per layer of
    ``embed.layers``, under the layer's name; ``label`` [n] int32, -1 for unlabelled images ([n, C] for a
    multi-label set); ``id`` [n] int32; ``path`` [n], if the images are files; ``classes``; ``config`` (JSON
    text: the network's sections, and ``data`` and ``compose`` of these images); ``checkpoint`` (text); and
    ``step`` (-1 if unknown). For pairs it also holds the features of the second arrays by the second encoder, under
    the layer's name after ``second_``.

    Returns:
      ``{split: path}``.

    Raises:
      ValueError: a missing layer or split, images that the encoder cannot read, pairs for one encoder or no pairs
        for two, or ``data.corrupt="replace"``.
      FileNotFoundError: no checkpoint, or a missing data set.
    """
    settings = configs.settings_of(config)
    if settings.data.options.get("corrupt") == "replace":
        raise ValueError(
            "data.corrupt is 'replace'; --mode=embed needs 'raise', so that each embedding belongs to"
            " its image. Move damaged files away."
        )
    path = settings.evaluate.checkpoint or workdir
    known = encoder.read_settings(path)
    folder = workdir if output is None else output
    if distributed.first():
        workdirs.check_writable(workdir, output)
    source = source_of(settings)
    pairs.check_data(known, source)
    splits, layers = chosen_splits(settings, source.of_pair(0)), chosen_layers(settings, known)
    images = settings.only("data", "compose")  # of the given config, not of the training run
    mesh, written = sharding.make_mesh(), {}
    with jax.set_mesh(mesh):
        everywhere = sharding.named(mesh, sharding.REPLICATED)
        saved = encoder.read(path, sharding=everywhere)
        encoder.check_example(saved.example, source, path)
        second = encoder.read(path, second=True, sharding=everywhere) if source.paired else None
        if second is not None:
            encoder.check_example(second.example, source.of_pair(1), path)
        if (note := encoder.size_note(settings, saved.settings)) and distributed.first() and not quiet:
            workdirs.log(note)
        section = encoder.view_of(saved, settings)
        about = {
            "classes": np.array(source.classes, str),
            "config": json.dumps(known.to_dict() | {"augment": dict(section), **images}),
            "checkpoint": str(path),
            "step": -1 if saved.step is None else saved.step,
        }
        for name, split in splits.items():
            arrays = of_split(saved, split, section, layers, settings.evaluate.batch_size)
            if second is not None:
                view = encoder.view_of(second, pairs.tower(settings, 1))
                other = getattr(source.of_pair(1), name)
                of_second = of_split(second, other, view, layers, settings.evaluate.batch_size)
                arrays |= {f"{models.SECOND}{layer}": of_second[layer] for layer in layers}
            file = f"embeddings_{name}.npz"
            written[name] = remote.place(folder, file)
            if distributed.first():
                write(pathlib.Path(folder, file), arrays | about)
            if not quiet and distributed.first():
                shapes = ", ".join(f"{layer} {list(arrays[layer].shape)}" for layer in layers)
                workdirs.log(f"{written[name]}: {shapes}, step {about['step']} of {path}")
    if distributed.first() and not quiet:
        for name in SPLITS:
            other = pathlib.Path(folder, f"embeddings_{name}.npz")
            if name not in written and other.is_file() and not _is_of(other, settings):
                workdirs.log(
                    f"{remote.place(folder, other.name)} holds embeddings of other images, from an earlier"
                    " call."
                )
    return written


def _is_of(file: pathlib.Path, settings: Settings) -> bool:
    """Return whether a file holds embeddings of the images of these settings."""
    try:
        with np.load(file) as arrays:
            known = json.loads(str(arrays["config"]))
    except (OSError, EOFError, TypeError, ValueError, KeyError, zipfile.BadZipFile):  # not a file of ours
        return False
    images = {name: known[name] for name in ("data", "compose") if name in known}
    return configs.fingerprint(settings.replaced(**images)) == configs.fingerprint(settings)


def of_split(
    saved: encoder.Saved, split: Any, section: Mapping[str, Any], layers: tuple[str, ...], batch_size: int
) -> dict[str, np.ndarray]:
    """Compute features by layer, labels, ids and (if images are files) paths of a split, in host memory.

    ``section``: the section ``augment`` of the evaluation view.
    """
    view = call(augment.make_eval, "augment", section)
    encode = Partial(encoder.network_of(saved.settings).encode, saved.params, saved.stats)
    batch_size = features.batch_rows(min(batch_size, len(split)))
    encoded, label = features.encode_rows(
        encode, split.batches(batch_size, view), split.finish(view), count=len(split),
        batch_size=batch_size, layers=layers,
    )  # fmt: skip
    arrays = {layer: rows.numpy() for layer, rows in encoded.items()}
    arrays |= {"label": label, "id": np.arange(len(split), dtype=np.int32)}
    return arrays if split.paths is None else arrays | {"path": split.paths}


def write(path: pathlib.Path, arrays: Mapping[str, Any]) -> None:
    """Write an npz file atomically; the arrays load without pickle (``allow_pickle=False``)."""
    with workdirs.replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)


def chosen_splits(settings: Settings, source: data.Source) -> dict[str, Any]:
    """Return the splits of ``embed.splits`` that the data has, by name.

    Raises:
      ValueError: the data has none of them.
    """
    splits: dict[str, Any] = {name: getattr(source, name) for name in settings.embed.splits}
    splits = {name: split for name, split in splits.items() if split is not None}
    if not splits:
        raise ValueError(
            f"embed.splits is {list(settings.embed.splits)!r}; data.name={source.name!r} has none of"
            " these splits."
        )
    return splits


def chosen_layers(settings: Settings, known: Settings) -> tuple[str, ...]:
    """Return ``embed.layers``.

    Raises:
      ValueError: a layer that the network of ``known`` does not have, or no layer.
    """
    layers, there = settings.embed.layers, encoder.known_layers(known)
    for layer in layers or ("",):
        if layer not in there:
            raise ValueError(
                f"embed.layers contains {layer!r}; the layers of this encoder are {', '.join(there)}."
            )
    return layers
