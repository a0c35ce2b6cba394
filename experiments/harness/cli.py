"""The verbs."""

import argparse
import json
import pathlib
import re
import sys
from types import ModuleType

from experiments.harness.claims import ledger
from experiments.harness.jobs import Job, collect, jobs
from experiments.harness.pages import render
from experiments.harness.plan import PEAK_TFLOPS, differing, plan
from experiments.harness.running import run, run_job
from experiments.harness.table import ROOT, SCALES, all_tables, table_of, where


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
        failures = run(todo, options.workers, options.cluster, settings)
        for table in tables if options.scale != "smoke" else ():
            collect(table, options.scale)
        print(*failures, sep="\n", file=sys.stderr)
        return bool(failures)
    for table in tables:
        if options.verb == "plan":
            plan(table, options.scale, options.device, options.utilisation, options.price)
        elif options.verb == "collect":
            print(f"{where(table)}: {len(collect(table, options.scale)['cells'])} cells")
        elif options.verb == "render":
            print(render(table))
        else:
            for leaf, values in differing(table, options.scale).items():
                print(leaf, *(f"  {' | '.join(cell)}: {value!r}" for cell, value in values.items()), sep="\n")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        name, scale, cell, point, chosen = json.loads(sys.argv[2])
        run_job(Job(name, scale, tuple(cell), tuple(map(tuple, point)), chosen))
    elif sys.argv[1:2] == ["ledger"]:
        (ROOT / "experiments" / "README.md").write_text(ledger())
        print(ledger())
    else:
        sys.exit(command_line(sys.argv[1:], [table_of(name) for name in all_tables()], __doc__))
