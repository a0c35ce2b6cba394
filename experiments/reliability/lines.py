"""Random command lines, of a grammar of what people type: each is taken, or refused in one line.

    python -m experiments.reliability.lines [--lines 1400] [--seed 0]

A line is a config, options, a workdir and a mode, with the slips of a keyboard and of a shell: letters lost or doubled,
`=` lost or doubled, quotes that stay, blanks, values of another type, huge numbers, empty values, letters of other
scripts, flags of other programs, workdirs that are files. It is read in this process as the command reads it, up to
where training would begin (flags, config, overrides, images, network, evaluators, the lock of the workdir).
"""

import argparse
import collections
import contextlib
import io
import os
import pathlib
import random
import re
import shutil
import tempfile
import traceback
import warnings
from typing import NamedTuple

import jax
from absl import flags

from contrastive_jax import config as configs
from contrastive_jax import main as command
from contrastive_jax import workdir as workdirs
from contrastive_jax.training import initial, replicas, run
from experiments.reliability import fuzz

RESULT = pathlib.Path(__file__).parent / "results" / "lines.md"
ROOT = fuzz.ROOT
FILES = ("digits", f"{ROOT}/configs/digits.py", "folder", "flatclr_digits", "configs/digits.py", "nowhere", "digits.py",
         "a.json", "empty.json", "list.json", "broken.py", ".", "/", "~", "~nobody/x", "run", "file", "gs:/x", "", "é",
         "x" * 300, "https://example.org/c.py", "digits.json", "configs", "a b", "'digits'", '"digits"')  # fmt: skip
ARGUMENTS = ("scale=smoke", "scale", "scale=", "=smoke", "scale=huge", "method=simclr", "method=SimCLR", "method=byol",
             "method=", "scale=smoke,scale=smoke", "scale=smoke,", ",scale=smoke", "scale=smoke;method=byol", "tau=0.1",
             "scale:smoke", "scale=smoke method=byol", "dir=run", "dir=")  # fmt: skip
WORKDIRS = ("run", "run/", "./run", "new/a/b", "file", "file/run", "/proc/x", "/dev/null", "/", "~/", "~nobody", " ",
            "",
            "é", "a b", "run,run", ",", "run,", "x" * 300, "y/" * 600 + "z", "-", "--", "*", "$HOME", "broken", "a\tb",
            "nosuch://x/y", "..", "'run'", "a\nb", "\udcff")  # fmt: skip
MODES = (*command.MODES, "Train", "eval", "", "training", "test", "report ", "0", "train,report")
VALUES = ("0", "1", "-1", "2", "0.1", "1e-3", "1e400", "1E5", "nan", "inf", "-inf", "10000000000000000000000000000000",
          "1_000", "1,000", "0,1", "0,1,", "0.1,0.2", "0x10", "1/2", "07", "True", "true", "yes", "on", "None", "none",
          "null", "", " ", "''", '""', "'0.1'", "[1]", "[1,2", "(1,2)", "{}", "{'name': 'x'}", "{a: b}",
          "{'a': {'b': 1}}",
          "cosine", "adam", "Adam", "sgd", "resnet", "resnet18", "digits", "folder", "run", "file", "1 epoch",
          "3 steps",
          "3 step", "1epochs", "epochs", "-1 epochs", "1e9 epochs", "half", "bfloat16", "fp16", "é", "١٢", "½", "１",
          "😀", "\udcff", "a\nb", "a:b", "os:system", "math:sqrt", "contrastive_jax.losses:x", ":", "..", "x" * 2000,
          "lambda: 0", "__import__('os')", "%s", "$TAU", "`ls`", "<0.1>", "0.1;", "=0.1", "==0.1", "1 0", "9" * 5000,
          "(" * 300, "-", "--", "0b", "1j", "b'x'", "'", '"', "\\")  # fmt: skip
