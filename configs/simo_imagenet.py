"""SiMo on ImageNet, MoCo v2 with 16 negatives and no queue: EqCo (Zhu et al. 2020), Figure 3, Table 2.

    contrastive-jax --config=configs/simo_imagenet.py
    contrastive-jax --config=configs/simo_imagenet.py:alpha=65536

Protocol: ResNet-50, N = 256 queries a batch, 200 epochs; K of the 255 other keys of the batch, all from the
momentum encoder (0.999); linear classifier on the frozen pooled features, top-1 (MoCo's: SGD, learning rate
30, 100 epochs).
Paper: K = 16: 68.1 (alpha = 256), 68.5 (alpha = 65,536), 72.1 (800 epochs); 64.4 at 100 epochs. Other K, and
without EqCo: not printed.

Arguments: ``k`` (negatives a query, at most 255), ``alpha`` (EqCo's; 0: no margin), ``head`` (simclr, released),
``scale``.

The released run (the first author's code, V2AI/SelfSup) has K = 256, which takes all 255 other keys, and leaves alpha
out where K is the batch: k=255,alpha=0,head=released is that loss and head.

Synchronised batch norm: queries and keys are two passes through two networks, each with statistics of its
256 images. So norm.scope=joint (all that one pass sees) and per_view are the same here.

Assumed: one random choice of negatives for all queries of a step (the first author's code). 10 epochs of
warm-up ("as in SimCLR"); batch norm on both layers of the head, the last without a bias (SimCLR's; with
head=released it has one, as in that code); queries from one view, as in MoCo v2. What the paper takes from
MoCo v2 is as in configs/moco_v2_imagenet.py.
"""

from contrastive_jax import config as configs


def get_config(arg=""):
    """The config of ``k`` negatives, margin ``alpha`` and ``head`` at ``scale``."""
    options = configs.parse(arg, k=16, alpha=256.0, head=("simclr", "released"), scale="paper")
    config = configs.sibling(__file__, "moco_v2_imagenet").get_config()
    config.name = "simo_imagenet"
    config.norm = {"scope": "joint", "groups": 1}
    config.schedule.warmup = "10 epochs"
    configs.use_method(config, "simo")
    config.negatives.k = options.k
    if options.head == "released":
        config.projector.norm = "all_with_bias"
    if options.alpha:
        config.margin.alpha = options.alpha
    else:
        config.margin = {"name": "none"}
    return configs.at_scale(config, options.scale, gpu={"train.duration": "20 epochs", "dtype": "bfloat16"})
