"""Images a second of the ImageNet step on synthetic images of 224 pixels: of the step alone, and of its data.

    python -m experiments.gpu.throughput [--stream=on|off] [--batch=256] [--out FILE]

``--stream=off`` makes the images on the device once; ``--stream=on`` has JPEGs of ImageNet's mean size decoded and
cropped by worker processes, as a run would. It is what ``--mode=describe`` measures of ``flatclr_imagenet``.
"""

import argparse
import json
import pathlib

import jax

from contrastive_jax import config as configs
from contrastive_jax.commands import describe


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stream", choices=["on", "off"], default="off")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tiny", action="store_true", help="a narrow ResNet-18 at 32 pixels: a rehearsal")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    leaves = {"train.batch_size": options.batch, "dtype": options.dtype, "train.microbatches": 1}
    if options.tiny:
        leaves |= {"encoder.depth": 18, "encoder.width": 0.125, "augment.size": 32, "dtype": "float32"}
    given = [
        ("data.name", "synthetic"),
        ("data.stream", options.stream),
        *((k, str(v)) for k, v in leaves.items()),
    ]
    given += [("data.examples", str(8 * options.batch)), ("data.test_examples", "64")]
    if options.stream == "off":
        given.append(("data.size", "256" if not options.tiny else "40"))
    config = configs.plain(configs.resolve("flatclr_imagenet", given))
    found = describe.describe(config, "")
    report = {
        "what": f"flatclr_imagenet, batch {options.batch}, {config['dtype']}, synthetic, stream {options.stream}",
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        **found,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
