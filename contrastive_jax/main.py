"""The command ``contrastive-jax --config=configs/flatclr_digits.py [--workdir=DIR] [--mode=MODE]``.

``train`` (default) starts a run, or resumes the workdir's run. The other modes are modules of
:mod:`contrastive_jax.commands`: ``evaluate`` evaluates a checkpoint; ``embed`` writes features of images;
``export`` writes an encoder for PyTorch; ``preview`` draws the views that the network sees; ``report`` shows
runs (``--workdir=A,B``) on one HTML page; ``describe`` prints time, memory and data of a run before it starts.
"""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # `python -m` searches the current folder first; its files may be somebody else's, and must not replace
    # libraries.
    sys.path.pop(0)

import hashlib
import importlib
import os
import pathlib
import re
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from contrastive_jax.system import signals

if __name__ == "__main__":
    signals.guard()  # the imports below take seconds

# Libraries must not log before the command does.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import app, flags, logging
from etils import epath

import contrastive_jax
from contrastive_jax.system import console, limits

if TYPE_CHECKING:
    from contrastive_jax import config as configs

LONGEST = 2500  # characters of a message
LEAVING = 3.0  # seconds for exit handlers and threads after the last message
MODES = ("train", "evaluate", "embed", "export", "preview", "report", "describe")

HELP = """usage: contrastive-jax --config=CONFIG [--config.OPTION=VALUE ...]
                       [--workdir=DIR] [--mode=MODE]
       contrastive-jax check MODULE:FUNCTION    test a loss of your own
       contrastive-jax config search WORDS      find an option

modes
  train      train or resume a run, then evaluate it (default)
  evaluate   evaluate a checkpoint: linear classifier, kNN and others
  embed      write features of the images
  export     write the encoder for PyTorch's libraries
  preview    draw the augmented views that the network sees
  report     write one HTML page about one run or several (--workdir=A,B)
  describe   print time, memory and data of a run without starting it

examples
  contrastive-jax --config=digits:scale=smoke                  a run of seconds
  contrastive-jax --config=digits:method=flatclr --config.temperature.tau=0.2
  contrastive-jax --config=folder:dir=photos --mode=describe   your own images
  contrastive-jax --workdir=runs/NAME                          resume
  contrastive-jax --workdir=runs/A,runs/B --mode=report

flags
  --config=CONFIG      a name in configs/ or a file, arguments behind a colon;
                       or the workdir or config.json of a run
  --workdir=DIR        folder of the run; default: runs/CONFIG-HASH
  --output=DIR         folder for what evaluate, embed, export, preview and
                       report write; default: the workdir
  --quiet, -q          print the final table only
  --allow=MODULE:FUNCTION,...   functions that a config of others may run
  --distributed=auto   one program on several processes, or HOST:PORT,N,I
  --debug              show the stack trace of an error
  --version, --help, -h

Tab completion: eval "$(contrastive-jax completion)"

options of a config
  contrastive-jax config search WORDS   options by name and meaning
  contrastive-jax config show CONFIG    all options of a config
  contrastive-jax config diff A B       options in which two configs differ
  contrastive-jax config methods        methods and configs
"""

flags.DEFINE_string(
    "config",
    None,
    (
        "FILE[:key=value,...], the name of a config in configs/, or a workdir;"
        " --config.section.option=value sets an option."
    ),
)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the run; default runs/<config>-<hash of the options that change its numbers>."
)
_MODE = flags.DEFINE_enum("mode", "train", MODES, "Task of the command.")
_OUTPUT = flags.DEFINE_string(
    "output", None, "Folder that evaluate, embed, export, preview and report write to; default: the workdir."
)
_QUIET = flags.DEFINE_bool("quiet", False, "Print the final table only.", short_name="q")
_DISTRIBUTED = flags.DEFINE_string(
    "distributed", "", "One program on several processes: auto, or HOST:PORT,N,I of process I of N."
)
_ALLOW = flags.DEFINE_list(
    "allow", [], "Functions, MODULE:FUNCTION, that configs of others may name and run."
)
_DEBUG = flags.DEFINE_bool("debug", False, "Show the stack trace of an error.")


