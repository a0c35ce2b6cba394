"""Presets as programs: what every view is, probabilities, errors, one device and eight."""

import contextlib
import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite import sampled

from contrastive_jax import augment, native, sharding
from contrastive_jax.augment import batch, color, geometry, pipeline, presets
from contrastive_jax.commands import preview

SIZE = 20  # the smallest at which SimCLR's blur has more than one tap
BATCH = 16
KEYS = jax.random.split(jax.random.key(2), BATCH)
GENERATOR = np.random.default_rng(0)
BYTES = GENERATOR.integers(0, 256, (BATCH, 24, SIZE, 3), np.uint8)
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
STILL = {"crop_min": 1.0, "ratio": (1.0, 1.0), "sampler": "torchvision", "flip": 0.0}  # the crop is the image


@functools.cache
def program(preset, **options):
    """One compiled function for each preset: [B] keys and images to [B, W, h, w, c]."""
    return jax.jit(jax.vmap(augment.make_views(preset=preset, size=SIZE, **options)))


PLAIN = {"mean": None, "std": None}  # no normalisation, where it is the default


@functools.cache
def views_of(preset, **options):
    return np.asarray(program(preset, **PLAIN, **options)(KEYS, BYTES))


ARRAYS = ("scarf", "time_series", "tokens", "unchanged")  # test_array_views.py
IMAGES = sorted({*augment.names()} - {*ARRAYS})


def test_the_presets():
    assert set(augment.names()) == {
        "byol",
        "crop_only",
        "digits",
        "macl",
        "moco_v1",
        "moco_v2",
        "moco_v3",
        "none",
        "simclr",
        *ARRAYS,
    }


@pytest.mark.parametrize("preset", sampled(["simclr", *(n for n in IMAGES if n != "simclr")], 1))
def test_views(preset):
    views = views_of(preset)
    assert views.shape == (BATCH, 2, SIZE, SIZE, 3) and views.dtype == np.float32
    assert views.min() >= 0 and views.max() <= 1
    same = np.all(views[:, 0] == views[:, 1], axis=(1, 2, 3))
    assert same.all() if preset == "none" else not same.any()
    again = jax.random.split(jax.random.key(3), BATCH)
    if preset != "none":  # another key, another view; the same key, the same view
        other = np.asarray(program(preset, **PLAIN)(again, BYTES))
        assert not np.any(np.all(other == views, axis=(1, 2, 3, 4)))
    np.testing.assert_array_equal(np.asarray(program(preset, **PLAIN)(KEYS, BYTES)), views)


@pytest.mark.run
@pytest.mark.parametrize(
    ("preset", "options", "apart"),
    [
        ("simclr", {}, 0),
        ("byol", {}, 0),
        ("moco_v2", {}, 0),
        ("digits", {"noise": 0.0, "erase": 0.5}, 0),
        ("digits", {}, 2**-23),  # a normal draw's last bit is the compiler's, who chooses by the batch
    ],
)
def test_one_device_and_eight_give_the_same_bits_without_communication(preset, options, apart):
    with jax.set_mesh(sharding.make_mesh()):
        keys = jax.device_put(KEYS, jax.P("data"))
        images = jax.device_put(BYTES, jax.P("data"))
        function = jax.jit(jax.vmap(augment.make_views(preset=preset, size=SIZE, **PLAIN, **options)))
        compiled = function.lower(keys, images).compile()
        views = compiled(keys, images)
    assert views.sharding.spec[0] == "data" and len(views.sharding.device_set) == 8
    collectives = re.findall(
        r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast)",
        compiled.as_text(),
    )
    assert not collectives
    np.testing.assert_allclose(np.asarray(views), views_of(preset, **options), rtol=0, atol=apart)


