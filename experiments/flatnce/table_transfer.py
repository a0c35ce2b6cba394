"""Transfer of a pretrained encoder to other sets, linear and fine-tuned: FlatNCE (Chen et al. 2021), Tables 3 and S2.

    python experiments/flatnce/table_transfer.py run --checkpoint=runs/flatclr --name=flatclr [--dir=TFDS]
    python experiments/flatnce/table_transfer.py run --checkpoint=runs/flatclr --sets=cifar10,cifar100 --size=32
    python experiments/flatnce/table_transfer.py render     # results/transfer.md

A cell is a set and a kind; each is a file of results/transfer/<name>/, and ``run`` skips those that are there.
``simclr`` and ``flatclr`` stand beside the paper's numbers, any other name beside nothing. ``--examples=500``
takes the first 500 images of every split: a test of the machinery, whose cells carry that in their name.

``simclr_cifar10_on_cpu``, 10,000 images of CIFAR-10 on two CPU cores (judged with ``--sets=cifar10,cifar100
--kinds=linear --size=16 --rows="trained,untrained,raw pixels"``), was trained by

    python -m contrastive_jax.main --config=configs/simclr_cifar10.py --workdir=runs/simclr_cifar10_on_cpu
        --config.data.train_split='train[:10000]' --config.encoder.width=0.25 --config.encoder.variant=torchvision
        --config.augment.size=16 --config.train.duration="10 epochs" --config.train.batch_size=256
        --config.schedule.warmup="1 epoch" --config.optimizer.name=adamw --config.schedule.learning_rate=0.002
        --config.schedule.scaling=none --config.evaluate.final=False

Protocols: appendix E.3, as ``flatnce_transfer`` and ``finetune_flatnce`` of ``evaluators/protocols.py``, which say
what is assumed. ASSUMED: metrics and splits of SimCLR's transfer (Chen et al. 2020, appendix B.8): mean per class
for Flowers-102 and Caltech-101, 11-point mAP for VOC 2007 (objects marked difficult do not count), top-1 for the
others; random crops of fine-tuning are of the centre square; training images are the training and validation
splits; SUN397 is TFDS's split.
"""

import argparse
import json
import pathlib
import sys

from contrastive_jax import config as configs
from contrastive_jax.commands import evaluate
from contrastive_jax.evaluators import table

RESULTS = pathlib.Path(__file__).parent / "results" / "transfer"

# What each set is called by TFDS, and what is not its loader's default.
SETS = {
    "cifar10": {"name": "cifar10"},
    "cifar100": {"name": "cifar100"},
    "voc2007": {"name": "voc/2007", "train_split": "train+validation", "label_key": "labels_no_difficult"},
    "flowers102": {"name": "oxford_flowers102", "train_split": "train+validation"},
    "caltech101": {"name": "caltech101"},
    "sun397": {"name": "sun397", "train_split": "train+validation"},
}
KINDS = {"linear": "flatnce_transfer", "fine-tuned": "finetune_flatnce"}

# Tables 3 (linear) and S2 (fine-tuned). None: there is no such cell.
REPORTED = {
    ("simclr", "linear"): dict(zip(SETS, (87.74, 65.40, 69.38, 90.03, 79.54, 49.62), strict=True)),
    ("flatclr", "linear"): dict(zip(SETS, (87.92, 65.76, 69.66, 90.23, 81.23, 51.31), strict=True)),
    ("simclr", "fine-tuned"): dict(zip(SETS, (94.61, 76.67, 69.57, 93.58, None, 56.97), strict=True)),
    ("flatclr", "fine-tuned"): dict(zip(SETS, (95.50, 78.92, 70.73, 95.02, None, 58.37), strict=True)),
}


def reported(kind: str) -> dict[tuple[str, str], float | None]:
    """Return (method, set) -> the paper's number of a kind, as tables 3 and S2 show it."""
    names = {"simclr": "SimCLR", "flatclr": "FlatCLR"}
    return {
        (names[name], s): value
        for (name, k), row in REPORTED.items()
        if k == kind
        for s, value in row.items()
    }


def cell_config(arguments: argparse.Namespace, name: str, kind: str) -> dict:
    """Return the config of one cell; network and preparation of images come from the checkpoint."""
    config = configs.base()
    options = dict(SETS[name])
    if options["name"] not in ("cifar10", "cifar100"):
        # The other two are of one shape: resized by the encoder's view alone. Fine-tuned encoders crop 224 of 256.
        options["size"] = arguments.size if kind == "linear" else arguments.size * 256 // 224
    if arguments.examples:
        first = f"[:{arguments.examples}]"
        train = options.get("train_split", "train")
        options |= {
            "train_split": "+".join(part + first for part in train.split("+")),
            "test_split": f"test{first}",
        }
    config.data = options | {"dir": arguments.dir}
    config.evaluate.update(
        {"checkpoint": arguments.checkpoint, "size": arguments.size, "batch_size": arguments.batch_size}
    )
    config.evaluate.rows = tuple(arguments.rows.split(","))
    config.evaluators = {kind: {"name": KINDS[kind]}}
    configs.complete(config)
    for assignment in arguments.set:
        option, _, value = assignment.partition("=")
        config.evaluators[kind][option] = type(config.evaluators[kind][option])(float(value))
    return configs.plain(config)


