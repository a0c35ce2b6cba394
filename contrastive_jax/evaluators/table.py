"""Results table of a run: one row per subject, one column per evaluator, each result with its protocol."""

import json
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from contrastive_jax.evaluators.evaluation_data import EvaluationData
from contrastive_jax.system.console import shared, visible

METRICS = {
    "top1": "Top-1",
    "top5": "Top-5",
    "mean_per_class": "Mean per-class accuracy",
    "map_11_point": "11-point mAP",
    "mean_average_precision": "mAP",
    "recovered": "Information recovered",
}
OF_SEVERAL = ("map_11_point", "mean_average_precision", "recovered")  # metrics of images with several labels
# Sets whose literature reports the mean over classes (Kornblith et al., 2019; SimCLR, appendix B.8).
MEAN_PER_CLASS = ("caltech101", "oxford_flowers102", "oxford_iiit_pet", "fgvc_aircraft")


def metric_of(data_name: str, several: bool) -> str:
    """Return the metric that is usual for a data set.

    This is 11-point mAP for several labels per image (VOC 2007), mean per-class accuracy for
    ``MEAN_PER_CLASS``, and top-1 otherwise. ``data_name``: the config's ``data.name``, regardless of
    ``compose``."""
    if several:
        return "map_11_point"
    base = data_name.split("/")[0].split(":")[0]
    return "mean_per_class" if base in MEAN_PER_CLASS else "top1"


def unbalanced(labels: np.ndarray) -> bool:
    """Return whether a class of single-label test images is at least twice as frequent as another."""
    if np.ndim(labels) == 2:
        return False
    counts = np.unique(labels, return_counts=True)[1]
    return bool(counts.max() >= 2 * counts.min())


def scores(
    subjects: Iterable[EvaluationData],
    evaluators: Mapping[str, Callable[[EvaluationData], dict]],
    done: Callable[[str, str, dict], None] = lambda row, column, score: None,
) -> dict:
    """Run all evaluators on all subjects, one subject after the other.

    ``done(row, column, score)`` is called after each evaluator.

    Returns:
        ``{subject: {column: result of the evaluator}}``: JSON-able, scores in [0, 1], with protocol and
        settings. A column that fails has ``{"failed": reason}``; the others are not affected.

    Raises:
        OSError: an error of the file system.
    """
    by_subject: dict[str, dict] = {}
    for subject in subjects:
        of_row = by_subject[subject.name] = {}
        for name, judge in evaluators.items():
            of_row[name] = judged(judge, subject)
            done(subject.name, name, of_row[name])
    return by_subject


def failure(error: Exception) -> str:
    """Return the reason why a column failed; for unexpected errors, with their type and line."""
    if isinstance(error, ValueError | ArithmeticError | RuntimeError):  # RuntimeError: out of device memory
        return str(error)
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"


