"""Images a second that one CPU core decodes and crops into two 224 x 224 views: ours, tf.data and Pillow.

    python experiments/performance/input_pipeline.py --photos=DIR [--tensorflow=PYTHON]
        [--out=experiments/performance/results/input_pipeline.json]

The images are JPEGs of ImageNet's sizes, made of the photographs in DIR: fitted to 500 x 375 (or 375 x 500), each
at the quality up to 96 that comes nearest to 110 kB. They lie in memory. All give two random crops an image as uint8
batches of 128, ours and tf.data by the sampler and with the kernel of SimCLR (boxes of
``tf.image.sample_distorted_bounding_box``, bicubic, not antialiased):

* ours: the stream as a run reads it (:mod:`contrastive_jax.data.stream`), without worker processes, resized
  exactly as the device would (data.resize=exact) and by OpenCV, whose cubic kernel is a sharper one; freed memory
  is kept, as the command does;
* tf.data: decoded once for both views, or ``tf.image.decode_and_crop_jpeg`` for each, as SimCLR's code has it;
* Grain: a map over its data set, in one thread; it has no decoder, so the function decodes and resizes by OpenCV
  (INTER_CUBIC), with boxes drawn as torchvision does;
* Pillow: the per-image code of most loaders, one ``crop`` and ``resize`` a view, which antialiases always, of
  the same boxes.

Every measurement is a process of its own, pinned to one core; contenders take turns for ``--rounds`` rounds. What
counts is images per second of CPU time of the whole process (all its threads), which other
processes on the machine disturb least; the table shows the median and range over the rounds, and images per second on
the clock. tf.data is left out where the Python given has no TensorFlow.
"""

import argparse
import datetime
import io
import json
import os
import pathlib
import pickle
import statistics
import subprocess
import sys
import tempfile
import time

LONG, SHORT, BYTES = 500, 375, 110_000
SIZE, BATCH = 224, 128
CONTENDERS = {
    "ours": "contrastive_jax, data.resize=exact",
    "ours_opencv": "contrastive_jax, data.resize=opencv",
    "tfdata_once": "tf.data, decoded once",
    "tfdata_each": "tf.data, decode_and_crop_jpeg for each view",
    "grain": "Grain, decoded and resized by OpenCV",
    "pillow": "Pillow",
}


def photographs(folder: pathlib.Path) -> list[bytes]:
    """Make JPEGs of ImageNet's sizes."""
    from PIL import Image, ImageOps

    jpegs = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp"):
            continue
        with Image.open(path) as image:
            image = ImageOps.exif_transpose(image).convert("RGB")
        shape = (LONG, SHORT) if image.width >= image.height else (SHORT, LONG)
        image, versions = ImageOps.fit(image, shape, Image.Resampling.LANCZOS), []
        for quality in range(75, 97):
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=quality)
            versions.append(buffer.getvalue())
        jpegs.append(min(versions, key=lambda version: abs(len(version) - BYTES)))
    if not jpegs:
        raise SystemExit(f"--photos={folder}: there is no image")
    return jpegs


class Memory:
    """Records that lie in memory, again and again."""

    shape, label_shape, labelled, chunk = (None, None, 3), (), True, 32

    def __init__(self, jpegs: list[bytes], count: int):
        self.jpegs, self.count = jpegs, count

    def __len__(self):
        return self.count

    def read(self, rows):
        """Return the records of some rows."""
        from contrastive_jax.data.records import Record

        return [Record(self.jpegs[row % len(self.jpegs)], 0, int(row)) for row in rows]

    def name(self, row):
        """Say what to call a record."""
        return f"photograph {row % len(self.jpegs)}"


def ours(jpegs, opencv: bool):
    """Yield batches [B, 2, 224, 224, 3] without end."""
    import dataclasses

    import numpy as np

    from contrastive_jax import augment, native
    from contrastive_jax.data import stream

    native.keep_pages()
    view = augment.make_views(preset="simclr", size=SIZE)
    split = stream.Streamed(Memory(jpegs, 24 * 1000), workers=0)
    cut = dataclasses.replace(view.cut, opencv=opencv)
    loader = split.loader(stream.Endless(0, len(split)), cut, 0)
    reader = stream.Reader(stream.Parts(loader, BATCH, np.arange(BATCH), 10**9), 0, 0)
    while True:
        yield reader.next()["image"]


