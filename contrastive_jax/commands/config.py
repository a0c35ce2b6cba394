"""Commands that show configs, methods, options and metrics.

    contrastive-jax config diff A B            differences between two configs, with their meaning
    contrastive-jax config show A              every leaf of a config
    contrastive-jax config search temperature  options, by name and meaning
    contrastive-jax config methods             docs/methods.md, with the configs
    contrastive-jax config options             docs/options.md
    contrastive-jax config metrics             docs/metrics.md

A and B are FILE[:key=value,...], workdirs or config.json files.
"""

import ast
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from contrastive_jax import config
from contrastive_jax.config import files, schema
from contrastive_jax.config.methods import METHODS
from contrastive_jax.config.schema import Option
from contrastive_jax.kinds import limits
from contrastive_jax.system.console import one_line, visible
from contrastive_jax.training import alarms
from contrastive_jax.workdir.metric_table import METRICS

USAGE = "usage: contrastive-jax config diff A B | show A | search WORDS | methods | options | metrics"


def _loaded(spec: str) -> dict[str, Any]:
    """Return the config of a file or name as plain dictionaries; raise ValueError if a section is none."""
    loaded = config.load(spec)
    schema.check_sections(loaded)
    return config.plain(loaded)


def diff(first: str, second: str) -> None:
    """Print the leaves in which two configs differ, each with its meaning."""
    one, two = map(_loaded, (first, second))
    if one == two:
        print(f"{first} and {second} have the same leaves.", file=sys.stderr)
    for name, (was, now) in config.diff(one, two).items():
        meaning = schema.option_of(two, name).meaning or schema.option_of(one, name).meaning
        _print((name, "bold"), (": ", ""), (repr(was), "red"), (" -> ", ""), (repr(now), "green"))
        _print((f"    {meaning}", "dim"))


def show(spec: str) -> None:
    """Print the leaves of a config, each with its meaning."""
    settings = _loaded(spec)
    for name, value in config.leaves(settings).items():
        _print((name, "bold"), (" = ", ""), (repr(value), "green"))
        _print((f"    {schema.option_of(settings, name).meaning}", "dim"))


def search(text: str) -> None:
    """Print the options that :func:`matches` finds."""
    options = matches(text)
    if not options:
        raise ValueError(f"no option has {text!r} in its name or meaning.")
    for name, meaning, places in options:
        _print((name, "bold"), (f"  ({', '.join(places)})" if places else "", ""))
        _print((f"    {meaning}", "dim"))


def matches(text: str) -> list[tuple[str, str, list[str]]]:
    """Return the options whose name or meaning has every word of ``text``, or a similar word, best match first.

    Returns:
      (name, meaning, functions that take it with their defaults).
    """
    places: dict[tuple[str, str], list[str]] = {}
    scores: dict[tuple[str, str], float] = {}
    for option in schema.every():
        if score := _score(text, option):
            key = option.name, option.meaning
            scores[key] = max(score, scores.get(key, 0.0))
            default = "" if option.default is inspect.Parameter.empty else f": {option.default!r}"
            places.setdefault(key, []).append(f"{option.of}{default}".lstrip(": "))
    return [(*key, places[key]) for key in sorted(scores, key=lambda key: (-scores[key], "*" in key[0]))]


def _score(text: str, option: Option) -> float:
    """Return the sum over words: 3 in the name, 1 in the meaning, half if similar; 0 if any is in neither."""
    total = 0.0
    for word in text.lower().split():
        best = max(3.0 * _likeness(word, f"{option.name} {option.of}"), _likeness(word, option.meaning))
        if not best:
            return 0.0
        total += best
    return total


SHORT_FOR = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "bs": "batch_size",
    "bn": "norm",
    "epochs": "duration",
}


def _likeness(word: str, text: str) -> float:
    word, text = SHORT_FOR.get(word, word), text.lower()
    if word in text or word in text.replace("_", ""):
        return 1.0
    return 0.5 if difflib.get_close_matches(word, re.findall(r"[a-z0-9]+", text), 1, cutoff=0.8) else 0.0


