"""``--mode=preview``: a contact sheet of training images and their augmented views."""

import textwrap
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from contrastive_jax import augment, data, native
from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.config import Settings
from contrastive_jax.lookup import call
from contrastive_jax.training.run import source_of
from contrastive_jax.workdir import remote

TILE = 112  # pixels; smaller images are enlarged by an integer factor
LINE = 14  # height of a caption line in pixels
LETTER = 6  # upper bound of the average letter width in pixels
GAP = 4


@remote.supports_remote
def preview(
    config: Settings | Mapping[str, Any], workdir: str, *, quiet: bool = False, output: str | None = None
) -> str:
    """Write ``preview.png`` and return its path; no network is built.

    Each row shows one of the first images of training: its evaluation view, then its training views of the
    first ``preview.draws`` epochs, local ones last, bit-identical to the run's. Normalization is undone. Of more
    than three channels the sheet shows the first three, of two the first. Bits (``compose``) appear in the caption,
    lowest first.

    Args:
      config: ``preview.images`` sets the number of rows, ``preview.draws`` the number of epochs.
      workdir: directory of the run.
      output: folder to write to, created if missing; default: the workdir.
      quiet: do not log the path of the sheet.

    Raises:
      ValueError: an option out of range, or examples that are not images.
    """
    settings = configs.settings_of(config)
    source = source_of(settings).of_pair(0)  # of pairs, the first arrays
    if "size" not in settings.augment.options:
        raise ValueError(
            f"augment.preset is {settings.augment.name!r}; --mode=preview draws images, and these"
            f" examples are {source.train.example}."
        )
    augment.seen(settings.augment.options, source.train.example)
    count, rows = len(source.train), settings.preview.images
    if rows > count:
        raise ValueError(
            f"preview.images is {rows}; it must be at most {count}, the number of training images."
        )
    folder = workdirs.check_writable(workdir, output)
    ids, _ = data.rows(settings.seed, count, 0, rows)
    seen, (views, *local), labels, groups = shown(settings, source.train, ids)
    captions = [caption(*row, source.classes) for row in zip(ids, groups, labels, strict=True)]
    seen, views, captions = without_bits(seen, views, captions, source.train.made.composition.constant)
    section = settings.augment
    options = ", ".join(
        f"{name}={_short(value)}" for name, value in section.options.items() if name != "preset"
    )
    local = [images[..., : views.shape[-1]] for images in local]
    sheet = contact_sheet(f"{source.name}, {section.name}: {options}", captions, seen, views, *local)
    path = epath.Path(folder) / "preview.png"
    with workdirs.replacing(path) as temporary:
        sheet.save(temporary, "PNG")
    place = str(remote.place(folder, path.name))
    if not quiet:
        workdirs.log(f"{len(ids)} images with their views: {place}")
    return place


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_short, value))})"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def shown(settings: Settings, split: data.Split | data.Streamed, ids: np.ndarray) -> tuple:
    """Compute evaluation views, training views, labels and groups of some images.

    The evaluation views are [n, s, s, c], the training views a list of [n, draws, W, s, s, c], one for each size, in
    [0, 1] up to rounding.

    Raises:
      ValueError: local views of a streamed data set.
    """
    section, seed = settings.augment, settings.seed
    views, evaluate = section(), call(augment.make_eval, section.path, section.options)
    if isinstance(split, data.Streamed):
        views.check_streamed()
    whole, _ = next(split.batches(len(ids), evaluate, ids))
    seen = native.jit(jax.vmap(split.finish(evaluate)))(whole)

    @native.jit
    def finish(images, epoch):
        keys = augment.example_keys(jnp.uint32(seed), epoch, ids)
        return [jax.vmap(split.finish(part))(keys, images) for part in (views, views.local) if part]

    drawn = []
    for epoch in range(settings.preview.draws):
        batch = split.drawn(views, ids, seed=seed, epoch=epoch)
        drawn.append(jax.device_get(finish(batch["image"], jnp.full(len(ids), epoch))))
    trained = [visible(np.stack(size, axis=1), evaluate) for size in zip(*drawn, strict=True)]
    return visible(jax.device_get(seen), evaluate), trained, batch["label"], batch["group"]


