"""Replicas: runs that differ in numbers, trained as one program.

    contrastive-jax --config=flatclr_digits --config.seed=0,1,2 --config.temperature.tau=0.1,0.2

In JAX a run is a pure function of its seed and its numbers, so N runs are that function mapped over N of them: small
networks, which leave a GPU idle, train side by side. Replica k is the single run of its config: the same first
weights, order and augmentation, the same arithmetic up to rounding. Its folder is that run's workdir, and once all are
trained it holds that run's checkpoint, so that whatever takes a workdir takes it.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax import data, evaluators, native, sharding
from contrastive_jax.config import Settings, identity
from contrastive_jax.data.resident import Arrays, ResidentReplicas
from contrastive_jax.training import compilation, loop, members
from contrastive_jax.training.lifting import Lifted, Unlike, lift
from contrastive_jax.training.packing import Packed, packed
from contrastive_jax.training.run import Run, prepare
from contrastive_jax.training.step import init_state, make_train_step
from contrastive_jax.types import Array, PyTree, TrainState
from contrastive_jax.workdir import checkpoint, remote
from contrastive_jax.workdir import replicas as layout
from contrastive_jax.workdir.replicas import folders

__all__ = ["NotReplicas", "Replicas", "folders", "make_replica_step", "train"]

# Sections that nothing inside the step reads, or that decide what is compiled.
SHARED = (*identity.MAY_CHANGE, "data", "compose", "train")


class NotReplicas(ValueError):
    """Configs that are no replicas of each other."""


@remote.supports_remote
def train(
    given: Sequence[Settings | Mapping[str, Any]],
    workdir: str,
    *,
    quiet: bool = False,
    devices: Sequence[jax.Device] | None = None,
    source: data.Source | None = None,
) -> Any:
    """Train runs that differ in numbers as one program, or go on where they stopped.

    Args:
      given: settings, or configs as plain dictionaries; they differ in ``seed`` and in numbers that the step reads.
      workdir: a folder, or ``gs://bucket/run``: replicas.json says what differs, checkpoints/ holds all replicas,
        replica_0/ and so on are the workdirs of the runs.
      quiet: print the final table only.
      devices: as many as share the replicas equally are used; default all.
      source: the images of the configs, where they are loaded already.

    Returns:
      What each replica's ``result.json`` holds; ``{"diverged": why}`` of one that diverged.

    Raises:
      NotReplicas: configs that are none of each other, before anything is compiled or written; and what
        :func:`contrastive_jax.training.loop.train` raises.
    """
    return loop.train_to_end(Replicas(given, devices, source=source), workdir, quiet=quiet)


class Replicas(loop.One):
    """Runs that differ in numbers, as the loop sees them; ``source``: their images, where they are loaded before.

    Raises:
      NotReplicas: one sentence that names the option in which the configs differ and may not.
    """

    def __init__(
        self,
        given: Sequence[Settings | Mapping[str, Any]],
        devices: Sequence[jax.Device] | None = None,
        *,
        source: data.Source | None = None,
    ):
        if jax.process_count() > 1:
            raise ValueError(f"replicas train in one process; here are {jax.process_count()}.")
        given = list(map(configs.as_settings, given))
        self.differences = _differences(given)
        devices = list(devices or jax.devices())
        first = prepare(given[0], devices[:1], source=source)  # a replica's batch is not divided
        if not isinstance(first.source.train, data.Split):
            raise NotReplicas(
                f"data.name={first.source.name!r} is streamed, and replicas share images in memory: take"
                " data.stream=off, or train the runs one by one."
            )
        runs = [first, *(prepare(config, devices[:1], source=first.source) for config in given[1:])]
        everywhere = sharding.make_mesh(devices)  # where each is judged
        shared = (
            {} if evaluators.per_run(first.settings.evaluators.values()) else {"evaluators": first.evaluators}
        )
        self.runs = [run._replace(**shared, mesh=everywhere) for run in runs]
        self.run, self.together = self.runs[0], len(given)
        self.mesh = sharding.make_replica_mesh(len(given), devices)
        self.each_about = [loop.about(run) for run in self.runs]
        self.about = self.each_about[0] | {"replicas": self.differences}
        self.diverged: dict[int, str] = {}  # which, and why: kept by their recorder
        self._states = [  # on the host: the devices hold them stacked
            jax.device_get(init_state(run.recipe, run.settings.seed)) for run in self.runs
        ]
        for number, state in enumerate(self._states):
            if _shapes(state) != _shapes(self._states[0]):
                raise NotReplicas(_no_replica(self.differences[number], "their states are of other shapes"))
        self.lifted = self._lift()

    def _lift(self) -> Lifted:
        """Make one step of all replicas'; configs that differ in their seed only share a program."""
        feed, take = _feed_shapes(self.run), data.resident.Take(self.run.source.train.made.composition)
        programs: dict[str, int] = {}
        of_replica, functions, owners = [], [], []
        for number, run in enumerate(self.runs):
            text = json.dumps(run.settings.to_dict() | {"seed": 0}, sort_keys=True)
            if text not in programs:
                programs[text] = len(programs)
                functions.append(packed(make_train_step(run.recipe, take)))
                owners.append(number)
            of_replica.append(programs[text])
        platform = self.mesh.devices.flat[0].platform
        try:
            with native.tracing_for(platform), jax.set_mesh(None):
                lifted = lift(functions, jax.eval_shape(lambda: self._states[0]), feed)
        except Unlike as unlike:
            raise NotReplicas(_no_replica(self.differences[owners[unlike.index]], str(unlike))) from None
        for program, number in enumerate(owners[1:], start=1):
            if lifted.differing[program]:
                continue
            again = init_state(self.runs[number].recipe, self.run.settings.seed)
            if _same_bits(self._states[0], again):
                raise NotReplicas(
                    _no_replica(self.differences[number], "no number of the step depends on it")
                )
        return lifted._replace(numbers=[column[np.array(of_replica)] for column in lifted.numbers])

    @property
    def names(self) -> list[str]:
        """Return a name of each replica: what differs, and its values."""
        return [layout.words([difference]) for difference in self.differences]

    @property
    def words(self) -> str:
        """Return what a step is, in a line."""
        return f"{len(self.runs)} replicas of {loop.words(self.run._replace(mesh=self.mesh))}"

    def first_state(self, report: Callable[[str], None]) -> TrainState:
        """Return the states before step 0, stacked; with the encoder of ``init.checkpoint`` where there is one."""
        if not self.run.settings.init.checkpoint:
            return self.initial_state()
        with jax.set_mesh(self.run.mesh):
            return self._stacked([jax.device_get(loop.first_state(run, report)) for run in self.runs])

    def initial_state(self) -> TrainState:
        """Return states like those that are saved."""
        return self._stacked(self._states)

    def _stacked(self, states: Sequence[TrainState]) -> TrainState:
        def put(spec, values):
            put = sharding.named(self.mesh, spec)
            return jax.make_array_from_callback(values.shape, put, lambda index: values[index])

        step = put(sharding.REPLICATED, np.asarray(states[0].step))
        rest = [dataclasses.replace(state, step=()) for state in states]
        stacked = jax.tree.map(lambda *each: put(sharding.REPLICAS, np.stack(jax.device_get(each))), *rest)
        return dataclasses.replace(stacked, step=step)

    def check(self, before: Mapping[str, Any]) -> None:
        """Refuse to go on with other replicas than a checkpoint's."""
        if (saved := before.get("replicas")) != json.loads(json.dumps(self.differences)):
            raise ValueError(
                f"this workdir holds {'a single run' if saved is None else f'replicas of {layout.words(saved)}'}, and"
                f" these are replicas of {layout.words(self.differences)}; choose another --workdir."
            )

    def check_workdir(self, workdir: str, start: int) -> None:
        """Refuse to go on from a step that a replica's own folder is beyond: it would keep another run's weights."""
        for number in range(len(self.runs)):
            place = self._checkpoints(workdir, number)
            if (newest := max(checkpoint.steps_in(place), default=0)) > start:
                raise ValueError(
                    f"{place} holds step {newest}, of another run or of a replica that was trained further by itself,"
                    f" and the replicas of {workdir} go on from step {start}: move it away, or choose another"
                    " --workdir."
                )

    def _checkpoints(self, workdir: str, number: int) -> Any:
        return remote.checkpoints(workdir).parent / f"replica_{number}" / remote.CHECKPOINTS

    def feed(self, replaced: int, report: Callable[[str], None]) -> "Feed":
        """Open what feeds the step."""
        return Feed(
            self.lifted.numbers,
            self.run.source.train,
            seeds=[run.settings.seed for run in self.runs],
            batch_size=self.run.settings.train.batch_size,
            mesh=self.mesh,
        )

    def compiled_step(self, feed: Any, state: TrainState) -> tuple[jax.stages.Compiled, float]:
        """Compile the step of all replicas; with the seconds that it took."""
        options = compilation.compiler_options(self.mesh, self.run.settings.train.deterministic)
        step = make_replica_step(self.lifted, self.mesh)
        return compilation.compiled(step, options, state, feed.feed(int(state.step)))

    def note(self, contents: dict[str, Any] | None) -> None:
        """Keep the digests of the training images, for the checkpoints of each replica too."""
        self.about = self.about | {"contents": contents}
        self.each_about = [about | {"contents": contents} for about in self.each_about]

    def evaluator(self) -> Any:
        """Return what judges every replica."""
        return members.Evaluators(self)

    def recorder(self, *arguments: Any, **options: Any) -> Any:
        """Return what keeps the metrics of every replica."""
        return members.Recorders(self, *arguments, **options)

    def finish(self, workdir: str, state: TrainState) -> None:
        """Give every replica that has not diverged the checkpoint of the single run that it is."""
        for number, about in enumerate(self.each_about):
            if layout.divergence(workdir, number) is None:
                with checkpoint.Checkpoints(self._checkpoints(workdir, number), keep_last=1) as saved:
                    saved.save(int(state.step), self.state_of(state, number), about)

    def state_of(self, state: TrainState, number: int) -> TrainState:
        """Return the state of one replica, as that of its run."""
        held = jax.device_get(state)
        rest = jax.tree.map(lambda x: jnp.asarray(x[number]), dataclasses.replace(held, step=()))
        return dataclasses.replace(rest, step=jnp.asarray(held.step))

    def place(self, workdir: str) -> str:
        """Return where the results are."""
        return f"{workdir}/replica_0 to replica_{len(self.runs) - 1}"