def _print(*parts: tuple[str, str]) -> None:
    """Print a line of (text, style) parts; a terminal shows colours, and breaks it between words."""
    import rich
    from rich.padding import Padding
    from rich.text import Text

    console, line = rich.get_console(), Text.assemble(*((visible(text), style) for text, style in parts))
    if not console.is_terminal:
        console.print(line, soft_wrap=True)  # for grep
        return
    indent = len(line.plain) - len(line.plain.lstrip())
    console.print(Padding(line[indent:], (0, 0, 0, indent), expand=False))


# ------------------------------------------------------------------------------------------------- pages


def methods_page() -> str:
    """Return the text of ``docs/methods.md``."""
    methods = "".join(f"| `{name}` | {_changes(changed)} |\n" for name, changed in METHODS.items())
    configs = "".join(f"| `{name}` | {_cell(_subject(name))} |\n" for name in files.names())
    return f"""# Methods and configs

Generated by `contrastive-jax config methods > docs/methods.md`.

## Methods

`method=NAME` of a config (`--config=digits:method=macl`), and its changes to SimCLR. [Citation](citation.md)
has the papers. A data set's config may scale a queue, alpha or K. `digits` without a method is FlatCLR (`flatclr`).

| method | changes |
| --- | --- |
{methods}
Not included: methods without a contrast except BYOL (SimSiam, Barlow Twins, VICReg, SwAV, DINO), masked images.

## Configs

`--config=NAME[:argument=value,...]`; the docstring of `configs/NAME.py` has its arguments, protocol, the paper's
numbers and the assumptions. Most take `scale=`: `paper` (as published; the default of replications, hundreds of
epochs), `gpu` (one GPU, hours), `small` and `small_mnist` (one core, CIFAR-10 at 16 pixels or MNIST at 14), and
`cpu` (minutes) and `smoke` (seconds), which train on scikit-learn's digits in place of the data set;
`folder`, `arrays` and `pairs` train on your own data at every scale.

| config | subject |
| --- | --- |
{configs}"""


def _subject(name: str) -> str:
    """Return the first line of a config's docstring."""
    file = next(f for folder in files.folders() if (f := folder / f"{name}.py").is_file())
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]


def _changes(changed: Mapping[str, Any]) -> str:
    """Return a method's changes, section by section: "loss: `dcl`; temperature: `ess` (target 0.3)"."""

    def called(name: str, options: Mapping[str, Any]) -> str:
        said = ", ".join(f"{key} {value}" for key, value in options.items())
        return f"`{name}` ({said})" if said else f"`{name}`"

    def section(name: str, values: Any) -> str:
        if name == "loss":  # names with weights, or with options
            terms = {t: of if isinstance(of, Mapping) else {"weight": of} for t, of in values.items()}
            plain = {t: {k: v for k, v in of.items() if (k, v) != ("weight", 1.0)} for t, of in terms.items()}
            return "loss: " + " + ".join(called(term, of) for term, of in plain.items())
        if not isinstance(values, Mapping):
            return f"{name}: {values}"
        if "name" in values:
            return f"{name}: {called(values['name'], {k: v for k, v in values.items() if k != 'name'})}"
        return f"{name}: {', '.join(f'{key} {value}' for key, value in values.items())}"

    return _cell("; ".join(section(name, values) for name, values in changed.items())) or "nothing"


def metrics_page() -> str:
    """Return the text of ``docs/metrics.md``."""
    rows = [(name, metric.unit, metric.meaning) for name, metric in METRICS.items()]
    rows += [(f"{alarms.PREFIX}{alarm.__name__}", "", alarm.__doc__ or "") for alarm in alarms.ALARMS]
    return (
        "# Metrics\n\nThe entries of a line of `metrics.jsonl`, also shown in TensorBoard. Names are"
        " stable. With a `transform`, metrics of the contrast read the transformed scores. Generated by"
        " `contrastive-jax config metrics > docs/metrics.md`.\n\n| name"
        " | unit | meaning |\n| --- | --- | --- |\n"
        + "".join(f"| `{name}` | {unit} | {_cell(meaning)} |\n" for name, unit, meaning in rows)
    )


NOUNS = {"augment": "presets", "optimizer": "optimizers", "schedule": "schedules"}


