"""Preparation of a run: a config with its data, functions and devices, before its first array.

:func:`prepare` checks the config, data and devices before anything is compiled or written.
"""

import dataclasses
import hashlib
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from contrastive_jax import augment, data, distributed, evaluators, models, native, sharding
from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.config import Settings
from contrastive_jax.kinds import is_duration, parameters
from contrastive_jax.lookup import Section, call, near
from contrastive_jax.training import pairs
from contrastive_jax.training.encoder import known_layers, network_of
from contrastive_jax.training.recipe import Recipe, build
from contrastive_jax.training.step import init_state, state_of
from contrastive_jax.types import PyTree, TrainState


class Run(NamedTuple):
    """Config with its data, functions and devices, before any array of the run exists."""

    settings: Settings
    source: data.Source
    recipe: Recipe
    mesh: Mesh
    total_steps: int
    steps_per_epoch: float
    evaluate_every: int
    keep_every: int
    evaluators: dict[str, dict[str, Callable[..., dict]]]  # evaluation set -> column -> evaluator


def source_of(
    config: Settings | Mapping[str, Any], load: Callable[[Section], data.Source] = Section.__call__
) -> data.Source:
    """Load the examples of ``data``, composed as ``compose`` defines.

    Args:
      config: config of the run.
      load: function that loads a data set from its section.

    Raises:
      ValueError: an invalid option; the message contains the option, its value and the allowed values.
      FileNotFoundError: a missing data set; the message contains the command that prepares it.
    """

    settings = configs.as_settings(config)
    composed, stored = settings.compose, settings.data
    validation = stored.options.get("validation", 0)

    def another(name: str, dir: str) -> data.Source:
        function = data.find(name)
        if not dir and "dir" in parameters(function):
            dir = stored.options.get("dir", "")
        options = {"dir": dir} if dir else {}
        options |= {"validation": validation} if validation else {}  # else its test images would be used
        try:
            return load(Section("data", name, function, options))
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(f"compose.digits is {name!r}: {error}") from None

    if validation and getattr(composed.function, "draws_all", False):
        raise ValueError(
            f"data.validation is {validation}; it must be 0 with compose.name={composed.name}, which"
            " uses no images of data and draws its own test images."
        )
    source = load(stored)
    if not isinstance(source, data.Source):
        raise ValueError(
            f"data.name={stored.name!r} returned a {type(source).__name__}; it must return a data set"
            " (see contrastive_jax.data.from_arrays)."
        )
    if source.paired and composed.name != "none":
        raise ValueError(
            f"compose.name is {composed.name!r}; it must be none, since the examples of data.name={source.name!r} are"
            " pairs."
        )
    return composed(source, another)


def check_constant(section: Mapping[str, Any], source: data.Source) -> None:
    """Refuse options of ``augment`` that would change binary channels.

    Raises:
      ValueError: an option changes them.
    """
    constant = source.train.made.composition.constant
    if constant:
        call(augment.make_views, "augment", section).check_constant(source.train.shape[2], constant)


def check_ids(settings: Settings, source: data.Source, before: str = "") -> None:
    """Refuse token ids outside the encoder's vocabulary, and masks that the encoder would take for padding.

    ``before``: prefix of the sections' names in messages.

    Raises:
      ValueError: an id of the examples, the mask or the padding is outside the vocabulary, or the augmentation's ids
        contradict the encoder's padding.
    """
    vocabulary = settings.encoder.options.get("vocabulary", 0)
    parts = [
        part
        for part in (source.train, source.test)
        if isinstance(part, data.Split) and part.example.dtype != "float32"  # streamed images are no ids
    ]
    if not vocabulary or not parts:
        return
    options = settings.augment.options
    ids = {
        "data": [bound for part in parts for bound in (int(part.image.min()), int(part.image.max()))],
        f"{before}augment.mask_id": [options.get("mask_id", 0)],
        f"{before}augment.padding_id": [max(options.get("padding_id", 0), 0)],  # -1: there is no padding
    }
    for name, values in ids.items():
        if wrong := [value for value in values if not 0 <= value < vocabulary]:
            raise ValueError(
                f"{before}encoder.vocabulary is {vocabulary}; ids must be from 0 to {vocabulary - 1}, and"
                f" {name} contains {wrong[0]}."
            )
    padding = settings.encoder.options.get("padding_id", -1)
    if padding < 0 or not {"mask", "mask_id", "padding_id"} <= options.keys():  # an own augmentation
        return
    if options["padding_id"] != padding:
        raise ValueError(
            f"{before}augment.padding_id is {options['padding_id']}; it must be {padding}, as"
            f" {before}encoder.padding_id."
        )
    if options["mask_id"] == padding and options["mask"]:
        raise ValueError(
            f"{before}augment.mask_id is {padding}, which is {before}encoder.padding_id; masked tokens would be left"
            " out like padding. It must be another id, one that stands for nothing else."
        )


