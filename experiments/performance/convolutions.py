"""XLA's CPU convolutions beside the library's kernels: each of ResNet-18's, forward and both gradients.

    python experiments/performance/convolutions.py [--batch 256] [--width 1.0]

GFLOP/s of one convolution: forward, the gradient of the images and that of the kernel, as XLA makes them and as the
kernels of `contrastive_jax.native` do; the kernel's gradient also as the product in plain JAX that stands in where
there is no compiler; and of a product of two square matrices. And the whole step (batch / 2 examples of two views) with
the kernels and without: in turn, the median of the ratios of a turn.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from against_pytorch import ours

from contrastive_jax import native
from contrastive_jax.models import convolution

HERE = pathlib.Path(__file__).parent
LAYERS = (  # side, channels before and after at width 1, size, stride
    (32, 3, 64, 3, 1), (32, 64, 64, 3, 1), (32, 64, 128, 3, 2), (32, 64, 128, 1, 2), (16, 128, 128, 3, 1),
    (16, 128, 256, 3, 2), (8, 256, 256, 3, 1), (8, 256, 512, 3, 2), (4, 512, 512, 3, 1),
)  # fmt: skip


def fastest(function, *arguments, turns: int = 5) -> float:
    """Measure the seconds of the fastest of some calls of a compiled function."""
    jax.block_until_ready(function(*arguments))
    seconds = []
    for _ in range(turns):
        began = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def measured(batch: int, side: int, before: int, after: int, size: int, stride: int) -> dict:
    """Measure one layer."""
    strides, padding = (stride, stride), ((size // 2, size // 2),) * 2
    random = np.random.default_rng(0)
    images = jnp.asarray(random.normal(size=(batch, side, side, before)), jnp.float32)
    kernel = jnp.asarray(random.normal(size=(size, size, before, after)), jnp.float32)

    def plain(images, kernel):
        return jax.lax.conv_general_dilated(
            images, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    gradient = jnp.asarray(random.normal(size=jax.eval_shape(plain, images, kernel).shape), jnp.float32)
    programs = {}
    for name, forward in (
        ("xla", plain),
        ("kernels", lambda x, w: convolution.convolve(x, w, strides, padding)),
    ):
        programs |= {
            f"forward, {name}": lambda x, w, y, f=forward: f(x, w),
            f"of images, {name}": lambda x, w, y, f=forward: jax.vjp(lambda x: f(x, w), x)[1](y)[0],
            f"of kernel, {name}": lambda x, w, y, f=forward: jax.vjp(lambda w: f(x, w), w)[1](y)[0],
        }
    programs["of kernel, product"] = lambda x, w, y: convolution.kernel_gradient(
        x, y, w.shape[:2], strides, padding
    )
    gflop = 2 * gradient.size * kernel.size / after / 1e9
    seconds = {name: fastest(native.jit(run), images, kernel, gradient) for name, run in programs.items()}
    return {
        "layer": f"{size}x{size}/{stride}, {before} to {after}, {side} px",
        "gflop": gflop,
        "gflops": {name: gflop / spent for name, spent in seconds.items()},
    }


def steps(batch: int, width: float, turns: int = 8) -> dict:
    """Measure the median seconds of the step without (XLA's own) and with the kernels, and quartiles of their
    ratios."""
    programs = {}
    for name in ("off", "on"):
        os.environ[native.library.SWITCH] = name
        programs[name] = ours(width, batch // 2, False, "float32")[0]
        programs[name](1)
    seconds = {name: [] for name in programs}
    for _ in range(turns):
        for name, run in programs.items():
            began = time.perf_counter()
            run(1)
            seconds[name].append(time.perf_counter() - began)
    ratios = [a / b for a, b in zip(seconds["off"], seconds["on"], strict=True)]
    return {name: statistics.median(s) for name, s in seconds.items()} | {
        "ratio": statistics.quantiles(ratios, n=4)
    }


def main() -> None:
    """Measure, print, save."""
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
        print(f"  {row['layer']}: {found}", flush=True)
    report["step"] = steps(options.batch, options.width)
    low, middle, high = report["step"]["ratio"]
    print("  step: {off:.2f} s, {on:.2f} s with the kernels".format_map(report["step"]), end="")
    print(f" ({middle:.2f}x; quartiles {low:.2f}, {high:.2f})")
    device = report["device"].lower().replace(" ", "_")
    out = options.out or HERE / "results" / f"convolutions_width{report['width']}_{device}.json"
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
