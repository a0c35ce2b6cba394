"""What MACL's tables share: losses, configs, columns."""

import json

from experiments import harness

# The paper's names -> methods of the library.
LOSSES = {
    "InfoNCE": "simclr",
    "DCL": "dcl",
    "Dual": "dual_temperature",
    "MACL-a": "macl",
    "MACL-b": "macl_b",
}
SENSITIVITY = {"name": "experiments.macl.sensitivity:semantic_sensitivity"}
PUBLISHED = {
    "linear": {"name": "macl"},
    "knn": {"name": "knn", "k": 200, "temperature": 0.1},
    "sensitivity": SENSITIVITY,
}
LINEAR, KNN, S = "linear top-1, %", "kNN top-1, %", "semantic sensitivity S"
METRIC = {LINEAR: "trained.linear.top1 %", KNN: "trained.knn.top1 %", S: "trained.sensitivity.S"}
SMOKE = ("MACL-a", "batch 32")  # one cell, for all tables
CURVES = ("eval/sensitivity_S",)
OWN = {
    "paper": f" --config.evaluators='{json.dumps(PUBLISHED)}'",
    "gpu": " --config.train.duration='50 epochs' --config.dtype=bfloat16 --config.evaluate.rows=\"('trained',)\""
    f" --config.evaluators='{json.dumps(PUBLISHED)}'",
    "cpu": " --config.train.duration='20 epochs' --config.evaluate.every='2 epochs'"
    " --config.evaluate.look=\"('sensitivity',)\"" + harness.brief(sensitivity=SENSITIVITY),
    "smoke": harness.brief(sensitivity=SENSITIVITY),
}
ASSUMED = {
    "negatives, head, augmentation, classifiers": "as the docstring of configs/macl_cifar10.py says",
    "semantic sensitivity": "layer and pairs are not printed: projections, distinct pairs of one clean view of"
    " the test images",
    "gpu": "50 epochs instead of 200, bfloat16",
    "cpu": "digits, 20 epochs, batch as given, AdamW at 0.003 (whatever the batch, as the paper's Adam) with"
    " warm-up and cosine; L-BFGS and 10 nearest neighbours",
}


def arguments(scale: str, method: str, overrides: str = "", dataset: str = "cifar10") -> str:
    """Of the command: a method on a data set; on digits at ``cpu`` and ``smoke``."""
    where = dataset if scale == "paper" else "cifar10"
    return f"configs/macl_{where}.py:method={method},scale={scale}{overrides}{OWN[scale]}"
