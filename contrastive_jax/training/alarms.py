"""Alarms: warnings about problems that show in a run's metrics.

An alarm is a function of one record of metrics and of the run, so that a resumed run raises the alarms of an
uninterrupted one. :class:`Watch` tracks which alarms are active.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from contrastive_jax import augment, losses
from contrastive_jax import config as configs
from contrastive_jax.config import Settings
from contrastive_jax.contrast.diagnostics import rounds_to_zero
from contrastive_jax.data.noise import NOTE
from contrastive_jax.kinds import parameters
from contrastive_jax.training.run import Run
from contrastive_jax.types import Example

PREFIX = "alarm/"
LEAST = 20  # first step that can raise an alarm, however short the run
SETTLED = 0.1  # share of a run before which a collapse is ignored
PATIENCE = 0.2  # share of a run before which a lack of progress is ignored
STD = 0.1  # embedding_std below this is a collapse; 1 is spread over the sphere
LARGEST = 3e4  # largest entry of an embedding; the largest float16 is 65,504
RANK = 1.5  # effective_rank below this is a dimensional collapse
SATURATED = 0.5  # share of saturated queries
TOLD_APART = 0.02  # share of the possible drop of InfoNCE below log(1 + K)
SHRUNK = 3  # a view whose side is more times smaller than its image's has a note
QUIET = 5  # consecutive log points without an alarm that end it


def notes(settings: Settings, platform: str | None = None, example: Example | None = None) -> list[str]:
    """Return notes on a run's metrics and speed that follow from its settings and data.

    Args:
      settings: settings of the run.
      platform: platform of the run's devices; None: unknown.
      example: shape and type of a stored example; None: unknown.
    """
    sentences = [f"{NOTE}."] if settings.data.name == "synthetic" else []
    if settings.dtype == "bfloat16" and platform == "cpu":
        sentences.append(
            "dtype=bfloat16 is not faster than float32 on a CPU, and rounds more; use float32 on a CPU."
        )
    options, known = settings.augment.options, parameters(augment.make_views)
    size = options.get("size", 0)
    if (
        example
        and example.is_image
        and size
        and (side := min(n or 0 for n in example.shape[:2])) > SHRUNK * size
    ):
        sentences.append(
            f"augment.size is {size}, and the images have {side} pixels: views of {size} x {size} pixels show"
            f" little of their detail; augment.size={side} shows all of it."
        )
    if not options.get("local_views"):
        local = ("local_size", "local_crop_min", "local_crop_max")
        for name in (n for n in local if n in options and options[n] != known[n].default):
            sentences.append(
                f"augment.{name} is {options[name]}, but augment.local_views is 0: there are no local views."
            )
    named = [*settings.loss, *configs.leaves(settings).values()]
    if here := [name for name in named if isinstance(name, str) and name.startswith("__main__:")]:
        sentences.append(
            f"{here[0]} exists in this script or notebook only; other programs can read the run only if"
            " the function is in a file that they import."
        )
    trained = {name: term for name, term in settings.loss.items() if term.options.get("weight", 1.0)}
    constant = [name for name, term in trained.items() if losses.declaration(term.function).constant]
    if not constant:
        return sentences
    what = "the loss" if len(trained) == 1 else f"its part of the loss ({' and '.join(constant)})"
    return [
        *sentences,
        f"the value of {constant[0]} is 1 by definition, so {what} stays constant while the network"
        " learns. Watch InfoNCE and the accuracy of the contrast.",
    ]


def alarms(record: Mapping[str, float], run: Run) -> dict[str, str]:
    """Return the alarms that a record raises: name -> message.

    Args:
      record: step and the metrics of a training step, as in ``metrics.jsonl``.
      run: the run; its settings, loss terms and length are read.
    """
    sentences: dict[str, str] = {}
    for alarm in ALARMS if record["step"] >= LEAST else ():
        if sentence := alarm(record, run):
            sentences[alarm.__name__] = sentence
    if "ess_unreachable" in sentences:  # it explains the clamp
        sentences.pop("temperature_clamped", None)
    return sentences


def collapse(record: Mapping[str, float], run: Run) -> str | None:
    """All embeddings are one point."""
    if not _compares(run) or _share(record, run) < SETTLED or not record["embedding_std"] < STD:
        return None
    return (
        f"collapse: all embeddings are nearly one point (embedding_std {record['embedding_std']:.2g};"
        " it is 1 for a uniform sphere). A lower schedule.learning_rate or a longer schedule.warmup may"
        " help; without negatives a network needs a predictor and a slow target."
    )


def dimensional_collapse(record: Mapping[str, float], run: Run) -> str | None:
    """The embeddings vary along one line."""
    if not _compares(run) or _share(record, run) < SETTLED:
        return None
    if not record["effective_rank"] < RANK or record["embedding_std"] < STD:
        return None
    return (
        "dimensional collapse: the embeddings vary along one direction (effective_rank"
        f" {record['effective_rank']:.2f}). An easy feature that survives the augmentation may replace"
        " all others: stronger augmentation or a higher temperature may help."
    )


def unbounded(record: Mapping[str, float], run: Run) -> str | None:
    """Entries of the embeddings are so large that the gradient of a cosine shrinks."""
    if not _compares(run) or not record.get("embedding_largest", 0.0) > LARGEST:
        return None
    return (
        f"unbounded embeddings: their largest entry is {record['embedding_largest']:.2g} (embedding_largest), and the"
        " gradient of a cosine shrinks as they grow. A lower schedule.learning_rate or a larger"
        " optimizer.weight_decay may help."
    )


def saturation(record: Mapping[str, float], run: Run) -> str | None:
    """The gradient of the loss gives most queries almost no weight."""
    contrasts = [term for term in run.recipe.terms if term.multiples and term.weight]
    if not contrasts or not all(term.declared.vanishing for term in contrasts):
        return None
    if not record["saturated"] > SATURATED:
        return None
    named = " and ".join(term.name for term in contrasts)
    return (
        f"saturation: {record['saturated']:.0%} of the queries have a weight of W <="
        f" {rounds_to_zero(run.settings.dtype):.1g} in the gradient of {named} and"
        " contribute almost nothing. More negatives, stronger augmentation, a higher temperature, or a"
        " loss whose gradient does not vanish (flat_nce, dcl) may help."
    )


def stuck(record: Mapping[str, float], run: Run) -> str | None:
    """InfoNCE is still log(1 + K), as for a network that cannot tell positives from negatives."""
    if not any(term.multiples and term.weight for term in run.recipe.terms) or _share(record, run) < PATIENCE:
        return None
    count = max(record["negatives"], 1.0)
    nothing, chance = math.log1p(count), 1 / (1 + count)
    # With cosine scores the best case is aligned positives among orthogonal negatives.
    best = math.log1p(count * math.exp(-1 / record["tau"])) if _cosines(run.settings) else 0.0
    luck = 3 * math.sqrt(chance * (1 - chance) / run.settings.train.batch_size)
    fallen = (nothing - record["info_nce"]) / (nothing - best)
    if fallen > TOLD_APART or record["contrast_accuracy"] > chance + luck:
        return None
    return (
        f"nothing learnt yet: InfoNCE is {record['info_nce']:.3f}, near log(1 + K) = {nothing:.3f}, the"
        f" value of a network that does not distinguish a positive from its {count:.0f} negatives."
        " Another schedule.learning_rate, a longer schedule.warmup or a milder augmentation may help."
    )


def _cosines(settings: Settings) -> bool:
    """Return whether the softmax takes cosines divided by tau."""
    return settings.score == "cosine" and settings.transform.name == "none"


def ess_unreachable(record: Mapping[str, float], run: Run) -> str | None:
    """No permitted temperature reaches the target of the ESS schedule."""
    if run.settings.temperature.name != "ess":
        return None
    rule = run.settings.temperature.options
    start, end = rule["target"], rule["target_end"] or rule["target"]
    goal = start + (end - start) * min(1.0, _share(record, run))
    if goal * record["negatives"] < 1:
        why = f"with {record['negatives']:.0f} negatives the smallest ESS is {1 / record['negatives']:.3g}"
    elif _at(record["tau"], rule["max_tau"]) and record["ess"] < goal:
        why = f"ESS is {record['ess']:.3g} at temperature.max_tau={rule['max_tau']:g}"
    elif _at(record["tau"], rule["min_tau"]) and record["ess"] > goal:
        why = f"ESS is {record['ess']:.3g} at temperature.min_tau={rule['min_tau']:g}"
    else:
        return None
    return f"the ESS target {goal:.3g} cannot be reached: {why}. Change temperature.target or the clamp."


def temperature_clamped(record: Mapping[str, float], run: Run) -> str | None:
    """The temperature is at a limit (``min_tau``, ``max_tau``), not at the value of its rule."""
    rule = run.settings.temperature.options
    for clamp in ("min_tau", "max_tau"):
        if clamp in rule and _at(record["tau"], rule[clamp]):
            limit = f"temperature.{clamp}={rule[clamp]:g}"
            return f"the temperature is clamped: tau is {limit}, not the value of its rule."
    return None


ALARMS = (collapse, dimensional_collapse, unbounded, saturation, stuck, ess_unreachable, temperature_clamped)


class Watch:
    """Monitor that reports each alarm when it begins, and its end after ``QUIET`` log points without it."""

    def __init__(self, run: Run):
        self._run = run
        self._silent: dict[str, int] = {}  # active alarm -> log points since it was last raised

    def hear(self, record: Mapping[str, float]) -> tuple[dict[str, int], list[str]]:
        """Return the record's alarms as metrics, ``{"alarm/collapse": 1}``, and the messages to log."""
        ringing, sentences = alarms(record, self._run), []
        for name, sentence in ringing.items():
            if name not in self._silent:
                sentences.append(f"alarm, step {record['step']}: {sentence}")
            self._silent[name] = 0
        for name in [name for name in self._silent if name not in ringing]:
            self._silent[name] += 1
            if self._silent[name] == QUIET:
                del self._silent[name]
                sentences.append(f"step {record['step']}: the alarm {name.replace('_', ' ')} has ended.")
        return {PREFIX + name: 1 for name in ringing}, sentences