def tfdata(jpegs, each: bool):
    """Yield the same with tf.data."""
    import tensorflow as tf

    def box(shape):
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, tf.zeros([1, 0, 4]), min_object_covered=0.1, aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0), max_attempts=100, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        return begin[0], begin[1], size[0], size[1]

    def resized(image):
        image = tf.image.resize(image, (SIZE, SIZE), "bicubic")
        return tf.saturate_cast(tf.round(image), tf.uint8)

    def views(jpeg):
        if each:
            shape = tf.image.extract_jpeg_shape(jpeg)
            crops = [tf.image.decode_and_crop_jpeg(jpeg, tf.stack(box(shape)), channels=3) for _ in range(2)]
        else:
            image = tf.image.decode_jpeg(jpeg, channels=3)
            crops = []
            for _ in range(2):
                top, left, height, width = box(tf.shape(image))
                crops.append(image[top : top + height, left : left + width])
        return tf.stack([resized(crop) for crop in crops])

    data = tf.data.Dataset.from_tensor_slices(jpegs).repeat().shuffle(1000)
    data = data.map(views, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    yield from data.as_numpy_iterator()


def random_box(width, height, draw):
    """Draw a box as torchvision's RandomResizedCrop does: left, top, right, bottom."""
    import math

    for _ in range(10):
        area = height * width * draw.uniform(0.08, 1.0)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = draw.randint(0, height - h), draw.randint(0, width - w)
            return left, top, left + w, top + h
    return 0, 0, width, height


def grain(jpegs):
    """Yield the same with Grain."""
    import random

    import cv2
    import grain
    import numpy as np
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    cv2.setNumThreads(1)

    def views(number, generator):
        draw = random.Random(int(generator.integers(2**32)))
        image = cv2.imdecode(np.frombuffer(jpegs[number], np.uint8), cv2.IMREAD_COLOR_RGB)
        boxes = [random_box(image.shape[1], image.shape[0], draw) for _ in range(2)]
        crops = [image[top:bottom, left:right] for left, top, right, bottom in boxes]
        return np.stack([cv2.resize(crop, (SIZE, SIZE), interpolation=cv2.INTER_CUBIC) for crop in crops])

    data = grain.MapDataset.range(len(jpegs)).seed(0).shuffle().repeat().random_map(views).batch(BATCH)
    yield from data.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))


