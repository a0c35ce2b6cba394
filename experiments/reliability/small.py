"""A network as small as it gets, where what is asked is not what it learns."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from contrastive_jax.models import resnet
from contrastive_jax.models.network import encoder_of


@contextlib.contextmanager
def one_block() -> Iterator[None]:
    """Make encoders of one residual block, which trace and compile in a fraction of the time."""
    features = property(lambda encoder: encoder.channels * (4 if encoder.depth >= 50 else 1))
    encoder_of.cache_clear()  # whose encoders are kept by their options
    with (
        mock.patch.dict(resnet.BLOCKS, dict.fromkeys(resnet.BLOCKS, (1,))),
        mock.patch.object(resnet.ResNet, "features", features),
    ):
        try:
            yield
        finally:
            encoder_of.cache_clear()