def _workdir() -> str | None:
    """Return the flag ``--workdir`` with ``~`` expanded, which shells do not expand after ``=``."""
    return _WORKDIR.value and ",".join(map(os.path.expanduser, _WORKDIR.value.split(",")))


def split(argv: Sequence[str]) -> tuple[str | None, list[tuple[str, str]], list[str]]:
    """Split a command line into the config, its overrides ``(section.option, text)``, and the other words.

    ``--config FILE`` and ``--config.section.option VALUE`` may have a space instead of ``=``.

    Raises:
      ValueError: an option without a value or a name, or two configs.
    """
    config, overrides, rest, words = None, [], [], list(argv)
    while words:
        word = words.pop(0)
        flag, equals, text = word.partition("=")
        name = re.sub("^--?", "", flag)
        if flag == name or name != "config" and not name.startswith("config."):
            rest.append(word)
            continue
        if not equals:
            if not words or words[0].startswith("--"):
                raise ValueError(f"{flag} has no value; write {flag}=VALUE.")
            text = words.pop(0)
        if name != "config" and not all(part.strip() for part in name.split(".")):
            raise ValueError(f"{flag} does not name an option; write --config.section.option=VALUE.")
        if name != "config":
            overrides.append((name.removeprefix("config."), text))
        elif config is not None:
            raise ValueError(f"--config is given twice: {config!r} and {text!r}.")
        else:
            config = text
    return config, overrides, rest


def _parse(argv: list[str]) -> list[str]:
    """Parse the flags, and return the words that set the config for :func:`main`."""
    try:
        config, overrides, rest = split(argv)
        rest = flags.FLAGS(rest)
    except flags.UnrecognizedFlagError as error:
        _fail(f"--{error.flagname} is not a flag. {_meant(error.flagname)}")
    except flags.IllegalFlagValueError as error:
        if mode := re.match("flag --mode=(.*?): value should be", str(error)):
            _fail(f"--mode is {mode[1]!r}; it must be one of {', '.join(MODES)}.")
        _fail(str(error))
    except (ValueError, flags.Error) as error:
        _fail(str(error))
    if len(rest) > 1:
        name, equals, _ = rest[1].partition("=")
        as_flag = f"Write --mode={name}." if name in MODES else "Write options as --name=value."
        _fail(f"{rest[1]!r} is not an option. {_meant(name) if equals else as_flag}")
    if _WORKDIR.value is not None and not any(part.strip() for part in _WORKDIR.value.split(",")):
        _fail(f"--workdir={_WORKDIR.value} does not name a folder; write --workdir=DIR, or leave it out.")
    if _OUTPUT.value is not None and not _OUTPUT.value.strip():
        _fail("--output is empty; write --output=DIR, or leave it out.")
    if _OUTPUT.value is not None and _MODE.value in ("train", "describe"):
        _fail(
            f"--output={_OUTPUT.value} is a flag of evaluate, embed, export, preview and report;"
            f" --mode={_MODE.value} {'writes to --workdir' if _MODE.value == 'train' else 'writes nothing'}."
        )
    if config is not None and not config.strip():
        _fail("--config is empty; try --config=configs/flatclr_digits.py.")
    if config is None and not _WORKDIR.value and _MODE.value not in ("train", "describe"):
        _fail(f"--workdir is missing: --mode={_MODE.value} reads a run; write --workdir=DIR.")
    if config is None and not _WORKDIR.value:
        _fail("--config is missing; try --config=configs/flatclr_digits.py.")
    given = [] if config is None else [f"--config={config}"]
    return [*rest, *given, *(f"--config.{name}={text}" for name, text in overrides)]


