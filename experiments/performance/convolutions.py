"""Where XLA's CPU convolutions lose time: each of ResNet-18's, forward and both gradients, beside a matrix product.

    python experiments/performance/convolutions.py [--batch 256] [--width 1.0]

GFLOP/s of one convolution: forward, the gradient of the images, that of the kernel as XLA makes it, and as
`contrastive_jax.models.convolution` makes it on a CPU; and of a product of two square matrices. On a GPU or TPU the
last two are one program. And the whole step (batch / 2 examples of two views), with and without: in turn, the median of
the ratios of a turn.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from against_pytorch import ours

from contrastive_jax.models import convolution

HERE = pathlib.Path(__file__).parent
LAYERS = (  # side, channels before and after at width 1, size, stride
    (32, 3, 64, 3, 1), (32, 64, 64, 3, 1), (32, 64, 128, 3, 2), (32, 64, 128, 1, 2), (16, 128, 128, 3, 1),
    (16, 128, 256, 3, 2), (8, 256, 256, 3, 1), (8, 256, 512, 3, 2), (4, 512, 512, 3, 1),
)  # fmt: skip


def fastest(function, *arguments, turns: int = 5) -> float:
    """Seconds of the fastest of some calls of a compiled function."""
    jax.block_until_ready(function(*arguments))
    seconds = []
    for _ in range(turns):
        began = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def measured(batch: int, side: int, before: int, after: int, size: int, stride: int) -> dict:
    """One layer."""
    strides, padding = (stride, stride), ((size // 2, size // 2),) * 2
    random = np.random.default_rng(0)
    images = jnp.asarray(random.normal(size=(batch, side, side, before)), jnp.float32)
    kernel = jnp.asarray(random.normal(size=(size, size, before, after)), jnp.float32)

    def forward(images, kernel):
        return jax.lax.conv_general_dilated(
            images, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    gradient = jnp.asarray(random.normal(size=jax.eval_shape(forward, images, kernel).shape), jnp.float32)
    programs = {
        "forward": lambda x, w, y: forward(x, w),
        "of images": lambda x, w, y: jax.vjp(lambda x: forward(x, w), x)[1](y)[0],
        "of kernel": lambda x, w, y: jax.vjp(lambda w: forward(x, w), w)[1](y)[0],
        "of kernel, ours": lambda x, w, y: convolution.weight_gradient(x, y, w.shape[:2], strides, padding),
    }
    gflop = 2 * gradient.size * kernel.size / after / 1e9
    seconds = {name: fastest(jax.jit(run), images, kernel, gradient) for name, run in programs.items()}
    return {
        "layer": f"{size}x{size}/{stride}, {before} to {after}, {side} px",
        "gflop": gflop,
        "gflops": {name: gflop / spent for name, spent in seconds.items()},
        "in the network": 1e9 * gflop >= convolution.LARGE,
        "ours over xla": seconds["of kernel"] / seconds["of kernel, ours"],
    }


def steps(batch: int, width: float, turns: int = 8) -> dict:
    """Median seconds of the step without (XLA's weight gradients) and with ours, and quartiles of their ratios."""
    programs, least = {}, convolution.LARGE
    for name, convolution.LARGE in (("xla", math.inf), ("ours", least)):
        programs[name] = ours(width, batch // 2, False)[0]
        programs[name](1)
    seconds = {name: [] for name in programs}
    for _ in range(turns):
        for name, run in programs.items():
            began = time.perf_counter()
            run(1)
            seconds[name].append(time.perf_counter() - began)
    ratios = [a / b for a, b in zip(seconds["xla"], seconds["ours"], strict=True)]
    return {name: statistics.median(s) for name, s in seconds.items()} | {
        "ratio": statistics.quantiles(ratios, n=4)
    }


def main() -> None:
    """Measures, prints, saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256, help="views")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    square = jnp.ones((2048, 2048))
    report = {
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "load": os.getloadavg()[0],
        "batch": options.batch,
        "width": round(64 * options.width),
        "product of matrices, gflops": 2 * 2048**3 / fastest(jax.jit(jnp.matmul), square, square) / 1e9,
        "layers": [],
    }
    print(
        f"GFLOP/s, {options.batch} views; a product of matrices {report['product of matrices, gflops']:.0f}"
    )
    for side, before, after, size, stride in LAYERS:
        before, after = (c if c == 3 else round(c * options.width) for c in (before, after))
        row = measured(options.batch, side, before, after, size, stride)
        report["layers"].append(row)
        found = ", ".join(f"{name} {speed:.0f}" for name, speed in row["gflops"].items())
        print(f"  {row['layer']}: {found} ({row['ours over xla']:.1f}x)", flush=True)
    report["step"] = steps(options.batch, options.width)
    low, middle, high = report["step"]["ratio"]
    print("  step: {xla:.2f} s, {ours:.2f} s with ours".format_map(report["step"]), end="")
    print(f" ({middle:.2f}x; quartiles {low:.2f}, {high:.2f})")
    device = report["device"].lower().replace(" ", "_")
    out = options.out or HERE / "results" / f"convolutions_width{report['width']}_{device}.json"
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
