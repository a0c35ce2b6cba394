"""SimCLR and ReLIC on ImageNet 64 x 64 with K negatives: Less can be more (Mitrovic et al. 2020), Figure 1c.

    contrastive-jax --config=configs/few_negatives_imagenet64.py:method=relic,k=100
    contrastive-jax --config=configs/few_negatives_imagenet64.py:method=simclr,k=75

Protocol: as configs/few_negatives_cifar100.py ("the same protocol and experimental setup"), so 2,000 epochs,
with batch 4,096; SimCLR's linear classifier as on ImageNet (batch 4,096, 90 epochs).
Paper: accuracies not printed. ReLIC's best is K = 100, 0.7 points above all negatives; SimCLR with K = 75
equals SimCLR with all.

Arguments: ``method`` (relic, simclr), ``k`` (negatives a query; 0: all), ``reading`` (simclr, printed) and ``draw``
(query, example) as in configs/few_negatives_cifar100.py, ``scale``.

Assumed: colour strength 1 and blur (SimCLR's for ImageNet); the CIFAR stem, as the set-up is said to be the
same; evaluation sees the whole image. Images are TFDS's, resized by area. The rest as in
configs/few_negatives_cifar100.py.
"""

from contrastive_jax import config as configs


def get_config(arg=""):
    """The config of ``method`` with ``k`` negatives at ``scale``."""
    cifar100 = configs.sibling(__file__, "few_negatives_cifar100")
    options = configs.parse(arg, k=100, scale="paper", **cifar100.ARGUMENTS)
    same = ",".join(f"{name}={options[name]}" for name in ("k", *cifar100.ARGUMENTS))
    config = cifar100.get_config(same)
    config.name = "few_negatives_imagenet64"
    config.data.update({"name": "imagenet_resized/64x64", "memory_limit": 16.0})
    config.augment = {"preset": "simclr", "size": 64, "eval_crop": 1.0}
    config.train.batch_size = 4096
    config.evaluators.linear = {"name": "simclr", "batch_size": 4096, "epochs": 90, "weight_decay": 1e-6}
    config.evaluate.rows = ("trained",)
    return configs.at_scale(
        config,
        options.scale,
        gpu={
            "encoder.depth": 18,
            "train.duration": "20 epochs",
            "train.batch_size": 512,
            "dtype": "bfloat16",
        },
    )
