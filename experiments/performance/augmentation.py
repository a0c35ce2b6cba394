"""Augmented images a second: our presets on the device against per-image code on the CPU.

    python experiments/performance/augmentation.py [--torchvision=PYTHON] [--out=results/augmentation_cpu.json]

SimCLR's chain (random resized crop, flip, jitter, grey, blur) at 32 pixels from 32x32 images as for CIFAR
(strength 0.5, no blur), and at 224 pixels from 256x256 images (strength 1, blur):

* ``ours``: the preset ``simclr`` on a batch, as a train step has it, on the first device that JAX finds;
* ``pillow``: the same operations by Pillow and NumPy, image after image;
* ``torchvision``: torchvision.transforms on Pillow images, as most training scripts have it, where it can be
  imported: in this interpreter, or in the one that ``--torchvision`` names. Else the table says so.

Every cell is a process of its own. On the CPU each is bound to one core, and what counts is views per second of
CPU time, which other processes on the machine disturb least; on an accelerator ours has the device, and time is the
clock's. Ours keeps its memory, as the command does. Cells take turns, ``--rounds`` times, and the fastest round
counts. Images are already decoded; what is counted are views, as float32 arrays.
"""

import argparse
import datetime
import functools
import json
import os
import pathlib
import random
import subprocess
import sys
import time

SETTINGS = {
    32: {"stored": 32, "strength": 0.5, "blur": 0.0},
    224: {"stored": 256, "strength": 1.0, "blur": 0.5},
}
JITTER, GRAY, FLIP = 0.8, 0.2, 0.5
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def bind_to_one_core():
    """Let this process and its threads share one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def images(count: int, side: int):
    """Draw [count, side, side, 3] uint8: smooth, as photographs are."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(0)
    small = draw.integers(0, 256, (count, 8, 8, 3), np.uint8)
    return np.stack([np.asarray(Image.fromarray(x).resize((side, side), Image.BICUBIC)) for x in small])


def timed(function, least: float, clock=time.process_time) -> float:
    """Measure the views a second of ``function() -> number of views``, called for at least so many seconds."""
    count, began = 0, clock()
    while clock() - began < least:
        count += function()
    return count / (clock() - began)


def ours(size: int, seconds: float, batch: int) -> dict:
    """Measure the preset: two views of every image of a batch."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        bind_to_one_core()
    import jax

    from contrastive_jax import augment, native

    native.keep_pages()
    settings = SETTINGS[size]
    device = jax.devices()[0]
    if device.platform == "cpu" and os.environ.get("JAX_PLATFORMS") != "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"  # again, bound before jax starts a thread for each core
        os.execv(sys.executable, [sys.executable, *sys.argv])
    batch = batch or (64 if device.platform == "cpu" else 1024)
    view = augment.make_views(
        preset="simclr", size=size, strength=settings["strength"], blur=settings["blur"]
    )
    keys = jax.random.split(jax.random.key(0), batch)
    pixels = jax.device_put(images(batch, settings["stored"]))
    began = time.perf_counter()
    program = native.jit(functools.partial(augment.views_of_batch, view)).lower(keys, pixels).compile()
    compile_seconds = time.perf_counter() - began

    def call():
        out = jax.block_until_ready(program(keys, pixels))
        return out.shape[0] * out.shape[1]

    call()
    rate = timed(call, seconds, time.process_time if device.platform == "cpu" else time.perf_counter)
    facts = {"device": device.device_kind, "batch": batch, "jax": jax.__version__}
    return {"views_per_second": rate, "compile_seconds": compile_seconds} | facts


def pillow(size: int, seconds: float, batch: int) -> dict:
    """Measure SimCLR's chain by Pillow, an image at a time."""
    bind_to_one_core()
    import numpy as np
    import PIL
    from PIL import Image, ImageEnhance, ImageFilter

    settings = SETTINGS[size]
    stored = [Image.fromarray(x) for x in images(32, settings["stored"])]
    strength = settings["strength"]

    def box(width, height):
        for _ in range(10):
            target = width * height * random.uniform(*AREA)
            shape = np.exp(random.uniform(*np.log(RATIO)))
            w, h = round((target * shape) ** 0.5), round((target / shape) ** 0.5)
            if 0 < w <= width and 0 < h <= height:
                left, top = random.randint(0, width - w), random.randint(0, height - h)
                return left, top, left + w, top + h
        return 0, 0, width, height

    def hue(image):
        shifted = np.array(image.convert("HSV"))
        shifted[..., 0] += np.uint8(255 * random.uniform(-0.2 * strength, 0.2 * strength) % 256)
        return Image.fromarray(shifted, "HSV").convert("RGB")

    def enhance(kind):
        factor = random.uniform(1 - 0.8 * strength, 1 + 0.8 * strength)
        return lambda image: kind(image).enhance(factor)

    def view(image):
        image = image.resize((size, size), Image.BICUBIC, box=box(*image.size))
        if random.random() < FLIP:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        if random.random() < JITTER:
            kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
            steps = [*map(enhance, kinds), hue]
            random.shuffle(steps)
            for step in steps:
                image = step(image)
        if random.random() < GRAY:
            image = image.convert("L").convert("RGB")
        if random.random() < settings["blur"]:
            image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
        return np.asarray(image, np.float32) / 255

    def call():
        for image in stored:
            view(image), view(image)
        return 2 * len(stored)

    call()
    return {"views_per_second": timed(call, seconds), "pillow": PIL.__version__}