@pytest.mark.parametrize("meshed", [False, True])
def test_large_images_have_the_same_bits_a_few_at_a_time(meshed, monkeypatch):
    views = augment.make_views(preset="simclr", size=SIZE, **PLAIN)
    mesh = sharding.make_mesh(jax.devices()[:1]) if meshed else None
    found, loops = {}, {}
    with jax.set_mesh(mesh) if meshed else contextlib.nullcontext():
        rows = sharding.shard_batch((KEYS, jnp.asarray(BYTES)))
        for large in (1e9, 0):
            monkeypatch.setattr(batch, "LARGE", large)
            function = lambda *rows: augment.views_of_batch(views, *rows)  # noqa: E731  # new, to be traced anew
            loops[large] = native.jit(function).lower(*rows).as_text().count("stablehlo.while")
            found[large] = native.jit(function)(*rows)
            anywhere = jax.jit(function).lower(*rows).as_text()  # a user's own program, for any device
            assert anywhere.count("stablehlo.while") == loops[1e9]
    assert loops[0] == loops[1e9] + 1 and found[0].sharding == found[1e9].sharding
    np.testing.assert_array_equal(*map(np.asarray, found.values()))


def test_view_v_draws_from_the_key_folded_with_v():
    key, image = KEYS[0], jnp.asarray(BYTES[0], jnp.float32) / 255
    views = jax.jit(augment.make_views(preset="crop_only", size=SIZE, views=3))(key, image)
    single = jax.jit(presets.crop_only(SIZE, 3).views[0])
    for v in range(3):
        np.testing.assert_allclose(views[v], single(jax.random.fold_in(key, v), image), atol=1e-6)
    np.testing.assert_allclose(views[:2], views_of("crop_only")[0], atol=1e-6)


def test_bytes_and_floats_are_the_same_image():
    floats = BYTES.astype(np.float32) / 255
    views = program("crop_only", **PLAIN)(KEYS, floats)
    np.testing.assert_allclose(views, views_of("crop_only"), rtol=0, atol=1e-6)
    evaluate = augment.make_eval(preset="simclr", size=SIZE)
    np.testing.assert_allclose(evaluate(BYTES[0]), evaluate(floats[0]), atol=1e-6)


@pytest.mark.run
def test_double_precision_mode_changes_nothing():
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(2), BATCH)
        function = jax.jit(jax.vmap(augment.make_views(preset="simclr", size=SIZE)))
        views = function(keys, BYTES)
    assert views.dtype == jnp.float32
    np.testing.assert_allclose(views, views_of("simclr"), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "channels, color_channels, touched", sampled([(5, None, 3), (5, 1, 1), (2, None, 1)], 1)
)
def test_further_channels_are_moved_and_nothing_else(channels, color_channels, touched):
    images = GENERATOR.random((4, SIZE, SIZE, channels), np.float32)
    options = {"color_channels": color_channels, "method": "bilinear"}
    whole = augment.make_views(preset="simclr", size=SIZE, jitter=1.0, blur=1.0, **options)
    moved = augment.make_views(preset="simclr", size=SIZE, jitter=0.0, blur=0.0, gray=0.0, **options)
    both = jax.jit(jax.vmap(lambda key, image: (whole(key, image), moved(key, image))))
    whole, moved = map(np.asarray, both(KEYS[:4], images))
    np.testing.assert_array_equal(whole[..., touched:], moved[..., touched:])
    assert np.abs(whole[..., :touched] - moved[..., :touched]).mean(axis=(0, 1, 2, 3)).min() > 0.01


def changed(preset, **options):
    """Where an operation changed the image, nothing but it being switched on: [800, W], and the views."""
    images = GENERATOR.random((800, SIZE, SIZE, 3), np.float32)
    function = program(preset, **(PLAIN | STILL | {"jitter": 0.0, "gray": 0.0} | options))
    views = np.asarray(function(jax.random.split(jax.random.key(4), 800), images))
    return np.abs(views - images[:, None]).max(axis=(2, 3, 4)) > 1e-5, views


def near(fraction, probability):
    """Within four standard errors of 800 draws."""
    return abs(fraction - probability) < 4 * np.sqrt(probability * (1 - probability) / 800)


# a Gaussian narrower than 0.2 pixels, 5 % of those drawn from 0.1 to 2, changes nothing that float32 shows
VISIBLE_BLUR = 0.95


