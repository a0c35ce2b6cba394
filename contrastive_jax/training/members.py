"""Records and evaluations of replicas, which train as one and are kept and judged each by itself."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from contrastive_jax import workdir as workdirs
from contrastive_jax.evaluators.features import NotFinite
from contrastive_jax.evaluators.table import of_replicas
from contrastive_jax.training.evaluation import Evaluator
from contrastive_jax.training.packing import Packed
from contrastive_jax.training.recorder import Diverged, Recorder, keep_pace
from contrastive_jax.training.run import replicate
from contrastive_jax.types import PyTree, TrainState
from contrastive_jax.workdir import checkpoint
from contrastive_jax.workdir import replicas as layout


class Recorders(contextlib.ExitStack):
    """Records of all replicas; of one that diverges a sentence, and the others go on.

    Args:
      replicas: what runs.
      workdir: where they live; the other arguments are :class:`Recorder`'s.
    """

    def __init__(
        self,
        replicas: Any,
        workdir: str,
        feed: Any,
        saved: checkpoint.Checkpoints,
        start: int,
        log: Callable[[str], None],
        *,
        quiet: bool,
        active: bool,
    ):
        super().__init__()
        self._workdir, self._log, self._start = workdir, log, start
        self._said: dict[str, list[int]] = {}
        self._differences, count = replicas.differences, len(replicas.runs)
        if start == 0:
            for number in range(count):
                layout.forget_divergence(workdir, number)
        self._recorders = [
            Recorder(
                run._replace(mesh=replicas.mesh), str(layout.folder(workdir, number)), feed, saved, start,
                functools.partial(self._say, number), quiet=quiet or number > 0, active=active, together=count,
            )
            for number, run in enumerate(replicas.runs)
        ]  # fmt: skip
        self._pending: list[tuple[int, Packed]] = []
        self._diverged = replicas.diverged
        self._diverged.clear()
        self._diverged |= {n: why for n in range(count) if (why := layout.divergence(workdir, n)) is not None}

    def _say(self, number: int, message: str) -> None:
        self._said.setdefault(message, []).append(number)

    def _speak(self) -> None:
        """Say what replicas have to say; what several say, once."""
        sentences, self._said = self._said, {}
        for message, numbers in sentences.items():
            who = f"replica{'s' if numbers[1:] else ''} {', '.join(map(str, numbers))}"
            self._log(f"{'all replicas' if len(numbers) == len(self._recorders) else who}: {message}")

    def __enter__(self):
        super().__enter__()
        for recorder in self._recorders:
            self.enter_context(recorder)
        self._speak()
        self._log("what is shown of training is replica 0's")
        return self

    def next_batch(self, step: int) -> Any:
        """Return what the feed gives for the step, see :meth:`Recorder.next_batch`; all have waited for it."""
        given, waited = self._recorders[0].wait_for_feed(step, self._pending)
        for recorder in self._recorders:
            recorder.lose("data", waited)
        return given

    def add(self, step: int, metrics: Packed) -> None:
        """Take note of a step; at the first the workdir is that of replicas, as their program fits the device."""
        if step == self._start + 1:
            layout.write(self._workdir, self._differences)
        self._pending.append((step, metrics))
        for recorder in self._recorders:
            recorder.wait_for_first(step, metrics)
        keep_pace(self._pending)

    def fetch(self) -> None:
        """Wait for the device, and look whether the steps of every replica so far are sound.

        Raises:
          Diverged: none is.
        """
        fetched, self._pending = jax.device_get(self._pending), []
        for number, recorder in self._going():
            steps = [
                (step, Packed(packed.values[number], packed.layout).unpacked()) for step, packed in fetched
            ]
            try:
                recorder.receive(steps)
            except Diverged as error:
                self._diverged[number] = str(error)
                layout.write_divergence(self._workdir, number, str(error))
                self._say(number, f"{error} The others go on.")
        self._speak()
        if not self._going():
            raise Diverged(f"all {len(self._recorders)} replicas diverged; replica 0: {self._diverged[0]}")

    def _going(self) -> list[tuple[int, Recorder]]:
        return [(n, recorder) for n, recorder in enumerate(self._recorders) if n not in self._diverged]

    def sound(self, state: TrainState) -> TrainState:
        """Return what may be saved: zeros in the place of replicas that diverged."""
        if not self._diverged:
            return state
        lost = np.array(sorted(self._diverged))
        rest = jax.tree.map(lambda x: x.at[lost].set(0), dataclasses.replace(state, step=()))
        return dataclasses.replace(rest, step=state.step)

    def log_point(self) -> None:
        """Write and show a log point of every replica.

        Raises:
          Diverged: see :meth:`fetch`.
        """
        self.fetch()
        for _, recorder in self._going():
            recorder.log_point()
        if 0 in self._diverged:  # whose progress is the one that is shown
            self._recorders[0].show(*self._going()[0][1].latest)
        self._speak()

    def write(self, step: int, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Write a record of a step, by replica."""
        for number, recorder in self._going():
            recorder.write(step, metrics[number])

    @contextlib.contextmanager
    def pause(self, what: str):
        """Count time as lost, see :class:`contrastive_jax.workdir.Progress`."""
        with contextlib.ExitStack() as pauses:
            for recorder in self._recorders:
                pauses.enter_context(recorder.pause(what))
            yield

    def result(self, step: int, evaluations: Any, seconds: float) -> list[dict[str, Any]]:
        """Write the results of all that did not diverge; return what each holds."""
        going = dict(self._going())
        return [
            going[number].result(step, evaluations[number] if evaluations else {}, seconds)
            if number in going
            else {"diverged": self._diverged[number]}
            for number in range(len(self._recorders))
        ]


