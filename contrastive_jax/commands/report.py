"""``--mode=report``: runs on one HTML page that needs nothing else: no network, no scripts.

    python -m contrastive_jax.main --mode=report --workdir=runs/simclr
    python -m contrastive_jax.main --mode=report --workdir=runs/simclr,runs/flatclr

A run is read from its workdir as it is, also while it trains: config, metrics, result and the newest checkpoint.
What it does not have is said in its place.
"""

import base64
import contextlib
import html
import io
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import Partial

from contrastive_jax import augment, data, distributed, native, sharding
from contrastive_jax import config as configs
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import preview
from contrastive_jax.evaluators import features
from contrastive_jax.evaluators.table import METRICS, cell
from contrastive_jax.lookup import call, near
from contrastive_jax.training.run import source_of
from contrastive_jax.workdir import encoder, remote

MAPS = ("tsne", "pca")
COLOURS = ("#3b6fd4", "#d9722e", "#2a9d6f", "#b3479b", "#8a7a1f", "#c23b4b", "#2b93a8", "#7359c9")
INK = "#0a0b0c"  # stands for the page's own text colour in a drawing
CSS = """
:root { --ink: #1d2228; --soft: #66707c; --page: #fbfbfc; --card: #ffffff; --line: #e1e5ea; --good: #2a9d6f;
  --bad: #c23b4b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #98a2ae; --page: #14171a; --card: #1c2024;
  --line: #30363d; --good: #4cc493; --bad: #ec6a78; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2rem 1.25rem 4rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: .95rem; margin: 0 0 .5rem; } p { margin: .4rem 0; max-width: 56rem; }
.soft { color: var(--soft); font-size: .85rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem; overflow-x: auto; }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .45em; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; } td.n { text-align: right; } code { font-size: .85em; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; } summary { cursor: pointer; color: var(--soft); }
.alarm { border-left: 3px solid var(--bad); padding-left: .7rem; }
.images { display: flex; gap: 4px; margin-bottom: 6px; }
.images img { width: 64px; height: 64px; border-radius: 4px; border: 3px solid var(--line);
  image-rendering: pixelated; }
.images img.same { border-color: var(--good); } .images img.other { border-color: var(--bad); }
.images img.query { margin-right: 10px; }
"""

# Panels of curves: title, metrics, logarithmic. A pair (metric, spread) is drawn with a band.
CURVES = (
    ("loss", ("loss",), False),
    ("InfoNCE", ("info_nce",), False),
    ("accuracy of the contrast", ("contrast_accuracy",), False),
    ("temperature", ("tau",), False),
    ("effective sample size / negatives", ("ess",), False),
    ("online probe, accuracy", ("probe_accuracy",), False),
    ("learning rate", ("learning_rate",), False),
    ("gradient norm", ("gradient_norm",), True),
)
DIAGNOSTICS = (
    ("W: 5, 50, 95 % of the queries", ("w_p50", "w_p05", "w_p95"), False),
    ("contrast c: 5, 50, 95 % of the queries", ("c_p50", "c_p05", "c_p95"), False),
    ("mutual information, this batch's estimate", ("mi_estimate",), False),
    ("entropy of the contrast", ("contrast_entropy",), False),
    ("alignment: mean score of the positives", ("alignment",), False),
    ("uniformity", ("uniformity",), False),
    ("effective rank", ("effective_rank",), False),
    ("RankMe", ("rankme",), False),
    ("embedding std", ("embedding_std",), False),
    ("queries whose weight rounds to 0", ("saturated",), False),
    ("gradient of a query: mean ± std", ("query_gradient_norm", "±query_gradient_norm_std"), False),
    ("gradient SNR, mean over parameters", ("gradient_snr",), False),
    ("gradient SNR, std over parameters", ("gradient_snr_std",), False),
)


class Seen(NamedTuple):
    """Some test images, and their features by the newest checkpoint."""

    step: int | None
    split: str
    features: np.ndarray  # [n, F]
    label: np.ndarray  # [n], -1 where there is none or several
    classes: tuple[str, ...]
    pictures: Callable[[np.ndarray], np.ndarray]  # positions -> [k, s, s, c] in [0, 1]


