"""An encoder by itself, out of a run or a file, and features of images by it.

    from contrastive_jax import load_encoder

    encoder = load_encoder("runs/simclr")               # a workdir, or encoder.safetensors of --mode=export
    features = encoder(images)                          # [n, h, w, c] uint8 -> [n, F] float32
    features = encoder(encoder.open("a.png", "b.png"))  # files, read as the run's folder was

What a checkpoint or file says of its own config decides what the network is and how images are prepared.
"""

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import Partial

from contrastive_jax import augment, data, evaluators, models
from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.config import Settings, approval
from contrastive_jax.data import pixels
from contrastive_jax.data.records import opened
from contrastive_jax.data.split import numbers
from contrastive_jax.evaluators import features
from contrastive_jax.lookup import call
from contrastive_jax.types import Example, PyTree
from contrastive_jax.workdir import checkpoint, weights
from contrastive_jax.workdir.remote import checkpoints_of, expanded

MODULES = ("encoder", "projector", "predictor")


class Saved(NamedTuple):
    """Contents of a workdir, a folder of checkpoints or a safetensors file."""

    params: PyTree  # {module: arrays}
    stats: PyTree
    step: int | None
    settings: Settings  # with the sections that are known: all of a run's; of a foreign file the network's
    example: Example  # that it reads
    examples: int | None = None  # training images that its run began with, where that is known
    files: str | None = None  # their digest, where they were files


def read(
    path: str | os.PathLike,
    *,
    modules: tuple[str, ...] = MODULES,
    step: int | None = None,
    sharding: jax.sharding.Sharding | None = None,
    report: Callable[[str], None] = workdirs.log,
) -> Saved:
    """Read the newest intact checkpoint's weights (or ``step``'s), or a file's, on ``sharding`` (default: one device).

    A file has an encoder alone: its other modules are empty, and its config says so.

    Raises:
      FileNotFoundError: nothing there, or no checkpoint of that step.
      ValueError: a file that holds no ResNet, a step of a file, the checkpoint of several replicas, or a config
        with functions that are not allowed (:func:`contrastive_jax.config.allow`).
    """
    path = expanded(path)
    if weights.is_file(path):
        if step is not None:
            raise ValueError(f"step is {step}, but {path} is a file, which holds one state.")
        saved = _read_file(path, modules)
        where = sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return saved._replace(params=_place(saved.params, where), stats=_place(saved.stats, where))
    names = [f"{kind}/{module}" for kind in ("params", "stats") for module in modules]
    with checkpoint.Checkpoints(checkpoints_of(path), read_only=True) as checkpoints:
        part, step, meta = checkpoints.restore_part(names, step=step, sharding=sharding, report=report)
    settings = _settings(meta, path)
    if "example" in meta:
        example = Example(tuple(meta["example"][0]), meta["example"][1])
    else:
        example = _image(
            meta.get("channels") or weights.channels(part["params"]["encoder"])
        )  # of old: ResNets, all
    return Saved(
        part["params"], part["stats"], step, settings, example, meta.get("examples"), meta.get("files")
    )


def _image(channels: int) -> Example:
    return Example((None, None, channels), "uint8")


def read_settings(path: str | os.PathLike) -> Settings:
    """Read :attr:`Saved.settings` alone, without the arrays of a checkpoint."""
    path = expanded(path)
    if weights.is_file(path):
        return _read_file(path, MODULES).settings
    with checkpoint.Checkpoints(checkpoints_of(path), read_only=True) as checkpoints:
        if (meta := checkpoints.read_meta()) is None:
            raise FileNotFoundError(
                f"{path} holds no checkpoint; name a run's workdir or a file.safetensors."
            )
        return _settings(meta[1], path)


def _settings(meta: Mapping[str, Any], path: str | os.PathLike) -> Settings:
    """Return the settings of a checkpoint that is one run's."""
    if count := len(meta.get("replicas", ())):
        raise ValueError(f"{path} holds {count} replicas; name the folder of one of them, {path}/replica_0.")
    approval.check(meta["config"], checkpoints_of(path).parent)
    return configs.saved_settings(configs.completed(meta["config"]))