STEADY = {  # what else each preset would change, switched off
    "simclr": {"jitter": 0.0, "gray": 0.0, "blur": 0.0},
    "moco_v1": {"gray": 0.0, "strength": (0.0,) * 4},
    "moco_v2": {"jitter": 0.0, "gray": 0.0, "blur": 0.0},
    **dict.fromkeys(
        ("byol", "moco_v3"), {"jitter": 0.0, "gray": 0.0, "blur": (0.0, 0.0), "solarize": (0.0, 0.0)}
    ),
    "macl": {"jitter": 0.0, "gray": 0.0},
    "digits": {"shift": 0.0, "slant": 0.0, "brightness": 0.0, "contrast": 0.0, "noise": 0.0},
    "crop_only": {},
}


@pytest.mark.parametrize("preset", sampled(sorted({*IMAGES} - {"none"}), 1))
def test_every_preset_can_stop_flipping_and_start_turning(preset):
    images = GENERATOR.random((40, SIZE, SIZE, 1), np.float32)
    keys = jax.random.split(jax.random.key(6), 40)
    still = PLAIN | STILL | STEADY[preset]

    def which(**options):
        """Of the eight symmetries of a square, the one that each view is: 0 to 3 turns, 4 to 7 mirrored."""
        views = np.asarray(program(preset, **(still | options))(keys, images))[..., 0]
        square = [np.rot90(m, k, (1, 2)) for m in (images[..., 0], images[:, :, ::-1, 0]) for k in range(4)]
        is_it = np.stack([np.abs(views - s[:, None]).max((2, 3)) < 1e-5 for s in square])
        assert (is_it.sum(0) == 1).all()
        return set(is_it.argmax(0).ravel().tolist())

    assert which() == {0}
    assert which(flip=0.5, quarter_turns=True) == set(range(8))


@pytest.mark.parametrize(
    "option, probability", sampled([("flip", 0.5), ("jitter", 0.8), ("gray", 0.2), ("blur", 0.5)], 1)
)
def test_default_probabilities(option, probability):
    assert inspect.signature(presets.simclr).parameters[option].default == probability
    seen, views = changed("simclr", **({"blur": 0.0} | {option: probability}))
    for view in range(2):
        assert near(seen[:, view].mean(), probability * (VISIBLE_BLUR if option == "blur" else 1))
    both = seen.all(axis=1).mean()  # views decide for themselves
    assert near(both, (probability * (VISIBLE_BLUR if option == "blur" else 1)) ** 2)
    if option == "gray":
        assert np.array_equal(np.ptp(views, axis=-1).max(axis=(2, 3)) < 1e-6, seen)


@pytest.mark.run
@pytest.mark.parametrize("preset", ["byol", "moco_v3"])
def test_views_of_byol_and_moco_v3_differ(preset):
    defaults = inspect.signature(getattr(presets, preset)).parameters
    assert defaults["blur"].default == (1.0, 0.1) and defaults["solarize"].default == (0.0, 0.2)
    blurred, _ = changed(preset, solarize=(0.0, 0.0))
    solarized, _ = changed(preset, blur=(0.0, 0.0))
    assert blurred[:, 0].mean() > 0.93 and near(blurred[:, 1].mean(), 0.1 * VISIBLE_BLUR)
    assert not solarized[:, 0].any() and near(solarized[:, 1].mean(), 0.2)


def test_a_mean_may_be_an_array():
    given = {name: np.array(value) for name, value in IMAGENET.items()}
    seen = [augment.make_eval(preset="simclr", size=8, **options)(BYTES[0]) for options in (given, IMAGENET)]
    np.testing.assert_array_equal(*seen)


def test_blur_sees_the_range_of_an_image():
    """Bicubic resizing overshoots, and a view without jitter has not been clipped when it is blurred."""
    beyond = np.asarray(jax.random.uniform(jax.random.key(0), (SIZE, SIZE, 3), minval=-0.2, maxval=1.2))
    beyond = beyond.transpose(2, 0, 1)
    for edges in ("zero", "edge"):
        blurred = pipeline.blur(SIZE, edges, blur=1.0)
        np.testing.assert_array_equal(blurred(KEYS[0], beyond), blurred(KEYS[0], beyond.clip(0, 1)))
        some = jax.vmap(pipeline.blur(SIZE, edges, blur=0.5), (0, None))(KEYS, beyond)
        same = (np.asarray(some) == beyond).all((1, 2, 3))  # an image that is not blurred is as it was
        assert 0.25 < same.mean() < 0.75