class Shown(NamedTuple):
    """A run as the page shows it."""

    name: str
    colour: str
    workdir: str
    config: dict[str, Any]
    records: list[dict[str, Any]]
    result: dict[str, Any]  # of result.json; {} while there is none
    evaluations: dict[str, Any]
    seen: Seen | str  # or why not


def report(config: Mapping[str, Any], workdir: str, *, quiet: bool = False) -> str:
    """Writes the page of one run, or of several side by side, and returns its path.

    Args:
      config: its section ``report`` says what is shown; what the runs are they say themselves.
      workdir: of the run, or of several, separated by commas.
      quiet: do not say where the page is.

    Raises:
      ValueError: an option out of range, or no workdir.
      FileNotFoundError: a workdir without a run.
    """
    settings = check(config["report"])
    given = [part for part in str(workdir).split(",") if part]
    if not given:
        raise ValueError(
            f"--workdir={workdir!r} names no run; it is a workdir, or several with commas between."
        )
    say = workdirs.say if distributed.first() and not quiet else lambda message: None
    with contextlib.ExitStack() as copies:
        folders = [copies.enter_context(remote.mirrored(part)) for part in given]
        for path in folders:
            if not pathlib.Path(path, "config.json").is_file():
                raise FileNotFoundError(f"{path} holds no run: there is no config.json in it.")
        runs = [
            read(path, name, COLOURS[i % len(COLOURS)], settings, say)
            for i, (path, name) in enumerate(zip(folders, names([*map(pathlib.Path, given)]), strict=True))
        ]
        file = pathlib.Path(folders[0], "report.html")
        if distributed.first():
            workdirs.write_text(file, page(runs, settings))
            say(f"report of {', '.join(run.name for run in runs)}: {remote.place(folders[0], file.name)}")
        return str(remote.place(folders[0], file.name))