def visible(image: np.ndarray, view: augment.EvaluationView) -> np.ndarray:
    """Undo the evaluation view's normalization of views [..., c]."""
    mean, std = view.normalization
    first = len(mean)  # further channels are not normalized
    return np.concatenate([image[..., :first] * np.array(std) + np.array(mean), image[..., first:]], -1)


def caption(row: int, group: int, label: np.ndarray, classes: tuple[str, ...]) -> tuple[str, str]:
    """Return two lines: the image's id (and its group, if different), and its labels."""
    numbers = np.flatnonzero(label) if np.ndim(label) else [label] if label >= 0 else []
    first = f"id {row}" if group == row else f"id {row}, group {group}"
    return first, ", ".join(classes[i] for i in numbers) or "no label"


def without_bits(seen: np.ndarray, views: np.ndarray, captions: list[tuple[str, str]], bits: int) -> tuple:
    """Move the last ``bits`` channels of images into their captions; images of bits alone keep them as well."""
    if not bits:
        return seen, views, captions
    written = ["".join(str(round(float(bit))) for bit in image[0, 0, -bits:]) for image in seen]
    captions = [
        (f"{first}, bits {text}", second) for (first, second), text in zip(captions, written, strict=True)
    ]
    colors = seen.shape[-1] - bits or bits
    return seen[..., :colors], views[..., :colors], captions


def contact_sheet(
    title: str, captions: list[tuple[str, str]], seen: np.ndarray, views: np.ndarray, *local: np.ndarray
):
    """Draw the sheet as a Pillow image: one row per image, first ``seen``, then the views, epoch by epoch.

    ``local`` views are enlarged by the same factor, and so are smaller.
    """
    from matplotlib import font_manager
    from PIL import Image, ImageDraw, ImageFont

    count, draws = views.shape[:2]
    groups = {"view": views} | dict(zip(("local view",), local, strict=False))
    columns = {"evaluation": seen} | {
        f"epoch {epoch}, {name} {v}": group[:, epoch, v]
        for epoch in range(draws)
        for name, group in groups.items()
        for v in range(group.shape[2])
    }
    largest = max(images.shape[1] for images in columns.values())
    factor = max(1, TILE // largest)
    side = factor * largest
    page = GAP + len(columns) * (side + GAP)
    lines = textwrap.wrap(title, max(20, page // LETTER))
    top = (len(lines) + 1) * LINE + 2 * GAP
    sheet = Image.new("RGB", (page, top + count * (side + 2 * LINE + GAP)), "white")
    pen = ImageDraw.Draw(sheet)
    # Pillow's default font lacks letters beyond English.
    pen.font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), LINE - 4)
    for line, text in enumerate(lines):
        pen.text((GAP, GAP + line * LINE), text, fill="black")
    for column, (head, images) in enumerate(columns.items()):
        left = GAP + column * (side + GAP)
        pen.text((left, top - GAP - LINE), head, fill="gray")
        for row in range(count):
            place = (left, top + row * (side + 2 * LINE + GAP))
            sheet.paste(tile(images[row], factor), place)
            if not column:
                for line, text in enumerate(captions[row]):
                    pen.text((left, place[1] + side + line * LINE), text, fill="black")
    return sheet


def tile(image: np.ndarray, factor: int):
    """Make a Pillow image from [s, s, c] in [0, 1], enlarged by ``factor``."""
    from PIL import Image

    shown = image[..., :3] if image.shape[-1] >= 3 else np.repeat(image[..., :1], 3, axis=-1)
    pixels = np.round(255 * np.clip(shown, 0, 1)).astype(np.uint8)
    return Image.fromarray(pixels.repeat(factor, 0).repeat(factor, 1))