class Feed(ResidentReplicas):
    """The numbers of every replica, and what :class:`ResidentReplicas` feeds."""

    def __init__(self, numbers: Sequence[np.ndarray], *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._numbers = [self._put(column, sharding.REPLICAS) for column in numbers]

    def feed(self, step: int) -> Any:
        """Return the numbers, and the arrays of the chunk that ``step`` lies in."""
        return self._numbers, super().feed(step)


def make_replica_step(lifted: Lifted, mesh: jax.sharding.Mesh, side_by_side: bool | None = None) -> Callable:
    """Make ``(state, (numbers, arrays)) -> (state, metrics)`` of N replicas; all but step and images is ``[N, ...]``.

    Side by side (vmap); on a CPU one after the other within the step, which is faster there from width 16 on
    (``experiments/performance/replicas.py``).

    Args:
      lifted: a single run's step.
      mesh: of the replicas.
      side_by_side: None leaves it to the devices.
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
        replicas = (numbers, dataclasses.replace(state, step=()), feed.index, feed.epoch)
        shared = dataclasses.replace(feed, index=(), epoch=())
        everywhere, split = sharding.REPLICATED, sharding.REPLICAS
        rest, metrics = jax.shard_map(
            all_here, mesh=mesh, in_specs=(everywhere, everywhere, split), out_specs=split, check_vma=False
        )(state.step, shared, replicas)
        return dataclasses.replace(rest, step=state.step + 1), metrics

    return step


# ------------------------------------------------------------------------------------------- refusing


def _differences(given: Sequence[Settings]) -> list[dict[str, Any]]:
    """Return the leaves in which the configs differ from one another, and their values, of each.

    Raises:
      ValueError: one of them cannot differ, or two are the same.
    """
    if len(given) < 2:
        raise ValueError(f"replicas are two runs or more; here is {len(given)}.")
    names: dict[str, None] = {}
    every = [configs.leaves(settings) for settings in given]
    for other in every[1:]:
        names |= dict.fromkeys(configs.diff(every[0], other))
    for name in names:
        values = [of_run.get(name) for of_run in every]
        if name != "seed" and any(name == part or name.startswith(f"{part}.") for part in SHARED):
            raise NotReplicas(
                f"{name} is {' and '.join(dict.fromkeys(map(repr, values)))}: replicas differ in seed and in"
                " numbers that the step reads; run the command once for each value of it."
            )
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            raise NotReplicas(_no_replica({name: values[-1]}, "it is no number"))
    differing = [{name: leaves[name] for name in names} for leaves in every]
    for number, one in enumerate(differing):
        if one in differing[:number]:
            which = f"{layout.words([one])}: give each value once" if one else "nothing differs between them"
            raise NotReplicas(f"two replicas are the same, {which}.")
    return differing


def _no_replica(difference: Mapping[str, Any], why: str) -> str:
    others = {name: value for name, value in difference.items() if name != "seed"}
    return (
        f"{layout.words([others])} is no replica of the first ({why}): replicas differ in seed and in numbers that the"
        " step reads; run the command once for each of the others' values."
    )


def _shapes(tree: PyTree) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(x.shape, x.dtype) for x in leaves]


def _same_bits(one: PyTree, two: PyTree) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def _feed_shapes(run: Run) -> Arrays:
    """Return what a single run's step is fed, as shapes of no mesh."""
    shapes = ResidentReplicas.shapes(run.source.train, run.settings.train.batch_size, run.mesh)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes)
