"""FlatCLR and SimCLR on ImageNet: FlatNCE (Chen et al. 2021), Tables 2 and S3.

    contrastive-jax --config=configs/flatclr_imagenet.py
    contrastive-jax --config=configs/flatclr_imagenet.py:method=simclr

Protocol: ResNet-50, batch 512, 100 epochs, 256-d; linear classifier on the frozen encoder "trained to
convergence", top-1 (a lower bound, says the paper's footnote 8; Table S3 trains the classifier longer).
Paper: FlatCLR 56.74, SimCLR 54.62 (Table 2); 59.74 and 57.13 (Table S3). ESS-scheduled: not printed.

Arguments: ``method`` (of ``config/methods.py``), ``ess`` (its target for the scheduled temperature,
such as 0.3; 0: fixed), ``scale``.

Assumed: tau 0.1, LARS 0.3 x batch / 256, momentum 0.9, weight decay 1e-6, 10 epochs of warm-up, cosine, a
head of 2 layers without batch norm, torchvision's first weights, colour strength 1 (all: the released
code's defaults; its end of the cosine at 1e-6 is 0 here). Against that code: LARS leaves norms and biases
unadapted, batch norm is over the global batch and not each GPU's share, views are SimCLR's (boxes, bicubic
resizing without antialiasing and colours of its TensorFlow code, where that code has torchvision's) and the
last gamma of each block starts at 0 (SimCLR's code). ESS schedule: tau starts at 1 and moves by 1 % a step
(Algorithm S1, with its sign put right).
"""

from contrastive_jax import config as configs


def get_config(arg=""):
    """The config of ``method`` at ``scale``."""
    options = configs.parse(arg, method="flatclr", ess=0.0, scale="paper")
    config = configs.base()
    config.name = "flatclr_imagenet"
    config.data.name = "imagenet2012"
    config.augment = {"preset": "simclr", "size": 224}
    config.encoder.update({"depth": 50, "stem": "imagenet", "kernel_init": "fan_out"})
    config.projector.update({"layers": 2, "out": 256, "norm": "none"})
    config.train.update({"duration": "100 epochs", "batch_size": 512})
    config.evaluators = {"linear": {"name": "flatnce_linear"}, "knn": {"name": "knn"}}
    config.evaluate.rows = ("trained",)
    configs.use_method(config, options.method)
    if options.ess:
        config.temperature = {"name": "ess", "tau": 1.0, "target": options.ess, "rate": 0.01}
    return configs.at_scale(config, options.scale, gpu={"train.duration": "20 epochs", "dtype": "bfloat16"})
