"""SimCLR on a folder of your own images, labelled or not: a start for 300 of them or 300,000, on a laptop or a GPU.

    contrastive-jax --config=configs/folder.py:dir=photos --mode=preview
    contrastive-jax --config=configs/folder.py:dir=photos
    contrastive-jax --config=configs/folder.py:dir=photos,size=128,scale=gpu

Not a replication. At scale cpu a ResNet-18 of width 16 sees 60,000 images (900 images 67 times); gpu has width 64 and
sees 10 million. Without a test folder a tenth of every class is held out; where there are labels it judges the encoder
by a linear classifier (L-BFGS) and kNN, beside the untrained encoder. What a method takes from the size of its data
(queue, alpha, K, momentum of the target) is cut to such sizes (``contrastive_jax.config.limit``).

Arguments: ``dir``, ``data`` (folder; webdataset or huggingface for a set in that form), ``size`` (of the views in
pixels; images are kept at twice that, or at 256), ``method`` (any of ``contrastive_jax/config/methods.py``), ``scale``
(cpu, gpu or smoke; paper is gpu, small is cpu).
"""

from contrastive_jax import config as configs

FORMS = ("folder", "webdataset", "huggingface")
BY_SCALE = {
    "smoke": {
        "encoder.width": 0.125,
        "train.batch_size": 16,
        "train.duration": "4 steps",
        "schedule.warmup": "1 step",
    },
    "cpu": {
        "encoder.width": 0.25,
        "encoder.zero_init": False,
        "schedule.learning_rate": 3e-3,
        "train.batch_size": 64,
        "train.duration": "60000 examples",
    },
    "gpu": {"train.batch_size": 256, "train.duration": "1e7 examples", "dtype": "bfloat16"},
}
NEAREST = {"paper": "gpu"} | dict.fromkeys(configs.SMALL, "cpu")


def get_config(arg=""):
    """The config of the images in ``dir`` at ``size``."""
    options = configs.parse(arg, dir="photos", data=FORMS, size=32, method="simclr", scale="cpu")
    config = configs.base()
    config.name = "folder"
    stored = max(options.size, min(2 * options.size, 256))
    config.data.update({"name": options.data, "dir": options.dir, "size": stored, "test_fraction": 0.1})
    # Milder than on ImageNet: few images do not bear SimCLR's full strength.
    config.augment = {"preset": "simclr", "size": options.size, "crop_min": 0.2, "strength": 0.5}
    if options.size > 64:
        config.encoder.stem = "imagenet"
    else:
        config.augment.blur = 0.0
    config.optimizer = {"name": "adamw", "weight_decay": 1e-4}
    config.schedule.update({"learning_rate": 1e-3, "scaling": "none", "warmup": "20 steps"})
    config.evaluators = {"linear": {"name": "lbfgs"}, "knn": {"name": "knn", "k": 5, "temperature": 0.0}}
    config.evaluate.rows = ("trained", "untrained")
    configs.use_method(config, options.method)
    scale = NEAREST.get(options.scale, options.scale)
    config.update_from_flattened_dict(BY_SCALE[scale])
    return configs.complete(configs.limit(config, scale))