def torchvision(size: int, seconds: float, batch: int) -> dict:
    """Measure torchvision's own transforms, an image at a time."""
    bind_to_one_core()
    try:
        import torch
        import torchvision
        from torchvision import transforms as t
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        return {"not_run": f"torchvision cannot be imported: {str(error).splitlines()[0]}"}
    from PIL import Image

    torch.set_num_threads(1)
    settings = SETTINGS[size]
    s, blur = settings["strength"], settings["blur"]
    steps = [
        t.RandomResizedCrop(size, AREA, RATIO, interpolation=t.InterpolationMode.BICUBIC),
        t.RandomHorizontalFlip(FLIP),
        t.RandomApply([t.ColorJitter(0.8 * s, 0.8 * s, 0.8 * s, 0.2 * s)], JITTER),
        t.RandomGrayscale(GRAY),
    ]
    if blur:
        steps.append(t.RandomApply([t.GaussianBlur(size // 20 * 2 + 1, (0.1, 2.0))], blur))
    view = t.Compose([*steps, t.ToTensor()])
    stored = [Image.fromarray(x) for x in images(32, settings["stored"])]

    def call():
        for image in stored:
            view(image), view(image)
        return 2 * len(stored)

    call()
    versions = {"torchvision": torchvision.__version__, "torch": torch.__version__}
    return {"views_per_second": timed(call, seconds)} | versions


def table(report: dict) -> str:
    """Write the results as Markdown."""
    lines = [
        f"Augmented views a second, SimCLR's chain; ours on {report['ours_on']}, the others on one core (CPU time).",
        "",
        "| pixels | ours | Pillow | torchvision | ours / Pillow | ours / torchvision |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for size in sorted({cell["size"] for cell in report["cells"]}):
        best = {c["code"]: c for c in report["cells"] if c["size"] == size}
        rates = [best[code].get("views_per_second") for code in ("ours", "pillow", "torchvision")]
        shown = ["not run" if rate is None else f"{rate:,.0f}" for rate in rates]
        ratios = ["-" if rate is None else f"{rates[0] / rate:.2f}" for rate in rates[1:]]
        lines.append(f"| {size} | {' | '.join(shown)} | {' | '.join(ratios)} |")
    note = f"{report['rounds']} rounds in turn, the fastest counts; load {report['load_before']:.1f} on"
    return "\n".join([*lines, "", f"{note} {report['cores']} cores; {report['date']}.", ""])


def main():
    """Run the cells in turn, print the table, save it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="32,224")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of every measurement")
    parser.add_argument(
        "--batch", type=int, default=0, help="of ours; 0: 64 on a CPU, 1,024 on an accelerator"
    )
    parser.add_argument("--torchvision", default=sys.executable, help="a Python that has it")
    parser.add_argument(
        "--out", type=pathlib.Path, help="a JSON file to write; the table lies beside it as .md"
    )
    parser.add_argument("--cell", help=argparse.SUPPRESS)  # code,size: measure in this process
    options = parser.parse_args()
    if options.cell:
        code, size = options.cell.split(",")
        print(json.dumps(globals()[code](int(size), options.seconds, options.batch)))
        return

    report = {
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "rounds": options.rounds,
        "seconds": options.seconds,
    }
    best = {}
    for _ in range(options.rounds):
        for size in map(int, options.sizes.split(",")):
            for code in ("ours", "pillow", "torchvision"):
                python = options.torchvision if code == "torchvision" else sys.executable
                arguments = [
                    f"--cell={code},{size}",
                    f"--seconds={options.seconds}",
                    f"--batch={options.batch}",
                ]
                done = subprocess.run(
                    [python, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True
                )
                cell = {"code": code, "size": size} | json.loads(done.stdout.splitlines()[-1])
                known = best.get((code, size), cell)
                fastest = max(cell, known, key=lambda c: c.get("views_per_second", 0))
                rates = [*known.get("rounds", []), cell.get("views_per_second")]
                best[code, size] = fastest | {"rounds": rates}
                print(
                    f"{size:>4}  {code:<12} {cell.get('views_per_second', cell.get('not_run'))}", flush=True
                )
    report |= {
        "ours_on": next(c["device"] for c in best.values() if "device" in c),
        "cells": [*best.values()],
    }
    if report["ours_on"] == "cpu":
        report["ours_on"] = "one CPU core"
    print(table(report))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(table(report))


if __name__ == "__main__":
    main()