def in_steps(section: Section, steps: Callable[[str, str], int]) -> Section:
    """Return a section with its durations, ``"10 epochs"``, converted by ``steps(option, duration)``."""

    def count(name: str, value: Any) -> Any:
        option = f"{section.path}.{name}"
        if isinstance(value, tuple):
            return tuple(steps(option, part) for part in value)
        return steps(option, value)

    durations = {name for name, p in parameters(section.function).items() if is_duration(p.annotation)}
    return section._replace(
        options={
            name: count(name, value) if name in durations else value
            for name, value in section.options.items()
        }
    )


def evaluators_of(settings: Settings, source: data.Source) -> dict[str, dict[str, Callable[..., dict]]]:
    """Build the evaluators of settings, see :func:`contrastive_jax.evaluators.prepare`.

    For pairs they are those of each encoder, under the names of :data:`pairs.SETS`, and those of pairs.
    """
    built: dict[str, dict[str, Callable[..., dict]]] = {}
    columns, of_pairs = settings.evaluators, evaluators.of_pairs(settings.evaluators)
    pairs.check_evaluators(settings, of_pairs)
    for name, (_, of) in zip(pairs.SETS, pairs.towers(settings, source), strict=False):
        found = evaluators.prepare(
            {column: columns[column] for column in columns if column not in of_pairs},
            of,
            layers=known_layers(settings),
            rows=settings.evaluate.rows,
            metric=settings.evaluate.metric,
            seed=settings.seed,
        )
        built |= {name or set_name: of_set for set_name, of_set in found.items()}
    if of_pairs:
        built[pairs.PAIRS] = evaluators.build(of_pairs, evaluators.EvalSpec(known_layers(settings), None))
    return built


def check_processes(settings: Settings, source: data.Source) -> None:
    """Refuse processes of one run that have other options, versions or training images than the first.

    Streamed images are compared by number and names.

    Raises:
      ValueError: on all processes; where something differs, the message names it.
    """
    if distributed.alone():
        return
    options = {name: x for name, x in configs.leaves(settings).items() if not configs.of_a_process(name)}
    known = workdirs.environment()["versions"]
    versions = {f"the version of {name}": known[name] for name in ("jax", "contrastive_jax")}
    train = source.train
    images = {"the number of training images": len(train), "their files": data.files_digest(train.paths)}
    if isinstance(train, data.Split):
        images["their digest"] = hashlib.sha256(json.dumps(data.contents(train)).encode()).hexdigest()[:8]
    random = {"JAX_THREEFRY_PARTITIONABLE": jax.config.jax_threefry_partitionable}  # type: ignore[attr-defined]
    own = json.dumps(options | versions | images | random)
    here, there = json.loads(own), json.loads(distributed.of_first(own))
    wrong = [name for name in here | there if here.get(name) != there.get(name)]
    if distributed.on_all(not wrong):
        return
    told = "; ".join(f"{name} is {here.get(name)!r}, in process 0 {there.get(name)!r}" for name in wrong[:5])
    raise ValueError(
        f"process {jax.process_index()} differs from process 0: {told}{' and more' * (len(wrong) > 5)}. Start every"
        " process with the same options, versions and training images."
        if wrong
        else "another process of this run has other options, versions or training images; its own output"
        " names them."
    )


