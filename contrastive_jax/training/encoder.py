"""Loading of an encoder from a run or a file, to compute features of images.

    from contrastive_jax import load_encoder

    encoder = load_encoder("runs/simclr")               # a workdir, or encoder.safetensors of --mode=export
    features = encoder(images)                          # [n, h, w, c] uint8 -> [n, F] float32
    features = encoder(encoder.open("a.png", "b.png"))  # files, read as the run's folder was

The config stored in the checkpoint or file determines the network and the preprocessing.
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
from contrastive_jax.training import pairs
from contrastive_jax.types import Example, PyTree
from contrastive_jax.workdir import checkpoint, weights
from contrastive_jax.workdir.remote import checkpoints_of, expanded

MODULES = ("encoder", "projector", "predictor")


class Saved(NamedTuple):
    """Contents of a workdir, a folder of checkpoints or a weights file."""

    params: PyTree  # {module: arrays}
    stats: PyTree
    step: int | None
    settings: Settings  # all sections for a run; only those of the network for a foreign file
    example: Example  # shape and type of the encoder's input
    examples: int | None = None  # number of training images when the run began, if known
    files: str | None = None  # digest of these images' files, if they were files


def read(
    path: str | os.PathLike,
    *,
    modules: tuple[str, ...] = MODULES,
    second: bool = False,
    step: int | None = None,
    sharding: jax.sharding.Sharding | None = None,
    report: Callable[[str], None] = workdirs.log,
) -> Saved:
    """Read weights from the newest intact checkpoint (or that of ``step``) or from a file.

    Of a run with two encoders it is the first, or with ``second`` the second, with settings as if it were alone. The
    arrays are placed on ``sharding`` (default: one device). A file holds only an encoder: the other modules
    are empty, and its config has a projector and predictor of 0 layers.

    Raises:
      FileNotFoundError: no such path, or no checkpoint of that step.
      ValueError: a file without a ResNet, ``second`` without a second encoder, ``step`` for a file, a checkpoint of
        several replicas, or a config with functions that are not allowed (:func:`contrastive_jax.config.allow`).
    """
    path = expanded(path)
    if weights.is_file(path):
        if second:
            raise ValueError(f"second is True; it must be False for a file: {path} holds one encoder.")
        if step is not None:
            raise ValueError(f"step is {step}; it must be None for a file: {path} holds a single state.")
        saved = _read_file(path, modules)
        where = sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return saved._replace(params=_place(saved.params, where), stats=_place(saved.stats, where))
    there = [m for m in modules if not second or m in models.MODULES]
    before = models.SECOND if second else ""
    names = [f"{kind}/{before}{module}" for kind in ("params", "stats") for module in there]
    if second and not pairs.paired(read_settings(path)):
        raise ValueError(f"second is True; it must be False: {path} holds one encoder.")
    with checkpoint.Checkpoints(checkpoints_of(path), read_only=True) as checkpoints:
        part, step, meta = checkpoints.restore_part(names, step=step, sharding=sharding, report=report)
    settings = pairs.tower(_settings(meta, path), int(second))
    if second:
        part = {kind: models.of_tower(tree, 1) for kind, tree in part.items()}
        meta |= {"example": meta["second_example"]}
    if "example" in meta:
        example = Example(tuple(meta["example"][0]), meta["example"][1])
    else:
        example = _image(
            meta.get("channels") or weights.channels(part["params"]["encoder"])
        )  # old checkpoints store no example; all are ResNets
    return Saved(
        part["params"], part["stats"], step, settings, example, meta.get("examples"), meta.get("files")
    )


def _image(channels: int) -> Example:
    return Example((None, None, channels), "uint8")


def read_settings(path: str | os.PathLike) -> Settings:
    """Read only :attr:`Saved.settings`, without the arrays of a checkpoint."""
    path = expanded(path)
    if weights.is_file(path):
        return _read_file(path, MODULES).settings
    with checkpoint.Checkpoints(checkpoints_of(path), read_only=True) as checkpoints:
        if (meta := checkpoints.read_meta()) is None:
            raise FileNotFoundError(
                f"{path} does not hold a checkpoint; give a run's workdir or a weights file (.safetensors, .pth)."
            )
        return _settings(meta[1], path)


def holds_two(path: str | os.PathLike) -> bool:
    """Return whether ``path`` is the workdir of a run with two encoders."""
    return not weights.is_file(expanded(path)) and pairs.paired(read_settings(path))


def _settings(meta: Mapping[str, Any], path: str | os.PathLike) -> Settings:
    """Return the settings of a single run's checkpoint; raise ValueError for one of replicas."""
    if not isinstance(meta.get("config"), dict):
        raise ValueError(
            f"{path} holds a checkpoint without a config; give a run's workdir or its exported encoder."
        )
    if count := len(meta.get("replicas", ())):
        raise ValueError(
            f"{path} holds {count} replicas; give the folder of one replica, such as {path}/replica_0."
        )
    approval.check(meta["config"], checkpoints_of(path).parent)
    return configs.saved_settings(configs.completed(meta["config"]))


