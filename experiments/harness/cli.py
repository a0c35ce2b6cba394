"""The verbs."""

import argparse
import pathlib
import re
import sys
from types import ModuleType

from experiments.harness.jobs import collect, jobs
from experiments.harness.measured import is_measured, measure
from experiments.harness.pages import render
from experiments.harness.plan import PEAK_TFLOPS, differing, plan
from experiments.harness.running import run
from experiments.harness.table import ROOT, SCALES, table_of, where


def main(name: str = "__main__") -> int:
    """A table's own command: the file ends in ``if __name__ == "__main__": sys.exit(harness.main())``."""
    table = table_of(
        ".".join(pathlib.Path(sys.modules[name].__file__).resolve().relative_to(ROOT).with_suffix("").parts)
    )
    return command_line(sys.argv[1:], [table], table.__doc__)


def command_line(argv: list[str], tables: list[ModuleType], about: str | None) -> int:
    """A verb over some tables; the exit status."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["plan", "run", "collect", "render", "diff"])
    parser.add_argument("--scale", choices=SCALES, default="cpu")
    parser.add_argument("--cells", default="", help="regular expression; cells whose 'row | column' it finds")
    parser.add_argument("--workers", type=int, default=1, help="run: jobs at a time")
    parser.add_argument("--cluster", choices=["here", "slurm"], default="here")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="run: a submitit parameter"
    )
    parser.add_argument("--device", choices=PEAK_TFLOPS, default="a100", help="plan: a device")
    parser.add_argument("--utilisation", type=float, default=0.35, help="plan: share of its peak")
    parser.add_argument("--price", type=float, default=0.0, help="plan: of a device-hour")
    options = parser.parse_args(argv)

    def todo():
        found = []
        for table in tables:
            cells = [c for c in table.RUNS.get(options.scale, {}) if re.search(options.cells, " | ".join(c))]
            found += jobs(table, options.scale, cells) if cells else []
        return found

    if options.verb == "run":
        settings = dict(pair.split("=", 1) for pair in options.set)
        for table in filter(is_measured, tables):
            print(measure(table))
        failures = run(todo, options.workers, options.cluster, settings)
        for table in tables if options.scale != "smoke" else ():
            collect(table, options.scale)
        print(*failures, sep="\n", file=sys.stderr)
        return bool(failures)
    for table in tables:
        if is_measured(table) and options.verb != "render":
            print(f"{where(table)}: no runs; `run` measures in this process")
        elif options.verb == "plan":
            plan(table, options.scale, options.device, options.utilisation, options.price)
        elif options.verb == "collect":
            print(f"{where(table)}: {len(collect(table, options.scale)['cells'])} cells")
        elif options.verb == "render":
            print(render(table))
        else:
            for leaf, values in differing(table, options.scale).items():
                print(leaf, *(f"  {' | '.join(cell)}: {value!r}" for cell, value in values.items()), sep="\n")
    return 0
