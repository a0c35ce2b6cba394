"""Seconds from the command to its first lines, with a warm compilation cache.

    python experiments/performance/start_up.py [--starts 5]

Starts the command of the README's first digits config, and reads the clock at each line that it prints; the first start
fills the cache and is not counted.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]


def started(folder: str) -> dict[str, float]:
    """Measure one start: seconds to the first line; of tracing and compilation; and until the step can run, less
    these."""
    command = [
        sys.executable, "-m", "contrastive_jax.main", f"--config={ROOT / 'configs/flatclr_digits.py'}",
        "--config.train.duration=40 steps", "--config.evaluate.final=False", f"--workdir={folder}",
    ]  # fmt: skip
    found, began = {}, time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            spent = time.perf_counter() - began
            found.setdefault("first line", spent)
            if compiled := re.search(r"compiled in ([\d.]+) s", line):
                found["compilation"] = float(compiled[1])
                found["ready, less compilation"] = spent - float(compiled[1])
    if process.returncode:
        raise SystemExit(process.returncode)
    return found


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        starts = [started(f"{folder}/{i}") for i in range(options.starts + 1)][1:]
    import jax

    report = {
        "what": "seconds from the command to its lines, warm compilation cache, digits",
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "load": os.getloadavg()[0],
        "starts": starts,
    }
    for name in starts[0]:
        times = sorted(start[name] for start in starts)
        print(
            f"{name}: {statistics.median(times):.1f} s ({times[0]:.1f} to {times[-1]:.1f}, n = {len(times)})"
        )
    device = report["device"].lower().replace(" ", "_")
    (HERE / "results" / f"start_up_{device}.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