def pillow(jpegs):
    """Yield the same with Pillow, one image after another."""
    import random

    import numpy as np
    from PIL import Image

    def views(jpeg):
        image = Image.open(io.BytesIO(jpeg)).convert("RGB")
        crops = (image.crop(random_box(*image.size, random)) for _ in range(2))
        return np.stack([np.asarray(crop.resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for crop in crops])

    while True:
        yield np.stack([views(random.choice(jpegs)) for _ in range(BATCH)])


def measure(contender: str, path: str, seconds: float) -> dict:
    """Measure images a second of CPU time and on the clock, in this process, pinned to one core."""
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    with open(path, "rb") as file:
        jpegs = pickle.load(file)
    make = {
        "ours": lambda x: ours(x, opencv=False),
        "ours_opencv": lambda x: ours(x, opencv=True),
        "grain": grain,
        "pillow": pillow,
        "tfdata_once": lambda x: tfdata(x, each=False),
        "tfdata_each": lambda x: tfdata(x, each=True),
    }
    batches = make[contender](jpegs)
    for _ in range(4):  # compiles, fills buffers
        batch = next(batches)
    assert batch.shape == (BATCH, 2, SIZE, SIZE, 3) and batch.dtype == "uint8", (batch.shape, batch.dtype)
    cpu, clock, images = time.process_time(), time.perf_counter(), 0
    while time.process_time() - cpu < seconds:
        images += len(next(batches))
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    return {"images": images, "per_cpu_second": images / cpu, "per_second": images / clock}


def versions(python: str) -> dict:
    """Return the versions of what is measured."""
    names = (
        "numpy",
        "scipy",
        "pillow",
        "simplejpeg",
        "opencv-python-headless",
        "grain",
        "jax",
        "tensorflow",
        "tensorflow-cpu",
    )
    code = (
        "import importlib.metadata as m, json\n"
        "def v(n):\n  try: return m.version(n)\n  except m.PackageNotFoundError: return None\n"
        f"print(json.dumps({{n: v(n) for n in {names}}}))"
    )
    found = json.loads(
        subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    )
    return {name: version for name, version in found.items() if version}


def render(report: dict) -> str:
    """Write the results as Markdown."""
    lines = [
        "| pipeline | images / CPU second (median) | range | of the best tf.data | images / second on the clock |",
        "|---|---|---|---|---|",
    ]
    best = max(
        (cell["median"] for name, cell in report["contenders"].items() if name.startswith("tfdata")),
        default=None,
    )
    for name, cell in report["contenders"].items():
        ratio = f"{cell['median'] / best:.2f}" if best else ""
        lines.append(
            f"| {CONTENDERS[name]} | {cell['median']:.0f} | {cell['range'][0]:.0f} to {cell['range'][1]:.0f} |"
            f" {ratio} | {cell['on_the_clock']:.0f} |"
        )
    about = (
        f"\n{report['photographs']} photographs as JPEGs, {report['mean_kilobytes']:.0f} kB on average, two views of"
        f" {SIZE} x {SIZE}; one core of {report['cpu']}; {report['rounds']} rounds; load {report['load']:.1f} before."
    )
    return "\n".join(lines) + "\n" + about + "\n"


def cpu() -> str:
    """Return the processor's name."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown"


def main():
    """Measure and print; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=pathlib.Path, help="a folder of photographs")
    parser.add_argument("--tensorflow", default=sys.executable, help="a Python that has TensorFlow")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of CPU time, of every measurement")
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file to write; the table goes beside it")
    parser.add_argument(
        "--cell", nargs=2, help=argparse.SUPPRESS
    )  # contender, images: measure in this process
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(measure(*options.cell, options.seconds)))
        return
    if options.photos is None:
        parser.error("--photos=DIR is needed: a folder of photographs, of which the JPEGs are made")

    has = subprocess.run([options.tensorflow, "-c", "import tensorflow"], capture_output=True).returncode == 0
    names = [name for name in CONTENDERS if has or not name.startswith("tfdata")]
    if not has:
        print(
            f"{options.tensorflow} has no TensorFlow: tf.data is left out (--tensorflow=PYTHON)",
            file=sys.stderr,
        )
    jpegs = photographs(options.photos)
    load, cells = os.getloadavg()[0], {name: [] for name in names}
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "jpegs")
        with open(path, "wb") as file:
            pickle.dump(jpegs, file)
        for _ in range(options.rounds):
            for name in names:
                python = options.tensorflow if name.startswith("tfdata") else sys.executable
                command = [python, __file__, f"--seconds={options.seconds}", "--cell", name, path]
                done = subprocess.run(command, env=environment, capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(done.stderr)
                cells[name].append(json.loads(done.stdout.splitlines()[-1]))
                print(f"{name}: {cells[name][-1]['per_cpu_second']:.0f} images a CPU second", file=sys.stderr)
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": cpu(),
        "load": load,
        "rounds": options.rounds,
        "photographs": len(jpegs),
        "mean_kilobytes": statistics.mean(map(len, jpegs)) / 1000,
        "versions": versions(sys.executable) | (versions(options.tensorflow) if has else {}),
        "contenders": {
            name: {
                "median": statistics.median(cell["per_cpu_second"] for cell in found),
                "range": [f(cell["per_cpu_second"] for cell in found) for f in (min, max)],
                "on_the_clock": statistics.median(cell["per_second"] for cell in found),
            }
            for name, found in cells.items()
        },
    }
    print(render(report))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(render(report))


if __name__ == "__main__":
    main()