def _meant(name: str) -> str:
    """Return a hint which flag or option of a config an unknown flag may mean."""
    import difflib

    from contrastive_jax import config as configs

    near = difflib.get_close_matches(name, [*OWN_FLAGS, "config"], 1, cutoff=0.8)
    if near:
        return f"Did you mean --{near[0]}?"
    hint = configs.suggest(name.removeprefix("config."), configs.leaves(configs.base()))
    return (
        re.sub("'(.*?)'", r"--config.\1=VALUE", hint) if hint.startswith("Did") else "--help lists the flags."
    )


OWN_FLAGS = ("workdir", "output", "mode", "quiet", "allow", "distributed", "debug")


def resolved(
    argv: Sequence[str], workdir: str | None, mode: str, debug: bool = False
) -> "Sequence[configs.Settings]":
    """Return the settings of the command line, or else of the workdir's run; one per replica.

    Raises:
      ValueError: there is no config, it cannot be read, an override is invalid, the mode does not take
        replicas, or the data differ from those of the workdir's run; the message is one sentence.
    """
    from contrastive_jax import config as configs
    from contrastive_jax.workdir import remote, replicas, restore_config

    (spec, overrides, _), saved = split(argv), list[str]()
    if workdir and (mode != "report" or "," not in workdir):
        if remote.is_remote(workdir):
            remote.check_reachable(workdir)
        restore_config(workdir, console.warn)
        runs = replicas.folders(workdir) or [epath.Path(workdir)]
        saved = [str(run) for run in runs if (run / "config.json").is_file()]
    if spec is None and not saved and mode != "report":
        raise ValueError(
            f"--workdir={workdir} does not hold a run; to begin one, give its config, --config=FILE."
        )
    try:
        given: list[str | None] = [spec] if spec is not None or not saved else list(saved)
        settings = [config for run in given for config in configs.expand(run, overrides)]
    except ValueError:
        raise
    except Exception as error:  # a config file is Python, and may raise anything
        if debug:
            traceback.print_exc()
        raise ValueError(
            f"--config={configs.raised(spec or str(workdir), error)}; --debug shows the stack trace."
        ) from None
    if len(settings) > 1 and mode not in ("train", "describe", "evaluate", "report"):
        raise ValueError(
            f"--mode={mode} takes one run, not {len(settings)} replicas; give the folder of one"
            f" replica, such as {workdir or 'WORKDIR'}/replica_0."
        )
    if spec is not None and saved and mode != "train" and not settings[0].evaluate.checkpoint:
        told = {name for name, _ in overrides}
        run = configs.saved_settings(configs.load(saved[0]))
        _check_data(settings[0], run, told, mode, str(workdir))
    return settings


def _check_data(
    now: "configs.Settings", run: "configs.Settings", told: set[str], mode: str, workdir: str
) -> None:
    """Refuse a config with other data than the workdir's run, unless the command line sets the difference."""
    from contrastive_jax import config as configs
    from contrastive_jax import data

    hint = "leave --config out to use the run's own, or set"
    name, of_the_run = now.data.name, run.data.name
    if name != of_the_run:
        if not any(leaf.partition(".")[0] == "data" for leaf in told):
            raise ValueError(
                f"data.name is {name!r}, and the run of --workdir={workdir} has {of_the_run!r}: {hint}"
                " --config.data.name if you want another data set."
            )
        return
    of_others = {"data", "data.name"} | (
        {"data.dir"} if name in data.FILES else set()
    )  # other images are intended
    if mode in ("evaluate", "embed") and not told & of_others:
        sections = (settings.only("data", "compose") for settings in (run, now))
        for leaf, (was, given) in configs.diff(*sections).items():
            if leaf not in told and not configs.may_change(leaf):
                raise ValueError(
                    f"{leaf} is {given!r}, and the run of --workdir={workdir} has {was!r}: {hint}"
                    f" --config.{leaf}."
                )


def default_workdir(settings: "Sequence[configs.Settings]") -> str:
    """Return the default workdir, from the config's name and the fingerprints of the settings."""
    from contrastive_jax import config as configs

    prints = [configs.fingerprint(one) for one in settings]
    if len(prints) == 1:
        return f"runs/{settings[0].name}-{prints[0]}"
    together = hashlib.sha256(" ".join(prints).encode()).hexdigest()[:8]
    return f"runs/{settings[0].name}-{len(prints)}-replicas-{together}"


