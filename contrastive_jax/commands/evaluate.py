"""``--mode=evaluate``: evaluate any encoder, by any protocols, on any labelled images.

The checkpoint's own config sets the network and the preprocessing; the given config sets the images (``data``)
and the protocols (``evaluators``, ``evaluate``). The pretraining data is not needed.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from contrastive_jax import config as configs
from contrastive_jax import data, distributed, models, sharding
from contrastive_jax import workdir as workdirs
from contrastive_jax.config import Settings
from contrastive_jax.evaluators.table import of_runs
from contrastive_jax.training import encoder, pairs
from contrastive_jax.training.evaluation import Evaluator
from contrastive_jax.training.pair_evaluation import PairEvaluator, evaluator_of, lacks
from contrastive_jax.training.run import source_of
from contrastive_jax.workdir import remote, replicas

OF_THE_IMAGES = ("data", "compose")
# Sections that determine an encoder; "seed" determines its initial weights.
OF_THE_ENCODER = (
    "encoder",
    "projector",
    "predictor",
    "norm",
    "dtype",
    "augment",
    "seed",
    "second_encoder",
    "second_augment",
)


@remote.supports_remote
def evaluate(
    config: str | Settings | Mapping[str, Any] | Sequence[Settings | Mapping[str, Any]],
    workdir: str,
    *,
    quiet: bool = False,
    output: str | None = None,
) -> Any:
    """Evaluate the encoder of ``evaluate.checkpoint`` (default: the workdir's) on the config's labelled data.

    Args:
      config: settings, the same as plain dictionaries, or the name of a config. A list: one
        per replica of the workdir; one table shows all replicas except those that diverged.
      workdir: directory of the run or the replicas.
      quiet: show no progress.
      output: folder for the results, of replicas for ``replica_0`` and so on; default: the workdir.

    Returns:
      The contents of ``evaluation.json``: the results, with the checkpoint's step and the
      fingerprint of its config. For a list of configs, a list of these, with {} for a replica that diverged.

    Raises:
      ValueError: the encoder cannot read these images, there is nothing to evaluate on, an evaluator does not
        fit the data, or the workdir holds another number of replicas.
      FileNotFoundError: no checkpoint, or a missing data set.
    """
    asked = configs.resolve(config) if isinstance(config, str) else config
    given = list(asked) if isinstance(asked, Sequence) else [asked]
    differences: list[dict[str, Any]] = [{}]
    if len(given) > 1:
        if distributed.first():
            workdirs.check_writable(workdir, output)  # a replica's folder may be a link
        if len(differences := replicas.differences(workdir)) != len(given):
            raise ValueError(
                f"--workdir={workdir} does not hold the {len(given)} replicas of --config; leave --config"
                " out."
            )
    evaluator = None
    found: list[dict[str, Any]] = []
    places = replicas.places(workdir, len(given))
    outputs = [None] * len(given) if output is None else replicas.places(output, len(given))
    for number, (place, folder) in enumerate(zip(places, outputs, strict=True)):
        if len(given) > 1 and (why := replicas.divergence(workdir, number)):
            found.append({})
            if distributed.first():
                workdirs.log(f"replica {number} is not evaluated: {why}")
        else:
            evaluator, result = _judged(configs.settings_of(given[number]), place, quiet, folder)
            found.append(result)
    if evaluator and distributed.first():
        evaluator.print(of_runs(differences, [one.get("results", {}) for one in found]))
    return found if isinstance(asked, Sequence) else found[0]


def _judged(
    settings: Settings, workdir: Any, quiet: bool, output: Any = None
) -> tuple[Evaluator | PairEvaluator, dict[str, Any]]:
    """Evaluate one encoder, and write the results to ``output`` (default: the workdir) and return them."""
    began, path = time.perf_counter(), settings.evaluate.checkpoint or workdir
    first = distributed.first()
    log = workdirs.log if first and not quiet else lambda message: None
    mesh = sharding.make_mesh()
    trained = encoder.read_settings(path)
    if first:
        workdirs.check_writable(workdir, output)
    with jax.set_mesh(mesh):
        chosen, source = as_trained(settings, trained, log), source_of(settings)
        pairs.check_data(chosen, source)
        evaluator = evaluator_of(chosen, source, mesh)
        if not evaluator.evaluates:
            raise ValueError(f"data.name={settings.data.name!r} has nothing to evaluate: {lacks(evaluator)}.")
        saved = restored(path, evaluator)
        log(path if saved.step is None else f"step {saved.step} of {path}")
        train = evaluator.source.train
        now, began_with = (len(train), data.files_digest(train.paths)), (saved.examples, saved.files)
        notes = changed(settings, trained, now, began_with)
        for note in notes:
            log(note)
        results = evaluator.table((saved.params, saved.stats), show_progress=first and not quiet)
    result = {
        "checkpoint": str(path),
        "step": saved.step,
        "config": configs.fingerprint(trained),
        "images": configs.fingerprint(settings.only(*OF_THE_IMAGES)),
        **settings.only(*OF_THE_IMAGES),
        "size": evaluator.view.get("size"),
        "metric": evaluator.metric(),
        "results": results,
        "notes": notes,
        "seconds": time.perf_counter() - began,
        **workdirs.environment(),
    }
    result = workdirs.shareable(result)
    if first:
        folder = workdir if output is None else output
        workdirs.write_json(epath.Path(folder) / "evaluation.json", result)
    return evaluator, result


def as_trained(settings: Settings, trained: Settings, log: Any) -> Settings:
    """Return the settings with the encoder's sections replaced by the checkpoint's; log which ones differed.

    Sections that the checkpoint lacks (a file from outside may lack some) keep their values in ``settings``.
    """
    sections = trained.only(*OF_THE_ENCODER)
    differs = [
        name
        for name, section in sections.items()
        if name != "seed" and configs.diff(settings.only(name), {name: section})
    ]
    if differs:
        log(f"{', '.join(differs)}: taken from the checkpoint, not from the config.")
    if note := encoder.size_note(settings, trained):
        log(note)
    return settings.replaced(**sections)


def changed(
    settings: Settings,
    trained: Settings,
    now: tuple[int, str | None],
    had: tuple[int | None, str | None],
) -> list[str]:
    """Return a note if images were added or removed since the run, for data with randomly held-out images.

    ``now``, ``had``: number of training images and digest of their files, now and in the run; None: unknown.
    """
    options = settings.data.options
    drawn = options.get("test_fraction") or options.get("validation")
    (examples, files), (had_examples, had_files) = now, had
    others = None not in (files, had_files) and files != had_files
    if not drawn or had_examples is None or (had_examples == examples and not others):
        return []
    as_here = trained.replaced(**settings.only(*OF_THE_IMAGES))
    if configs.fingerprint(as_here) != configs.fingerprint(trained):
        return []  # other images
    what = (
        f"{examples:,} training images; the run began with {had_examples:,}"
        if examples != had_examples
        else f"{examples:,} training images, as many as the run began with, but other files"
    )
    return [
        f"data has {what}: the held-out images were drawn anew, and the encoder may have been trained"
        " on some of them."
    ]


def restored(path: str, evaluator: Evaluator | PairEvaluator, second: bool = False) -> encoder.Saved:
    """Restore encoder, projector and predictor, of both encoders for pairs; ``second``: which encoder is alone.

    Raises:
      ValueError: examples that the encoder cannot read, or weights of another shape than the config's network.
    """
    if isinstance(evaluator, PairEvaluator):
        first, other = (restored(path, tower, bool(number)) for number, tower in enumerate(evaluator.towers))
        params, stats = models.joined(first.params, other.params), models.joined(first.stats, other.stats)
        return first._replace(params=params, stats=stats)
    saved = encoder.read(path, second=second, sharding=sharding.named(evaluator.mesh, sharding.REPLICATED))
    encoder.check_example(saved.example, evaluator.source, path)
    expected = evaluator.network.shapes(evaluator.reads)
    found = saved.params | {"probe": {}}, saved.stats | {"probe": {}}
    if jax.tree.map(np.shape, expected) != jax.tree.map(np.shape, found):
        raise ValueError(f"the arrays of {path} do not match the network of its config.")
    return saved._replace(params=found[0], stats=found[1])