def run(arguments: argparse.Namespace) -> None:
    """Fill the cells that are missing."""
    folder = RESULTS / (arguments.name + (f"-first{arguments.examples}" if arguments.examples else ""))
    for name in arguments.sets.split(","):
        for kind in arguments.kinds.split(","):
            file = folder / f"{name}-{kind}.json"
            if file.exists():
                print(f"{folder.name}, {name}, {kind}: done")
                continue
            workdir = folder / f"{name}-{kind}"
            found = evaluate.evaluate(cell_config(arguments, name, kind), str(workdir), quiet=True)
            failed = {
                row: score[kind]["failed"]
                for row, score in found["results"].items()
                if "failed" in score[kind]
            }
            if failed:
                raise SystemExit(f"{folder.name}, {name}, {kind}: {failed}; the cell is not kept.")
            (workdir / "evaluation.json").rename(file)
            workdir.rmdir()
            shown = " ".join(
                f"{row} {100 * score[kind][found['metric']]:.2f}"
                for row, score in found["results"].items()
                if "left_out" not in score[kind]
            )
            print(f"{folder.name}, {name}, {kind}, {found['metric']}: {shown}", flush=True)


def render() -> str:
    """Write all cells that there are, beside the paper's."""
    names = sorted(path.name for path in RESULTS.iterdir() if path.is_dir()) if RESULTS.exists() else []
    lines = [f"| encoder | kind | {' | '.join(SETS)} |", f"| --- | --- |{' ---: |' * len(SETS)}"]
    protocols: dict[str, str] = {}
    for name in (*names, *(name for name in ("simclr", "flatclr") if name not in names)):
        for kind in KINDS:
            found = {s: _read(RESULTS / name / f"{s}-{kind}.json") for s in SETS}
            rows = list(dict.fromkeys(row for cell in found.values() if cell for row in cell["results"]))
            for row in rows:
                cells = [_cell(found[s], row, kind, protocols) for s in SETS]
                start = "" if row == "trained" else f", {row}"
                lines.append(f"| {name}{start} | {kind} | {' | '.join(cells)} |")
            if (name, kind) in REPORTED:
                printed = REPORTED[name, kind].values()
                cells = ["—" if value is None else f"{value:.2f}" for value in printed]
                lines.append(f"| {name}, the paper's | {kind} | {' | '.join(cells)} |")
    metrics = ", ".join(f"{s}: {table.METRICS[_metric(s)]}" for s in SETS)
    lines += [
        "",
        f"%, last epoch, one run each; the paper's encoders are ResNet-50s of ImageNet. {metrics}.",
        "",
    ]
    lines += [f"{kind}: {text}." for kind, text in sorted(protocols.items())]
    text = "\n".join([*lines, ""])
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS.parent / "transfer.md").write_text(text)
    return text


def _metric(name: str) -> str:
    return table.metric_of(SETS[name]["name"], several=name == "voc2007")


def _read(file: pathlib.Path) -> dict | None:
    return json.loads(file.read_text()) if file.exists() else None


def _cell(found: dict | None, row: str, kind: str, protocols: dict[str, str]) -> str:
    if found is None or row not in found["results"]:
        return ""
    score = found["results"][row][kind]
    if "left_out" in score:
        return "—"
    protocols.setdefault(kind, score["protocol"])
    return f"{100 * score[found['metric']]:.2f}"


def main(argv: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["run", "render"])
    parser.add_argument("--checkpoint", default="", help="a run's workdir, or a file of --mode=export")
    parser.add_argument("--name", default="flatclr", help="what the encoder is called in the table")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rows", default="trained", help="trained, or trained,untrained: from scratch")
    parser.add_argument("--size", type=int, default=224, help="side of the images that the encoder sees")
    parser.add_argument("--dir", default="", help="the TFDS folder")
    parser.add_argument("--batch-size", type=int, default=256, help="of encoding")
    parser.add_argument("--examples", type=int, default=0, help="the first so many of each split; 0: all")
    parser.add_argument(
        "--set", action="append", default=[], help="option=number of the protocols, such as epochs=2"
    )
    arguments = parser.parse_args(argv)
    if arguments.verb == "render":
        print(render())
        return 0
    unknown = set(arguments.sets.split(",")) - set(SETS) | set(arguments.kinds.split(",")) - set(KINDS)
    if unknown or not arguments.checkpoint:
        parser.error(f"unknown: {', '.join(sorted(unknown))}" if unknown else "run needs --checkpoint")
    run(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
