"""``--mode=report``: one self-contained HTML page about one or more runs, without network access or scripts.

    contrastive-jax --mode=report --workdir=runs/simclr
    contrastive-jax --mode=report --workdir=runs/simclr,runs/flatclr

The page reads the config, metrics, result and newest checkpoint of each workdir, also during training. It names
the parts that are missing.
"""

import base64
import contextlib
import datetime
import hashlib
import io
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from contrastive_jax import augment, data, distributed, native, sharding
from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import embed, preview
from contrastive_jax.commands.evaluate import OF_THE_IMAGES
from contrastive_jax.config import Settings, sections
from contrastive_jax.evaluators.table import METRICS, cell, measure, measured, over_seeds
from contrastive_jax.lookup import call
from contrastive_jax.losses.geometry import directions
from contrastive_jax.training import alarms, encoder
from contrastive_jax.training.run import source_of
from contrastive_jax.workdir import curves, remote, replicas
from contrastive_jax.workdir.curves import COLOURS, INK
from contrastive_jax.workdir.metric_table import PANELS


class Seen(NamedTuple):
    """Sample of test (or training) images, with their features by the newest checkpoint."""

    step: int | None
    split: str
    features: np.ndarray  # [n, F]
    label: np.ndarray  # [n], -1 for images without a label or with several
    classes: tuple[str, ...]
    pictures: (
        Callable[[np.ndarray], np.ndarray] | None
    )  # positions -> [k, s, s, c] in [0, 1]; None: no images


class Shown(NamedTuple):
    """Contents of a run that the page shows."""

    name: str
    colour: str
    workdir: str
    settings: Settings
    records: list[dict[str, Any]]
    result: dict[str, Any]  # of result.json or diverged.json; {} if there is none yet
    evaluations: dict[str, dict[str, Any]]  # heading -> table rows; "": the run's own evaluation
    seen: Seen | str  # str: why there are no images
    date: str  # of its last record


def report(
    config: Settings | Mapping[str, Any], workdir: str, *, quiet: bool = False, output: str | None = None
) -> str:
    """Write the page of one run, or of several side by side, and return its path.

    The page is ``report.html``. Further runs, and options that differ from their defaults, are in its name
    (``report_with_B_map-pca.html``): a page replaces the page of the same runs with the same options alone.

    Args:
      config: only its section ``report`` is used; each run's own config is in its workdir.
      workdir: one workdir, or several separated by commas; a workdir of replicas includes all of them.
      quiet: do not log the path of the page.
      output: folder for the page, whose name then has the first run too (``report_A.html``); default: the first
        workdir.

    Raises:
      ValueError: an option out of range, a layer that no run has, no workdir, or a run that is given twice.
      FileNotFoundError: a workdir without a run.
    """
    options = check(configs.as_settings(config).report)
    one = os.path.isdir(workdir)  # an existing folder, whose name may contain commas
    given = [str(workdir)] if one else [part for part in str(workdir).split(",") if part]
    if not given:
        raise ValueError(
            f"--workdir={workdir!r} names no run; it must be a workdir, or several separated by commas."
        )
    log = workdirs.log if distributed.first() and not quiet else lambda message: None
    with contextlib.ExitStack() as copies:
        folders = [copies.enter_context(remote.mirrored(part)) for part in given]
        paths: list[tuple[Any, pathlib.Path]] = []  # per run: its folder, and the path to name it by
        for path, part in zip(folders, map(pathlib.Path, given), strict=True):
            paths += [(run, part / run.name) for run in replicas.folders(path)] or [(path, part)]
        _check_once([path for path, _ in paths])
        for path, _ in paths:
            if not pathlib.Path(path, "config.json").is_file():
                raise FileNotFoundError(f"{path} does not hold a run: it has no config.json.")
        check_layer(options.layer, [path for path, _ in paths])
        folder = folders[0] if output is None else copies.enter_context(remote.mirrored(output))
        if distributed.first():
            workdirs.check_writable(folder, None if output is None else folder)
        runs = [
            read(path, name, COLOURS[i % len(COLOURS)], options, log)
            for i, ((path, _), name) in enumerate(
                zip(paths, names([called for _, called in paths]), strict=True)
            )
        ]
        means, left = [], list(runs)
        for path, name in zip(folders, names(list(map(pathlib.Path, given))), strict=True):
            differences = replicas.differences(path)
            several, left = left[: len(differences) or 1], left[len(differences) or 1 :]
            means += over_seeds_of(name, several, differences)
        called = [
            pathlib.Path(part if remote.is_remote(part) else os.path.realpath(part)).name for part in given
        ]
        file = pathlib.Path(folder, file_name(called, options, first=output is not None))
        if distributed.first():
            workdirs.write_text(file, page(runs, options, means))
            log(f"report of {', '.join(run.name for run in runs)}: {remote.place(folder, file.name)}")
        return str(remote.place(folder, file.name))


