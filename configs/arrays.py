"""A method on arrays of any shape, from an .npz, .npy or .safetensors file: tables, time series, token ids.

    contrastive-jax --config=configs/arrays.py:kind=table,file=cancer.npz
    contrastive-jax --config=configs/arrays.py:kind=series,file=rows.npz --config.data.test_fraction=0.2

Not a replication: a start for data of your own, on a laptop. A table's views are SCARF's (Bahri et al., 2022), as are
its perceptron of four layers, its head of two, the rate and the batch; the paper's temperature is 1, here it is the
method's. A series has dilated convolutions, tokens have a small transformer. The encoder is evaluated by a linear
classifier (L-BFGS) and kNN, beside the untrained encoder and the values themselves (the row ``raw pixels``).

Arguments: ``kind`` (table, series or tokens), ``file``, ``vocabulary`` (of tokens, the mask's among them), ``method``
(any of ``contrastive_jax/config/methods.py``), ``scale`` (cpu or smoke; all others are cpu).
"""

from contrastive_jax import config as configs

KINDS = {
    "table": {"augment": {"preset": "scarf"}, "encoder": {"name": "mlp"}},
    "series": {
        "augment": {"preset": "time_series", "jitter": 0.3, "mask": 0.3},
        "encoder": {"name": "conv1d"},
    },
    "tokens": {"augment": {"preset": "tokens"}, "encoder": {"name": "transformer"}},
}


def get_config(arg=""):
    """The config of the arrays in ``file``."""
    options = configs.parse(
        arg, kind=tuple(KINDS), file="arrays.npz", vocabulary=0, method="simclr", scale="cpu"
    )
    config = configs.base()
    config.name = "arrays"
    config.data = {"name": "arrays", "file": options.file}
    configs.use_method(config, options.method)
    for section, values in KINDS[options.kind].items():
        config[section] = values
    if options.kind == "tokens":
        config.encoder.vocabulary = options.vocabulary
    config.projector.update({"layers": 2, "hidden": 256, "out": 256, "norm": "none"})
    config.optimizer = {"name": "adamw", "weight_decay": 0.0}
    config.schedule = {"name": "constant", "learning_rate": 1e-3, "scaling": "none", "warmup": "0 steps"}
    config.train.update({"batch_size": 128, "duration": "100 epochs"})
    config.evaluators = {"linear": {"name": "lbfgs"}, "knn": {"name": "knn", "k": 10, "temperature": 0.0}}
    if options.scale == "smoke":
        config.train.update({"batch_size": 32, "duration": "4 steps"})
    return configs.complete(configs.limit(config, "smoke" if options.scale == "smoke" else "cpu"))
