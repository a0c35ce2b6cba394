"""MoCo's own steps (facebookresearch/moco, ``builder.py``) through our train step: the order of EMA, keys, queue."""

import functools
import json
import pathlib

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from contrastive_jax.contrast import (
    by_example,
    candidates,
    margin,
    negatives,
    normalizer,
    target,
    temperature,
)
from contrastive_jax.contrast.comparison import Compare, cosine
from contrastive_jax.contrast.diagnostics import diagnostics
from contrastive_jax.contrast.terms import make_terms
from contrastive_jax.models import Network
from contrastive_jax.optim.gradient_snr import gradient_snr
from contrastive_jax.training.recipe import Recipe
from contrastive_jax.training.step import make_train_step
from contrastive_jax.types import Batch, Outputs, TrainState

GOLDEN = np.load(pathlib.Path(__file__).parents[1] / "golden" / "moco_steps.npz")
CASES = json.loads(str(GOLDEN["index"]))


def encoder(params, stats, views, *, train, groups=None):
    """The reference's: a tanh layer, then one linear layer, or two with a ReLU between."""
    (views,) = views if isinstance(views, tuple) else (views,)  # of one size
    x = jnp.tanh(views @ params["l1.weight"].T + params["l1.bias"])
    if "fc.weight" in params:
        z = x @ params["fc.weight"].T + params["fc.bias"]
    else:
        hidden = jax.nn.relu(x @ params["fc.0.weight"].T + params["fc.0.bias"])
        z = hidden @ params["fc.2.weight"].T + params["fc.2.bias"]
    return Outputs(x, z, z, x[..., :0]), stats


@pytest.fixture
def x64():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("case", golden_cases.marked("moco_steps", CASES))
def test_steps_of_moco(case, x64):
    def field(name):
        return GOLDEN[f"{case['case']}/{name}"]

    def weights(prefix):
        names = [f[len(prefix) + 1 :] for f in case["fields"] if f.startswith(f"{prefix}.")]
        return {name: field(f"{prefix}.{name}") for name in names}

    network = Network(
        init=None,
        shapes=None,
        apply=encoder,
        critic=lambda *given: None,
        encode=None,
        describe=None,
        width=None,
    )
    pool = candidates.queue(case["batch"], 1, size=case["K"], same_group="keep")
    sgd = optax.sgd(case["lr"])
    kept = by_example.keep_normalizer(normalizer.none(), case["K"], 1)
    recipe = Recipe(
        network=network,
        init_network=None,
        views=None,
        augment=lambda key, image: (image,),
        target=target.ema(encoder, case["steps"], 1, decay=case["m"]),
        compare=Compare(
            embed=cosine,
            candidates=pool,
            negatives=negatives.all(),
            temperature=temperature.fixed(case["steps"], tau=case["T"]),
            margin=margin.none(),
            multiples=(1.0, 2.0),
            pairs=((0, 0),),
        ),
        keep_temperature=functools.partial(
            by_example.keep_temperature, normalizer=kept, examples=case["K"], directions=1, dtype="float64"
        ),
        normalizer=kept,
        terms=make_terms({"info_nce": 1.0}),
        optimizer=sgd,
        learning_rate=lambda step: case["lr"],
        online_views=slice(0, 1),
        target_views=slice(1, 2),
        directions=1,
        view=None,
        encoded=(),
        embedding_width=case["dim"],
        probe_weight=0.0,
        parameter_dtype="float64",
        gradient_snr=gradient_snr(),
        diagnose=diagnostics("float64"),
    )
    params = jax.tree.map(jnp.asarray, weights("q0"))
    state = TrainState(
        step=jnp.zeros((), jnp.int32),
        seed=jnp.zeros((), jnp.uint32),
        params=params,
        stats={},
        optimizer=sgd.init(params),
        target={"params": jax.tree.map(jnp.asarray, weights("k0")), "stats": {}},
        candidates={
            "key": jnp.asarray(field("queue0").T),
            "group": jnp.full(case["K"], -1, jnp.int32),
            "next": jnp.asarray(field("ptr0")[0], jnp.int32),
        },
        temperature=(),
    )
    rows = jnp.arange(case["batch"], dtype=jnp.int32)
    images = jnp.stack([field("x_q"), field("x_k")], axis=2)  # [steps, B, W, din]

    def take(feed, step):
        return Batch(image=feed, label=rows, id=rows, group=rows, epoch=rows)

    step = jax.jit(make_train_step(recipe, take))
    for i in range(case["steps"]):
        state, metrics = step(state, images[i])
        np.testing.assert_allclose(metrics["loss"], field("loss")[i], rtol=1e-9)
        beats = field("logits")[i][:, 0] > field("logits")[i][:, 1:].max(axis=1)
        np.testing.assert_allclose(metrics["contrast_accuracy"], beats.mean())
        np.testing.assert_allclose(state.candidates["key"], field("queue")[i].T, rtol=1e-9, atol=1e-12)
        assert state.candidates["next"] == field("ptr")[i]
        for name, value in state.params.items():
            np.testing.assert_allclose(value, field(f"q.{name}")[i], rtol=1e-8, atol=1e-12, err_msg=name)
        for name, value in state.target["params"].items():
            np.testing.assert_allclose(value, field(f"k.{name}")[i], rtol=1e-8, atol=1e-12, err_msg=name)