def perform(
    mode: str, settings: "Sequence[configs.Settings]", workdir: str, quiet: bool, output: str | None = None
) -> None:
    """Run a mode on one run, or on replicas; ``output``: see ``--output``."""
    module = "contrastive_jax.training.loop" if mode == "train" else f"contrastive_jax.commands.{mode}"
    function = getattr(importlib.import_module(module), mode)
    alone = len(settings) == 1 or mode == "report"  # report reads the others' from their folders
    options = {} if output is None else {"output": os.path.expanduser(output)}
    function(settings[0] if alone else settings, workdir, quiet=quiet, **options)


def _fail(message: str, code: int = 2) -> None:
    message = console.one_line(message)
    if len(message) > LONGEST:  # it quotes a value of thousands of characters
        message = f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"
    print(f"error: {message}", file=sys.stderr, flush=True)
    signals.leaving(code, LEAVING)
    if "jax" in sys.modules and sys.modules["jax"].process_count() > 1:
        os._exit(code)  # a normal exit would wait for the other processes, and they for this one
    sys.exit(code)


def _fail_by_signal(error: KeyboardInterrupt) -> None:
    code = signals.code_of(error)
    _fail(f"{signals.word(code - 128)}.", code)


def _find_devices() -> None:
    """Initialize the devices early; without a device of the requested kind, exit with a message."""
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        asked = os.environ.get("JAX_PLATFORMS", "")
        print(
            f"error: JAX_PLATFORMS={asked!r}: jax finds no such device"
            f" ({str(error).splitlines()[0].partition(' (set')[0] if str(error) else 'its library is not installed'})."
            " Unset it to use the devices of this machine (a CPU at least), or install jax for the"
            " device: pip install 'contrastive_jax[cuda]' or 'contrastive_jax[tpu]'.",
            file=sys.stderr,
        )
        sys.exit(1)


def _use_compilation_cache() -> None:
    """Cache compiled programs for later starts, in a private folder because they are loaded as code."""
    import jax

    from contrastive_jax.system import private

    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        try:
            folder = private.folder(private.cache_home() / "contrastive_jax" / "compiled")
        except OSError as error:
            console.warn(f"compiled programs are not cached: {error}.")
        else:
            jax.config.update("jax_compilation_cache_dir", str(folder))


def main(argv: list[str]) -> None:
    """Run the mode; a user's mistake ends the program with a message of one sentence."""
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.ERROR)  # orbax logs verbosely at every checkpoint
    from contrastive_jax import config as configs
    from contrastive_jax import distributed, native, sharding
    from contrastive_jax import workdir as workdirs
    from contrastive_jax.training import loop
    from contrastive_jax.workdir import checkpoint

    if not flags.FLAGS["verbosity"].present and not _DEBUG.value:
        checkpoint.quiet()
    try:
        native.keep_pages()
        distributed.start(_DISTRIBUTED.value)
    except (ValueError, RuntimeError, OSError) as error:
        _fail(limits.exhausted(error) or str(error))
    _find_devices()
    distributed.end_by_sigterm()  # after the devices, as it reads the number of processes
    _use_compilation_cache()
    try:
        sharding.check_random_numbers()
        configs.allow(*_ALLOW.value)
        settings = resolved(argv, _workdir(), _MODE.value, _DEBUG.value)
        native.start()
    except (ValueError, OSError, RuntimeError) as error:  # the last two: an unreachable workdir
        _fail(limits.exhausted(error) or str(error))
    workdir = _workdir()
    if workdir is None:
        workdir = default_workdir(settings)
        if _MODE.value == "train" and distributed.first():
            print(console.one_line(f"workdir: {workdir}"), flush=True)
    try:
        with workdirs.translate_errors(_OUTPUT.value or workdir), distributed.together():
            perform(_MODE.value, settings, workdir, _QUIET.value, _OUTPUT.value)
    except loop.Stopped as stopped:
        if distributed.first():
            print(console.one_line(str(stopped)), flush=True)
        signals.leaving(stopped.code, LEAVING + distributed.SECONDS * (not distributed.alone()))
        distributed.on_all(True)  # as at the end of a run: all processes have stopped at the same step
        sys.exit(stopped.code)
    except distributed.Insisted:
        _fail("interrupted twice: all steps after the last checkpoint are lost.", 130)
    except KeyboardInterrupt as error:
        _fail_by_signal(error)
    except ImportError as error:
        if _DEBUG.value:
            traceback.print_exc()
        _fail(
            limits.exhausted(error)
            or (
                f"{error}: the module is missing or damaged; pip install contrastive_jax installs the"
                " modules that all modes need."
            ),
            1,
        )
    except (ValueError, OSError, ArithmeticError, RuntimeError, MemoryError) as error:
        if _DEBUG.value:
            traceback.print_exc()
        advice = (
            "; --config.data.corrupt=replace uses another image instead"
            if replaceable(error, _MODE.value)
            else ""
        )
        if (lost := distributed.lost_peer(error)) is not None:
            _fail(lost, 1)
        plain = isinstance(error, ValueError | OSError | ArithmeticError)
        text = f"{error}{advice}" if plain else f"{type(error).__name__}: {error}"
        # translate_errors has already named an exhausted resource
        _fail(text if isinstance(error, workdirs.Exhausted) else limits.exhausted(error) or text, 1)


