"""``--mode=export``: an encoder as ``encoder.safetensors``, for torchvision, timm and Detectron2.

The arrays equal the checkpoint's bit for bit and have the names of torchvision's ResNet or timm's ViT. The file's
metadata are JSON: ``encoder`` (its options, epsilon, channels, features, dtype), ``preprocessing``,
``config``, ``step``.
``docs/export.md`` shows the PyTorch code that loads the file.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax

from contrastive_jax import augment, distributed
from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import timm_folder
from contrastive_jax.config import Settings
from contrastive_jax.lookup import call
from contrastive_jax.models import norm, vit, vit_names
from contrastive_jax.training import encoder
from contrastive_jax.workdir import remote, weights

EPSILON = 1e-5  # of PyTorch's batch norm
FILE = "encoder" + weights.SUFFIX


@remote.supports_remote
def export(
    config: Settings | Mapping[str, Any], workdir: str, *, quiet: bool = False, output: str | None = None
) -> dict[str, Any]:
    """Write the encoder of ``evaluate.checkpoint`` (default: the workdir's) to ``encoder.safetensors``.

    The file goes to the folder ``output``, default: the workdir.

    ``export.architecture="torchvision"`` refuses an encoder that torchvision's ResNet would load without an
    error but compute differently; "own" writes it for this package or for a PyTorch model with the same
    changes. ``export.format="timm"`` writes the folder ``timm`` instead (:mod:`timm_folder`).

    Returns:
      The file's metadata.

    Raises:
      ValueError: the encoder is neither a ResNet nor a ViT as timm has it, or torchvision's ResNet computes something
        else (see above); with ``export.format="timm"``, timm has no such network.
      FileNotFoundError: no checkpoint.
    """
    settings = configs.settings_of(config)
    path = settings.evaluate.checkpoint or workdir
    trained = encoder.read_settings(path)
    if (name := trained.encoder.name) != "resnet" and not _is_timms(trained):
        raise ValueError(
            f"encoder.name of {path} is {name!r}; --mode=export writes ResNets, and ViTs of encoder.variant=class_token"
            f" with heads of {vit_names.HEAD} and trained patches, whose array names PyTorch's libraries share. Use"
            " --mode=embed for features, or contrastive_jax.load_encoder."
        )
    for_timm = settings.export.format == "timm"
    if for_timm and (otherwise := differences(trained)):
        raise ValueError(
            f"export.format is 'timm', and timm computes another function than the encoder of {path}:"
            f" {'; '.join(otherwise)}. Set export.format=file and export.architecture=own to export it anyway."
        )
    if settings.export.architecture == "torchvision" and (otherwise := differences(trained)):
        raise ValueError(
            f"torchvision's ResNet computes another function than the encoder of {path}:"
            f" {'; '.join(otherwise)}. To export it anyway, for this package or a model with the same"
            " changes (docs/export.md), set export.architecture=own."
        )
    folder = workdir if output is None else output
    if distributed.first():
        workdirs.check_writable(workdir, output)
    saved = encoder.read(path, modules=("encoder",))
    params, stats = jax.device_get((saved.params, saved.stats))
    saved = saved._replace(params=params, stats=stats)
    metadata = about(saved, settings)
    if for_timm:
        description = timm_folder.config_of(metadata)
        name = timm_folder.FOLDER
        if distributed.first():
            result = workdirs.read_result(pathlib.Path(path, "result.json"), workdirs.log)
            measured = result if result.get("step") == saved.step else {}
            timm_folder.write(pathlib.Path(folder, name), saved, metadata, description, measured)
    else:
        name = FILE
        if distributed.first():
            weights.save(pathlib.Path(folder, name), params["encoder"], stats["encoder"], metadata)
    if not quiet and distributed.first():
        seen, shown = metadata["preprocessing"], metadata["encoder"]
        what = (
            f"ViT of {shown['layers']} blocks, patches of {shown['patch']} pixels"
            if _is_timms(trained)
            else f"ResNet-{shown['depth']}, width {shown['width']:g}, stem {shown['stem']}"
        )
        workdirs.log(
            f"{remote.place(folder, name)}: {what},"
            f" {shown['features']} features, step {saved.step};"
            f" reads {seen['channels']} {seen['size']} x {seen['size']}"
        )
    return metadata


def differences(settings: Settings) -> list[str]:
    """Return the differences from torchvision's model that change the output without an error, as clauses."""
    options = settings.encoder.options
    differing: list[str] = []
    if _is_timms(settings):
        return differing
    if options["variant"] == "simclr" and options["depth"] < 50:
        differing.append(
            "encoder.variant='simclr' has a projection shortcut in the first block, torchvision's has none"
        )
    if options["variant"] == "simclr" and options["stem"] == "imagenet":
        differing.append(
            "encoder.variant='simclr' pads its max-pooling at the bottom and right only, torchvision's"
            " on all sides"
        )
    if (epsilon := _epsilon(settings)) != EPSILON:
        differing.append(f"norm.epsilon is {epsilon:g}, PyTorch's is {EPSILON:g}")
    return differing


def about(saved: encoder.Saved, command: Settings) -> dict[str, Any]:
    """Return the metadata of a checkpoint's encoder, with the keys of :data:`weights.FACTS`.

    ``command``: as in :func:`encoder.view_of`.
    """
    trained = saved.settings
    network = encoder.network_of(trained.replaced(projector={"layers": 0}, predictor={"layers": 0}))
    section = encoder.view_of(saved, command)
    if "size" not in section:
        raise ValueError(
            f"augment.preset is {section['preset']!r}; --mode=export writes encoders of images only."
        )
    evaluate = trained.only("evaluate").pop("evaluate", {}) | {"size": 0}  # 0: augment.size
    channels = saved.example.channels
    image = (section["size"], section["size"], channels)
    return {
        "encoder": trained.only("encoder").pop("encoder")
        | {"epsilon": _epsilon(trained), "channels": channels, "dtype": trained.dtype}
        | {"features": network.width(image)},
        "preprocessing": preprocessing(section, channels),
        "config": trained.to_dict() | {"augment": dict(section), "evaluate": evaluate},
        "step": saved.step,
    }


def preprocessing(section: Mapping[str, Any], channels: int) -> dict[str, Any]:
    """Return a description of the evaluation preprocessing that any program can follow.

    Crop the centred square whose side is ``crop`` times the shorter side, resize it to ``size``
    (``interpolation``; bicubic has a = -0.5; ``antialias``: the kernel widens when downsampling, as in Pillow),
    divide by 255, clip to [0, 1], subtract ``mean`` and divide by ``std``.
    """
    view = call(augment.make_eval, "augment", section)
    (mean, std), crop = view.normalization, view.crop
    if crop is None:
        raise ValueError(
            f"augment.preset is {section['preset']!r}; an exported file can describe a crop, a clip and"
            " a normalization only, and this preset prepares images by more."
        )
    rest = channels - len(mean)
    return {
        "size": crop.size,
        "crop": crop.proportion,
        "interpolation": crop.method,
        "antialias": crop.antialias,
        "mean": [*mean, *[0.0] * rest],
        "std": [*std, *[1.0] * rest],
        "channels": {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels"),
        "layout": "NCHW",
    }


def _is_timms(settings: Settings) -> bool:
    """Return whether the encoder is a ViT whose arrays have names in timm."""
    options = settings.encoder.options
    if settings.encoder.name != "vit" or options.get("variant", "mean") != "class_token":
        return False
    return options["dim"] == vit_names.HEAD * options["heads"] and not options["frozen_patches"]


def _epsilon(settings: Settings) -> float:
    if settings.encoder.name == "vit":
        return vit.EPSILON
    return norm.norm(**settings.norm.options).epsilon