def _of(number: int, report: Callable[[str], None], sentence: str) -> None:
    """Report what is said of one replica."""
    report(f"replica {number}: {sentence}")


class Evaluators:
    """Evaluators of all replicas, one after the other, by one program."""

    def __init__(self, replicas: Any):
        self._replicas = replicas
        self._each = [Evaluator(run.settings, run.source, run.mesh, run.evaluators) for run in replicas.runs]
        self.has_labels = self._each[0].has_labels

    def _of_each(self, weights: tuple[PyTree, PyTree]) -> Iterator[tuple[int, tuple[PyTree, PyTree] | None]]:
        """Yield the weights of every replica, on all devices; None of one that diverged. Their mesh is in context."""
        held, mesh = jax.device_get(weights), self._replicas.run.mesh
        with jax.set_mesh(mesh):
            for number in range(len(self._each)):
                mine = jax.tree.map(lambda x, number=number: x[number], held)
                sound = all(np.isfinite(x).all() for x in jax.tree.leaves(mine))
                lost = number in self._replicas.diverged  # its weights are those that began as zeros
                yield number, replicate(mine, mesh) if sound and not lost else None

    def look(self, state: TrainState, report: Callable[[str], None] = print) -> list[dict[str, float]]:
        """Look at every replica while they train; nothing is said of one that diverged."""
        looks: list[dict[str, float]] = [{} for _ in self._each]
        for number, pair in self._of_each((state.params, state.stats)):
            with contextlib.suppress(NotFinite):  # the next log point says so
                if pair:
                    here = dataclasses.replace(state, params=pair[0], stats=pair[1])
                    looks[number] = self._each[number].look(here, functools.partial(_of, number, report))
        return looks

    def table(
        self, weights: tuple[PyTree, PyTree], *, quiet: bool = False, show_progress: bool = False
    ) -> list[dict]:
        """Judge every replica, see :meth:`Evaluator.table`; what is printed is one table, of a row a replica."""
        tables, names = [], self._replicas.names
        for number, pair in self._of_each(weights):
            if show_progress and pair:
                workdirs.log(f"evaluating replica {number}, {names[number]} ...")
            tables.append(self._each[number].table(pair, quiet=True) if pair else {})
        if any("trained" in table for table in tables) and not quiet:
            self._each[0].print(of_replicas(names, self._replicas.differences, tables))
        return tables
