"""The command: ``python -m contrastive_jax.main --config=configs/flatclr_digits.py [--workdir=DIR] [--mode=MODE]``.

``train`` (default) trains, or goes on where the workdir's run stopped; the other modes are modules of
:mod:`contrastive_jax.commands`: ``evaluate`` judges a checkpoint; ``embed`` writes features of images; ``export``
writes an encoder for PyTorch; ``preview`` draws what the network sees; ``report`` shows runs (``--workdir=A,B``) on one
HTML page; ``describe`` says what a run would be.
"""

import importlib
import os
import pathlib
import re
import sys
import traceback
import warnings

# What the command says first should not wait for a log line of a library.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import app, flags, logging
from ml_collections import config_flags

MODES = ("train", "evaluate", "embed", "export", "preview", "report", "describe")

_CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "FILE[:key=value,...] of the run; --config.section.option=value sets a leaf.",
    lock_config=True,
)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where the run lives; default runs/<config>-<hash of the config>."
)
_MODE = flags.DEFINE_enum("mode", "train", MODES, "What to do.")
_QUIET = flags.DEFINE_bool("quiet", False, "Print the final table only.", short_name="q")
_DISTRIBUTED = flags.DEFINE_string(
    "distributed", "", "One program on several processes: auto, or HOST:PORT,N,I of process I of N."
)
_TOPOLOGY = flags.DEFINE_string(
    "topology", "", "For --mode=describe: a TPU slice that need not be there, like v5e:16x16."
)
_DEBUG = flags.DEFINE_bool("debug", False, "Show the stack trace of an error.")


def _parse(argv: list[str]) -> list[str]:
    """Flags, with a config's own complaints as one sentence."""
    try:
        rest = flags.FLAGS(argv)
        missing = _CONFIG.value is None
        if not missing:
            _CONFIG.value.keys()  # a file that is not there is an error only now
    except Exception as error:  # a config file is Python, and may raise anything
        if "--debug" in argv:
            traceback.print_exc()
        _fail(_flag_error(argv, error))
    if len(rest) > 1:
        _fail(f"{rest[1]!r} is not an option; options are written --name=value.")
    if missing and _MODE.value == "report" and _WORKDIR.value:  # a run says itself what it is
        return rest
    if missing:
        _fail("--config is missing; try --config=configs/flatclr_digits.py.")
    return rest


def _flag_error(argv: list[str], error: Exception) -> str:
    """What was wrong with the command line, with the section's options where a leaf is unknown."""
    from contrastive_jax import config
    from contrastive_jax.config import schema

    given = [
        a.lstrip("-").removeprefix("config.").partition("=")
        for a in argv
        if a.startswith(("--config.", "-config."))
    ]
    overrides = [name for name, _, _ in given]
    spec = next((a.partition("=")[2] for a in argv if a.lstrip("-").startswith("config=")), None)
    if spec is None:
        return "--config is missing; it must come before --config.section.option=value."
    try:
        settings = config.load(spec)
        known = config.leaves(settings)
    except ValueError as problem:
        return str(problem)
    except Exception as problem:
        return f"{_raised(spec, problem)}; --debug shows the stack trace."
    if not spec.partition(":")[0].endswith(".py"):
        return (
            f"--config={spec} is of a run that was made; the command takes the file of configs/ that it was made of."
            f" python -m contrastive_jax.config show {spec} says what it was."
        )
    for name, _, value in given:
        if str(error).startswith(f"flag --config.{name}={value}: ") and name in known:
            kind = schema.kind_of(settings, name, config.leaves(config.base()))
            return f"{name} is {value!r}" + (
                f"; it must be {schema.words(kind)}." if kind else ": no such value."
            )
    sections = {name.rpartition(".")[0] for name in known}
    for name in overrides:
        if name not in known and name not in sections:
            section, _, option = name.rpartition(".")
            chosen = next((v for n, _, v in given if n in (f"{section}.name", f"{section}.preset")), None)
            if chosen is not None:  # flags are read before the choice is made
                key = "preset" if section == "augment" else "name"
                return (
                    f"--config.{name}: there is no such option where the file chooses {known[f'{section}.{key}']!r};"
                    f""" write the section, --config.{section}='{{"{key}": "{chosen}", "{option}": ...}}'."""
                )
            return f"--config.{name}: there is no such option. {config.suggest(name, known)}"
    return str(error).replace("\n", " ")


def _raised(spec: str, error: Exception) -> str:
    """What a user's config file raised, and where."""
    if isinstance(error, SyntaxError):
        place, what = (error.filename, error.lineno), error.msg
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place, what = (last.filename, last.lineno), " ".join(str(error).split())
    return f"--config={spec} raised {type(error).__name__}: {what} ({place[0]}, line {place[1]})"