def check(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The section ``report``; refuses what cannot be drawn."""
    for name, least in (("images", 10), ("queries", 0), ("neighbours", 1)):
        if settings[name] < least:
            raise ValueError(f"report.{name} is {settings[name]}; it must be at least {least}.")
    if settings["queries"] > settings["images"] or settings["neighbours"] >= settings["images"]:
        raise ValueError(
            f"report.queries is {settings['queries']} and report.neighbours {settings['neighbours']}; they are among"
            f" report.images={settings['images']}."
        )
    if settings["map"] not in MAPS:
        raise ValueError(f"report.map is {settings['map']!r}. {near(settings['map'], MAPS)}")
    return dict(settings)


def names(paths: Sequence[pathlib.Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        ends = ["/".join(part[-depth:]) for part in parts]
        if len(set(ends)) == len(ends):
            return ends
    return [str(path) for path in paths]


# ------------------------------------------------------------------------------------------------ what is there


def read(
    workdir: str | os.PathLike,
    name: str,
    colour: str,
    settings: Mapping[str, Any],
    say: Callable[[str], None],
) -> Shown:
    """A run from its workdir."""
    path = pathlib.Path(workdir)
    config = configs.plain(configs.load(str(path)))
    records = workdirs.read_metrics(path) if (path / workdirs.METRICS).exists() else []
    result = _json(path / "result.json")
    evaluations = result.get("evaluations") or _json(path / "evaluation.json").get("results", {})
    try:
        seen = look(workdir, config, settings)
    except (OSError, ValueError, RuntimeError) as error:  # no checkpoint yet, a data set that is elsewhere
        seen = str(error)
        say(f"{workdir}: no images are shown: {error}")
    return Shown(name, colour, str(workdir), config, records, result, evaluations, seen)


def _json(path: pathlib.Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def shown(source: data.Source) -> tuple[str, Any]:
    """Which images the page shows: those that plain columns judge, which have one label where others have several."""
    train, test = source.judged[""]
    return ("training", train) if test is None else ("test", test)


def look(workdir: str | os.PathLike, config: Mapping[str, Any], settings: Mapping[str, Any]) -> Seen:
    """The newest checkpoint's features of ``report.images`` test images (training images where there are none)."""
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        saved = encoder.read(workdir, sharding=sharding.named(mesh, sharding.REPLICATED))
        source, layer = source_of(config), settings["layer"]
        name, split = shown(source)
        rows = np.sort(np.random.default_rng(0).permutation(len(split))[: settings["images"]])
        view = call(augment.make_eval, "augment", config["augment"])
        encode = Partial(encoder.network_of(saved.config).encode, saved.params, saved.stats)
        size = features.batch_rows(min(config["evaluate"]["batch_size"], len(rows)))
        found, label = features.encode_rows(
            encode, split.batches(size, view, rows), split.finish(view), count=len(rows), batch_size=size,
            layers=(layer,),
        )  # fmt: skip
        embedded = found[layer].numpy()
    if not np.isfinite(embedded).all():
        raise ValueError("the features are not finite: the encoder has diverged.")

    def pictures(positions: np.ndarray) -> np.ndarray:
        images, _ = next(split.batches(len(positions), view, rows[positions]))
        return preview.visible(
            jax.device_get(native.jit(jax.vmap(split.finish(view)))(images)), config["augment"]
        )

    label = np.asarray(label) if np.ndim(label) == 1 else np.full(len(rows), -1)
    return Seen(saved.step, name, embedded, label, tuple(source.classes), pictures)


def neighbours(embedded: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    """Positions [q, count] of the rows of largest cosine with each of ``queries``, itself left out."""
    unit = embedded / np.maximum(np.linalg.norm(embedded, axis=1, keepdims=True), 1e-12)
    score = unit[queries] @ unit.T
    score[np.arange(len(queries)), queries] = -np.inf
    return np.argsort(-score, axis=1, kind="stable")[:, :count]


def plane(embedded: np.ndarray, how: str) -> tuple[np.ndarray, str]:
    """Rows [n, 2] on a plane, L2-normalised first, and how they came there."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    unit = embedded / np.maximum(np.linalg.norm(embedded, axis=1, keepdims=True), 1e-12)
    if how == "pca":
        fit = PCA(2, random_state=0).fit(unit)
        share = np.nan_to_num(fit.explained_variance_ratio_).sum()
        return fit.transform(unit), f"the first two principal components, {share:.0%} of the variance"
    perplexity = min(30.0, (len(unit) - 1) / 3)
    with threadpool_limits(
        1
    ):  # so few points are as fast, and threads that wait for one another slow a busy machine
        found = TSNE(2, perplexity=perplexity, init="pca", random_state=0, metric="cosine").fit_transform(
            unit
        )
    return found, f"t-SNE of cosine distances (scikit-learn, perplexity {perplexity:.3g}, seed 0)"


# ------------------------------------------------------------------------------------------------ the page


def page(runs: Sequence[Shown], settings: Mapping[str, Any]) -> str:
    """The whole page."""
    title = " · ".join(run.name for run in runs)
    body = [
        f"<h1>{_text(title)}</h1>",
        '<p class="soft">contrastive_jax; numbers are those of the files in each workdir.</p>',
        _section("Runs", _cards(runs, summary)),
        _section("Config", config_table(runs)),
        _section("Evaluation", evaluation_tables(runs)),
        _section("Curves", curves(runs, (*CURVES, *evaluation_panels(runs)))),
        _section("Diagnostics", curves(runs, DIAGNOSTICS) + _cards(runs, histogram, needed="c_quantiles")),
        _section("Embedding", _cards(runs, lambda run: embedding_map(run, settings))),
        _section("Nearest neighbours", _cards(runs, lambda run: nearest(run, settings))),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, body))
        + "\n</body>\n</html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{_text(title)}</h2>\n{content}" if content else ""


def _cards(runs: Sequence[Shown], inside: Callable[[Shown], str], needed: str = "") -> str:
    """A card a run, side by side; with ``needed``, of those that logged it."""
    shown = [run for run in runs if not needed or any(needed in record for record in run.records)]
    cards = [f'<div class="card"><h3>{_label(run)}</h3>{inside(run)}</div>' for run in shown]
    return f'<div class="row">{"".join(cards)}</div>' if cards else ""


def _label(run: Shown) -> str:
    return f'<span class="dot" style="background:{run.colour}"></span>{_text(run.name)}'


def _text(value: Any) -> str:
    return html.escape(str(value))


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Cells are HTML; numbers stand right."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    lines = (
        "".join(f'<td class="n">{c}</td>' if _is_number(c) else f"<td>{c}</td>" for c in row) for row in rows
    )
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _is_number(text: str) -> bool:
    return bool(re.match(r"(<span[^>]*>)?-?[\d.,]+(e[-+]?\d+)?( ± [\d.]+)?(</span>)?$", text))


def _number(value: Any) -> str:
    return (
        f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    )


def state(run: Shown) -> str:
    """Return whether a run is at its end: what judges the encoder may be interrupted when training has ended."""
    if not run.result:
        return "no result.json yet: stopped, or still training"
    judged = run.evaluations or not run.config["evaluate"]["final"]
    return "finished" if judged else "trained to its end, not judged: the same command does that"


def summary(run: Shown) -> str:
    """Return how far a run is, on what, and what was wrong."""
    last, result = (run.records or [{}])[-1], run.result
    device, rate = result.get("device", {}), result.get("images_per_second")
    facts = {
        "workdir": run.workdir,
        "step": last.get("step", 0),
        "epoch": last.get("epoch", 0.0),
        "state": state(run),
        "loss terms": ", ".join(run.config["loss"]),
        "seconds": result.get("seconds"),
        "images a second": rate,
        "devices": f"{device['count']} x {device['kind']}" if device else None,
        "commit": f"{result['git_commit'][:10]}{' + changes' if result.get('git_modified') else ''}"
        if result.get("git_commit")
        else None,
    }
    rows = ((_text(k), _text(_number(v))) for k, v in facts.items() if v is not None)
    alarms = "".join(
        f'<p class="alarm">{_text(alarm["sentence"] or alarm["alarm"])}'
        f' <span class="soft">steps {alarm["first_step"]} to {alarm["last_step"]}</span></p>'
        for alarm in result.get("alarms", ())
    )
    return _table((), rows) + alarms


def config_table(runs: Sequence[Shown]) -> str:
    """Return the leaves of one run that differ from the base, or those in which several differ; all, folded away."""
    base = configs.leaves(configs.plain(configs.complete(configs.base())))
    found = [configs.leaves(run.config) for run in runs]
    names = list(dict.fromkeys(name for leaves in [base, *found] for name in leaves))
    if len(runs) == 1:
        columns, said = [base, *found], "Leaves that differ from the base config."
        head = ["base", _label(runs[0])]
    else:
        columns, said, head = found, "Leaves in which the runs differ.", [_label(run) for run in runs]
    different = [n for n in names if len({repr(_plain(c.get(n, "absent"))) for c in columns}) > 1]

    def rows(chosen: Iterable[str], columns: Sequence[Mapping[str, Any]]) -> Iterable[list[str]]:
        for name in chosen:
            values = (f"<code>{_text(repr(c[name]))}</code>" if name in c else "—" for c in columns)
            yield [f"<code>{_text(name)}</code>", *values]

    shown = _table(["", *head], rows(different, columns)) if different else "<p>None.</p>"
    every = _table(["", *map(_label, runs)], rows([n for n in names if any(n in c for c in found)], found))
    return (
        f'<div class="card"><p class="soft">{said}</p>{shown}'
        f"<details><summary>All {len(names)} leaves</summary>{every}</details></div>"
    )


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))  # tuples are lists in a file


def evaluation_tables(runs: Sequence[Shown]) -> str:
    """Accuracies, every row of every run by column, in percent; then the numbers of what measures none."""
    scores = [(run, row, found) for run in runs for row, found in run.evaluations.items()]
    if not scores:
        return '<div class="card"><p class="soft">Nothing was evaluated.</p></div>'
    columns = list(dict.fromkeys(column for _, _, found in scores for column in found))
    parts = []
    for metric, title in METRICS.items():
        with_it = [c for c in columns if any(metric in found.get(c, {}) for _, _, found in scores)]
        if with_it:
            rows = (
                [_label(run), _text(row), *(_score(found.get(c), metric) for c in with_it)]
                for run, row, found in scores
            )
            parts.append(f"<h3>{title}, %</h3>{_table(['', '', *map(_text, with_it)], rows)}")
    for column in columns:
        of_it = [(run, row, found.get(column, {})) for run, row, found in scores]
        if any(metric in found for _, _, found in of_it for metric in METRICS):
            continue
        numbers = list(dict.fromkeys(k for _, _, f in of_it for k, v in f.items() if isinstance(v, float)))
        rows = (
            [_label(run), _text(row), *(_text(_number(found[n])) if n in found else "—" for n in numbers)]
            for run, row, found in of_it
        )
        heads = (_text(n.replace("_", " ")) for n in numbers)
        parts.append(f"<h3>{_text(column)}</h3>{_table(['', '', *heads], rows)}")
    protocols = dict.fromkeys((c, _how(found[c])) for _, _, found in scores for c in columns if c in found)
    notes = "".join(f"<p>{_text(c)}: {_text(how)}</p>" for c, how in protocols)
    return (
        f'<div class="card">{"<br>".join(parts)}<details><summary>Protocols</summary>{notes}</details></div>'
    )


def _score(found: Mapping[str, Any] | None, metric: str) -> str:
    return "—" if found is None else f'<span title="{_text(_how(found))}">{_text(cell(found, metric))}</span>'


def _how(found: Mapping[str, Any]) -> str:
    if "failed" in found:
        return f"failed: {found['failed']}"
    return found.get("protocol") or f"left out: {found.get('left_out', 'not said why')}"


# ------------------------------------------------------------------------------------------------ drawings


def evaluation_panels(runs: Sequence[Shown]) -> tuple[tuple, ...]:
    """A panel for each evaluation that was looked at while a run trained."""
    names = dict.fromkeys(
        n for run in runs for record in run.records for n in record if n.startswith("eval/")
    )
    return tuple((name.removeprefix("eval/").replace("_", " "), (name,), False) for name in names)


def curves(runs: Sequence[Shown], panels: Iterable[tuple[str, Sequence[str], bool]]) -> str:
    """The panels for which something was logged, against the epoch: a line a run."""
    logged = {name for run in runs for record in run.records for name in record}
    panels = [panel for panel in panels if panel[1][0] in logged]
    if not panels:
        return '<div class="card"><p class="soft">Nothing was logged.</p></div>'
    columns = min(4, len(panels))
    figure, axes = _figure(-(-len(panels) // columns), columns, 3.2, 2.3)
    for place, (title, shown, logarithmic) in zip(axes.flat, panels, strict=False):
        for run in runs:
            middle, *others = (_points(run.records, name.removeprefix("±")) for name in shown)
            if not len(middle):
                continue
            mark = "o" if len(middle) < 15 else None
            place.plot(*middle.T, color=run.colour, linewidth=1.3, marker=mark, markersize=3)
            if shown[1:] and shown[1].startswith("±") and len(others[0]) == len(middle):
                spread = others[0][:, 1]
                place.fill_between(
                    middle[:, 0], middle[:, 1] - spread, middle[:, 1] + spread, color=run.colour, alpha=0.2
                )
            elif len(others) == 2 and all(len(other) == len(middle) for other in others):
                place.fill_between(
                    middle[:, 0], others[0][:, 1], others[1][:, 1], color=run.colour, alpha=0.2
                )
        place.set_title(title, fontsize=9, loc="left")
        if logarithmic and place.lines and all((line.get_ydata() > 0).all() for line in place.lines):
            place.set_yscale("log")
    for place in axes.flat[len(panels) :]:
        place.set_axis_off()
    for place in axes.flat[max(0, len(panels) - columns) : len(panels)]:
        place.set_xlabel("epoch", fontsize=8)
    legend = " &nbsp; ".join(map(_label, runs))
    return f'<div class="card"><p class="soft">{legend}</p>{_svg(figure)}</div>'


def _points(records: Iterable[Mapping[str, Any]], name: str) -> np.ndarray:
    """[n, 2]: epoch and value, where it is a number."""
    found = [(r["epoch"], r[name]) for r in records if isinstance(r.get(name), int | float)]
    points = np.array(found, float).reshape(-1, 2)
    return points[np.isfinite(points).all(axis=1)]


def histogram(run: Shown) -> str:
    """The distribution of the contrasts c, and of W = sigmoid(c), at the first and the last log point."""
    logged = [record for record in run.records if "c_quantiles" in record]
    figure, axes = _figure(1, 2, 3.2, 2.2)
    for record, strength in ((logged[0], 0.35), (logged[-1], 1.0)):
        c = np.array(record["c_quantiles"])
        for place, values in zip(axes.flat, (c, 1 / (1 + np.exp(-c))), strict=True):
            label = f"step {record['step']}"
            place.plot(values, np.linspace(0, 1, len(c)), color=run.colour, alpha=strength, label=label)
    for place, name in zip(axes.flat, ("contrast c", "W"), strict=True):
        place.set_title(f"{name}: share of the queries below", fontsize=9, loc="left")
    axes.flat[0].legend(fontsize=7, frameon=False, labelcolor=INK)
    return _svg(figure)


def embedding_map(run: Shown, settings: Mapping[str, Any]) -> str:
    """The images as points on a plane, coloured by class."""
    if isinstance(run.seen, str):
        return f"<p>{_text(run.seen)}</p>"
    seen = run.seen
    points, how = plane(seen.features, settings["map"])
    figure, axes = _figure(1, 1, 5.0, 4.2)
    place, known = axes.flat[0], sorted(set(seen.label[seen.label >= 0].tolist()))
    import matplotlib

    colours = matplotlib.colormaps["tab10" if len(known) <= 10 else "tab20" if len(known) <= 20 else "hsv"]
    for number, label in enumerate(known):
        some = points[seen.label == label]
        colour = colours(number if len(known) <= 20 else number / len(known))
        place.scatter(*some.T, s=9, color=colour, linewidths=0, label=seen.classes[label])
    rest = points[seen.label < 0]
    place.scatter(*rest.T, s=9, color="#8a8f96", linewidths=0)
    place.set_xticks([]), place.set_yticks([]), place.grid(False)
    if 0 < len(known) <= 20:
        place.legend(
            fontsize=7,
            frameon=False,
            labelcolor=INK,
            markerscale=2,
            loc="center left",
            bbox_to_anchor=(1, 0.5),
        )
    return (
        f'{_svg(figure)}<p class="soft">{len(points)} {seen.split} images, layer {_text(settings["layer"])}, step'
        f" {seen.step}: {_text(how)}.</p>"
    )


def nearest(run: Shown, settings: Mapping[str, Any]) -> str:
    """Some images, each followed by those of the nearest features."""
    if isinstance(run.seen, str):
        return f"<p>{_text(run.seen)}</p>"
    seen = run.seen
    if not settings["queries"]:
        return '<p class="soft">report.queries is 0.</p>'
    queries = np.random.default_rng(0).permutation(len(seen.features))[: settings["queries"]]
    found = neighbours(seen.features, queries, settings["neighbours"])
    positions = np.concatenate([queries[:, None], found], axis=1)
    images = seen.pictures(positions.reshape(-1)).reshape(
        *positions.shape, *seen.pictures(queries[:1]).shape[1:]
    )
    lines = []
    for row, of_row in zip(positions, images, strict=True):
        tags = []
        for place, (position, image) in enumerate(zip(row, of_row, strict=True)):
            label, own = seen.label[position], seen.label[row[0]]
            kind = (
                "query" if not place else "" if min(label, own) < 0 else "same" if label == own else "other"
            )
            name = seen.classes[label] if label >= 0 else "no label"
            tags.append(
                f'<img class="{kind}" src="{_data_uri(image)}" alt="{_text(name)}" title="{_text(name)}">'
            )
        lines.append(f'<div class="images">{"".join(tags)}</div>')
    own = seen.label[queries][:, None]
    known = (own >= 0) & (seen.label[found] >= 0)
    right = (
        f"; {np.mean((seen.label[found] == own)[known]):.0%} are of the query's class" if known.any() else ""
    )
    return (
        f'{"".join(lines)}<p class="soft">First a {seen.split} image, then the nearest of the other'
        f" {len(seen.features) - 1} by cosine{right}.</p>"
    )


def _data_uri(image: np.ndarray) -> str:
    buffer = io.BytesIO()
    preview.tile(image, 1).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _figure(rows: int, columns: int, width: float, height: float):
    """A figure in the page's colours and its axes [rows, columns]."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.patch.set_alpha(0)
    for place in axes.flat:
        place.patch.set_alpha(0)
        place.grid(color=INK, alpha=0.12, linewidth=0.6)
        place.tick_params(colors=INK, labelsize=7, length=2)
        place.title.set_color(INK), place.xaxis.label.set_color(INK)
        for side, spine in place.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(INK), spine.set_alpha(0.4)
    return figure, axes


def _svg(figure) -> str:
    """A figure as a part of the page, drawn in the page's own text colour."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "report", "font.family": "sans-serif"}
    ):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text, count=2)
    return text.replace(INK, "currentColor").replace("xlink:href", "href")
