"""Saturation of the distribution term: Intriguing Properties (Chen, Luo and Li 2021), appendix B.2, Figure B.3.

    contrastive-jax --config=configs/saturation.py:bits=12,batch=256
    contrastive-jax --config=configs/saturation.py:loss=swd_normal,bits=12,scale=cpu

Protocol: square images of nothing but binary channels, ResNet-18 with a 2-layer head of 64 outputs, no
augmentation, the distribution term alone, 400 epochs; the term's value over bits, batch and tau. Besides, ``nats``
of the column ``entropy``: what the head's outputs tell apart at the resolution tau, beside ``floor``, the entropy
of the test images; in percent of it in the table. ``mi_estimate`` of the training metrics says the same of a
batch, and cannot exceed log(2 batch - 1).
Paper: curves without printed numbers; the terms saturate after a few bits, and a linear increase of bits takes
an exponential increase of the batch.

Arguments: ``loss`` (logsumexp, swd_normal, swd_hypercube, swd_hypersphere), ``bits`` (1 to 24), ``batch``, ``tau``
(of logsumexp and of the measure), ``scale`` (gpu: 50 epochs; small: 20,000 images of
8 pixels, 20 epochs, AdamW; cpu and smoke: 2,000 of them).

Assumed: 50,000 images of 32 pixels, as CIFAR-10's; integers are drawn, so that they collide; LARS 0.2 x
sqrt(batch), 10 epochs of warm-up (configs/intriguing_cifar10.py); tau 0.2. Both views are the image itself, so
that each embedding is twice in its batch.
"""

from contrastive_jax import config as configs

LOSSES = ("logsumexp", "swd_normal", "swd_hypercube", "swd_hypersphere")


def get_config(arg=""):
    """The config of ``loss`` on images of ``bits`` in batches of ``batch`` at ``scale``."""
    options = configs.parse(arg, loss=LOSSES, bits=8, batch=512, tau=0.2, scale="paper")
    config = configs.base()
    config.name = "saturation"
    config.projector.out = 64
    config.temperature.tau = options.tau
    config.loss = distribution(options.loss)
    config.schedule.update({"learning_rate": 0.2, "scaling": "sqrt"})
    config.train.update({"duration": "400 epochs", "batch_size": options.batch})
    configs.at_scale(config, options.scale, gpu={"train.duration": "50 epochs"})
    config.compose = {"name": "binary", "bits": options.bits}
    config.augment = {"preset": "none", "size": 32}
    if options.scale not in ("paper", "gpu"):
        images = 20_000 if options.scale in configs.SMALL else 2000
        config.compose.update({"side": 8, "examples": images, "test_examples": min(images, 10_000)})
        config.augment.size = 8
    if options.scale in ("cpu", *configs.SMALL):
        config.train.batch_size = options.batch
    config.evaluators = {
        "entropy": {"name": "resolved_entropy", "temperature": options.tau, "layer": "projection_2"},
    }
    config.evaluate.update({"rows": ("trained", "untrained"), "look": (), "metric": "recovered"})
    return configs.complete(config)


def distribution(loss):
    """Return the distribution term of the generalized contrastive loss."""
    if loss == "logsumexp":
        return {"logsumexp_distribution": {"weight": 1.0}}
    prior = loss.removeprefix("swd_")
    return {"sliced_wasserstein": {"weight": 1000.0 if prior == "hypersphere" else 1.0, "prior": prior}}