def _read_file(path: str | os.PathLike, modules: tuple[str, ...]) -> Saved:
    params, stats, about, architecture, channels = weights.load(path)
    # Half precision is converted to single, as a run stores its parameters.
    params, stats = jax.tree.map(lambda x: x.astype(np.promote_types(x.dtype, np.float32)), (params, stats))
    approval.check(about.get("config") or {}, pathlib.Path(path).parent)
    config = about.get("config") or {"norm": {}, "dtype": "float32", "encoder": architecture}
    config |= {"projector": {"layers": 0}, "predictor": {"layers": 0}}
    config |= {"encoder": {"name": architecture["name"], **config.pop("encoder")}}
    empty: dict[str, PyTree] = {module: {} for module in modules}
    params, stats = empty | {"encoder": params}, empty | {"encoder": stats}
    settings = configs.saved_settings(config)
    return Saved(params, stats, about.get("step"), settings, _image(channels))


def view_of(saved: Saved, command: Settings) -> Mapping[str, Any]:
    """Return the options of ``augment`` with the image size of the evaluation.

    ``command``: its ``evaluate.size`` overrides the run's; its ``augment`` is used for files that store none.
    """
    known = saved.settings if "augment" in saved.settings else command
    size = command.evaluate.size or saved.settings.evaluate.size
    return evaluators.resized(known.augment.options, size, network_of(saved.settings), saved.example)


def check_example(example: Example, source: data.Source, path: str) -> None:
    """Check that the encoder of ``path`` can read the examples of ``source``.

    Raises:
      ValueError: images with another number of channels, or arrays of another shape or type."""
    now = source.train.example
    if not (now.is_image and example.is_image):
        if now != example:
            raise ValueError(
                f"data.name={source.name!r} has examples {now}; the encoder of {path} reads {example}."
            )
        return
    channels = example.channels
    if channels != (here := now.shape[2]):
        of_folder = source.name in data.FILES and {here, channels} == {1, 3}
        hint = f" Set data.channels={channels}." if of_folder else ""
        raise ValueError(
            f"data.name={source.name!r} has images with {here} channels; the encoder of {path} reads"
            f" {channels}.{hint}"
        )


def size_note(settings: Settings, trained: Settings) -> str:
    """Return a note if ``data.size`` differs from that of the encoder's training run; empty otherwise."""
    now, then = (_images(of, "size", 0) if "data" in of else None for of in (settings, trained))
    if then in (None, now):
        return ""
    return f"data.size is {now}, and was {then} in the encoder's run: the images are prepared differently."


def _images(settings: Settings, option: str, default: Any = None) -> Any:
    """Return an option of ``data``, or the default if the settings lack it."""
    return settings.data.options.get(option, default) if "data" in settings else default


def known_layers(settings: Settings) -> tuple[str, ...]:
    """Return the layers of a network: ``pooled``, ``projection_1``, ..."""
    projector = settings.projector.options
    depth = len(projector.get("widths", ())) or projector["layers"]
    return ("pooled", *(f"projection_{i + 1}" for i in range(depth)))


def _place(tree: PyTree, sharding: jax.sharding.Sharding) -> PyTree:
    def put(array):
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(put, tree)


