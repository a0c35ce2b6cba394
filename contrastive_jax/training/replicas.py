"""Replicas: runs that differ in numbers, trained as one program.

    contrastive-jax --config=flatclr_digits --config.seed=0,1,2 --config.temperature.tau=0.1,0.2

In JAX a run is a pure function of its seed and its numbers, so N runs are that function mapped over N of them: small
networks, which underuse a GPU, train side by side. Replica k is the single run of its config: the same initial
weights, order and augmentation, the same arithmetic up to rounding. Its folder is the workdir of that run, and
holds its checkpoint once all are trained, so that it works wherever a workdir does.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax import data, evaluators, native, sharding
from contrastive_jax.config import Settings, identity
from contrastive_jax.data.resident import Arrays, ResidentReplicas
from contrastive_jax.training.lifting import Lifted, Unlike, lift
from contrastive_jax.training.program import Packed, Program, Weights, packed, single
from contrastive_jax.training.run import Run, initial_state, prepare, replicate
from contrastive_jax.training.step import init_state, make_train_step
from contrastive_jax.types import Array, PyTree, TrainState, without
from contrastive_jax.workdir import checkpoint
from contrastive_jax.workdir import replicas as layout

# Sections that the step does not read, or that determine the compiled program: replicas must agree in them.
SHARED = (*identity.MAY_CHANGE, "data", "compose", "train")


class NotReplicas(ValueError):
    """Error for configs that are not replicas of each other."""


def program_of(
    given: Sequence[Settings | Mapping[str, Any]],
    devices: Sequence[jax.Device] | None = None,
    *,
    source: data.Source | None = None,
    side_by_side: bool | None = None,
) -> Program:
    """Prepare the run of a config, or the replicas of several, for devices (default: all).

    Args:
      given: settings, or configs as plain dictionaries; several differ in ``seed`` and in numbers that the step reads.
      devices: devices to train on; replicas use as many as share them equally.
      source: images of the configs, if already loaded.
      side_by_side: for replicas, see :func:`make_replica_step`.

    Raises:
      NotReplicas: the configs differ in an option that replicas must share.
      ValueError: replicas in several processes, and the errors of :func:`contrastive_jax.training.run.prepare`.
    """
    if len(given) == 1:
        return single(prepare(given[0], devices, source=source))
    if jax.process_count() > 1:
        raise ValueError(f"replicas must train in one process; this run has {jax.process_count()}.")
    settings = list(map(configs.as_settings, given))
    differences = _differences(settings)
    devices = list(devices or jax.devices())
    first = prepare(settings[0], devices[:1], source=source)  # a replica's batch is not divided
    if not isinstance(first.source.train, data.Split):
        raise NotReplicas(
            f"data.name={first.source.name!r} is streamed; replicas need images in memory: set"
            " data.stream=off, or train the runs one by one."
        )
    runs = [first, *(prepare(config, devices[:1], source=first.source) for config in settings[1:])]
    everywhere = sharding.make_mesh(devices)  # mesh of evaluation
    if not evaluators.per_run(first.settings.evaluators.values()):
        runs = [run._replace(evaluators=first.evaluators) for run in runs]
    runs = [run._replace(mesh=everywhere) for run in runs]
    mesh = sharding.make_replica_mesh(len(given), devices)
    # States stay on the host; devices hold only the stacked states.
    states = [jax.device_get(init_state(run.recipe, run.settings.seed)) for run in runs]
    for number, state in enumerate(states):
        if _shapes(state) != _shapes(states[0]):
            raise NotReplicas(_no_replica(differences[number], "their states differ in shape"))
    lifted = _lift(runs, differences, states[0], mesh)

    def state_with(weights: Sequence[Weights | None]) -> TrainState:
        with jax.set_mesh(everywhere):
            own = [
                state if one is None else jax.device_get(initial_state(run, one))
                for run, state, one in zip(runs, states, weights, strict=True)
            ]
        return _stacked(own, mesh)

    return Program(
        runs=tuple(runs),
        differences=differences,
        mesh=mesh,
        open_feed=lambda replaced, report: Feed(
            lifted.numbers,
            first.source.train,
            seeds=[run.settings.seed for run in runs],
            batch_size=first.settings.train.batch_size,
            mesh=mesh,
        ),
        step=lambda feed: make_replica_step(lifted, mesh, side_by_side),
        initial_state=state_with,
        weights=lambda state: _weights(state, everywhere),
    )


def _lift(
    runs: Sequence[Run], differences: Sequence[Mapping[str, Any]], state: TrainState, mesh: jax.sharding.Mesh
) -> Lifted:
    """Merge the steps of all replicas into one; configs that differ only in ``seed`` share a program."""
    feed, take = _feed_shapes(runs[0]), data.resident.Take(runs[0].source.train.made.composition)
    programs: dict[str, int] = {}
    of_replica, functions, owners = [], [], []
    for number, run in enumerate(runs):
        text = json.dumps(run.settings.to_dict() | {"seed": 0}, sort_keys=True)
        if text not in programs:
            programs[text] = len(programs)
            functions.append(packed(make_train_step(run.recipe, take)))
            owners.append(number)
        of_replica.append(programs[text])
    try:
        with native.tracing_for(mesh.devices.flat[0].platform), jax.set_mesh(None):
            lifted = lift(functions, jax.eval_shape(lambda: state), feed)
    except Unlike as unlike:
        raise NotReplicas(_no_replica(differences[owners[unlike.index]], str(unlike))) from None
    for program, number in enumerate(owners[1:], start=1):
        if lifted.differing[program]:
            continue
        if _same_bits(state, init_state(runs[number].recipe, runs[0].settings.seed)):
            raise NotReplicas(_no_replica(differences[number], "the step does not depend on it"))
    return lifted._replace(numbers=[column[np.array(of_replica)] for column in lifted.numbers])


def _stacked(states: Sequence[TrainState], mesh: jax.sharding.Mesh) -> TrainState:
    """Stack the host states of all replicas, and put them on the devices."""

    def put(spec, values):
        put = sharding.named(mesh, spec)
        return jax.make_array_from_callback(values.shape, put, lambda index: values[index])

    step = put(sharding.REPLICATED, np.asarray(states[0].step))
    rest = [without(state, "step") for state in states]
    stacked = jax.tree.map(lambda *each: put(sharding.REPLICAS, np.stack(jax.device_get(each))), *rest)
    return dataclasses.replace(stacked, step=step)


def _weights(state: TrainState, mesh: jax.sharding.Mesh) -> Iterator[Weights]:
    """Yield the weights of every replica, on all devices of a mesh."""
    held = jax.device_get((state.params, state.stats))
    for number in range(len(state.seed)):
        yield replicate(jax.tree.map(lambda x, number=number: x[number], held), mesh)


def state_of(state: TrainState, number: int) -> TrainState:
    """Return the state of one replica as the state of a single run."""
    held = jax.device_get(state)
    rest = jax.tree.map(lambda x: jnp.asarray(x[number]), dataclasses.replace(held, step=()))
    return dataclasses.replace(rest, step=jnp.asarray(held.step))


def save_each(
    program: Program,
    workdir: str | os.PathLike,
    state: TrainState,
    facts: Mapping[str, Any],
    diverged: Mapping[int, str],
) -> None:
    """Save every replica that has not diverged as a single run, in its own folder.

    Args:
      program: program of the replicas.
      workdir: workdir of the program.
      state: trained state of all replicas.
      facts: facts of their checkpoints, see :func:`contrastive_jax.training.resume.restored`.
      diverged: replicas to leave out, number -> reason.
    """
    own = {name: value for name, value in facts.items() if name not in ("replicas", "durations", "data")}
    for number, run in enumerate(program.runs):
        if number not in diverged:
            with checkpoint.Checkpoints(layout.checkpoints(workdir, number), keep_last=1) as saved:
                about = own | {"config": run.settings.to_dict()}
                saved.save(int(state.step), state_of(state, number), about)


class Feed(ResidentReplicas):
    """Inputs of the replica step: the numbers of every replica, and the arrays of :class:`ResidentReplicas`."""

    def __init__(self, numbers: Sequence[np.ndarray], *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._numbers = [self._put(column, sharding.REPLICAS) for column in numbers]

    def feed(self, step: int) -> Any:
        """Return the numbers, and the arrays of the chunk of ``step``."""
        return self._numbers, super().feed(step)


def make_replica_step(lifted: Lifted, mesh: jax.sharding.Mesh, side_by_side: bool | None = None) -> Callable:
    """Make ``(state, (numbers, arrays)) -> (state, metrics)`` of N replicas.

    All arrays except the step number and the data set are ``[N, ...]``.

    Replicas run side by side (vmap), or on a CPU one after the other, which is faster there from width 16 on
    (``experiments/performance/replicas.py``).

    Args:
      lifted: step of a single run, as a function of the replicas' numbers.
      mesh: mesh of the replicas.
      side_by_side: None: True unless the devices are CPUs.
    """
    if side_by_side is None:
        side_by_side = mesh.devices.flat[0].platform != "cpu"

    def each(step: Array, feed: Arrays, replica: tuple) -> tuple[TrainState, Packed]:
        numbers, rest, index, epoch = replica
        state = dataclasses.replace(rest, step=step)
        state, metrics = lifted.apply(numbers, state, dataclasses.replace(feed, index=index, epoch=epoch))
        return dataclasses.replace(state, step=()), metrics

    def all_here(step: Array, feed: Arrays, replicas: tuple) -> tuple[TrainState, Packed]:
        one = functools.partial(each, step, feed)
        return jax.vmap(one)(replicas) if side_by_side else jax.lax.map(one, replicas)

    def step(state: TrainState, given: tuple[PyTree, Arrays]) -> tuple[TrainState, Packed]:
        numbers, feed = given
        replicas = (numbers, without(state, "step"), feed.index, feed.epoch)
        shared = without(feed, "index", "epoch")
        everywhere, split = sharding.REPLICATED, sharding.REPLICAS
        rest, metrics = jax.shard_map(
            all_here, mesh=mesh, in_specs=(everywhere, everywhere, split), out_specs=split, check_vma=False
        )(state.step, shared, replicas)
        return dataclasses.replace(rest, step=state.step + 1), metrics

    return step


# ------------------------------------------------------------------------------------------- refusing


def _differences(given: Sequence[Settings]) -> list[dict[str, Any]]:
    """Return for each config its values of the leaves in which the configs differ.

    Raises:
      ValueError: a leaf may not differ, or two configs are the same.
    """
    if len(given) < 2:
        raise ValueError(f"replicas need at least two runs; given: {len(given)}.")
    names: dict[str, None] = {}
    every = [configs.leaves(settings) for settings in given]
    for other in every[1:]:
        names |= dict.fromkeys(configs.diff(every[0], other))
    for name in names:
        values = [of_run.get(name) for of_run in every]
        if name != "seed" and any(name == part or name.startswith(f"{part}.") for part in SHARED):
            raise NotReplicas(
                f"{name} is {' and '.join(dict.fromkeys(map(repr, values)))}; replicas may differ in"
                " the seed and in numbers of the step only: run the command once for each value."
            )
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            raise NotReplicas(_no_replica({name: values[-1]}, "it is not a number"))
    differing = [{name: leaves[name] for name in names} for leaves in every]
    for number, one in enumerate(differing):
        if one in differing[:number]:
            which = f", {layout.words([one])}: list each value once" if one else ": set different seeds"
            raise NotReplicas(f"two replicas are the same{which}.")
    return differing


def _no_replica(difference: Mapping[str, Any], why: str) -> str:
    others = {name: value for name, value in difference.items() if name != "seed"}
    return (
        f"{layout.words([others])} cannot be a replica of the first run ({why}); replicas may differ in"
        " the seed and in numbers of the step only: run the command once for each value."
    )


def _shapes(tree: PyTree) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(x.shape, x.dtype) for x in leaves]


def _same_bits(one: PyTree, two: PyTree) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def _feed_shapes(run: Run) -> Arrays:
    """Return the shapes of a single run's feed, without a mesh."""
    train = run.source.train
    assert isinstance(train, data.Split)  # program_of refuses streamed images
    shapes = ResidentReplicas.shapes(train, run.settings.train.batch_size, run.mesh)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes)
