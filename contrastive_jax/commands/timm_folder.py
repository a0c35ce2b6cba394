"""A folder that timm and the Hugging Face Hub read: weights, ``config.json`` and a model card.

``model.safetensors`` is the file of :mod:`export`. ``config.json`` has timm's form, so that
``timm.create_model("local-dir:FOLDER", pretrained=True)`` builds the network. ``README.md`` is a model card: options
and measured numbers of the run, and nothing else.
"""

import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import contrastive_jax
from contrastive_jax import workdir as workdirs
from contrastive_jax.models import vit_names
from contrastive_jax.training import encoder
from contrastive_jax.workdir import weights

FOLDER = "timm"
FILES = ("model" + weights.SUFFIX, "config.json", "README.md")
# (dim, layers) of timm's vision transformers -> name and the patches of its models for 224 pixels
SIZES = {
    (192, 12): ("tiny", (16,)),
    (384, 12): ("small", (8, 16, 32)),
    (768, 12): ("base", (8, 16, 32)),
    (1024, 24): ("large", (14, 16, 32)),
}
# Sections of the config on the card.
SECTIONS = "loss temperature candidates negatives target compose augment optimizer schedule".split()
USUAL = 224  # image size in the names of timm's models


def config_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``config.json`` for an exported encoder.

    Args:
        about: metadata of the export (:func:`export.about`).

    Raises:
        ValueError: timm has no such network.
    """
    options, seen = about["encoder"], about["preprocessing"]
    vit = options["name"] == "vit"
    name, arguments = _vit(options, seen["size"]) if vit else _resnet(options)
    if options["channels"] != 3:
        arguments["in_chans"] = options["channels"]
    shape = [options["channels"], seen["size"], seen["size"]]
    pretrained = {
        "tag": "contrastive_jax",
        "input_size": shape,
        "fixed_input_size": vit,
        "interpolation": seen["interpolation"],
        "crop_pct": seen["crop"],
        "crop_mode": "center",
        "mean": seen["mean"],
        "std": seen["std"],
        "num_classes": 0,
        "classifier": "head" if vit else "fc",
    }
    if options["channels"] in (1, 3):  # timm can convert no others, and fails
        pretrained["first_conv"] = "patch_embed.proj" if vit else "conv1"
    return {
        "architecture": name,
        "num_classes": 0,
        "num_features": options["features"],
        "global_pool": "token" if vit else "avg",
        **({"model_args": arguments} if arguments else {}),
        "pretrained_cfg": pretrained,
    }


def _resnet(options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    for option, allowed in {"stem": "imagenet", "width": 1.0}.items():
        if options[option] != allowed:
            raise ValueError(
                f"encoder.{option} is {options[option]!r}, and export.format is 'timm', whose ResNets have"
                f" {allowed!r}; set export.format=file for encoder.safetensors alone."
            )
    return f"resnet{options['depth']}", {}


def _vit(options: Mapping[str, Any], size: int) -> tuple[str, dict[str, Any]]:
    dim, layers, patch = options["dim"], options["layers"], options["patch"]
    name, patches = SIZES.get((dim, layers), ("small", (16,)))
    known = patch if patch in patches else 16
    arguments: dict[str, Any] = {}
    if (dim, layers) not in SIZES:
        arguments |= {"embed_dim": dim, "depth": layers, "num_heads": dim // vit_names.HEAD}
    if options["hidden"] not in (0, 4 * dim):
        ratio = options["hidden"] / dim
        exact = int(dim * ratio) == options["hidden"]  # as timm computes it
        arguments["mlp_ratio"] = ratio if exact else math.nextafter(ratio, math.inf)
    if patch != known:
        arguments["patch_size"] = patch
    if size != USUAL:
        arguments["img_size"] = size
    return f"vit_{name}_patch{known}_{USUAL}", arguments


def card(
    saved: encoder.Saved, about: Mapping[str, Any], description: Mapping[str, Any], result: Mapping[str, Any]
) -> str:
    """Return the model card, in Markdown.

    Args:
        saved: the exported checkpoint.
        about: metadata of the export.
        description: content of ``config.json``.
        result: content of the run's ``result.json`` if it is of the exported step; {}: no measured numbers.
    """
    settings, seen = saved.settings, about["preprocessing"]
    name = settings.name if "name" in settings else description["architecture"]
    shape, features = description["pretrained_cfg"]["input_size"], description["num_features"]
    mean, deviation = _shown(seen["mean"]), _shown(seen["std"])
    return f"""---