def options_page() -> str:
    """Return the text of ``docs/options.md``."""
    page = [
        "# Options\n\nEvery leaf of a config: `--config.section.option=value` sets it. To choose"
        " another function than the file's, set its name and options together:"
        " `--config.temperature=linear --config.temperature.end=0.3`. `contrastive-jax config"
        " search WORDS` searches them, `... show FILE` lists those of a config. Defaults are the"
        " function's own, or the base config's. Values that are not allowed raise an error before any"
        " data is loaded. Generated by `contrastive-jax config options > docs/options.md`.\n"
    ]
    by_section: dict[str, list[Option]] = {"": []}
    for option in schema.every():
        section = re.sub(r"\.[^.]*$", "", option.name) if "." in option.name else ""
        by_section.setdefault(section, []).append(option)
    for section, options in by_section.items():
        page.append(f"\n## {section.replace('.*', '.<name>') or 'The run'}\n")
        shared = _shared(options)
        plain = [option for option in options if not _chosen(section, option)]
        if plain:
            page.append(_table(plain))
        if shared:
            page.append(f"\nOf several {NOUNS.get(section, 'protocols')}:\n")
            page.append(_table(list(shared.values()), defaults=False))
        chosen = (option.function for option in options if _chosen(section, option))
        for function in dict.fromkeys(filter(None, chosen)):
            own = [option for option in options if option.function is function]
            page.append(f"\n### `{function.__name__}`\n\n{_first_line(function)}\n")
            if listed := [option for option in own if option.name not in shared or _says_itself(option)]:
                page.append(_table(listed))
            if rest := [option for option in own if option not in listed]:
                page.append(
                    f"\nShared: {', '.join(f'`{_key(option)}={option.default!r}`' for option in rest)}\n"
                )
    return "".join(page)


def _first_line(function: Callable) -> str:
    return inspect.cleandoc(function.__doc__ or "").partition("\n")[0].replace("``", "`")


def _key(option: Option) -> str:
    return option.name.rpartition(".")[2]


def _says_itself(option: Option) -> bool:
    return _key(option) in schema.entries(option.function.__doc__)


def _chosen(section: str, option: Option) -> bool:
    """Return whether the option belongs to one of several functions that the section can name."""
    function = option.function
    return function is not None and len(schema.functions(section)) > 1 and function.__name__ != "make_views"


def _shared(options: list[Option]) -> dict[str, Option]:
    """Return the options whose meaning comes from the module's docstring, by name."""
    return {option.name: option for option in options if option.function and not _says_itself(option)}


def _table(options: Sequence[Option], defaults: bool = True) -> str:
    bounded = any(limits(option.kind) for option in options)
    columns = ["option", *["default"] * defaults, *["allowed"] * bounded, "meaning"]
    head = f"| {' | '.join(columns)} |\n| {' | '.join(['---'] * len(columns))} |\n"
    rows = ""
    for option in options:
        name = option.name.replace(".*", ".<name>")
        needed = option.default is inspect.Parameter.empty
        default = f" {'must be set' if needed else f'`{option.default!r}`'} |" if defaults else ""
        allowed = f" {limits(option.kind)} |" if bounded else ""
        rows += f"| `{name}` |{default}{allowed} {_cell(option.meaning)} |\n"
    return f"\n{head}{rows}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


COMMANDS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "diff": (2, diff),
    "show": (1, show),
    "search": (1, search),
    "methods": (0, lambda: print(methods_page(), end="")),
    "options": (0, lambda: print(options_page(), end="")),
    "metrics": (0, lambda: print(metrics_page(), end="")),
}


def main(argv: list[str]) -> int:
    """Run a command with its arguments; return the exit status."""
    if {"-h", "-help", "--help"} & set(argv):
        print(__doc__.partition("\n\n")[2].rstrip())
        return 0
    if argv[:1] == ["search"]:
        argv = ["search", *([" ".join(argv[1:])] if argv[1:] else [])]
    count, command = COMMANDS.get(argv[0] if argv else "", (-1, None))
    if command is None or len(argv) - 1 != count:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        command(*argv[1:])
    except (ValueError, OSError) as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        return 2
    except Exception as error:  # a config file is Python, and may raise anything
        print(f"error: {one_line(config.raised(' '.join(argv[1:]), error))}", file=sys.stderr)
        return 2
    return 0