def file_name(folders: Sequence[str], options: sections.Report, first: bool = False) -> str:
    """Return the file name of the page, which tells pages of other runs and other options apart.

    ``first``: whether the name has the first run too, as in a folder that is not its workdir.
    """
    changed = {
        name: value for name, value in vars(options).items() if value != getattr(sections.Report, name)
    }
    words = [*folders[:first], *(["with", *folders[1:]] if folders[1:] else [])]
    words += [f"{name}-{value}" for name, value in changed.items()]
    text = "_".join(re.sub(r"[^\w.+=-]", "-", word) for word in words)
    if len(text) > 120:
        text = f"{text[:100]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return f"report_{text}.html" if text else "report.html"


def _check_once(runs: Sequence[Any]) -> None:
    """Raise ValueError if a run is given twice."""
    places = [os.path.realpath(run) for run in runs]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ValueError(f"--workdir names the run {runs[number]} twice; name each run once.")


def check(options: sections.Report) -> sections.Report:
    """Return the section ``report``.

    Raises:
      ValueError: more queries or neighbours than the images allow.
    """
    if options.queries > options.images or options.neighbours >= options.images:
        raise ValueError(
            f"report.queries is {options.queries} and report.neighbours is {options.neighbours}; with"
            f" report.images={options.images} they must be at most {options.images} and"
            f" {options.images - 1}."
        )
    return options


def check_layer(layer: str, runs: Sequence[Any]) -> None:
    """Raise ValueError for a layer that no run has; if some runs have it, the others show no images."""
    read = (configs.saved_settings(configs.load(str(pathlib.Path(run)))) for run in runs)
    known = list(map(encoder.known_layers, read))
    if not any(layer in layers for layers in known):
        most = max(known, key=lambda layers: len(layers))
        raise ValueError(f"report.layer is {layer!r}; it must be one of {', '.join(most)}.")


def names(paths: Sequence[pathlib.Path]) -> list[str]:
    """Return the shortest path suffixes that are all different."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        ends = ["/".join(part[-depth:]) for part in parts]
        if len(set(ends)) == len(ends):
            return ends
    return [str(path) for path in paths]


# ------------------------------------------------------------------------------------------------ reading runs


def read(
    workdir: str | os.PathLike,
    name: str,
    colour: str,
    options: sections.Report,
    log: Callable[[str], None],
) -> Shown:
    """Read a run from its workdir."""
    path = pathlib.Path(workdir)
    settings = configs.saved_settings(configs.load(str(path)))
    records = workdirs.read_metrics(path, log) if (path / workdirs.METRICS).is_file() else []
    ended, finished, later = (
        workdirs.read_result(path / f"{name}.json", log) for name in ("diverged", "result", "evaluation")
    )
    result = _readable(ended or finished)
    try:
        later = later and later | {"results": workdirs.tables(later, "results")}
        evaluations = judged(settings, result, later)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        log(
            f"{path / 'evaluation.json'} was not written by this version ({type(error).__name__}:"
            f" {error}); it is left out."
        )
        evaluations = judged(settings, result, {})
    seen: Seen | str
    try:
        seen = features_of(workdir, settings, options)
    except (OSError, ValueError, RuntimeError) as error:  # no checkpoint yet, or a missing data set
        seen = workdirs.shareable(str(error))
        log(f"{workdir}: the report shows no images: {error}")
    place, config, records, result, evaluations = map(
        workdirs.shareable, (str(workdir), settings.to_dict(), records, result, evaluations)
    )
    settings = configs.saved_settings(config)
    return Shown(name, colour, place, settings, records, result, evaluations, seen, date_of(path))


def date_of(path: pathlib.Path) -> str:
    """Return the day on which a run wrote its metrics last, else its config."""
    file = next(file for name in (workdirs.METRICS, "config.json") if (file := path / name).is_file())
    return f"{datetime.datetime.fromtimestamp(file.stat().st_mtime):%Y-%m-%d}"


def _readable(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a result that have the types a run writes, which the page can show."""

    def number(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)

    kinds: dict[str, Callable[[Any], bool]] = {
        "step": number,
        "epoch": number,
        "seconds": number,
        "images_per_second": number,
        "diverged": lambda value: isinstance(value, str),
        "git_commit": lambda value: isinstance(value, str),
        "notes": lambda value: isinstance(value, list) and all(isinstance(note, str) for note in value),
        "device": lambda value: isinstance(value, dict) and {"count", "kind"} <= value.keys(),
    }
    shown = {name: value for name, value in result.items() if name not in kinds or kinds[name](value)}
    alarmed = shown.get("alarms")
    alarmed = [one for one in alarmed if isinstance(one, dict)] if isinstance(alarmed, list) else []
    rows = {
        row: {
            column: {
                name: one
                for name, one in score.items()
                if (name.removesuffix("_std") not in METRICS or number(one))
                and (name not in ("protocol", "failed", "left_out") or isinstance(one, str))
            }
            for column, score in columns.items()
        }
        for row, columns in workdirs.tables(result).items()
    }
    return shown | {"alarms": alarmed, "evaluations": rows} if result else {}