def _read_file(path: str | os.PathLike, modules: tuple[str, ...]) -> Saved:
    params, stats, about = weights.load(path)
    # A file in half precision is trained on and judged in single, as a run would hold its parameters.
    params, stats = jax.tree.map(lambda x: x.astype(np.promote_types(x.dtype, np.float32)), (params, stats))
    approval.check(about.get("config") or {}, pathlib.Path(path).parent)
    config = about.get("config") or {"norm": {}, "dtype": "float32", "encoder": weights.architecture(params)}
    config |= {"projector": {"layers": 0}, "predictor": {"layers": 0}}
    config |= {"encoder": {"name": "resnet", **config.pop("encoder")}}
    empty = {module: {} for module in modules}
    params, stats = empty | {"encoder": params}, empty | {"encoder": stats}
    settings = configs.saved_settings(config)
    return Saved(params, stats, about.get("step"), settings, _image(weights.channels(params["encoder"])))


def view_of(saved: Saved, command: Settings | None = None) -> Mapping[str, Any] | None:
    """Return the options of ``augment`` at the size that images are judged at; None where a file does not say.

    ``command``: its ``evaluate.size`` comes before the run's, its ``augment`` is for files without one.
    """
    known = next((of for of in (saved.settings, command) if of and "augment" in of), None)
    if known is None:
        return None
    size = next((of.evaluate.size for of in (command, saved.settings) if of and of.evaluate.size), 0)
    return evaluators.resized(known.augment.options, size, network_of(saved.settings), saved.example)


def check_example(example: Example, source: data.Source, path: str) -> None:
    """Raise ValueError where the encoder of ``path`` reads other examples: images of other channels, arrays of another
    shape or type."""
    now = source.train.example
    if not (now.is_image and example.is_image):
        if now != example:
            raise ValueError(
                f"data.name={source.name!r} has examples {now}; the encoder of {path} reads {example}."
            )
        return
    channels = example.shape[2]
    if channels != (here := now.shape[2]):
        of_folder = source.name == "folder" and {here, channels} == {1, 3}
        hint = f" Set data.channels={channels}." if of_folder else ""
        raise ValueError(
            f"data.name={source.name!r} has images of {here} channels; the encoder of {path} reads {channels}.{hint}"
        )


def size_note(settings: Settings, trained: Settings) -> str:
    """Say where ``data.size`` is another than in the run that trained an encoder; nothing where it is not."""
    now, then = (_images(of, "size", 0) if "data" in of else None for of in (settings, trained))
    if then in (None, now):
        return ""
    return f"data.size is {now}, and {then} in the encoder's run: it sees images otherwise."


def _images(settings: Settings, option: str, default: Any = None) -> Any:
    """Return an option of ``data``, of settings that may not know it."""
    return settings.data.options.get(option, default) if "data" in settings else default


def known_layers(settings: Settings) -> tuple[str, ...]:
    """Return the layers that a network has: ``pooled``, ``projection_1``, ..."""
    projector = settings.projector.options
    depth = len(projector.get("widths", ())) or projector["layers"]
    return ("pooled", *(f"projection_{i + 1}" for i in range(depth)))


def _place(tree: PyTree, sharding: jax.sharding.Sharding) -> PyTree:
    def put(array):
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(put, tree)


def network_of(config: Settings | Mapping[str, Any], **norm: Any) -> models.Network:
    """Build the network of a config without its online probe, its batch norm over whole batches.

    ``norm``: options that replace the config's.
    """
    settings = configs.as_settings(config)
    return models.network(
        encoder={"name": settings.encoder.name, **settings.encoder.options},
        projector=dict(settings.projector.options),
        predictor=dict(settings.predictor.options),
        norm={**settings.norm.options, "scope": "joint", "groups": 1, **norm},
        classes=0,
        dtype=settings.dtype,
        functions={"encoder": settings.encoder.function},
    )