OTHERS = ("--lr=0.1", "--epochs", "10", "-q", "--quiet", "--quiet=maybe", "--quiet=", "--noquiet", "--debug=1", "-h1",
          "--mode", "--workdir", "--config", "--config.seed", "-c", "train", "--", "---x", "-", "=", "--=", "--=x",
          "--config=digits", "--distributed=", "--verbosity=high", "--batch-size=8", "--gpus=1", "--nosuch",
          "-mode=train",
          "--config_seed=1", "--config.seed=", "--config-seed=1", "seed=1", "config.seed=1", "--Config=digits",
          "--flagfile=file", "--flagfile=", "--flagfile=nosuch", "--undefok=x")  # fmt: skip


def leaves() -> dict[str, str]:
    """Return the options of a config of digits and their values, with sections and options of other methods."""
    known = configs.leaves(
        fuzz.completed(configs.plain(configs.load(f"{ROOT}/configs/digits.py:scale=smoke")))
    )
    sections = {name.partition(".")[0] for name in known}
    more = ("data.dir", "temperature.target", "loss.dcl", "loss.dcl.weight", "loss.nosuch", "evaluators.mine.name",
            "evaluators.linear", "optimizer.beta", "lr", "batch_size", "train.batchsize", "", ".", "a.b.c.d",
            "é.é")  # fmt: skip
    return {name: str(value) for name, value in known.items()} | dict.fromkeys((*sections, *more), "1")


def slip(draw: random.Random, word: str) -> str:
    """Return a word with a slip of a keyboard or of a shell."""
    at = draw.randrange(len(word) + 1)
    kind = draw.randrange(11)
    if kind == 0:
        return word[:at] + word[at + 1 :]
    if kind == 1:
        return word[:at] + word[at : at + 1] * 2 + word[at + 1 :]
    if kind == 2:
        return word[:at] + draw.choice("=.,:;-_ '\"é/\\*") + word[at:]
    if kind == 3:
        return word.replace("=", draw.choice(["", " ", "==", " = ", ":", "= "]), 1)
    if kind == 4:
        return word.replace("--", draw.choice(["-", "", "---", "—", "–"]), 1)
    if kind == 5:
        return draw.choice(["'{}'", '"{}"', "{}'", " {}", "{} ", "{},", "“{}”"]).format(word)
    if kind == 6:
        return word.upper()
    if kind == 7:
        return word[:at] + word[at + 1 : at + 2] + word[at : at + 1] + word[at + 2 :]
    if kind == 8:
        return word.replace(".", draw.choice(["..", "", "/", "_"]), 1)
    if kind == 9:
        return word[:at]
    return word.replace("_", draw.choice(["-", "", "__"]), 1)


def line(draw: random.Random, known: dict[str, str]) -> list[str]:
    """Draw the words of a command line."""
    words = []
    if draw.random() < 0.95:
        spec = draw.choice(FILES) if draw.random() < 0.15 else "digits:scale=smoke"
        if draw.random() < 0.2:
            spec = f"{spec.partition(':')[0]}:{','.join(draw.choices(ARGUMENTS, k=draw.randrange(1, 3)))}"
        words.append(f"--config={spec}")
    if draw.random() < 0.5:
        words.append(f"--workdir={draw.choice(WORKDIRS)}")
    if draw.random() < 0.3:
        words.append(f"--mode={draw.choice(MODES)}")
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
        leaf = draw.choice(tuple(known))
        value = known[leaf] if draw.random() < 0.35 else draw.choice(VALUES)
        if draw.random() < 0.15:
            value = "".join(
                draw.choice("0123456789.,-+eE[](){}'\" =:_abcé") for _ in range(draw.randrange(9))
            )
        words.append(f"--config.{leaf}={value}")
    if draw.random() < 0.2:
        words.insert(draw.randrange(len(words) + 1), draw.choice(OTHERS))
    if words and draw.random() < 0.3:
        at = draw.randrange(len(words))
        words[at] = slip(draw, words[at])
    if words and draw.random() < 0.1:
        at = draw.randrange(len(words))
        words[at : at + 1] = words[at].split("=", 1)
    return [word.replace("\0", "") for word in words]


class Outcome(NamedTuple):
    """What a line came to: "taken", "refused" or "failed", and the message."""

    kind: str
    message: str