def replaceable(error: Exception, mode: str) -> bool:
    """Return whether an error is due to a damaged image that the mode can replace by another."""
    from contrastive_jax.data.records import Unreadable

    damaged = isinstance(error, Unreadable) or isinstance(error.__cause__, Unreadable)
    return damaged and mode in ("train", "evaluate", "preview")


def check(words: Sequence[str]) -> int:
    """Run ``contrastive-jax check``, conformance tests of a user's loss, and return the exit status."""
    from contrastive_jax import lookup
    from contrastive_jax.conformance import command

    signals.guard()
    lookup.add_current_folder()
    return command.run(words)


def config(words: Sequence[str]) -> int:
    """Run ``contrastive-jax config``, which shows configs and options, and return the exit status."""
    signals.guard()  # what follows takes seconds to import
    from contrastive_jax import lookup
    from contrastive_jax.commands import config as command

    lookup.add_current_folder()
    return command.main(list(words))


def run() -> None:
    """Run the command; entry point of the console script ``contrastive-jax``."""
    incomplete = console.protect()
    for name, command in (("check", check), ("config", config)):
        if sys.argv[1:2] == [name]:
            sys.exit(command(sys.argv[2:]) or int(incomplete() is not None))
    if sys.argv[1:] == ["completion"]:
        from contrastive_jax.commands import completion

        flags_of_text = ("workdir=", "output=", "distributed=", "allow=", "quiet", "debug", "help", "version")
        sys.stdout.write(completion.script(MODES, flags_of_text))
        return
    if {"-h", "-help", "--help", "--version"} & set(sys.argv[1:]):
        sys.stdout.write(f"{contrastive_jax.__version__}\n" if "--version" in sys.argv else HELP)
        return
    signals.guard()
    if (sentence := limits.too_little_space()) is not None:
        _fail(sentence, 1)
    if (package := str(pathlib.Path(__file__).resolve().parents[1])) not in sys.path:
        sys.path.append(package)  # a checkout that is not installed; worker processes must find it too
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # child processes do not search the current folder either
    try:
        try:
            from contrastive_jax import lookup

            lookup.add_current_folder()
            app.run(main, flags_parser=_parse)
        except KeyboardInterrupt as error:
            _fail_by_signal(error)
        except (MemoryError, OSError, RuntimeError, ImportError) as error:  # while modules are imported
            if (sentence := limits.exhausted(error)) is None:
                raise
            _fail(sentence, 1)
    except SystemExit as end:
        signals.leave(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


if __name__ == "__main__":
    run()