def test_strengths_bound_the_factors():
    grey = np.full((400, SIZE, SIZE, 1), 0.5, np.float32)
    function = program("simclr", strength=0.5, jitter=1.0, gray=0.0, blur=0.0, **STILL)
    values = np.asarray(function(jax.random.split(jax.random.key(5), 400), grey))[..., 0, 0, 0] / 0.5
    assert 0.6 <= values.min() < 0.63 and 1.37 < values.max() <= 1.4


def test_digits_are_never_mirrored():
    """A pattern that leans left keeps leaning left."""
    lean = np.zeros((BATCH, SIZE, SIZE, 1), np.uint8)
    lean[:, :, : SIZE // 4] = 255
    views = np.asarray(program("digits", erase=0.0)(KEYS, lean))[..., 0]
    assert np.all(views[..., : SIZE // 2].sum((2, 3)) > 2 * views[..., SIZE // 2 :].sum((2, 3)))


def test_evaluation():
    image = BYTES[0]
    floats = image.astype(np.float32) / 255
    whole = augment.make_eval(preset="none", size=SIZE)(image)
    np.testing.assert_allclose(whole, floats[2:22], atol=1e-6)  # the centred square, nothing resized
    np.testing.assert_array_equal(augment.make_eval(preset="simclr", size=SIZE)(image), whole)  # 32 or less
    big = GENERATOR.random((64, 64, 3), np.float32)
    np.testing.assert_allclose(
        augment.make_eval(preset="simclr", size=40)(big), color.clip(geometry.center_crop(big, 40)), atol=1e-6
    )
    np.testing.assert_allclose(
        augment.make_eval(preset="crop_only", size=40)(big),
        color.clip(geometry.center_crop(big, 40, proportion=1.0)),
        atol=1e-6,
    )
    section = {"preset": "moco_v2", "size": SIZE, "views": 2, "blur": 0.3}  # one section for both doors
    augment.make_views(**section)
    np.testing.assert_allclose(
        augment.make_eval(**section)(image), color.normalize(whole, **IMAGENET), atol=1e-5
    )


def test_normalization_comes_last_in_training_too():
    normal = program("crop_only", **IMAGENET)(KEYS, BYTES)
    np.testing.assert_allclose(normal, color.normalize(views_of("crop_only"), **IMAGENET), atol=1e-5)
    for preset in ("moco_v1", "moco_v2", "moco_v3", "byol"):
        parameters = inspect.signature(getattr(presets, preset)).parameters
        assert {name: parameters[name].default for name in IMAGENET} == IMAGENET
    two = augment.make_eval(preset="none", size=SIZE, mean=(0.5,), std=(0.5,))(BYTES[0][..., :2])
    np.testing.assert_allclose(two[..., 0], BYTES[0, 2:22, :, 0] / 127.5 - 1, atol=1e-5)
    np.testing.assert_allclose(two[..., 1], BYTES[0, 2:22, :, 1] / 255, atol=1e-6)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"preset": "simclrr"},
            r"augment.preset is 'simclrr', .*Did you mean 'simclr'\?",
        ),
        (
            {"crop_minn": 0.2},
            r"augment.crop_minn is not an option of simclr\(crop_min=0.08, .* Did you mean 'crop_min'\?",
        ),
        ({"size": 0}, "augment.size is 0; it must be at least 1"),
        ({"views": 0}, "augment.views is 0; it must be at least 1"),
        ({"jitter": 1.2}, "augment.jitter is 1.2; it must be from 0 to 1"),
        ({"blur": -0.1}, "augment.blur is -0.1; it must be from 0 to 1"),
        ({"strength": -1.0}, "augment.strength is -1.0; it must be from 0 to 2.5"),
        ({"strength": 3.0}, "augment.strength is 3.0; it must be from 0 to 2.5"),
        ({"crop_min": 0.0}, "augment.crop_min is 0.0; it must be above 0 and at most 1"),
        (
            {"crop_min": 0.5, "crop_max": 0.4},
            "augment.crop_min is 0.5; it must be at most augment.crop_max, 0.4",
        ),
        ({"ratio": (2.0, 1.0)}, r"augment.ratio is \(2.0, 1.0\); the first number must be"),
        ({"sampler": "torch"}, "augment.sampler is 'torch'; it must be one of torchvision, tf, continuous"),
        ({"method": "nearest"}, "augment.method is 'nearest'; it must be one of bicubic, bilinear"),
        ({"brightness": "v3"}, "augment.brightness is 'v3'; it must be one of multiplicative, additive"),
        ({"color_channels": 2}, "augment.color_channels is 2; it must be one of 1, 3, or None"),
        ({"mean": (0.5,)}, r"augment.mean is \(0.5,\) and augment.std is None"),
        ({"eval_crop": 0.0}, "augment.eval_crop is 0.0; it must be above 0 and at most 1, or None"),
        (
            {"preset": "byol", "views": 3},
            r"augment.blur is \(1.0, 0.1\); it must be a tuple of 3 probabilities",
        ),
        ({"preset": "digits", "erase_sides": (3, 9)}, r"augment.erase_sides is \(3, 9\); .* augment.size, 8"),
        ({"ratio": 3}, "augment.ratio is 3; it must be a tuple of 2 numbers above 0"),
        ({"mean": 0.5, "std": 0.5}, "augment.mean is 0.5; it must be a tuple"),
        ({"preset": "byol", "blur": 0.5}, "augment.blur is 0.5; it must be a tuple of numbers from 0 to 1"),
        ({"preset": "macl", "strength": 0.4}, "augment.strength is 0.4; it must be a tuple of 4 values"),
        (
            {"preset": "digits", "erase_sides": 3},
            "augment.erase_sides is 3; it must be a tuple of 2 whole numbers of at least 1",
        ),
        (
            {"preset": "macl", "strength": (0.4, 0.4)},
            r"augment.strength is \(0.4, 0.4\); it must be a tuple of 4 values",
        ),
    ],
)
@pytest.mark.parametrize("door", [augment.make_views, augment.make_eval])
def test_bad_options_are_errors_before_anything_compiles(door, options, message):
    with pytest.raises(ValueError, match=message):
        door(**({"preset": "simclr", "size": 8} | options))


