"""The table at the end of a run: encoders by protocols, each number with how it was made."""

from typing import NamedTuple

import numpy as np

from contrastive_jax.evaluators import knn, linear_probe


class Encoded(NamedTuple):
    """The clean images of both parts, as one encoder sees them."""

    train: np.ndarray  # [n, F]
    test: np.ndarray  # [m, F]
    layer: str = "pooled"


def report(
    encoders: dict[str, Encoded],
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    *,
    C: float = 1.0,
    labels_per_class: int = 10,
    draws: int = 20,
    k: int = 10,
    temperature: float = 0.0,
    standardize_knn: bool = False,
    seed: int = 0,
    console=None,
    quiet: bool = False,
) -> dict:
    """Judge every encoder by a linear classifier on all labels, on few labels, and by kNN; print the table.

    Args:
        encoders: name -> features, in the order of the rows; usually "trained", "untrained", "raw pixels".
        train_labels: ``[n]``.
        test_labels: ``[m]``.
        C: of both linear classifiers, see :func:`linear_probe.lbfgs`.
        labels_per_class: of the second column; every encoder sees the same draws.
        draws: of the second column.
        k: of :func:`knn.evaluate`.
        temperature: of :func:`knn.evaluate`.
        standardize_knn: ``standardize`` of :func:`knn.evaluate`.
        seed: of the draws.
        console: the ``rich`` console to print on; the shared one by default.
        quiet: judge, print nothing.

    Returns:
        ``{encoder: {"linear": …, "linear_few_labels": …, "knn": …}}``, each entry what its evaluator
        returned: JSON-able, accuracies in [0, 1], with protocol and settings.
    """
    results = {}
    for name, encoded in encoders.items():
        arrays = (encoded.train, train_labels, encoded.test, test_labels)
        linear = dict(C=C, seed=seed, layer=encoded.layer)
        results[name] = {
            "linear": linear_probe.lbfgs(*arrays, **linear),
            "linear_few_labels": linear_probe.lbfgs(
                *arrays, **linear, labels_per_class=labels_per_class, draws=draws
            ),
            "knn": knn.evaluate(
                *arrays, k=k, temperature=temperature, standardize=standardize_knn, layer=encoded.layer
            ),
        }
    if not quiet:
        print_table(results, console=console)
    return results


def print_table(results: dict, *, console=None) -> None:
    """Print what :func:`report` returned: top-1 in percent, and below it each column's protocol."""
    import rich
    from rich.table import Table

    console = console or rich.get_console()
    first = next(iter(results.values()))
    table = Table(title="Top-1 on the test images, %", title_justify="left")
    table.add_column("encoder")
    table.add_column("layer")
    table.add_column("linear, all labels", justify="right")
    labels_per_class = first["linear_few_labels"]["settings"]["labels_per_class"]
    table.add_column(f"linear, {labels_per_class} per class", justify="right")
    table.add_column(f"kNN, k={first['knn']['settings']['k']}", justify="right")
    for name, scores in results.items():
        table.add_row(name, _layer(scores), *map(_cell, scores.values()))
    console.print(table)
    for column in first:
        whose = {}  # one line, unless a fit that has not converged says so
        for name, scores in results.items():
            text = scores[column]["protocol"].replace(f", layer {_layer(scores)}", "")
            whose.setdefault(text, []).append(name)
        for text, names in whose.items():
            text = text if len(whose) == 1 else f"{text} [{', '.join(names)}]"
            console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def _layer(scores: dict) -> str:
    return scores["knn"]["settings"]["layer"]


def _cell(score: dict) -> str:
    spread = f" ± {100 * score['top1_std']:.1f}" if "top1_std" in score else ""
    return f"{100 * score['top1']:.1f}{spread}{'' if score.get('converged', True) else ' (not converged)'}"