class LoadedEncoder:
    """Images to features, by running statistics and evaluation's view of an image.

    Attributes:
        config: of the run that made it, as far as it is known.
        step: of the checkpoint, or None.
        layers: what it can give: "pooled", the encoder's output, and "projection_1", ... of the projector.
        example: shape and type of what it reads.
        network, params, stats: the pure functions and their arrays, for your own program:
            ``network.encode(params, stats, views [n, size, size, c] float32) -> {layer: [n, F]}``.
        prepare: one image ``[h, w, c]`` uint8, or one example, to the view that the network sees, as the run's table
            has it.
    """

    def __init__(self, saved: Saved, section: Mapping[str, Any]):
        self.params, self.stats, self.step, self._settings, self.example, *_ = saved
        self.config = saved.settings.to_dict()
        self.network = network_of(saved.settings)
        self.prepare = call(augment.make_eval, "augment", section)
        one = augment.seen(section, self.example)
        view = jax.ShapeDtypeStruct((1, *one.shape), one.dtype)
        shapes = jax.eval_shape(self.network.encode, self.params, self.stats, view)
        self.layers = tuple(shapes)
        self._encode = Partial(self.network.encode, self.params, self.stats)

    @property
    def channels(self) -> int | None:
        """Channels of the images that it reads; of other examples the length of the last axis."""
        return self.example.shape[-1]

    def open(self, *files: str | os.PathLike) -> np.ndarray:
        """Read image files as the run's folder was read, ``[n, size, size, c]`` uint8: 16 bits by ``data.white``,
        transparency on white, upright, the short side at ``data.size`` and the centre.

        Raises:
          OSError: a file that is not there.
          ValueError: one that is no image, or of another number of channels, or, with ``data.size=0``, another size.
        """
        if not self.example.is_image:
            raise ValueError(f"open reads image files; this encoder reads {self._reads}: pass arrays.")
        white, size = _images(self._settings, "white", pixels.WHITE), _images(self._settings, "size", 0)
        images: list[np.ndarray] = []
        if wrong := [file for file in files if not isinstance(file, str | os.PathLike)]:
            hint = "; write encoder.open(*files)" if isinstance(wrong[0], Iterable) else ""
            raise ValueError(f"open takes paths of image files, not a {type(wrong[0]).__name__}{hint}.")
        if not files:
            raise ValueError("open needs a path of an image file at least.")
        for file in files:
            path = pathlib.Path(expanded(file))
            if path.is_dir():
                raise ValueError(
                    f"{file} is a folder; open takes image files, and --mode=embed reads whole folders."
                )
            with opened(path) as stream:
                read = stream.read()
            try:
                image = pixels.decode(pixels.plain(read, self.channels, white), self.channels, size)
            except Exception as error:  # Pillow's plugins raise nearly anything on damaged bytes
                raise ValueError(f"{file} is no image that can be read: {pixels.reason(error)}") from error
            if image.shape != (expected := (*(images[:1] or [image])[0].shape[:2], self.channels)):
                raise ValueError(
                    f"{file} is {list(image.shape)}, and the files before it are {list(expected)}: open images of one"
                    " size together, or each by itself."
                    if images
                    else f"{file} is {list(image.shape)}, and {list(expected)} is expected."
                )
            images.append(image)
        return np.stack(images)

    def __repr__(self) -> str:
        what = f"images of {self.channels} channels" if self.example.is_image else f"examples {self.example}"
        return (
            f"LoadedEncoder({self._settings.encoder.name}, step {self.step}, {what}, layers"
            f" {', '.join(self.layers)})"
        )

    def __call__(self, images: np.ndarray, *, layer: str = "pooled", batch_size: int = 256) -> np.ndarray:
        """Return features ``[n, F]`` of images ``[n, h, w, c]`` uint8, or of examples like the run's, in their order.

        Raises:
          ValueError: other images, or a layer that there is not.
        """
        return self.all_layers(images, batch_size=batch_size)[self._known(layer)]

    def all_layers(self, images: np.ndarray, *, batch_size: int = 256) -> dict[str, np.ndarray]:
        """Return every layer of :attr:`layers`, from one pass."""
        images = _array(images, self._reads)
        if not self.example.is_image:
            images = numbers(images, "examples")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise ValueError(f"batch_size is {batch_size!r}; it must be a whole number, at least 1.")
        wanted, shape = self.example.shape, images.shape[1:]
        fits = len(shape) == len(wanted) and all(w in (None, n) for w, n in zip(wanted, shape, strict=True))
        if not fits or images.dtype != self.example.dtype:
            raise ValueError(
                f"images are {images.dtype} of shape {list(images.shape)}; this encoder reads {self._reads}."
            )
        # Sizes are powers of two up to the batch's, so that few programs are compiled for sets of any size.
        batch_size = min(batch_size, 1 << (max(1, len(images)) - 1).bit_length())
        with jax.set_mesh(None):  # the arrays lie on one device
            return features.encode_all(self._encode, images, self.prepare, batch_size)

    @property
    def _reads(self) -> str:
        """Return what it takes, in words."""
        if self.example.is_image:
            return f"uint8 [n, h, w, {self.channels}]"
        return f"{self.example.dtype} [n, {', '.join(map(str, self.example.shape))}]"

    def _known(self, layer: str) -> str:
        if layer not in self.layers:
            raise ValueError(f"layer is {layer!r}; this encoder has {', '.join(self.layers)}.")
        return layer