def prepare(
    config: Settings | Mapping[str, Any],
    devices: Sequence[jax.Device] | None = None,
    *,
    source: data.Source | None = None,
) -> Run:
    """Load the data (unless ``source`` is given) and build the recipe, for ``devices`` (default: all).

    Raises:
      ValueError: an invalid option; the message contains the option, its value and the allowed values.
      FileNotFoundError: a missing data set; the message contains the command that prepares it.
    """
    settings = configs.settings_of(config)
    sharding.check_random_numbers()
    if source is None:  # a given one is the caller's, whose processes may not all be here
        source = source_of(settings)
        check_processes(settings, source)
    pairs.check_data(settings, source)
    check_constant(settings.augment.options, source)
    for before, (one, of) in zip(("", models.SECOND), pairs.towers(settings, source), strict=False):
        check_ids(one, of, before)
    mesh = sharding.make_mesh(devices)
    examples, batch_size = len(source.train), settings.train.batch_size
    if examples < 2:
        raise ValueError(
            f"data.name={source.name!r} has {examples} training image{'' if examples == 1 else 's'}; it"
            " needs at least 2."
        )
    if batch_size > examples:
        raise ValueError(
            f"train.batch_size is {batch_size}; it must be at most {examples}, the number of training"
            " examples."
        )
    parts = settings.train.microbatches
    if batch_size % (mesh.size * parts):
        share = f"the {mesh.size} devices" + (f" and {parts} micro-batches" if parts > 1 else "")
        raise ValueError(
            f"train.batch_size is {batch_size}; it must be a multiple of {mesh.size * parts}, to be"
            f" divided among {share}."
        )

    def steps(option: str, text: str) -> int:
        return configs.steps_of(option, text, examples, batch_size)

    duration = settings.train.duration
    total_steps = steps("train.duration", duration)
    if total_steps < 1:
        raise ValueError(f"train.duration is {duration!r}; it must be at least one step.")
    if (project := settings.log.wandb) and importlib.util.find_spec("wandb") is None:
        raise ValueError(f"log.wandb is {project!r}; it needs wandb: pip install 'contrastive_jax[wandb]'.")
    workdirs.check_steps(settings.profile.steps)
    schedule = in_steps(settings.schedule, steps)
    warmup = schedule.options.get("warmup", 0)  # of a user's schedule it may be anything
    if isinstance(warmup, int) and warmup >= total_steps and settings.schedule.options != schedule.options:
        raise ValueError(
            f"schedule.warmup is {settings.schedule.options['warmup']!r}, {warmup} steps; it must be shorter than"
            f" train.duration, {duration!r}, {total_steps} steps."
        )
    recipe = build(
        settings,
        schedule=schedule,
        image_shape=source.train.shape,
        image_dtype=source.train.example.dtype,
        examples=source.train.image if isinstance(source.train, data.Split) else None,
        second=source.train.of_pair(1).image
        if isinstance(source.train, data.Split) and source.paired
        else None,
        classes=len(source.classes),
        several_labels=bool(source.train.label_shape),
        streamed=isinstance(source.train, data.Streamed),
        total_steps=total_steps,
        steps_per_epoch=max(1, round(examples / batch_size)),
        example_count=examples,
    )
    recipe.network.shapes(recipe.view)  # raises if the encoder cannot read it

    looks = steps("evaluate.every", settings.evaluate.every)
    for column in settings.evaluate.look if looks else ():
        if column not in settings.evaluators:
            raise ValueError(
                f"evaluate.look contains {column!r}, which is unknown. {near(column, settings.evaluators)}"
            )
    for one, of in pairs.towers(settings, source):
        # raises if it does not fit the encoder
        evaluators.resized(one.augment.options, one.evaluate.size, network_of(one), of.train.example)
    return Run(
        settings,
        source,
        recipe,
        mesh,
        total_steps,
        examples / batch_size,
        looks,
        steps("checkpoint.keep_every", settings.checkpoint.keep_every),
        evaluators_of(settings, source),  # raises before training, not after it
    )


def feed_of(
    run: Run, replaced: int = 0, report: Callable[[str], None] = print
) -> data.Resident | data.Stream:
    """Return the feed of the run's step, which the caller must close; arguments as in :func:`data.feed`."""
    return data.feed(
        run.source.train,
        view=run.recipe.views,
        seed=run.settings.seed,
        batch_size=run.settings.train.batch_size,
        steps=run.total_steps,
        mesh=run.mesh,
        replaced=replaced,
        report=report,
    )


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
    """Copy host arrays to every device, into new buffers, because they will be donated."""
    put = sharding.named(mesh, sharding.REPLICATED)

    def everywhere(x):
        x = np.array(x)
        return jax.make_array_from_callback(x.shape, put, lambda index: x[index])

    return jax.tree.map(everywhere, tree)


def initial_state(run: Run, weights: tuple[PyTree, PyTree] | None = None) -> TrainState:
    """Make the state before step 0 from ``weights`` (default: the seed's); needs the run's mesh in context."""
    seed = run.settings.seed
    state = init_state(run.recipe, seed) if weights is None else state_of(run.recipe, seed, *weights)
    state = replicate(state, run.mesh)
    if run.settings.optimizer.options.get("shard_state", False):
        state = dataclasses.replace(state, optimizer=native.jit(run.recipe.optimizer.init)(state.params))
    return state