def network_of(config: Settings | Mapping[str, Any], **norm: Any) -> models.Network:
    """Build the network of a config without its online probe, with batch norm over whole batches.

    ``norm``: options that override the config's.
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
    """Function from images to features, with running batch-norm statistics and the evaluation preprocessing.

    Attributes:
        config: config of the run that trained it, as far as it is known.
        step: step of the checkpoint, or None.
        layers: available layers: "pooled", the encoder's output, and "projection_1", ... of the projector.
        example: shape and type of one input.
        network, params, stats: pure functions and their arrays, for your own program:
            ``network.encode(params, stats, views [n, size, size, c] float32) -> {layer: [n, F]}``.
        prepare: preprocessing of one image ``[h, w, c]`` uint8, or of one example, as in the run's evaluation.
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
    def channels(self) -> int:
        """Number of channels of the images; for other examples, the length of the last axis."""
        return self.example.channels

    def open(self, *files: str | os.PathLike) -> np.ndarray:
        """Read image files as in the run, ``[n, size, size, c]`` uint8.

        16-bit images are scaled by ``data.white``, grey and RGB images get a white background for transparency,
        the EXIF orientation is applied, the short side is resized to ``data.size``, and the centre is cropped.

        Raises:
          OSError: a missing file.
          ValueError: a file that is not an image, or has another number of channels or (if ``data.size`` is 0)
            another size.
        """
        if not self.example.is_image:
            raise ValueError(
                f"open reads image files only; this encoder reads {self._reads}: pass arrays to it."
            )
        white, size = _images(self._settings, "white", pixels.WHITE), _images(self._settings, "size", 0)
        images: list[np.ndarray] = []
        if wrong := [file for file in files if not isinstance(file, str | os.PathLike)]:
            hint = "; write encoder.open(*files)" if isinstance(wrong[0], Iterable) else ""
            raise ValueError(f"open takes paths of image files, not a {type(wrong[0]).__name__}{hint}.")
        if not files:
            raise ValueError("open needs at least one path of an image file.")
        for file in files:
            path = pathlib.Path(expanded(file))
            if path.is_dir():
                raise ValueError(
                    f"{file} is a folder; open takes image files. To read a whole folder, use --mode=embed."
                )
            with opened(path) as stream:
                read = stream.read()
            try:
                image = pixels.decode(pixels.plain(read, self.channels, white), self.channels, size)
            except Exception as error:  # Pillow's plugins raise nearly anything on damaged bytes
                raise ValueError(f"{file} cannot be read as an image: {pixels.reason(error)}") from error
            if image.shape != (expected := (*(images[:1] or [image])[0].shape[:2], self.channels)):
                raise ValueError(
                    f"{file} has shape {list(image.shape)}, and the files before it have"
                    f" {list(expected)}; open images of one size together, or each on its own."
                    if images
                    else f"{file} has shape {list(image.shape)}; it must have {list(expected)}."
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
        """Return features ``[n, F]`` of images ``[n, h, w, c]`` uint8, or of examples like the run's.

        Raises:
          ValueError: images of another shape or type, or a missing layer.
        """
        return self.all_layers(images, batch_size=batch_size)[self._known(layer)]

    def all_layers(self, images: np.ndarray, *, batch_size: int = 256) -> dict[str, np.ndarray]:
        """Return the features of every layer of :attr:`layers`, from one forward pass."""
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
        # Batch sizes of small sets are powers of two, so that few programs are compiled.
        batch_size = min(batch_size, 1 << (max(1, len(images)) - 1).bit_length())
        with jax.set_mesh(None):  # the arrays are on one device
            return features.encode_all(self._encode, images, self.prepare, batch_size)

    @property
    def _reads(self) -> str:
        """Return a description of the input for messages."""
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
      ValueError: images of several sizes, a value inside ``jax.jit``, or paths of files.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(images)):
        raise ValueError(
            "a loaded encoder cannot be called inside jax.jit, vmap or grad, since it prepares images"
            " on the host in its own batches. Call it outside, or use"
            " encoder.network.encode(encoder.params, encoder.stats, views) inside."
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
            f"images have several sizes{what}; this encoder reads {reads}: resize them to one size, or"
            " pass each size on its own."
        ) from None


def load_encoder(
    path: str | os.PathLike,
    *,
    step: int | None = None,
    view: Mapping[str, Any] | None = None,
    second: bool = False,
) -> LoadedEncoder:
    """Load the encoder of a workdir (its newest intact checkpoint) or of a weights file.

    Args:
      path: a workdir, a folder of checkpoints, a file of ``--mode=export``, or the state dict of a ResNet or ViT of
        torchvision or timm, as safetensors or ``.pth`` (see :func:`contrastive_jax.workdir.weights.load`).
      step: step of an earlier checkpoint, kept by ``checkpoint.keep_every`` or ``checkpoint.keep_last``.
      view: preprocessing, as options of :func:`contrastive_jax.augment.make_eval`; default: as in pretraining,
        at the size of ``evaluate.size``. Required for foreign files, which store none. For torchvision's
        ImageNet weights (V1) use ``dict(preset="moco_v2", size=224)``: bilinear, the central 7/8, ImageNet's
        mean and standard deviation.
      second: whether to load the second encoder of a run on pairs, in place of the first.

    Raises:
      FileNotFoundError: no such path, or no checkpoint of that step.
      ValueError: a file without a ResNet or ViT, a run without a second encoder if ``second`` is True, a file
        without preprocessing if ``view`` is missing, ``step`` for a file, or a workdir of replicas.
    """
    saved = read(path, step=step, second=second)
    section = view or (view_of(saved, saved.settings) if "augment" in saved.settings else None)
    if section is None:
        raise ValueError(
            f"{path} does not contain the preparation of images; pass view, for torchvision's ImageNet"
            " weights view=dict(preset='moco_v2', size=224)."
        )
    return LoadedEncoder(saved, section)