library_name: timm
pipeline_tag: image-feature-extraction
tags:
- timm
- image-feature-extraction
- contrastive-learning
---

# {_shown(name)}

`{description["architecture"]}` without a classifier, written by contrastive_jax {contrastive_jax.__version__}.
Input: {seen["channels"]} images of {seen["size"]} x {seen["size"]} pixels. Output: {features} features.

```python
import timm
import torch

model = timm.create_model("local-dir:.", pretrained=True).eval()  # on the Hub: "hf-hub:USER/NAME"
prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
features = model(torch.zeros(1, {", ".join(map(str, shape))}))  # [1, {features}]
```

## Training

{_table(("option", "value"), _training(saved))}

All options are in the metadata of `model.safetensors`, entry `config`.

## Preparation of images

Crop the centred square whose side is {seen["crop"]:g} times the shorter side, resize it to {seen["size"]} pixels
({seen["interpolation"]}), divide by 255, subtract {mean} and divide by {deviation}.
timm resizes before it crops, and rounds to 8 bits between: its views differ slightly from those of the run.

## Measured

{_measured(saved, result)}

## To be added by the author

Licence, intended use, limits, and origin and licence of the training images.
"""


def _training(saved: encoder.Saved) -> Iterator[tuple[str, Any]]:
    """Yield the options of the training run that describe it, as far as they are known."""
    settings, leaves = saved.settings, saved.settings.to_dict()
    yield "step of the checkpoint", "unknown" if saved.step is None else saved.step
    if "data" in settings:
        yield "data set (`data.name`)", settings.data.name
        if size := settings.data.options.get("size"):
            yield "size to which images are resized first (`data.size`)", size
    if saved.examples is not None:
        yield "training images", saved.examples
    for section in SECTIONS:
        if section in leaves:
            yield f"`{section}`", leaves[section]
    if "train" in settings:
        yield "`train.batch_size`", settings.train.batch_size
        yield "`train.duration`", settings.train.duration
    if "seed" in settings:
        yield "`seed`", settings.seed


def _measured(saved: encoder.Saved, result: Mapping[str, Any]) -> str:
    rows = [
        (row, column, name, f"{value:.4g}", score.get("protocol", ""))
        for row, columns in workdirs.tables(result).items()
        for column, score in columns.items()
        for name, value in score.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if not rows:
        return "The run holds no evaluation of this step."
    seed = saved.settings.seed if "seed" in saved.settings else "unknown"
    lines = [
        f"By this run at step {result['step']}, seed {seed}; one run has no spread over seeds. Accuracies are fractions"
        " of 1. Other rows than `trained` are baselines.",
        _table(("encoder", "column", "metric", "value", "protocol"), rows),
    ]
    notes = [note for note in result.get("notes", ()) if isinstance(note, str)]
    if notes:
        lines.append("\n".join(f"- {_shown(note)}" for note in notes))
    return "\n\n".join(lines)


def _table(names: tuple[str, ...], rows: Any) -> str:
    lines = [names, ("---",) * len(names), *rows]
    return "\n".join(f"| {' | '.join(map(_shown, line))} |" for line in lines)


def _shown(value: Any) -> str:
    """Return a value as text for a cell of a table, without absolute paths."""
    value = workdirs.shareable(value)
    if isinstance(value, Mapping):
        parts = {name: one for name, one in value.items() if one is not None}
        value = ", ".join(
            f"{name} ({_shown(one)})" if isinstance(one, Mapping) else f"{name}={_shown(one)}"
            for name, one in parts.items()
        )
    elif isinstance(value, list):
        value = f"({', '.join(map(_shown, value))})"
    return " ".join(str(value).replace("|", "\\|").replace("<", "&lt;").split())


def write(
    folder: pathlib.Path,
    saved: encoder.Saved,
    about: Mapping[str, Any],
    description: Mapping[str, Any],
    result: Mapping[str, Any],
) -> None:
    """Write the three files of :data:`FILES` to ``folder``, each atomically."""
    model, file, readme = (folder / name for name in FILES)
    folder.mkdir(parents=True, exist_ok=True)
    weights.save(model, saved.params["encoder"], saved.stats["encoder"], about)
    workdirs.write_json(file, description)
    workdirs.write_text(readme, card(saved, about, description, result))