def test_bad_images_are_errors():
    evaluate = augment.make_eval(preset="moco_v2", size=8)
    with pytest.raises(ValueError, match="jax.vmap"):
        evaluate(BYTES)
    with pytest.raises(ValueError, match="the image is int32; it must be uint8"):
        evaluate(BYTES[0].astype(np.int32))
    with pytest.raises(ValueError, match="augment.mean .* have 3 entries, .*allowed: 1"):
        evaluate(BYTES[0][..., :1])
    with pytest.raises(ValueError, match="augment.color_channels is 3; it must be at most 1"):
        augment.make_eval(preset="simclr", size=8, color_channels=3, **IMAGENET)(BYTES[0][..., :1])


@pytest.mark.parametrize(
    ("preset", "options", "wrong"),
    [
        ("simclr", {}, []),
        ("byol", {}, []),
        ("crop_only", {"flip": 0.5, "quarter_turns": True}, []),
        ("none", {"mean": (0.5,) * 5, "std": (0.5,) * 5}, []),
        ("digits", {"shift": 0.0, "slant": 0.0, "erase": 1.0}, []),
        (
            "digits",
            {},
            ["augment.slant is 0.3, use augment.slant=0", "augment.shift is 1.0, use augment.shift=0"],
        ),
    ],
)
def test_an_augmentation_says_what_would_not_stay_constant(preset, options, wrong):
    """By its steps, so that a preset of tomorrow says it too. What they do is in the tests of RandBit."""
    views = augment.make_views(preset=preset, size=8, **options)
    assert [f"augment.{t.option} is {t.value}, use augment.{t.option}=0"
            for t in views._chains[0].touches(5) if t.channels > 3] == wrong  # fmt: skip
    if not wrong:
        views.check_constant(5, 2)
        return
    with pytest.raises(ValueError) as error:
        views.check_constant(5, 2)
    assert all(words in str(error.value) for words in wrong)


