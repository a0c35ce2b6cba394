"""Data sets as a few files: sheets of images, compressed without loss, in zips of at most 50 MB."""

import io
import json
import math
import os
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

LIMIT = 50_000_000  # bytes of a part
ACROSS, ROWS = 40, 25  # images of a sheet
FOLDER = "EXPERIMENTS_PACKS"  # environment variable: where the harness finds packs


def sheets(images: np.ndarray) -> list[bytes]:
    """Encode images ``[n, h, w, c]`` uint8 as lossless WebP, ``ACROSS * ROWS`` to a sheet, the last padded with
    black."""
    from PIL import Image

    count, (_, h, w, c) = ACROSS * ROWS, images.shape
    found = []
    for start in range(0, len(images), count):
        part = images[start : start + count]
        part = np.concatenate([part, np.zeros((count - len(part), h, w, c), np.uint8)])
        sheet = part.reshape(ROWS, ACROSS, h, w, c).swapaxes(1, 2).reshape(ROWS * h, ACROSS * w, c)
        picture = Image.fromarray(np.repeat(sheet, 3, -1) if c == 1 else sheet)
        file = io.BytesIO()
        picture.save(file, "WEBP", lossless=True, exact=True, quality=75, method=4)
        found.append(file.getvalue())
    return found


def images_of(sheet: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """Decode the images ``[ACROSS * ROWS, h, w, c]`` of a sheet."""
    from PIL import Image

    h, w, c = shape
    pixels = np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB"))[..., :c]
    return pixels.reshape(ROWS, h, ACROSS, w, c).swapaxes(1, 2).reshape(-1, h, w, c)


def pack(name: str, source: Any, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write a set's training and test images and labels into parts ``name-0.zip``, ...; where they are."""
    about = {"name": source.name, "classes": list(source.classes), "splits": {}}
    members: list[tuple[str, bytes]] = []
    for split, part in (("train", source.train), ("test", source.test)):
        image, label = np.asarray(part.image), np.asarray(part.label)
        about["splits"][split] = {"shape": list(image.shape), "label": label.tolist()}
        members += [(f"{split}-{i:04d}.webp", sheet) for i, sheet in enumerate(sheets(image))]
    parts: list[list[tuple[str, bytes]]] = [[("about.json", json.dumps(about).encode())]]
    for member in members:
        if sum(len(data) for _, data in parts[-1]) + len(member[1]) > LIMIT - 2**20:
            parts.append([])
        parts[-1].append(member)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}-{number}.zip" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
            for member, data in part:
                file.writestr(member, data)
    return paths


def read(name: str, folder: pathlib.Path) -> Any | None:
    """Read the set of the packs in a folder, as :func:`contrastive_jax.data.load` would load it; None: parts are
    missing."""
    from contrastive_jax import data

    members: dict[str, bytes] = {}
    for path in sorted(folder.glob(f"{name}-*.zip")):
        with zipfile.ZipFile(path) as file:
            members |= {member: file.read(member) for member in file.namelist()}
    if "about.json" not in members:
        return None
    about, splits = json.loads(members["about.json"]), []
    for split, facts in about["splits"].items():
        count, *shape = facts["shape"]
        needed = [f"{split}-{i:04d}.webp" for i in range(math.ceil(count / (ACROSS * ROWS)))]
        if any(member not in members for member in needed):
            return None
        images = np.concatenate([images_of(members[member], tuple(shape)) for member in needed])[:count]
        splits.append(data.Split(images, np.asarray(facts["label"], np.int32)))
    return data.Source(about["name"], *splits, tuple(about["classes"]))


def source_of(config: Mapping[str, Any]) -> Any | None:
    """Return the set that a config names from the packs of ``EXPERIMENTS_PACKS``; None: there are none, or not of it.

    Raises:
      FileNotFoundError: the set's parts are not all there.
    """
    if not (folder := os.environ.get(FOLDER)):
        return None
    name = config["data"]["name"]
    if not list(pathlib.Path(folder).glob(f"{name}-*.zip")):
        return None
    from contrastive_jax.data.storage import held_out
    from contrastive_jax.training import run as runs

    source = read(name, pathlib.Path(folder))
    if source is None:
        raise FileNotFoundError(f"{folder} holds only some of the parts of {name}.")

    return runs.source_of(config, lambda section: held_out(source, section.options.get("validation", 0)))
