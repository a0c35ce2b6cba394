"""Intriguing Properties (Chen, Luo and Li 2021), Figures 3 and 4: regions that mid-layer features fall into.

    python -m experiments.intriguing.figure_3 SimCLR=runs/a Supervised=runs/b
    python -m experiments.intriguing.figure_3 SimCLR=encoder.safetensors --config=configs/simclr_imagenet.py --size=448

k-means on the L2-normalised features of every place of a feature map, after block groups 2, 3 and 4, for several k,
beside an untrained network of the same kind and raw pixels of the same patches. Drawn as region maps of the first
images; and where the images are MultiDigits, whose masks are known, as a number: purity, the share of the places on
digits that carry their cluster's most frequent digit. The paper's figures are pictures (448 x 448, ImageNet and COCO).
"""

import argparse
import json
import math
import pathlib
import re
import shlex
import sys

import jax
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax import data, native
from contrastive_jax import workdir as workdirs
from contrastive_jax.lookup import call
from contrastive_jax.training import encoder
from contrastive_jax.training.run import source_of

RESULTS = pathlib.Path(__file__).parent / "results" / "figure_3"
ON_DIGIT = 0.25  # share of a place's pixels that show digits, for it to count


def block_groups(seen: encoder.LoadedEncoder, groups: tuple[int, ...]):
    """Return ``views [n, s, s, c] -> {group: [n, h, w, F]}``: the output of each group's last block."""
    from flax import linen as nn

    def maps(params, stats, views):
        found = {}

        def catch(call_next, args, kwargs, context):
            y = call_next(*args, **kwargs)
            of_group = re.fullmatch(r"group(\d)_block\d+", context.module.name or "")
            if of_group and context.method_name == "__call__":
                found[int(of_group[1])] = y  # of the last block in the end
            return y

        with nn.intercept_methods(catch):
            seen.network.encode(params, stats, views)
        return {str(group): found[group].astype("float32") for group in groups}

    return native.jit(maps)


def views_of(images: np.ndarray, prepare) -> np.ndarray:
    """Return the views [n, s, s, c] as the network sees them."""
    return np.stack([np.asarray(prepare(image)) for image in images])


def patches(views: np.ndarray, side: int) -> np.ndarray:
    """Return [n, side, side, F]: the raw pixels of each place of a map."""
    n, size, _, channels = views.shape
    step = size // side
    cut = views[:, : step * side, : step * side].reshape(n, side, step, side, step, channels)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(n, side, side, -1)


def regions(maps: np.ndarray, clusters: int, normalize: bool = True) -> np.ndarray:
    """Find the [n, h, w] cluster of every place, by mini-batch k-means over all images."""
    from sklearn.cluster import MiniBatchKMeans

    rows = maps.reshape(-1, maps.shape[-1]).astype(np.float32)
    if normalize:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    found = MiniBatchKMeans(clusters, random_state=0, n_init=3, batch_size=4096).fit_predict(rows)
    return found.reshape(maps.shape[:-1])


def masks_of(split: data.Split, digits: data.Split, count: int, classes: int) -> np.ndarray:
    """Return [n, side, side, classes]: 1 where a pixel of MultiDigits' first squares shows a digit of a class."""
    which, place = (table[:count] for table in split.made.tables)
    canvas = split.made.composition
    masks = np.zeros((count, canvas.side, canvas.side, classes), np.float32)
    for digit, number in enumerate(canvas.banks):
        for i in range(count):
            tile = split.made.bank[number][which[i, digit]].max(-1) > 0
            top, left = place[i, digit]
            label = digits.label[which[i, digit]]
            seen = masks[i, top : top + len(tile), left : left + len(tile), label]
            np.maximum(seen, tile, out=seen)
    return masks


def purity(found: np.ndarray, masks: np.ndarray) -> dict[str, float]:
    """Compute, of the places on digits, the share with their cluster's commonest digit, and that of the commonest at
    all."""
    share = jax.image.resize(masks, (*found.shape, masks.shape[-1]), "linear", antialias=True)
    on = np.asarray(share.sum(-1) > ON_DIGIT)
    label, cluster = np.asarray(share.argmax(-1))[on], found[on]
    table = np.zeros((found.max() + 1, masks.shape[-1]))
    np.add.at(table, (cluster, label), 1)
    return {"purity": table.max(1).sum() / table.sum(), "largest_class": table.sum(0).max() / table.sum()}


