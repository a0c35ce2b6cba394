"""The verbs."""

import argparse
import importlib.util
import pathlib
import re
import signal
import sys
from types import ModuleType

from experiments.harness.bundles import AT_ONCE
from experiments.harness.jobs import collect, jobs, without_choice
from experiments.harness.measured import is_measured, measure
from experiments.harness.pages import render
from experiments.harness.plan import DEVICES, UTILISATION, differing, plan
from experiments.harness.running import run
from experiments.harness.table import ROOT, SCALES, SMALL, Cell, table_of, where

ON_GPU = ("paper", "gpu")  # scales


def main(name: str = "__main__") -> int:
    """Run a table's own command: the file ends in ``if __name__ == "__main__": sys.exit(harness.main())``."""
    table = table_of(
        ".".join(pathlib.Path(sys.modules[name].__file__).resolve().relative_to(ROOT).with_suffix("").parts)
    )
    return command_line(sys.argv[1:], [table], table.__doc__)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, int(value) if value.isdecimal() else value


def parser(about: str | None) -> argparse.ArgumentParser:
    """Make the parser of a table's command, and of the one over all tables."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("verb", choices=["plan", "run", "collect", "render", "diff"])
    made.add_argument("--scale", choices=SCALES, default="cpu", help="default cpu, on digits")
    made.add_argument(
        "--cells",
        type=_pattern,
        default="",
        help="regular expression; cells whose 'row | column' it finds, and no measurement",
    )
    made.add_argument(
        "--workers",
        type=_count,
        help="run: jobs at a time; default 1, at small and small_mnist one an accelerator, or one a core, on a cluster"
        " as many as it starts",
    )
    made.add_argument(
        "--replicas", type=_count,
        help="run: runs as one program, where they differ in seed and numbers; default 32 on an accelerator (on a"
        " cluster at the scales paper and gpu), else 1",
    )  # fmt: skip
    made.add_argument(
        "--seeds",
        type=_count,
        metavar="N",
        help="run: only the first N of each cell's seeds; the others when run again",
    )
    made.add_argument("--cluster", choices=["here", "slurm"], default="here")
    made.add_argument(
        "--set", type=_setting, action="append", default=[], metavar="NAME=VALUE",
        help="run: a submitit parameter, slurm_partition=gpu; each job has a GPU (scales paper and gpu) and"
        " timeout_min=1440 unless it is set otherwise",
    )  # fmt: skip
    made.add_argument("--device", choices=DEVICES, default="a100", help="plan: a device")
    made.add_argument("--utilisation", type=float, default=UTILISATION, help="plan: share of its peak")
    made.add_argument("--price", type=float, default=0.0, help="plan: of a device-hour")
    return made


def _end_quietly() -> None:
    """End what only prints from here on without a traceback where its output is cut off, ``| head``."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def command_line(argv: list[str], tables: list[ModuleType], about: str | None) -> int:
    """Run a verb over some tables; return the exit status."""
    options = parser(about).parse_args(argv)
    if options.verb == "render":
        pages = [render(table) for table in tables]
        _end_quietly()
        print(*pages, sep="\n")
        return 0
    if options.verb in ("plan", "diff"):
        _end_quietly()

    def chosen(table: ModuleType) -> list[Cell]:
        return [c for c in table.RUNS.get(options.scale, {}) if options.cells.search(" | ".join(c))]

    trained = [table for table in tables if not is_measured(table)]
    if (trained or options.cells.pattern) and not any(map(chosen, trained)):
        scales = [scale for scale in SCALES if any(scale in table.RUNS for table in trained)]
        found = f"--cells={options.cells.pattern} finds no cell" if options.cells.pattern else "no cell"
        parser(about).error(
            f"{found} at --scale={options.scale}; there are cells at {', '.join(scales) or 'none'}"
        )

    def todo():
        given = [(table, cells) for table in tables if (cells := chosen(table))]
        found = [job for table, cells in given for job in jobs(table, options.scale, cells)]
        return [job for one in found if not (job := one._replace(most=options.seeds)).done()]

    if options.verb == "run":
        settings, slurm = dict(options.set), options.cluster == "slurm"
        if slurm and not importlib.util.find_spec("submitit"):
            parser(about).error("--cluster=slurm needs submitit: pip install submitit")
        if slurm and options.scale in ON_GPU:
            asked = any("gpu" in name or "gres" in name for name in settings)
            settings = settings if asked else {"gpus_per_node": 1} | settings
            options.replicas = options.replicas or AT_ONCE
        for table in filter(is_measured, tables):
            if not options.cells.pattern:
                print(measure(table))
        workers = options.workers or (None if options.scale in SMALL or slurm else 1)
        try:
            failures = run(todo, workers, options.cluster, settings, options.replicas)
        finally:  # what has finished is kept, also of a command that is stopped
            for table in tables if options.scale != "smoke" else []:
                collect(table, options.scale)
        for table in tables:
            failures += without_choice(table, options.scale)
        for failure in failures:
            print(failure, file=sys.stderr)
        return bool(failures)
    if options.verb == "plan":
        cells = {table.__name__: chosen(table) for table in tables}
        plan(tables, cells, options.scale, options.device, options.utilisation, options.price)
        return 0
    for table in tables:
        if is_measured(table):
            print(f"{where(table)}: no runs; `run` measures in this process")
        elif options.verb == "collect":
            print(f"{where(table)}: {collect(table, options.scale, chosen(table))} runs are kept")
        else:
            for leaf, values in differing(table, options.scale, chosen(table)).items():
                print(leaf, *(f"  {' | '.join(cell)}: {value!r}" for cell, value in values.items()), sep="\n")
    return 0
