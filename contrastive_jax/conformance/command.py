"""The command ``contrastive-jax check MODULE:FUNCTION``."""

import json
import pathlib
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from contrastive_jax import lookup
from contrastive_jax.conformance.specs import SPECS

HELP = """usage: contrastive-jax check MODULE:FUNCTION --as=LOSS [OPTION ...]

Check a contrastive loss of JAX, PyTorch or NumPy against float64: values,
gradients, conventions, numerics, micro-batches, ranks and memory.
The function takes two arrays [N, D] (or embeddings [N, D] and labels [N], or
two arrays and a queue) and returns a number, or one per query.

options
  --as=LOSS          {losses}
  --framework=NAME   jax, torch or numpy; default: what its file imports
  --tau=NUMBER       temperature, where the function has no parameter for it
  --OPTION=NUMBER    of the loss: sigma, alpha, offset, tau_plus, beta, bias
  --only=A,B         run these checks only
  --skip=A,B         leave these checks out
  --memory=linear    memory that grows as N x N is a failure
  --ranks=N          processes or devices of the check of ranks; default 2
  --json=FILE        write the report as JSON; - for standard output
  --list             print the checks and what they mean
  --help, -h

exit status: 0 passed, 1 failed, 2 bad usage

example
  contrastive-jax check my_losses:clip_loss --as=info_nce --json=report.json
"""
TEXTS = ("as", "framework", "json", "memory")
LISTS = ("only", "skip")


def help_text() -> str:
    """Return the help text."""
    import textwrap

    names = textwrap.wrap(", ".join(SPECS), 59)
    return HELP.format(losses=("\n" + " " * 21).join(names))


def parse(words: Sequence[str]) -> tuple[str, dict]:
    """Return the function's name and the other arguments of :func:`contrastive_jax.conformance.check`.

    Raises:
      ValueError: an option is unknown, has no value or one of the wrong type, or a required one is missing.
    """
    names: list[str] = []
    arguments: dict[str, Any] = {}
    loss_options: dict[str, float] = {}
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            names.append(word)
            continue
        flag, equals, text = word.lstrip("-").partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise ValueError(f"--{flag} has no value; write --{flag}=VALUE.")
            text = words.pop(0)
        if flag in TEXTS:
            arguments["as_" if flag == "as" else flag] = text
        elif flag in LISTS:
            arguments[flag] = [part for part in text.split(",") if part]
        elif flag in ("tau", "ranks"):
            arguments[flag] = _number(flag, text, int if flag == "ranks" else float)
        elif flag in {option for spec in SPECS.values() for option in spec.options}:
            loss_options[flag] = _number(flag, text, float)
        else:
            raise ValueError(f"--{flag} is not an option of check; --help lists them.")
    if len(names) != 1:
        given = f"{len(names)} functions are named" if names else "no function is named"
        raise ValueError(f"{given}; write contrastive-jax check MODULE:FUNCTION --as=LOSS.")
    if "as_" not in arguments:
        raise ValueError(
            f"--as is missing; it must be the loss that the function should compute: {', '.join(SPECS)}."
        )
    return names[0], arguments | {"options": loss_options}


def _number(flag: str, text: str, kind: type):
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"--{flag} is {text!r}; it must be a number.") from None


def _function(name: str):
    """Return the user's function ``module:function`` after importing its module."""
    module = lookup.check_name(name, "function")
    try:
        loaded = lookup.imported(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"{module} imports {error.name!r}, which is not installed.") from None
        raise ValueError(
            f"function is {name!r}; Python finds no module {error.name!r}, also not in this folder."
        ) from None
    except lookup.Ended:
        raise
    except Exception as error:  # a user's module may raise any error
        frames = traceback.extract_tb(error.__traceback__)
        line = getattr(error, "lineno", None) or frames[-1].lineno
        raise ValueError(f"{module} raised {type(error).__name__} at line {line}: {error}") from None
    function = getattr(loaded, name.partition(":")[2], None)
    if function is None:
        known = lookup.functions_of(loaded)
        raise ValueError(
            f"function is {name!r}; {module} has no such function."
            f" {lookup.near(name.partition(':')[2], known)}"
        )
    return function


def run(words: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    from contrastive_jax import conformance

    if {"-h", "-help", "--help"} & set(words):
        sys.stdout.write(help_text())
        return 0
    if "--list" in words:
        sys.stdout.write(listing())
        return 0
    try:
        name, arguments = parse(words)
        file = arguments.pop("json", None)
        if file not in (None, "-") and not pathlib.Path(file).absolute().parent.is_dir():
            raise ValueError(f"--json is {file!r}; there is no such folder.")
        if file not in (None, "-") and pathlib.Path(file).is_dir():
            raise ValueError(f"--json is {file!r}, a folder; it must be a file.")
        report = conformance.check(_function(name), **arguments)
        if file not in (None, "-"):
            try:
                pathlib.Path(file).write_text(json.dumps(report.as_json(), indent=2) + "\n")
            except OSError:
                print(report, flush=True)  # minutes of work
                raise
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        return 130
    print(json.dumps(report.as_json(), indent=2) if file == "-" else report, flush=True)
    return 0 if report.passed else 1


def listing() -> str:
    """Return the names and meanings of all checks, one paragraph each."""
    import textwrap

    from contrastive_jax.conformance import formula, numerics
    from contrastive_jax.conformance.results import CHECKS

    del formula, numerics
    texts = [textwrap.fill(f"{c.name}: {c.meaning}", 80, subsequent_indent="    ") for c in CHECKS.values()]
    return "\n".join(texts) + "\n"