def _fail(message: str, code: int = 2) -> None:
    print(f"error: {message}", file=sys.stderr, flush=True)
    if "jax" in sys.modules and sys.modules["jax"].process_count() > 1:
        os._exit(code)  # an orderly exit would wait for the others, and they for this one
    sys.exit(code)


def _find_devices() -> None:
    """Before anything else asks for them: where there are none of the kind that was asked for, a sentence."""
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        asked = os.environ.get("JAX_PLATFORMS", "")
        print(
            f"error: JAX_PLATFORMS={asked!r}: jax finds no such device"
            f" ({str(error).splitlines()[0].partition(' (set')[0] if str(error) else 'its library is not installed'})."
            " Unset it to take what there is (cpu at least), or install jax for the device:"
            " pip install 'contrastive_jax[cuda]' or 'contrastive_jax[tpu]'.",
            file=sys.stderr,
        )
        sys.exit(1)


def _use_compilation_cache() -> None:
    """A program compiled once is not compiled again by the next start."""
    import jax

    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        home = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "contrastive_jax" / "compiled"))
    _mend_compilation_cache(pathlib.Path(jax.config.jax_compilation_cache_dir))  # type: ignore[attr-defined]


def _mend_compilation_cache(folder: pathlib.Path) -> None:
    """Takes out entries that jax cannot read, or could not finish: it warns of them, and never replaces them."""
    show = warnings.showwarning

    def look(message, *where, **options):
        found = re.match(
            r"Error (reading|writing) persistent compilation cache entry for '(\w+)'", str(message)
        )
        if not found:
            return show(message, *where, **options)
        for entry in folder.glob(f"{found[2]}-*-cache"):
            entry.unlink(missing_ok=True)
        if found[1] == "reading":
            print(f"removed a damaged entry of the compilation cache in {folder}.", flush=True)
        else:
            print(
                f"the compilation cache in {folder} cannot be written: {str(message).splitlines()[0]}",
                flush=True,
            )

    warnings.showwarning = look


def main(argv: list[str]) -> None:
    """Runs the mode; a user's mistake ends in one sentence."""
    del argv
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.ERROR)  # orbax tells a story at every checkpoint
    from contrastive_jax import config as configs
    from contrastive_jax import distributed, native
    from contrastive_jax import workdir as workdirs
    from contrastive_jax.config import schema
    from contrastive_jax.training import loop
    from contrastive_jax.workdir import checkpoint

    if not flags.FLAGS["verbosity"].present and not _DEBUG.value:
        checkpoint.quiet()
    try:
        native.keep_pages()
        distributed.start(_DISTRIBUTED.value)
    except (ValueError, RuntimeError, OSError) as error:
        _fail(str(error))
    if not _TOPOLOGY.value:
        _find_devices()
    elif _MODE.value != "describe":
        _fail(f"--topology={_TOPOLOGY.value!r} is for --mode=describe, not for {_MODE.value}.")
    _use_compilation_cache()
    config = configs.plain(configs.complete(configs.base()))
    if _CONFIG.value is not None:
        given = configs.load(config_flags.get_config_filename(flags.FLAGS["config"]))
        overridden = config_flags.get_override_values(flags.FLAGS["config"])
    try:
        if _CONFIG.value is not None:
            config = configs.plain(configs.settle(_CONFIG.value, given, set(overridden)))
        schema.check(config)  # its name is part of the workdir's
    except ValueError as error:
        _fail(str(error))
    workdir = _WORKDIR.value
    if workdir is None:
        workdir = f"runs/{config['name']}-{configs.fingerprint(config)}"
        if _MODE.value == "train" and distributed.first():
            print(f"workdir: {workdir}", flush=True)
    try:
        training = _MODE.value == "train"
        mode = loop if training else importlib.import_module(f"contrastive_jax.commands.{_MODE.value}")
        extra = {"topology": _TOPOLOGY.value} if _TOPOLOGY.value else {}
        with workdirs.answered(workdir):
            getattr(mode, _MODE.value)(config, workdir, quiet=_QUIET.value, **extra)
    except loop.Stopped as stopped:
        if distributed.first():
            print(stopped, flush=True)
        sys.exit(stopped.code)
    except KeyboardInterrupt:
        _fail("interrupted twice: what came after the last checkpoint is lost.", 130)
    except ImportError as error:
        if _DEBUG.value:
            traceback.print_exc()
        _fail(
            f"{error}: it is not installed, or damaged; pip install contrastive_jax brings what every mode needs.",
            1,
        )
    except (ValueError, OSError, ArithmeticError, RuntimeError) as error:
        if _DEBUG.value:
            traceback.print_exc()
        _fail(
            str(error)
            if isinstance(error, ValueError | OSError | ArithmeticError)
            else f"{type(error).__name__}: {error}",
            1,
        )


def run() -> None:
    """The console script's entry."""
    app.run(main, flags_parser=_parse)


if __name__ == "__main__":
    run()