def draw(views: np.ndarray, found: dict[str, np.ndarray], file: pathlib.Path) -> None:
    """Draw the first images, and beside each its region maps."""
    from matplotlib.figure import Figure

    rows = min(4, len(views))
    figure = Figure(figsize=(1.5 * (1 + len(found)), 1.6 * rows), layout="constrained")
    panels = figure.subplots(rows, 1 + len(found), squeeze=False)
    low, high = views.min(), views.max()
    for i, line in enumerate(panels):
        picture = (views[i] - low) / max(high - low, 1e-12)
        line[0].imshow(picture if picture.shape[-1] == 3 else picture[..., 0], cmap="gray")
        for axes, (title, maps) in zip(line[1:], found.items(), strict=True):
            axes.imshow(maps[i], cmap="tab20", interpolation="nearest")
            axes.set_title(title if i == 0 else "", fontsize=7)
        for axes in line:
            axes.set_axis_off()
    figure.savefig(file, dpi=150)


def main():
    """Measure, draw, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encoders", nargs="+", metavar="NAME=PATH", help="a workdir or a safetensors file")
    parser.add_argument("--config", default="", help="whose test images; default: the first encoder's")
    parser.add_argument(
        "--size", type=int, default=0, help="of the images that the network sees; 0: the encoder's"
    )
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--groups", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--clusters", type=int, nargs="+", default=[10, 20, 40])
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()

    named = dict(pair.split("=", 1) for pair in options.encoders)
    first = encoder.read_settings(next(iter(named.values()))).values
    config = configs.plain(configs.load(options.config)) if options.config else first
    section = config["augment"] | ({"size": options.size} if options.size else {})
    source = source_of(config)
    count = min(options.images, len(source.test))
    numbers = np.arange(count)
    images = source.test.made.images(source.test.image[:count], numbers)
    known = config.get("compose", {}).get("name") == "multi_digits"
    if known:
        digits = call(data.load, "data", config["data"])
        masks = masks_of(source.test, digits.test, count, len(digits.classes))

    found, cells = {}, []
    names = [*named, "untrained", "raw pixels"]
    for name in names:
        seen = encoder.load_encoder(named.get(name, next(iter(named.values()))), view=section)
        views = views_of(images, seen.prepare)
        params, stats = seen.params, seen.stats
        if name == "untrained":
            params, stats = seen.network.init(0, views.shape[1:])
        compute = block_groups(seen, tuple(options.groups))
        parts = [compute(params, stats, views[i : i + 50]) for i in range(0, count, 50)]
        for group in options.groups:
            maps = np.concatenate([np.asarray(part[str(group)]) for part in parts])
            if name == "raw pixels":
                maps = patches(views, maps.shape[1])
            for clusters in options.clusters:
                cluster = regions(maps, clusters, normalize=name != "raw pixels")
                cell = {"encoder": name, "group": group, "clusters": clusters, "places": maps.shape[1]}
                cells.append(cell | (purity(cluster, masks) if known else {}))
                found[group, clusters, name] = cluster

    options.results.mkdir(parents=True, exist_ok=True)
    about = {"data": source.name, "images": count, "size": views.shape[1], "encoders": list(named)}
    about |= {
        "command": f"python -m experiments.intriguing.figure_3 {shlex.join(sys.argv[1:])}"
    } | workdirs.environment()
    (options.results / "regions.json").write_text(json.dumps(about | {"cells": cells}, indent=1) + "\n")
    for group in options.groups:
        shown = {f"{name}, k = {k}": found[group, k, name] for name in names for k in options.clusters[:2]}
        draw(views, shown, options.results / f"group_{group}.png")
    (options.results.parent / "figure_3.md").write_text(page(about, cells, options, known))


def page(about, cells, options, known) -> str:
    """Write the table of purities, and the pictures."""
    title, _, text = __doc__.partition("\n")
    lines = [f"# {title.rstrip('.')}", "", text.strip(), ""]
    lines += [
        f"{about['data']}, {about['images']} images of {about['size']} pixels, {about['device']['kind']}:",
        "",
        f"```sh\n{about['command']}\n```",
        "",
    ]
    if known:
        lines += [
            f"Purity in percent (the commonest digit alone: {100 * cells[0]['largest_class']:.1f}).",
            "",
        ]
        heads = [f"group {group}, k = {k}" for group in options.groups for k in options.clusters]
        lines += [f"| | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
        for name in dict.fromkeys(cell["encoder"] for cell in cells):
            row = [100 * cell["purity"] for cell in cells if cell["encoder"] == name]
            lines.append(f"| {name} | {' | '.join('—' if math.isnan(x) else f'{x:.1f}' for x in row)} |")
        lines.append("")
    lines += [
        f"![Regions after block group {group}](figure_3/group_{group}.png)\n" for group in options.groups
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