def _array(images: Any, reads: str) -> np.ndarray:
    """Return images as an array on the host.

    Raises:
      ValueError: images of several sizes, a value inside ``jax.jit``, or something other than an array of numbers.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(images)):
        raise ValueError(
            "an encoder called inside jax.jit, vmap or grad: it prepares images on the host, in batches of its own."
            " Call it outside, or use encoder.network.encode(encoder.params, encoder.stats, views) inside."
        )
    if isinstance(images, str | bytes | os.PathLike) or (
        isinstance(images, list | tuple) and any(isinstance(one, str | os.PathLike) for one in images)
    ):
        raise ValueError("images are paths of files; read them first: encoder(encoder.open(*files)).")
    try:
        return np.asarray(images)
    except ValueError:
        shapes = list(dict.fromkeys(np.shape(one) for one in images if hasattr(one, "shape")))
        what = f" ({' and '.join(str(list(shape)) for shape in shapes[:3])})" if shapes else ""
        raise ValueError(
            f"images are of several sizes{what}; this encoder reads {reads}: resize them to one, or"
            " pass each size by itself."
        ) from None


def load_encoder(
    path: str | os.PathLike, *, step: int | None = None, view: Mapping[str, Any] | None = None
) -> LoadedEncoder:
    """Load the encoder of a workdir (its newest intact checkpoint) or of a safetensors file.

    Args:
      path: a workdir, a folder of checkpoints, or a file that ``--mode=export`` wrote, or torchvision's state
        dict of a ResNet saved as safetensors.
      step: of an earlier checkpoint that ``checkpoint.keep_every`` or ``checkpoint.keep_last`` kept.
      view: how images are prepared, options of :func:`contrastive_jax.augment.make_eval`; default: as in the
        pretraining, at the size of ``evaluate.size``. A foreign file does not say, so it needs one; torchvision's
        ImageNet weights (V1) want ``dict(preset="moco_v2", size=224)``: bilinear, the central 7/8, ImageNet's mean
        and deviation.

    Raises:
      FileNotFoundError: nothing there, or no checkpoint of that step.
      ValueError: a file that holds no ResNet, or does not say how images are prepared, a step of a file, or replicas.
    """
    saved = read(path, step=step)
    section = view or view_of(saved)
    if section is None:
        raise ValueError(
            f"{path} does not say how images are prepared; pass view, for torchvision's ImageNet weights"
            " view=dict(preset='moco_v2', size=224)."
        )
    return LoadedEncoder(saved, section)