def judged(
    settings: Settings, result: Mapping[str, Any], later: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the table rows of a run's evaluations, by heading.

    Rows of ``--mode=evaluate`` (``evaluation.json``) join the run's own rows (heading "") if checkpoint, images,
    protocols and settings are the same. Otherwise they get a heading that names the difference."""
    evaluations = result.get("evaluations") or {}
    if not later:
        return {"": evaluations} if evaluations else {}
    step, size = result.get("step"), settings.augment.options.get("size")
    images = later.get("data") or settings.only("data").pop("data")
    here = configs.fingerprint(settings.only(*OF_THE_IMAGES))
    clauses = {
        f"encoder of {later['checkpoint']}": later["config"] != configs.fingerprint(settings),
        f"step {later['step']}": later["step"] != step,
        f"images of {images.get('dir') or images['name']}": later.get("images", here) != here,
        "images changed since the training": bool(later.get("notes")),
        f"at {later.get('size')} pixels": later.get("size", size) != (settings.evaluate.size or size),
    }
    rows = {
        row: evaluations.get(row, {}) | later["results"].get(row, {})
        for row in {**evaluations, **later["results"]}
    }
    if not any(clauses.values()):
        if all(_alike(rows[row][column], one) for row, column, one in _cells(evaluations)):
            return {"": rows}
        clauses = {"other options": True}
    heading = f"evaluation.json: {', '.join(clause for clause, holds in clauses.items() if holds)}"
    return ({"": evaluations} if evaluations else {}) | {heading: later["results"]}


def _cells(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    return ((row, column, one) for row, columns in rows.items() for column, one in columns.items())


def over_seeds_of(name: str, runs: Sequence[Shown], differences: Sequence[Mapping[str, Any]]) -> list[Shown]:
    """Return the means of replicas that differ only in the seed, each as a run; empty without replicas."""
    means: dict[str, dict[str, dict]] = {}
    for row in ("trained", "untrained") if differences else ():
        of_each = [run.evaluations.get("", {}).get(row) for run in runs]
        for which, mean in over_seeds(differences, of_each).items():
            means.setdefault(f"{name}: {which}", {})[row] = mean
    return [runs[0]._replace(name=which, evaluations={"": rows}) for which, rows in means.items()]


def shown(source: data.Source) -> tuple[str, Any]:
    """Return the split that the page shows, with its name: test images, or training images if there are none.

    This is the split of the table's plain columns; in a composed set it can differ from ``source.test``."""
    train, test = source.judged[""]
    return ("training", train) if test is None else ("test", test)


def features_of(workdir: str | os.PathLike, settings: Settings, options: sections.Report) -> Seen:
    """Compute features of ``report.images`` images of the split of :func:`shown`, by the newest checkpoint."""
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        saved = encoder.read(workdir, sharding=sharding.named(mesh, sharding.REPLICATED))
        source, layer = source_of(settings).of_pair(0), options.layer  # of pairs, the first arrays
        name, split = shown(source)
        split = split[np.sort(np.random.default_rng(0).permutation(len(split))[: options.images])]
        section = encoder.view_of(saved, settings)
        arrays = embed.of_split(saved, split, section, (layer,), settings.evaluate.batch_size)
        embedded, label = arrays[layer], arrays["label"]
        view = call(augment.make_eval, "augment", section)
    if not np.isfinite(embedded).all():
        raise ValueError("the features are not finite: the encoder has diverged.")

    def pictures(positions: np.ndarray) -> np.ndarray:
        images, _ = next(split.batches(len(positions), view, positions))
        return preview.visible(jax.device_get(native.jit(jax.vmap(split.finish(view)))(images)), view)

    label = label if label.ndim == 1 else np.full(len(split), -1)
    of_images = pictures if "size" in section else None
    return Seen(saved.step, name, embedded, label, tuple(source.classes), of_images)


def neighbours(embedded: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    """Return positions [q, count] of the rows nearest to each query by cosine similarity, without the query.

    ``count`` is at most the number of other rows.
    """
    unit = directions(embedded)
    score = unit[queries] @ unit.T
    score[np.arange(len(queries)), queries] = -np.inf
    return np.argsort(-score, axis=1, kind="stable")[:, : min(count, len(embedded) - 1)]


def plane(embedded: np.ndarray, how: str) -> tuple[np.ndarray, str]:
    """Return a projection of L2-normalised rows to a plane [n, 2], and a description of the method."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    unit = directions(embedded)
    if how == "pca":
        fit = PCA(2, random_state=0).fit(unit)
        share = np.nan_to_num(fit.explained_variance_ratio_).sum()
        return fit.transform(unit), f"the first two principal components, {share:.0%} of the variance"
    perplexity = min(30.0, (len(unit) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=0, metric="cosine")
    with threadpool_limits(1):  # as fast for few points, and waiting threads slow a busy machine
        points = tsne.fit_transform(unit)
    return points, f"t-SNE of cosine distances (scikit-learn, perplexity {perplexity:.3g}, seed 0)"


# ------------------------------------------------------------------------------------------------ the page


def page(runs: Sequence[Shown], options: sections.Report, means: Sequence[Shown] = ()) -> str:
    """Render the page from the template ``report.html``; ``means`` appear in the tables only."""
    import jinja2

    loader = jinja2.FileSystemLoader(pathlib.Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    records, colours = [run.records for run in runs], [run.colour for run in runs]
    return environment.get_template("report.html").render(
        title=" · ".join(run.name for run in runs),
        header=header(runs),
        runs=runs,
        facts=facts,
        tables=[
            table._replace(title=f"{table.title}; {heading}" if heading else table.title)
            for heading in dict.fromkeys(heading for run in runs for heading in run.evaluations)
            for rows in (_rows((*means, *runs), heading),)
            for table in (*score_tables(rows), *number_tables(rows))
        ],
        protocols=dict.fromkeys(
            (column, _how(score))
            for run in runs
            for rows in run.evaluations.values()
            for _, column, score in _cells(rows)
        ),
        panels=[(panel, _svg(curves.draw(records, panel, colours))) for panel in PANELS],
        histogram=histogram,
        contrasts=any(_quantiles(record) for run in runs for record in run.records),
        embedding_map=lambda run: embedding_map(run, options),
        nearest=lambda run: nearest(run, options),
        config=config_tables(runs),
    )


def _number(value: Any) -> str:
    return (
        f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    )


def header(runs: Sequence[Shown]) -> str:
    """Return the configs, data sets, losses and dates of the runs, each once."""
    values = {
        "config": [run.settings.name for run in runs],
        "data": [run.settings.data.name for run in runs],
        "loss": [" + ".join(run.settings.loss) for run in runs],
        "last record": [run.date for run in runs],
    }
    return "; ".join(f"{name} {', '.join(dict.fromkeys(found))}" for name, found in values.items())


def state(run: Shown) -> str:
    """Return the state of a run as text; a run may be trained but not evaluated, if it was interrupted."""
    if not run.result:
        return "no result.json yet: stopped or still training"
    if "diverged" in run.result:
        return f"diverged: {run.result['diverged']}"
    ended = "" in run.evaluations or not run.settings.evaluate.final
    return "finished" if ended else "trained, not evaluated: repeat the command to evaluate it"


def facts(run: Shown) -> dict[str, str]:
    """Return the progress, speed and environment of a run, as text by name."""
    last, result = (run.records or [{}])[-1], run.result
    device, commit = result.get("device", {}), result.get("git_commit")
    values = {
        "workdir": run.workdir,
        "step": last.get("step", 0),
        "epoch": last.get("epoch", 0.0),
        "state": state(run),
        "loss terms": ", ".join(run.settings.loss),
        "seconds": result.get("seconds"),
        "images per second": result.get("images_per_second"),
        "devices": f"{device['count']} x {device['kind']}" if device else None,
        "notes": " ".join(result.get("notes") or alarms.notes(run.settings)) or None,
        "commit": f"{commit[:10]}{' + changes' if result.get('git_modified') else ''}" if commit else None,
    }
    return {name: _number(value) for name, value in values.items() if value is not None}


class Table(NamedTuple):
    """Table of the page: scores or measures of several runs."""

    title: str
    columns: list[str]
    rows: list[tuple[Shown, str, list[tuple[str, str]]]]  # run, row, cells (text, protocol)


Rows = list[tuple[Shown, str, Mapping[str, Any]]]  # run, row, scores by column


def _rows(runs: Sequence[Shown], heading: str) -> Rows:
    rows: Rows = []
    for run in runs:
        for row, scores in run.evaluations.get(heading, {}).items():
            # Several runs have the same raw pixels, those of one data set.
            if row == "trained" or all((row, scores) != other[1:] for other in rows):
                rows.append((run, row, scores))
    return rows


def _columns(rows: Rows) -> list[str]:
    return list(dict.fromkeys(column for _, _, scores in rows for column in scores))


def score_tables(evaluated: Rows) -> list[Table]:
    """Return one table per score, in percent, with rows and columns in the order of the terminal table."""
    tables = []
    for metric, title in METRICS.items():
        present = (
            c for c in _columns(evaluated) if any(metric in scores.get(c, {}) for *_, scores in evaluated)
        )
        if columns := list(present):

            def texts(scores, metric=metric, columns=columns):
                found = ((scores[c], metric) if c in scores else None for c in columns)
                return [(cell(*one), _how(one[0])) if one else ("—", "") for one in found]

            rows = [(run, row, texts(scores)) for run, row, scores in evaluated]
            tables.append(Table(f"{title}, %", columns, rows))
    return tables


def number_tables(evaluated: Rows) -> list[Table]:
    """Return one table per column without a score, with the numbers that it measures."""
    tables = []
    for column in _columns(evaluated):
        of_it = [(run, row, scores.get(column, {})) for run, row, scores in evaluated]
        if any(metric in scores for _, _, scores in of_it for metric in METRICS):
            continue
        names = measured([scores for _, _, scores in of_it])
        rows = [(run, row, [(measure(scores, n), "") for n in names]) for run, row, scores in of_it]
        tables.append(Table(column, [name.replace("_", " ") for name in names], rows))
    return tables


def _alike(later: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Return whether two results of a column have one protocol, and one value of every setting that both have."""
    if "protocol" not in own:
        return True
    one, other = (scores.get("settings") or {} for scores in (later, own))
    return _how(later) == _how(own) and all(one[name] == other[name] for name in {*one} & {*other})


def _how(scores: Mapping[str, Any]) -> str:
    if "failed" in scores:
        return f"failed: {scores['failed']}"
    return scores.get("protocol") or f"left out: {scores.get('left_out', 'no reason given')}"


def config_tables(runs: Sequence[Shown]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return a table of the options that differ from the base config, or between runs, and one of all options.

    Each is a title, column headings, and rows of an option and its values.
    """
    base = configs.leaves(configs.plain(configs.complete(configs.base())))
    by_run, names = [configs.leaves(run.settings) for run in runs], [run.name for run in runs]
    alone = len(runs) == 1
    compared = [base, *by_run] if alone else by_run
    every = list(dict.fromkeys(name for leaves in [base, *by_run] for name in leaves))
    different = [n for n in every if len({json.dumps(c.get(n, "absent")) for c in compared}) > 1]

    def rows(chosen: Iterable[str], columns: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        return [[name, *(repr(c[name]) if name in c else "—" for c in columns)] for name in chosen]

    title = "Options that differ from the base config" if alone else "Options that differ between the runs"
    return [
        (title, ["base", *names] if alone else names, rows(different, compared)),
        (f"All {len(every)} options", names, rows([n for n in every if any(n in c for c in by_run)], by_run)),
    ]


# ------------------------------------------------------------------------------------------------ drawings


def _quantiles(record: Mapping[str, Any]) -> bool:
    values = record.get("c_quantiles")
    return (
        isinstance(values, list)
        and len(values) > 1
        and all(isinstance(c, int | float) and abs(c) < curves.LARGEST for c in values)
    )


def histogram(run: Shown) -> str:
    """Draw the distribution of the contrasts c, and of W = sigmoid(c), at the first and the last log point."""
    logged = [record for record in run.records if _quantiles(record)]
    if not logged:
        return ""
    figure, axes = curves.grid(1, 2, 3.2, 2.2)
    for record, strength in ((logged[0], 0.35), (logged[-1], 1.0)):
        c = np.array(record["c_quantiles"], float)
        for place, values in zip(axes.flat, (c, 1 / (1 + np.exp(-c))), strict=True):
            label = f"step {record['step']}"
            place.plot(values, np.linspace(0, 1, len(c)), color=run.colour, alpha=strength, label=label)
    for place, name in zip(axes.flat, ("contrast c", "W"), strict=True):
        place.set_title(f"{name}: cumulative share of queries", fontsize=9, loc="left")
    axes.flat[0].legend(fontsize=7, frameon=False, labelcolor=INK)
    return _svg(figure)


def embedding_map(run: Shown, options: sections.Report) -> tuple[str, str]:
    """Draw the images as points on a plane, coloured by class; return the SVG ("" if none) and its caption."""
    if isinstance(run.seen, str):
        return "", run.seen
    seen = run.seen
    count, wide = seen.features.shape
    if min(count, wide) < 2:
        why = f"it needs at least 2 images and 2 features, and there are {count} {seen.split} images with {wide}"
        return "", f"No map: {why} features."
    points, how = plane(seen.features, options.map)
    figure, axes = curves.grid(1, 1, 5.0, 4.2)
    place, known = axes.flat[0], sorted(set(seen.label[seen.label >= 0].tolist()))
    import matplotlib

    colours = matplotlib.colormaps["tab10" if len(known) <= 10 else "tab20" if len(known) <= 20 else "hsv"]
    drawn, classes = [], [seen.classes[label].replace("$", r"\$") for label in known]  # $ begins a formula
    for number, label in enumerate(known):
        some = points[seen.label == label]
        colour = colours(number if len(known) <= 20 else number / len(known))
        drawn.append(place.scatter(*some.T, s=9, color=colour, linewidths=0))
    rest = points[seen.label < 0]
    place.scatter(*rest.T, s=9, color="#8a8f96", linewidths=0)
    place.set_xticks([]), place.set_yticks([]), place.grid(False)
    if 0 < len(known) <= 20:
        beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
        place.legend(drawn, classes, fontsize=7, frameon=False, labelcolor=INK, markerscale=2, **beside)
    caption = f"{len(points)} {seen.split} images, layer {options.layer}, step {seen.step}: {how}."
    return _svg(figure), caption


def nearest(run: Shown, options: sections.Report) -> tuple[list, str]:
    """Return rows of an image and its neighbours, as (CSS class, data URI, label), and a caption."""
    if isinstance(run.seen, str):
        return [], run.seen
    seen = run.seen
    if seen.pictures is None:
        return [], "The examples are not images; nothing is shown."
    if not options.queries:
        return [], "report.queries is 0; nothing is shown."
    if len(seen.features) < 2:
        return [], f"No neighbours: there is only one {seen.split} image."
    queries = np.random.default_rng(0).permutation(len(seen.features))[: options.queries]
    places = neighbours(seen.features, queries, options.neighbours)
    positions = np.concatenate([queries[:, None], places], axis=1)
    images = seen.pictures(positions.reshape(-1))
    labels = seen.label[positions]
    own = labels[:, :1]
    kinds = np.where((labels < 0) | (own < 0), "", np.where(labels == own, "same", "other"))
    kinds[:, 0] = "query"
    names = [seen.classes[label] if label >= 0 else "no label" for label in labels.flat]
    lines = np.array([*zip(kinds.flat, map(_data_uri, images), names, strict=True)], object)
    known = (own >= 0) & (labels[:, 1:] >= 0)
    share = np.mean((labels[:, 1:] == own)[known]) if known.any() else None
    right = "" if share is None else f"; {share:.0%} of them have the query's class"
    caption = (
        f"In each row, a {seen.split} image and its nearest neighbours by cosine similarity among the other"
        f" {len(seen.features) - 1}{right}."
    )
    return lines.reshape(*positions.shape, 3).tolist(), caption


def _data_uri(image: np.ndarray) -> str:
    buffer = io.BytesIO()
    preview.tile(image, 1).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _svg(figure) -> str:
    """Return a figure as inline SVG in the page's text colour; "" for None."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    if figure is None:
        return ""
    FigureCanvasSVG(figure)
    figure.patch.set_alpha(0)
    buffer = io.StringIO()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "report", "font.family": "sans-serif"}
    ):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text, count=2)
    return text.replace(INK, "currentColor").replace("xlink:href", "href")
