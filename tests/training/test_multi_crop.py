"""More than two views, and local views: what a step compares, on one device and on eight, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_runs import assert_same, left_behind, stop_at
from suite import over
from test_step import run_on
from tiny_methods import tiny, x64  # noqa: F401

from contrastive_jax import augment, config, contrastive_loss, data
from contrastive_jax.training import cost, loop, program, replicas
from contrastive_jax.training import run as runs
from contrastive_jax.training.step import init_state
from experiments.gpu.correctness import trained

VIT = {"name": "vit", "patch": 4, "dim": 8, "layers": 1, "heads": 1}
LOCAL = {"preset": "digits", "size": 16, "local_views": 3, "local_size": 8}
ONE = jax.devices()[:1]


def small(method="simclr", encoder=VIT, views=2, **leaves):
    """A method on digits with local views and, unless it needs batch norm, a transformer of one block."""
    section = {"augment": LOCAL | {"views": views}} | ({"encoder": encoder} if encoder else {})
    return tiny(method, **section | leaves)


def refused(**leaves):
    with pytest.raises(ValueError) as error:
        runs.prepare(small(**leaves), ONE)
    return str(error.value)


@over(
    [
        ({"augment.views": 1}, "augment.views is 1; it must be at least 2 for training."),
        ({"augment.preset": "none"}, "augment.preset is 'none', which has no options crop_min and crop_max"),
        ({"augment.local_crop_min": 0.5}, "augment.local_crop_min is 0.5 and augment.local_crop_max 0.14"),
        ({"augment.local_size": 6}, "augment.local_views have 6 pixels (augment.local_size): encoder.patch is 4"),
        ({"augment.local_size": 2}, "local views of 2 pixels: augment"),
        ({"candidates": {"name": "own_view"}}, "candidates.name is 'own_view', and augment.local_views is 3"),
        ({"method": "swd_normal"}, "Set augment.views=2 and augment.local_views=0."),
        ({"augment.views": 3, "negatives": {"name": "random", "k": 94}}, "it must be at most 93"),
    ]
)  # fmt: skip
def test_what_does_not_combine_is_refused(leaves, message):
    assert message in refused(**leaves)


def test_streamed_images_and_views_of_arrays_have_no_local_views():
    views = augment.make_views(preset="crop_only", size=8, local_views=2, local_size=4)
    with pytest.raises(ValueError, match=r"augment.local_views is 2, and data is streamed.*data.stream=off"):
        views.check_streamed()
    with pytest.raises(ValueError, match="local_views"):
        augment.make_views(preset="time_series", local_views=2)
    assert augment.make_views(preset="time_series").local is None


@pytest.mark.parametrize(
    ("method", "views", "pairs"),
    [
        ("simclr", 2, ((0, 1), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (4, 0), (4, 1))),
        ("moco_v2", 3, ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1))),
        ("byol", 2, ((0, 1), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (4, 0), (4, 1))),
    ],
)
def test_local_views_query_the_others(method, views, pairs):
    """A target network encodes no local view; one way (MoCo) only views after the first are keys."""
    recipe = runs.prepare(small(method, None, views), ONE).recipe
    assert recipe.compare.pairs == pairs and recipe.directions == len(pairs)
    assert [(view.shape[0], *counts) for view, *counts in recipe.encoded] == [
        (16, *{"simclr": (2, 0), "moco_v2": (1, 2), "byol": (2, 2)}[method]),
        (8, 3, 0),
    ]


def test_views_are_those_of_their_numbers_and_local_views_are_small_crops():
    """A view does not depend on how many follow it, and neither do evaluation and the views of evaluators."""
    image = jnp.asarray(np.random.default_rng(0).random((24, 20, 3), np.float32))
    key, options = jax.random.key(0), {"preset": "crop_only", "size": 12}
    two, four = (jax.jit(augment.make_views(**options, views=n))(key, image) for n in (2, 4))
    np.testing.assert_array_equal(two, four[:2])
    views = augment.make_views(**options, local_views=3, local_size=6)
    np.testing.assert_array_equal(jax.jit(views)(key, image), two)
    made = jax.jit(views.local)(key, image)
    third = jax.eval_shape(augment.make_views(**options, local_views=3).local, key, image)
    assert made.shape == (3, 6, 6, 3) and third.shape[1] == 5
    alone = augment.make_views(preset="crop_only", size=6, views=5, crop_min=0.05, crop_max=0.14)
    np.testing.assert_array_equal(made, jax.jit(alone)(key, image)[2:])
    section = options | {"local_views": 3, "local_size": 6}
    for make in (augment.make_eval, functools.partial(augment.make_crops, 0.5, 0.5)):
        arguments = (image,) if make is augment.make_eval else (key, image)
        found, expected = (jax.jit(make(**given))(*arguments) for given in (section, options))
        np.testing.assert_array_equal(found, expected)


def test_an_option_of_each_view_has_one_value_for_all_local_views():
    options = {"preset": "byol", "size": 12, "local_views": 2, "local_size": 6}
    with pytest.raises(
        ValueError, match=r"tuple of 3 probabilities, one for each view \(the last one for all local"
    ):
        augment.make_views(**options)
    views = augment.make_views(
        **options, blur=(0.0, 0.0, 0.0), solarize=(0.0, 0.0, 1.0), jitter=0.0, gray=0.0, mean=None, std=None
    )
    image = jnp.full((24, 24, 3), 0.75)
    np.testing.assert_allclose(jax.jit(views)(jax.random.key(0), image), 0.75, atol=1e-6)
    np.testing.assert_allclose(jax.jit(views.local)(jax.random.key(0), image), 0.25, atol=1e-6)


def test_flops_count_every_pass():
    run = runs.prepare(small("byol", augment=LOCAL | {"local_views": 0}, encoder=None), ONE)
    both = runs.prepare(small("byol", None), ONE)
    (whole, *_), (small_view, *_) = both.recipe.encoded
    per_view = [cost._forward_flops(cost.network_of(both.settings), v) for v in (whole, small_view)]
    assert cost.model_flops(run) == 8 * per_view[0]
    assert cost.model_flops(both) == 8 * per_view[0] + 9 * per_view[1] and per_view[1] < per_view[0] / 3


@pytest.mark.run
def test_the_loss_of_a_step_is_that_of_the_embeddings_of_its_views(x64):  # noqa: F811
    """Batch norm of the encoder is by size, and its running averages take the sizes in turn; heads see all views."""
    given = small(encoder=None, dtype="float64", **{"projector.norm": "none"})
    state, (metrics,), _ = run_on(ONE, given, steps=1)
    run = runs.prepare(given, ONE)
    recipe, start = run.recipe, init_state(run.recipe, 0)
    feed = data.Resident(run.source.train, seed=0, batch_size=32, mesh=run.mesh)
    with jax.set_mesh(run.mesh):
        batch = feed.take(feed.feed(0), jnp.zeros((), jnp.int32))
        keys = augment.example_keys(start.seed, batch.epoch, batch.id)
        views, local = jax.vmap(recipe.augment)(keys, batch.image)
        outputs, stats = recipe.network.apply(start.params, start.stats, views, train=True)
        others, stats = recipe.network.apply(start.params, stats, local, train=True)
        z = jnp.concatenate([outputs.projection, others.projection], axis=1)
        expected = contrastive_loss(z, outputs.projection, "info_nce", 0.1).mean()
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-6)
    assert metrics["negatives"] == 2 * 31
    for a, b in zip(jax.tree.leaves(state.stats["encoder"]), jax.tree.leaves(stats["encoder"]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)  # views are float32


CASES = {
    "four views": ("simclr", {"augment": {"preset": "none", "size": 8, "views": 4}}),
    "a queue": ("moco_v2", {"augment.views": 3}),
    "a target of all directions": ("byol", {}),
    "drawn negatives and state by query": ("fast_clip_v1", {"negatives": {"name": "random", "k": 5}}),
}


@pytest.mark.run
@pytest.mark.parametrize("case", CASES)
def test_one_device_equals_eight_with_more_views(case, x64):  # noqa: F811
    method, leaves = CASES[case]
    given = small(method, dtype="float64", **{"schedule.warmup": "0 steps"} | leaves)
    (one, history, _), (eight, others, _) = (
        run_on(devices, given, steps=2) for devices in (ONE, jax.devices())
    )
    for a, b in zip(history, others, strict=True):
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-9, atol=1e-9, err_msg=name)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(eight), strict=True):
        largest = max(np.abs(a).max(initial=0.0), 1e-2)
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9 * largest, err_msg=jax.tree_util.keystr(path))


@pytest.mark.run
def test_parts_and_recomputation_of_views_of_two_sizes_are_the_whole(x64):  # noqa: F811
    """Without batch norm, whose statistics are by part."""
    given = {"dtype": "float64", "projector.norm": "none", "schedule.warmup": "0 steps"}
    parts = {"train.microbatches": 4, "train.remat": True}
    (whole, one, _), (other, two, _) = (run_on(ONE, small(**given, **more), steps=2) for more in ({}, parts))
    np.testing.assert_allclose(one[1]["loss"], two[1]["loss"], rtol=1e-10)
    for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10 * max(np.abs(a).max(), 1e-2))


@pytest.mark.run
def test_a_run_with_local_views_resumes_bit_for_bit(tmp_path, monkeypatch):
    leaves = {"train.duration": "4 steps", "log.every": 1, "evaluate.final": False, "candidates.size": 128}
    given = small("moco_v2", VIT, 3, **leaves)
    loop.train(given, tmp_path / "whole", quiet=True, devices=ONE)
    with monkeypatch.context() as patch:
        stop_at(patch, 1)
        with pytest.raises(loop.Stopped):
            loop.train(given, tmp_path / "parts", quiet=True, devices=ONE)
    loop.train(given, tmp_path / "parts", quiet=True, devices=ONE)
    assert_same(left_behind(tmp_path / "whole", given), left_behind(tmp_path / "parts", given))


@pytest.mark.run
def test_replicas_with_local_views_are_single_runs(x64):  # noqa: F811
    given = [small(dtype="float64"), small(dtype="float64", seed=3, **{"temperature.tau": 0.25})]
    state, _ = trained(replicas.program_of(given, ONE))
    for number, own in enumerate(given):
        single, _ = trained(program.single(runs.prepare(own, ONE)))
        mine = jax.device_get(replicas.state_of(state, number))
        for a, b in zip(jax.tree.leaves(single), jax.tree.leaves(mine), strict=True):
            # Views are float32, and rounded differently in another program.
            np.testing.assert_allclose(b, a, rtol=0, atol=2e-6 * max(np.abs(a).max(initial=0.0), 1e-2))


def test_options_of_views_outlive_a_change_of_the_preset():
    given = {"augment.views": 3, "augment.preset": "crop_only"}
    options = config.resolve("configs/digits.py:scale=smoke", given).augment.options
    assert options["views"] == 3 and options["size"] == 8 and options["local_views"] == 0
    other = config.resolve("configs/digits.py:scale=smoke", {"augment.preset": "time_series"}).augment.options
    assert "views" not in other and "local_views" not in other
