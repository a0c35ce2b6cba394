"""The commands that show configs, options and metrics.

    python -m contrastive_jax.config diff A B            what differs between two configs, and what it means
    python -m contrastive_jax.config show A              every leaf of a config
    python -m contrastive_jax.config search temperature  options, by name and meaning
    python -m contrastive_jax.config options             docs/options.md
    python -m contrastive_jax.config metrics             docs/metrics.md

A and B are FILE[:key=value,...], workdirs or config.json files. Metrics are described under ``Metrics`` in the
docstrings of what computes them.
"""

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from contrastive_jax import config
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import evaluate
from contrastive_jax.config import schema
from contrastive_jax.config.schema import Option
from contrastive_jax.contrast import diagnostics
from contrastive_jax.data.resident import Resident
from contrastive_jax.data.stream import Stream
from contrastive_jax.lookup import functions_of
from contrastive_jax.optim import gradient_snr
from contrastive_jax.training import alarms, step

USAGE = "usage: python -m contrastive_jax.config diff A B | show A | search WORDS | options | metrics"


def diff(first: str, second: str) -> None:
    """Prints the leaves in which two configs differ, each with its meaning."""
    one, two = (config.plain(config.load(spec)) for spec in (first, second))
    for name, (was, now) in config.diff(one, two).items():
        meaning = schema.option_of(two, name).meaning or schema.option_of(one, name).meaning
        _print((name, "bold"), (": ", ""), (repr(was), "red"), (" -> ", ""), (repr(now), "green"))
        _print((f"    {meaning}", "dim"))


def show(spec: str) -> None:
    """Prints the leaves of a config, each with its meaning."""
    found = config.plain(config.load(spec))
    for name, value in config.leaves(found).items():
        _print((name, "bold"), (" = ", ""), (repr(value), "green"))
        _print((f"    {schema.option_of(found, name).meaning}", "dim"))


def search(text: str) -> None:
    """Prints the options that :func:`matches` finds."""
    found = matches(text)
    if not found:
        raise ValueError(f"no option is named or means {text!r}.")
    for name, meaning, places in found:
        _print((name, "bold"), (f"  ({', '.join(places)})" if places else "", ""))
        _print((f"    {meaning}", "dim"))


def matches(text: str) -> list[tuple[str, str, list[str]]]:
    """Options whose name or meaning has every word of ``text``, or one much like it, the best first.

    Returns:
      (name, meaning, functions that take it and what each has by default).
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
    """3 for a word in the name, 1 in the meaning, half for one like it; 0 where any word is in neither."""
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
    """A line of (text, style); coloured where a terminal reads it."""
    import rich
    from rich.text import Text

    rich.get_console().print(Text.assemble(*parts), soft_wrap=True)


# ------------------------------------------------------------------------------------------------- pages


def metrics() -> dict[str, str]:
    """Every name that ``metrics.jsonl`` may hold, with its meaning; <x> stands for a name of the config."""
    makers: list[tuple[str, Callable]] = [("", workdirs.Logbook.write), ("", step.make_train_step)]
    makers += [("", function) for function in functions_of(diagnostics).values()]
    makers += [("", gradient_snr.gradient_snr)]
    makers += [
        ("", Resident.metrics),
        ("", Stream.metrics),
        ("", evaluate.Evaluator.look),
        ("timing.", workdirs.Progress.update),
    ]
    found = {
        f"{prefix}{name}": meaning
        for prefix, function in makers
        for name, meaning in schema.entries(function.__doc__, "Metrics").items()
    }
    for alarm in alarms.ALARMS:
        found[f"{alarms.PREFIX}{alarm.__name__}"] = (
            f"1 where this alarm rings, absent elsewhere. {alarm.__doc__}"
        )
    return found


def metrics_page() -> str:
    """``docs/metrics.md``."""
    return (
        "# Metrics\n\nWhat a line of `metrics.jsonl` may hold, and TensorBoard shows. Names are stable. Generated by"
        " `python -m contrastive_jax.config metrics > docs/metrics.md`.\n\n| name | meaning |\n| --- | --- |\n"
        + "".join(f"| `{name}` | {_cell(meaning)} |\n" for name, meaning in metrics().items())
    )


def options_page() -> str:
    """``docs/options.md``."""
    page = [
        "# Options\n\nEvery leaf of a config: `--config.section.option=value` sets it. Options of another function than"
        " the one that the file names are set with it: `--config.temperature=linear --config.temperature.end=0.3`."
        " `python -m contrastive_jax.config search WORDS` finds one, `... show FILE` shows what a config has."
        " Defaults are the function's own, or the base config's. Generated by"
        " `python -m contrastive_jax.config options > docs/options.md`.\n"
    ]
    by_section: dict[str, list[Option]] = {"": []}
    for option in schema.every():
        section = re.sub(r"\.[^.]*$", "", option.name) if "." in option.name else ""
        by_section.setdefault(section, []).append(option)
    for section, found in by_section.items():
        page.append(f"\n## {section.replace('.*', '.<name>') or 'The run'}\n")
        shared = _shared(found)
        plain = [option for option in found if not _chosen(section, option)]
        if plain:
            page.append(_table(plain))
        if shared:
            page.append(f"\nOf several {'presets' if section == 'augment' else 'protocols'}:\n")
            page.append(_table(list(shared.values()), defaults=False))
        for function in dict.fromkeys(option.function for option in found if _chosen(section, option)):
            own = [option for option in found if option.function is function]
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
    """Return whether the option is one of a function that the section names, among others."""
    function = option.function
    return function is not None and len(schema.functions(section)) > 1 and function.__name__ != "make_views"


def _shared(found: list[Option]) -> dict[str, Option]:
    """Options whose meaning is the module's, by name."""
    return {option.name: option for option in found if option.function and not _says_itself(option)}


def _table(found: Iterable[Option], defaults: bool = True) -> str:
    head = (
        "| option | default | meaning |\n| --- | --- | --- |\n"
        if defaults
        else "| option | meaning |\n| --- | --- |\n"
    )
    rows = ""
    for option in found:
        name = option.name.replace(".*", ".<name>")
        needed = option.default is inspect.Parameter.empty
        default = f" {'must be set' if needed else f'`{option.default!r}`'} |" if defaults else ""
        rows += f"| `{name}` |{default} {_cell(option.meaning)} |\n"
    return f"\n{head}{rows}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


COMMANDS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "diff": (2, diff),
    "show": (1, show),
    "search": (1, search),
    "options": (0, lambda: print(options_page(), end="")),
    "metrics": (0, lambda: print(metrics_page(), end="")),
}


def main(argv: list[str]) -> int:
    """A command and its arguments; the exit status."""
    if argv[:1] == ["search"]:
        argv = ["search", *([" ".join(argv[1:])] if argv[1:] else [])]
    count, command = COMMANDS.get(argv[0] if argv else "", (-1, None))
    if command is None or len(argv) - 1 != count:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        command(*argv[1:])
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