def summary(records: Sequence[Mapping[str, Any]], run: Run) -> list[dict[str, Any]]:
    """Return the alarms for ``result.json``, each with its first and last step and its last message."""
    trained = [record for record in records if "loss" in record]
    entries: dict[str, dict[str, Any]] = {}
    for record in trained:
        for name in [key.removeprefix(PREFIX) for key in record if key.startswith(PREFIX)]:
            entry = entries.setdefault(name, {"alarm": name, "first_step": record["step"], "log_points": 0})
            entry |= {"last_step": record["step"], "log_points": entry["log_points"] + 1}
            entry["sentence"] = ""
            with contextlib.suppress(
                KeyError, TypeError, ValueError, ArithmeticError
            ):  # written by another version
                entry["sentence"] = alarms(record, run).get(name, "")
            entry["at_the_end"] = record is trained[-1]
    return list(entries.values())


def _compares(run: Run) -> bool:
    """Return whether a loss trains the embeddings; supervised losses alone do not train the projector."""
    trained = [term for term in run.recipe.terms if term.weight]
    return any(term.multiples or set(term.quantities) - {"logits", "label"} for term in trained)


def _share(record: Mapping[str, float], run: Run) -> float:
    """Return the share of the run that is done."""
    return record["step"] / run.total_steps


def _at(value: float, limit: float) -> bool:
    return math.isclose(value, limit, rel_tol=1e-5)  # float32 precision