def attempt(words: list[str]) -> Outcome:
    """Read a line in the current folder as the command does, up to where it would train."""
    for name in (
        "config",
        "workdir",
        "mode",
        "quiet",
        "debug",
        "distributed",
        "verbosity",
        "flagfile",
        "undefok",
    ):
        with contextlib.suppress(KeyError):
            flags.FLAGS[name].unparse()
    errors, out = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _read(words)
    except SystemExit as end:
        said = errors.getvalue()
        if end.code == 0 and not said:
            return Outcome("taken", "help")
        if not re.fullmatch(r"error: [^\x00-\x1f\x7f-\x9f]{10,3000}\n", said):
            return Outcome("failed", f"exit {end.code}: {said or out.getvalue()!r}")
        return Outcome("refused", said.strip())
    except Exception:
        return Outcome("failed", traceback.format_exc(limit=-4))
    return Outcome("taken", "")


def _read(words: list[str]) -> None:
    argv = command._parse(["main", *words])
    workdir, mode = command._workdir(), command._MODE.value
    try:
        settings = command.resolved(argv, workdir, mode)
    except (ValueError, OSError, RuntimeError) as error:
        command._fail(str(error))
    try:
        where = workdir or command.default_workdir(settings)
        with workdirs.translate_errors(where):
            if mode == "train":
                made = [run.prepare(config, jax.devices()[:1]) for config in settings[:2]]
                if len(settings) == 1:
                    initial.check(made[0], where)
                elif len(settings) <= 4:
                    replicas.program_of(settings, jax.devices()[:1], source=made[0].source)
            if "://" not in where:
                with workdirs.lock(where, lambda message: None):
                    pass
    except (ValueError, OSError, ArithmeticError) as error:
        command._fail(str(error))


@contextlib.contextmanager
def place():
    """Work in a folder with the files that the grammar names."""
    here, folder = os.getcwd(), pathlib.Path(tempfile.mkdtemp(prefix="lines-"))
    os.chdir(folder)
    try:
        pathlib.Path("file").write_text("x")
        pathlib.Path("a.json").write_text('{"name": "x", "data": 3}')
        pathlib.Path("empty.json").write_text("")
        pathlib.Path("list.json").write_text("[1]")
        pathlib.Path("broken.py").write_text("def get_config(arg):\n    return 1 / 0\n")
        for name in ("run", "broken"):
            pathlib.Path(name).mkdir()
        pathlib.Path("run/config.json").write_text(fuzz.of_method("simclr"))
        pathlib.Path("broken/config.json").write_text("{")
        with fuzz.tiny():
            yield folder
    finally:
        os.chdir(here)
        shutil.rmtree(folder, ignore_errors=True)


def search(wanted: int, seed: int) -> tuple[collections.Counter, dict[str, str]]:
    """Try so many lines; return how many came to what, and failures, one of a kind."""
    draw, counts, failures = random.Random(seed), collections.Counter(), {}
    with place() as folder:
        known = leaves()
        for _ in range(wanted):
            words = line(draw, known)
            found = attempt(words)
            counts[found.kind] += 1
            if found.kind == "failed":
                failures.setdefault(
                    re.sub(r"[\d'\"].*", "", found.message[-200:]), f"{words}: {found.message}"
                )
            for path in folder.iterdir():  # what a lock made
                if path.name not in ("file", "run", "broken") and path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
    return counts, failures


def main() -> None:
    """Print the table, and write it beside this file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lines", type=int, default=1400)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    counts, failures = search(wanted.lines, wanted.seed)
    rows = [
        "# Random command lines",
        "",
        f"`python -m experiments.reliability.lines --lines {wanted.lines} --seed {wanted.seed}`",
        "",
        "| lines | refused in one line | taken | failures |",
        "| --- | --- | --- | --- |",
        f"| {counts.total()} | {counts['refused']} | {counts['taken']} | {counts['failed']} |",
    ]
    rows += ["", *(f"- {failure[:900]}" for failure in failures.values())] if failures else []
    print("\n".join(rows).encode("ascii", "backslashreplace").decode())
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text("\n".join(rows) + "\n", errors="backslashreplace")


if __name__ == "__main__":
    main()