def own(size, views, *, x: int = 0):
    """Normalises inside, with no option of the name, and bends what it cuts."""
    found = presets.moco_v2(size, views, quarter_turns=True)
    bent = (augment.crops.Chain(*view.steps, lambda key, image: image + x) for view in found.views)
    return found._replace(views=tuple(bent))


OWN = {"preset": f"{__name__}:own", "size": 8}
INSIDE = {"preset": "moco_v2", "size": 8, "quarter_turns": True}


def test_crops_alone_are_resized_and_normalized_as_the_preset_has_it():
    """To the bit what ``crop_only`` makes of the preset's own options; of one without options, of what is inside."""
    shared = {"sampler", "ratio", "method", "antialias", "color_channels", "mean", "std", "quarter_turns"}
    alone = {"size": 8, "views": 1, "crop_min": 0.3, "flip": 0.5}
    sections = [{"preset": name, "size": 8} for name in IMAGES] + [
        {"preset": "simclr", "size": 8, "quarter_turns": True, "method": "bilinear", "antialias": True},
        {"preset": "digits", "size": 8, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)},
    ]
    for section in sections:
        parameters = inspect.signature(getattr(presets, section["preset"])).parameters
        options = {name: section.get(name, parameters[name].default) for name in shared & parameters.keys()}
        expected = augment.make_views(preset="crop_only", **alone, **options)
        found = augment.make_crops(0.3, 0.5, **section)
        programs = [str(jax.make_jaxpr(views)(KEYS[0], BYTES[0])) for views in (found, expected)]
        assert programs[0] == programs[1], section
    found, expected = (augment.make_crops(0.3, 0.5, **section) for section in (OWN, INSIDE))
    np.testing.assert_array_equal(found(KEYS[0], BYTES[0]), expected(KEYS[0], BYTES[0]))


def test_a_preset_without_options_says_what_it_does():
    view, expected = augment.make_eval(**OWN), augment.make_eval(**INSIDE, eval_crop=0.5)
    assert view.normalization == (IMAGENET["mean"], IMAGENET["std"]) and view.crop.method == "bilinear"
    np.testing.assert_array_equal(view.cropped(0.5)(BYTES[0]), expected(BYTES[0]))
    back = preview.visible(view(BYTES[0]), view)
    plain = augment.make_eval(**INSIDE, **PLAIN)
    np.testing.assert_allclose(back, plain(BYTES[0]), atol=1e-6)
    assert plain.normalization == ((), ()) and plain.crop == view.crop


@pytest.mark.parametrize(
    "wrong", [lambda size, views: 3, lambda size, views: augmentation_without_a_crop(views)]
)
def test_a_preset_that_makes_no_views_is_refused(wrong, monkeypatch):
    monkeypatch.setitem(globals(), "wrong", wrong)
    with pytest.raises(ValueError, match="augment.preset is '.*:wrong'; it must return.* a crop"):
        augment.make_views(preset=f"{__name__}:wrong", size=8)


def augmentation_without_a_crop(views):
    found = presets.none(8, views)
    return found._replace(evaluate=augment.crops.Chain(*found.evaluate.steps[1:]))


def test_what_to_take_instead_is_possible():
    views = augment.make_views(preset="moco_v2", size=8)
    for channels, constant, advice in (
        (3, 2, "augment.color_channels is None, use augment.color_channels=1"),
        (4, 2, "use augment.color_channels=1"),
        (5, 3, "use augment.color_channels=1"),
        (2, 2, "augment.color_channels is None, use preset=crop_only or none"),
    ):
        with pytest.raises(ValueError, match=f"the last {constant} of . channels are bits.*{advice}"):
            views.check_constant(channels, constant)


def test_a_step_that_says_nothing_may_touch_everything():
    def invert(key, image):
        return 1 - image

    chain = augment.crops.Chain(invert, augment.crops.CenterCrop(8, 1.0, "bilinear", False))
    with pytest.raises(ValueError, match="augment.preset is invert, use preset=crop_only"):
        augment.Views((chain, chain)).check_constant(5, 1)
