"""The linear probe (L-BFGS) and kNN of frozen features beside scikit-learn: CPU seconds, accuracy, peak memory.

    python experiments/performance/evaluation.py [--data=cifar10] [--features=512] [--turns=3] [--out=...]
    python experiments/performance/evaluation.py --memory=probe [--rows=200000] [--features=512] [--classes=100]

The features: means of random 6 x 6 convolutions after a ReLU, standardised; they are correlated as an encoder's are.
The probe: C = 1 to a gradient of 1e-5, ours, and scikit-learn's L-BFGS in float64 and float32 to the same number. kNN:
k = 10, cosine, ours and scikit-learn's brute force. Every cell is a process on one core, by turns; ratios are of one
turn. What scikit-learn calls converged is not always so: each row has its gradient, computed in float64.

``--memory`` prints the memory of a process that evaluates random features, in MB: after the imports, with the
features, and the most. 10,000 test images; three iterations of the probe, since more take no more memory.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = pathlib.Path(__file__).parent
TASKS = {"probe": ("ours", "scikit-learn float64", "scikit-learn float32"), "knn": ("ours", "scikit-learn")}


def random_features(name: str, width: int) -> dict[str, np.ndarray]:
    """Compute features and labels of a TFDS data set."""
    import jax
    import jax.numpy as jnp

    from contrastive_jax import data

    source = data.tfds(set=name)
    kernel = np.random.default_rng(0).normal(size=(6, 6, 3, width)).astype(np.float32) / 10
    kernel -= kernel.mean((0, 1, 2), keepdims=True)

    @jax.jit
    def encode(images):
        places = ("NHWC", "HWIO", "NHWC")
        filtered = jax.lax.conv_general_dilated(
            (images / 255.0 - 0.5) * 4, kernel, (3, 3), "VALID", dimension_numbers=places
        )
        return jnp.mean(jax.nn.relu(filtered - 1), (1, 2))

    arrays = {}
    for part in ("train", "test"):
        split = getattr(source, part)
        images = np.asarray(split.image)
        blocks = [
            np.asarray(encode(images[i : i + 1000].astype(np.float32))) for i in range(0, len(images), 1000)
        ]
        arrays |= {part: np.concatenate(blocks), f"{part}_labels": np.asarray(split.label)}
    mean, deviation = arrays["train"].mean(0), arrays["train"].std(0)
    return arrays | {part: (arrays[part] - mean) / deviation for part in ("train", "test")}


def probe(which: str, train, labels, test) -> tuple[np.ndarray, float, float]:
    """Fit; return the predictions, the largest entry of the gradient, and the seconds that this entry took."""
    train = train.astype(np.float32 if which.endswith("32") else np.float64)
    if which == "ours":
        from contrastive_jax.evaluators.linear_probe import fit_lbfgs

        fitted, _ = fit_lbfgs(train, labels, 1.0, 1e-5, 10_000)
        weights, bias = fitted.weights, fitted.bias
    else:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(tol=1e-5, max_iter=10_000).fit(train, labels)
        weights, bias = model.coef_.T.astype(float), model.intercept_.astype(float)
    worked = time.process_time()
    logits = train.astype(float) @ weights + bias
    chances = np.exp(logits - logits.max(1, keepdims=True))
    residual = (chances / chances.sum(1, keepdims=True) - np.eye(weights.shape[1])[labels]) / len(labels)
    slope = np.abs(train.T.astype(float) @ residual + weights / len(labels)).max()
    return (test @ weights + bias).argmax(1), float(slope), time.process_time() - worked


def knn(which: str, train, labels, test) -> tuple[np.ndarray, None, float]:
    """Vote; return the predictions."""
    if which == "ours":
        from contrastive_jax.evaluators.knn import votes

        return votes(train, labels, test, k=10).argmax(1), None, 0.0
    from sklearn.neighbors import KNeighborsClassifier

    model = KNeighborsClassifier(10, metric="cosine", algorithm="brute").fit(train, labels)
    return model.predict(test), None, 0.0


def peak() -> float:
    """Return the largest memory of this process since :func:`cell` cleared the mark, in MB (Linux).

    The kernel's other figure, ``ru_maxrss``, begins with that of the parent process.
    """
    status = pathlib.Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


def cell(task: str, which: str, file: str) -> None:
    """Run one cell and print what it took."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    arrays = dict(np.load(file))
    import sklearn.linear_model
    import sklearn.neighbors  # noqa: F401

    import contrastive_jax.evaluators.knn
    import contrastive_jax.evaluators.linear_probe  # noqa: F401

    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is from here on
    before = peak()
    began = time.process_time()
    predicted, slope, aside = globals()[task](which, arrays["train"], arrays["train_labels"], arrays["test"])
    print(json.dumps({
        "CPU seconds": time.process_time() - began - aside,
        "MB more": peak() - before,
        "top1": float(np.mean(predicted == arrays["test_labels"])),
        "gradient": slope,
    }))  # fmt: skip


def memory(task: str, rows: int, width: int, classes: int) -> None:
    """Print the memory of this process before, with and while it evaluates random features, float32."""
    from contrastive_jax.evaluators.knn import votes
    from contrastive_jax.evaluators.linear_probe import lbfgs

    def report(when):
        lines = (line.split() for line in pathlib.Path("/proc/self/status").read_text().splitlines())
        found = {
            line[0].rstrip(":"): int(line[1]) / 1024 for line in lines if line[0].startswith(("Rss", "VmH"))
        }
        print(
            f"{when}: most {found['VmHWM']:.0f} MB; now {found['RssAnon']:.0f} MB + files {found['RssFile']:.0f} MB"
        )

    report("imports")
    random = np.random.default_rng(0)
    train, test = (random.standard_normal((n, width), np.float32) for n in (rows, 10_000))
    labels, test_labels = (random.permutation(np.arange(n) % classes) for n in (rows, 10_000))
    report(f"with features, {(train.nbytes + test.nbytes) / 2**20:.0f} MB")
    if task == "knn":
        votes(train, labels, test, k=10)
    else:
        lbfgs(train, labels, test, test_labels, max_iterations=3)
    report(task)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--memory", choices=TASKS)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results" / "evaluation_cpu.json")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        cell(*options.cell)
        return
    if options.memory:
        memory(options.memory, options.rows, options.features, options.classes)
        return
    found = {task: {which: [] for which in ways} for task, ways in TASKS.items()}
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "features.npz")
        np.savez(file, **random_features(options.data, options.features))
        for _ in range(options.turns):
            for task, ways in TASKS.items():
                for which in ways:
                    command = [sys.executable, __file__, "--cell", task, which, file]
                    line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                    found[task][which].append(json.loads(line.splitlines()[-1]))
    report = {
        "what": "frozen features, one core: the probe to a gradient of 1e-5 and kNN, ours beside scikit-learn",
        "data": options.data,
        "features": options.features,
        "date": datetime.date.today().isoformat(),
        "load": os.getloadavg()[0],
        "turns": found,
    }
    for task, ways in found.items():
        for which, turns in ways.items():
            ratios = [x["CPU seconds"] / y["CPU seconds"] for x, y in zip(turns, ways["ours"], strict=True)]
            seconds = statistics.median(turn["CPU seconds"] for turn in turns)
            last = turns[-1]
            print(
                f"{task}, {which}: {seconds:.1f} CPU seconds, {statistics.median(ratios):.2f}x ours"
                f" ({min(ratios):.2f} to {max(ratios):.2f}), {last['MB more']:.0f} MB more, top-1"
                f" {100 * last['top1']:.2f} %, gradient {last['gradient']}"
            )
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
