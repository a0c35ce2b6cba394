"""The command: list, pack, run, collect."""

import argparse
import json
import pathlib
import shutil
import sys
import time

import experiments.gpu
from experiments.gpu import tasks
from experiments.harness import packs


def main(argv: list[str]) -> int:
    """Run a verb; return the exit status."""
    parser = argparse.ArgumentParser(
        description=experiments.gpu.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="the tasks, in the order of their value")
    made = verbs.add_parser("pack", help="a TFDS set as parts of at most 50 MB")
    made.add_argument("name")
    made.add_argument("--dir", default="", help="TFDS folder")
    made.add_argument("--out", type=pathlib.Path, default=pathlib.Path("packs"))
    made = verbs.add_parser("run", help="what is left of a task")
    made.add_argument("task", choices=tasks.TASKS)
    made.add_argument(
        "--data", type=pathlib.Path, nargs="*", default=[], help="parts; earlier calls' are remembered"
    )
    made.add_argument(
        "--folder", type=pathlib.Path, default=pathlib.Path("runs/gpu"), help="for what goes on later"
    )
    made.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("runs/gpu/kept"), help="for what is kept"
    )
    made.add_argument("--minutes", type=float, default=8.0)
    made.add_argument("--scale", choices=["gpu", "smoke"], default="gpu")
    made = verbs.add_parser("collect", help="what a call kept, into this tree")
    made.add_argument("file", type=pathlib.Path)
    options = parser.parse_args(argv)
    if options.verb == "list":
        for name, task in tasks.TASKS.items():
            print(f"{name:16} {task.what}{f' (--data: {task.data})' if task.data else ''}")
        return 0
    if options.verb == "pack":
        from contrastive_jax import data

        source = data.load(name=options.name, dir=options.dir, stream="off")
        for path in packs.pack(options.name, source, options.out):
            print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
        return 0
    if options.verb == "collect":
        print(json.dumps(tasks.collect(options.file)))
        return 0
    began, stored = time.perf_counter(), options.folder / "packs"
    stored.mkdir(parents=True, exist_ok=True)
    for part in options.data:
        shutil.copyfile(part, stored / part.name)
    found = tasks.run(
        options.task, smoke=options.scale == "smoke", folder=options.folder.resolve(), out=options.out,
        packs=stored.resolve(), minutes=options.minutes,
    )  # fmt: skip
    print(json.dumps(found | {"seconds": round(time.perf_counter() - began, 1)}))
    return bool(found["problems"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