def checked(score: Any) -> dict[str, Any]:
    """Return the result of an evaluator, with NumPy and JAX numbers converted to Python's.

    Raises:
      TypeError: not a dictionary, a score that is not a number, a protocol that is not text, or a value that
        JSON cannot hold.
    """
    if not isinstance(score, Mapping):
        raise TypeError(
            f"it returned a {type(score).__name__}; it must return a dictionary such as {{'top1': 0.9}}"
        )
    found = {str(name): _plain(name, value) for name, value in score.items()}
    for name, value in found.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name.removesuffix("_std") in METRICS and not number:
            raise TypeError(f"its {name!r} is {value!r}; it must be a number in [0, 1]")
        if name in ("protocol", "failed", "left_out") and not isinstance(value, str):
            raise TypeError(f"its {name!r} is {value!r}; it must be text")
    return found


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(f"{name}.{key}", item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return _plain(name, np.asarray(value).tolist())
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(
        f"its {name!r} is a {type(value).__name__}; it must be a number, text, or lists and"
        " dictionaries of these"
    )


def judged(judge: Callable[[Any], dict], subject: Any) -> dict:
    """Return the result of one evaluator; ``{"failed": reason}`` for any error but one of the file system."""
    try:
        return checked(judge(subject))
    except OSError:  # an error of the file system ends the run
        raise
    except Exception as error:  # a user's evaluator may raise any error
        return {"failed": failure(error)}


def _grid(corner: str, rows: Iterable[str], columns: Iterable[str], text: Callable[[str, str], str]) -> Any:
    """Return a table with ``text(row, column)`` in its cells."""
    from rich.table import Table

    columns, table = list(columns), Table(corner)
    for column in columns:
        table.add_column(_words(column), justify="right")
    for row in rows:
        table.add_row(_words(row), *(_words(text(row, column)) for column in columns))
    return table


def _words(text: str) -> Any:
    """Return a text for a table, in which a name such as ``k[5]`` is no markup and moves no cursor."""
    from rich.text import Text

    return Text(visible(text))


def print_table(
    results: Mapping[str, dict],
    *,
    metric: str = "top1",
    beside: str = "",
    images: str = "the test images",
    console=None,
) -> None:
    """Print the result of :func:`scores`: scores in percent, other measures, and the protocol of each column.

    ``beside``: a second score, shown in brackets; ``images``: description of the evaluated images. Encoders and
    evaluators change places if the table is then narrow enough for the terminal.
    """
    from rich.table import Table

    console = console or shared()
    columns = list(dict.fromkeys(column for scores in results.values() for column in scores))
    measured = {column: names for column in columns if (names := _measures(results, column))}
    if shown := [column for column in columns if column not in measured]:
        title = METRICS[metric] + (f" ({METRICS[beside].lower()})" if beside else "")
        console.print(f"{title} on {images}, %", style="italic", soft_wrap=True)  # a table title would wrap
        cells = {
            (name, column): cell(scores.get(column, {}), metric, beside)
            for name, scores in results.items()
            for column in shown
        }
        table = _grid("encoder", results, shown, lambda name, column: cells[name, column])
        turned = _grid("evaluator", shown, results, lambda column, name: cells[name, column])
        unlimited = console.options.update(width=10_000)
        fit = [t for t in (table, turned) if console.measure(t, options=unlimited).maximum <= console.width]
        console.print(fit[0] if fit else table)
    if measured:
        table = Table()
        table.add_column("measure", overflow="fold")
        for name in results:
            table.add_column(_words(name), justify="right")
        for column, names in measured.items():
            for name in names:
                found = (measure(scores.get(column, {}), name) for scores in results.values())
                table.add_row(_words(f"{column}: {name}"), *found)
        console.print(table)
    for column in columns:
        # One line per protocol, apart from the layer; convergence, for example, can differ.
        whose: dict[str, tuple[str, list[str]]] = {}
        for name, scores in results.items():
            if column not in scores:
                continue
            text, names = whose.setdefault(_without_layer(scores[column]), (_protocol(scores[column]), []))
            names.append(name)
        for text, names in whose.values():
            text = text if len(whose) == 1 else f"{text} [{', '.join(names)}]"
            line = f"{column}: {text}"
            console.print(
                visible(line), style="dim", markup=False, highlight=False, soft_wrap=not console.is_terminal
            )


def mean_of(rows: Sequence[dict]) -> dict:
    """Return the mean and standard deviation (n - 1) over several rows of each number that all of them have.

    A column that failed in one of the rows is left out.
    """
    means = {}
    for column, first in rows[0].items():
        scores = [row.get(column, {}) for row in rows]
        if any("failed" in score for score in scores):
            continue
        known = METRICS if any(name in METRICS for name in first) else numbers(first)
        shared = [name for name in known if all(name in numbers(score) for score in scores)]
        values = {name: [score[name] for score in scores] for name in shared}
        means[column] = {"protocol": _protocol(first), "settings": first.get("settings", {})}
        with np.errstate(invalid="ignore"):  # a measure may be infinite or NaN
            means[column] |= {name: float(np.mean(each)) for name, each in values.items()}
            means[column] |= {f"{name}_std": float(np.std(each, ddof=1)) for name, each in values.items()}
        means[column] |= {"converged": all(score.get("converged", True) for score in scores)}
    return means


def over_seeds(differences: Sequence[Mapping[str, Any]], rows: Sequence[dict | None]) -> dict[str, dict]:
    """Return :func:`mean_of` for each group of networks that differ only in the seed, by a name of the group.

    ``differences``: options of each network in which the networks differ; rows that are None are left out.
    """
    alike: dict[str, list[dict]] = {}
    for difference, row in zip(differences, rows, strict=True):
        if row is not None and "seed" in difference:
            others = [f"{leaf}={value}, " for leaf, value in difference.items() if leaf != "seed"]
            alike.setdefault("".join(others), []).append(row)
    return {f"{others}mean ± sd of {len(of)}": mean_of(of) for others, of in alike.items() if len(of) > 1}


def of_runs(
    differences: Sequence[Mapping[str, Any]], tables: Sequence[Mapping[str, dict]]
) -> Mapping[str, dict]:
    """Merge the tables of several runs into one: a row per run, means over seeds, and the baselines.

    Args:
      differences: options of each run in which the runs differ; they name the run's row.
      tables: rows of each run; empty for a run that was not evaluated. A single table is returned unchanged.
    """
    if len(tables) == 1:
        return tables[0]
    names = [", ".join(f"{leaf}={value}" for leaf, value in of.items()) for of in differences]
    rows = [table.get("trained") for table in tables]
    trained = {name: row for name, row in zip(names, rows, strict=True) if row is not None}
    judged = zip(differences, tables, strict=True)
    of_seed = {one.get("seed"): table["untrained"] for one, table in judged if "untrained" in table}
    pixels: dict[str, dict] = {}  # one for all runs, but for evaluators with the run's seed
    for scores in (table["raw pixels"] for table in tables if "raw pixels" in table):
        settings = {column: score.get("settings") for column, score in scores.items()}
        pixels.setdefault(json.dumps(settings, sort_keys=True), scores)
    baselines = {}
    for row, of in (("untrained", [*of_seed.values()]), ("raw pixels", [*pixels.values()])):
        if len(of) > 1:
            baselines[f"{row}, mean ± sd of {len(of)}"] = mean_of(of)
        elif of:
            baselines[row] = of[0]
    return trained | over_seeds(differences, rows) | baselines


def _measures(results: Mapping[str, dict], column: str) -> list[str]:
    """Return the names of a column's numbers in any of the rows; empty for a column of accuracies."""
    rows = [scores[column] for scores in results.values() if column in scores]
    if any(name in METRICS for row in rows for name in row):
        return []
    return measured(rows)


def measured(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the numbers in any of the rows, without the standard deviations of others."""
    names = dict.fromkeys(name for row in rows for name in numbers(row))
    return [name for name in names if name.removesuffix("_std") not in names or not name.endswith("_std")]


def measure(score: Mapping[str, Any], name: str) -> str:
    """Format one number of a result for the table; "—" if it is missing."""
    known = numbers(score)
    if name not in known:
        return "—"
    spread = f" ± {known[f'{name}_std']:.2g}" if f"{name}_std" in known else ""
    return f"{known[name]:.4g}{spread}"


def numbers(score: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a result, by name."""
    return {
        name: value
        for name, value in score.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _protocol(score: dict) -> str:
    if "failed" in score:
        return f"FAILED: {score['failed']}"
    return score.get("protocol") or f"left out: {score.get('left_out', 'no protocol given')}"


def _without_layer(score: dict) -> str:
    return _protocol(score).replace(f", layer {score.get('settings', {}).get('layer')}", "")


def cell(score: dict, metric: str = "top1", beside: str = "") -> str:
    """Format one score for the table; "—" if the result does not have it."""
    if "failed" in score:
        return "failed"
    if metric not in score:
        return "—"
    spread = f" ± {100 * score[f'{metric}_std']:.1f}" if f"{metric}_std" in score else ""
    second = f" ({100 * score[beside]:.1f})" if beside in score else ""
    converged = "" if score.get("converged", True) else " (not converged)"
    return f"{100 * score[metric]:.1f}{spread}{second}{converged}"


def line(score: dict, metric: str = "top1") -> str:
    """Format one result as a line of text: :func:`cell` for accuracies, otherwise all numbers."""
    if "failed" in score or any(name in METRICS for name in score):
        return cell(score, metric)
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers(score).items()) or "—"
