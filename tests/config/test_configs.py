"""Every replication resolves at every scale, traces, says what it assumes, and differs where it says so."""

import functools
import itertools
import json
import pathlib
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image
from suite import over

from contrastive_jax import config as configs
from contrastive_jax import contrastive_loss, data, lookup
from contrastive_jax.config import methods
from contrastive_jax.data import compose
from contrastive_jax.data.split import pairs
from contrastive_jax.training import recipe
from contrastive_jax.training import run as runs
from contrastive_jax.training.step import init_state, make_train_step
from contrastive_jax.types import Batch

FOLDER = pathlib.Path(__file__).parents[2] / "configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))

OURS = ("arrays", "digits", "flatclr_digits", "folder", "pairs")  # nothing to replicate

ARRAYS = {  # by the views that are made of them
    "scarf": np.zeros((500, 30), np.float32),
    "time_series": np.zeros((500, 8, 8), np.float32),
    "tokens": np.zeros((500, 10), np.int32),
}

# Image shape, classes and training images as published, so that no data set is needed.
SIZES = {
    "digits": ((8, 8, 1), 10, 1_437),
    "folder": ((64, 64, 3), 2, 1_000),
    "mnist": ((28, 28, 1), 10, 60_000),
    "cifar10": ((32, 32, 3), 10, 50_000),
    "cifar100": ((32, 32, 3), 100, 50_000),
    "stl10": ((96, 96, 3), 10, 105_000),
    "imagenet2012": ((256, 256, 3), 1_000, 1_281_167),
    "imagenet_resized/64x64": ((64, 64, 3), 1_000, 1_281_167),
}

LOSSES = ("nt_xent", "decoupled", "swd_normal", "swd_hypercube", "swd_hypersphere")
MACL = (
    *("macl", "macl_b", "macl_without_reweighting", "macl_w"),
    *("simclr", "dcl", "dual_temperature", "linear_tau"),
)
QUEUES = (
    {},
    {"alpha": 65536},
    {"k": 256},
    {"k": 256, "alpha": 65536},
    {"k": 64, "alpha": 65536},
    {"k": 16, "alpha": 65536},
)
GENERALIZED = tuple({"loss": loss, "layers": layers} for loss, layers in itertools.product(LOSSES, (2, 3, 4)))

RANDBIT = ((0, "simclr"), (8, "simclr"), (15, "byol"), (15, "moco_v2"), (24, "swd_normal"), (4, "supervised"))

SATURATION = ("logsumexp", "swd_normal", "swd_hypercube", "swd_hypersphere")

# What each file documents besides the scale: one dict of arguments a case.
ARGUMENTS = {
    "arrays": (
        *({"kind": kind} for kind in ("table", "series")),
        {"kind": "tokens", "vocabulary": 50},
        {"method": "moco_v2"},
    ),
    "pairs": ({"vocabulary": 27, "size": 8}, {"first": "table", "second": "series"}),
    "digits": tuple({"method": name} for name in methods.METHODS),
    "flatclr_digits": ({},),
    "folder": (
        {"size": 32},
        {"size": 128},
        *({"method": name} for name in ("eqco_moco", "eqco_simclr", "simo")),
    ),
    "simclr_mnist": ({}, {"method": "flatclr"}),
    "flatclr_cifar10": ({}, {"method": "simclr"}, {"ess": 0.3}, {"method": "simclr", "ess": 0.05}),
    "flatclr_imagenet": ({}, {"method": "simclr"}, {"ess": 0.3}),
    "intriguing_cifar10": ({}, *GENERALIZED),
    "intriguing_imagenet": ({}, *GENERALIZED),
    "moco_imagenet": QUEUES,
    "moco_v2_imagenet": QUEUES,
    "moco_v3_imagenet": ({}, {"epochs": 300}, {"encoder": "vit_small"}),
    "eqco_simclr_imagenet": ({}, {"k": 64}, {"k": 64, "alpha": 0}, {"alpha": 4096}, {"k": 0, "alpha": 0}),
    "simo_imagenet": (
        *({}, {"alpha": 65536}, {"alpha": 0}, {"k": 4}),
        {"k": 255, "alpha": 0, "head": "released"},
    ),
    "few_negatives_cifar100": tuple(
        {"method": method, "k": k} for method in ("relic", "simclr") for k in (0, 1, 2, 10, 900)
    )
    + tuple({"method": m, "reading": "printed", "draw": "example"} for m in ("relic", "simclr")),
    "few_negatives_imagenet64": tuple(
        {"method": method, "k": k} for method in ("relic", "simclr") for k in (0, 75, 100)
    ),
    **{
        f"randbit_{name}": tuple({"bits": bits, "method": m} for bits, m in RANDBIT)
        for name in ("mnist", "cifar10", "imagenet")
    },
    "multidigits": (
        {},
        {"count": 1},
        {"count": 16, "placement": "grid"},
        {"size": 20},
        {"size": 80},
        {"size": 80, "method": "supervised"},
        {"method": "supervised"},
    ),
    "saturation": tuple({"loss": loss, "bits": 12} for loss in SATURATION) + ({"batch": 128, "tau": 0.05},),
    "digit_on_imagenet": ({}, {"unique": 100}, {"unique": 100, "tau": 0.5}, {"method": "supervised"}),
    "macl_cifar10": tuple({"method": method} for method in MACL),
    "macl_cifar100": tuple({"method": method} for method in MACL),
    "macl_stl10": tuple({"method": method} for method in MACL),
    "simclr_cifar10": ({},),
    "simclr_cifar10_fast": ({},),
    "simclr_imagenet": ({},),
}
CASES = [(name, arguments) for name in NAMES for arguments in ARGUMENTS.get(name, ({},))]


def case_id(case) -> str:
    return case if isinstance(case, str) else ",".join(f"{key}={value}" for key, value in case.items()) or "-"


def config_of(name: str, **arguments):
    pairs = ",".join(f"{key}={value}" for key, value in arguments.items())
    return configs.load(f"{FOLDER / name}.py:{pairs}")


def recipe_of(config) -> recipe.Recipe:
    """As ``run.prepare`` does it, with sizes in the place of data."""
    return built(settings_of(config))


def settings_of(config) -> str:
    aside = ("name", "evaluate", "evaluators", "log", "checkpoint", "init")  # not in a recipe
    return json.dumps({key: v for key, v in configs.plain(config).items() if key not in aside})


@functools.lru_cache(maxsize=2)  # composed sets take memory
def source_of(settings: str) -> data.Source:
    """Black images of the published shape and number, which take no memory, and what ``compose`` makes of them."""
    config = json.loads(settings)

    def black(name: str, dir: str = "") -> data.Source:
        if config["second_encoder"]["name"] != "none":
            first = np.zeros((500, 8, 8, 1), np.uint8) if "size" in config["augment"] else ARRAYS["scarf"]
            second = {"transformer": "tokens", "conv1d": "time_series"}[config["second_encoder"]["name"]]
            split = pairs(first, ARRAYS[second])
            return data.Source(name, split, split, ())
        if name == "arrays":
            split = data.Split(ARRAYS[config["augment"]["preset"]], np.arange(500) % 2)
            return data.Source(name, split, split, ("0", "1"))
        shape, classes, examples = SIZES[name]
        if name == config["data"]["name"] and (size := config["data"].get("size")):
            shape = (size, size, shape[2])
        if config["compose"]["name"] not in ("none", "rand_bit", "digit_on_image"):
            examples = min(examples, 1_500)  # digits are resized
        label = np.arange(examples) % classes
        split = data.Split(np.broadcast_to(np.uint8(0), (examples, *shape)), label)
        return data.Source(name, split, split, tuple(map(str, range(classes))))

    return lookup.pick(compose, "compose", config["compose"], black(config["data"]["name"]), black)


SPECS_OF_VIEWS = recipe._specs
TRACED = {}  # views as they were traced, which is most of a recipe's time: cases at one scale share them


def specs_of_views(sections: str, augmented, example):
    key = sections, str(example)
    if key not in TRACED:
        TRACED[key] = SPECS_OF_VIEWS(augmented, example)
    return TRACED[key]


@functools.lru_cache(maxsize=32)
def built(settings: str) -> recipe.Recipe:
    values = json.loads(settings)
    views = json.dumps([values[section] for section in ("augment", "second_augment", "data", "compose")])
    with mock.patch.object(recipe, "_specs", functools.partial(specs_of_views, views)):
        return _built(values, settings)


def _built(values: dict, settings: str) -> recipe.Recipe:
    config = configs.as_settings(values)
    source = source_of(settings)
    examples, batch_size = len(source.train), config.train.batch_size

    def steps(option: str, duration: str) -> int:
        return configs.steps_of(option, duration, examples, batch_size)

    return recipe.build(
        config,
        schedule=runs.in_steps(config.schedule, steps),
        image_shape=source.train.shape,
        image_dtype=source.train.example.dtype,
        examples=source.train.image,
        second=source.train.of_pair(1).image if source.paired else None,
        classes=len(source.classes),
        several_labels=bool(source.train.label_shape),
        total_steps=steps("train.duration", config.train.duration),
        steps_per_epoch=round(examples / batch_size),
        example_count=examples,
    )


def traces(config) -> None:
    """One train step, by shapes: the state keeps its shapes and dtypes, the metrics are scalars."""
    made, split = recipe_of(config), source_of(settings_of(config)).train
    rows = config.train.batch_size
    number = jax.ShapeDtypeStruct((rows,), jnp.int32)
    image = tuple(
        jax.ShapeDtypeStruct((rows, *one.shape), one.example.dtype)
        for one in (split.of_pair(number) for number in range(1 + split.paired))
    )
    image = image if split.paired else image[0]
    label = jax.ShapeDtypeStruct((rows, *split.label_shape), split.label.dtype)
    batch = Batch(image=image, label=label, id=number, group=number, epoch=number)
    state = jax.eval_shape(lambda: init_state(made, 0))
    after, metrics = jax.eval_shape(make_train_step(made, lambda feed, step: feed), state, batch)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (state, after)]
    assert shapes[0] == shapes[1]
    assert all(value.shape == () for value in metrics.values())


def test_every_file_has_its_arguments_here():
    assert set(ARGUMENTS) == set(NAMES)


def resolves_and_builds(name, arguments, built=configs.SCALES):
    for scale in configs.SCALES:
        config = config_of(name, **arguments, scale=scale)
        assert config.name == name or name == "digits"
        assert configs.leaves(configs.complete(config.copy_and_resolve_references())) == configs.leaves(
            config
        )
        if scale in built:
            recipe_of(config)
        if scale == "smoke":
            wanted = {"arrays": "arrays", "folder": "folder", "pairs": "arrays"}.get(name, "digits")
            assert config.data.name == wanted
            assert config.train.duration == "4 steps"


@over([next(case for case in CASES if case[0] == name) for name in NAMES])
def test_a_case_of_every_file_resolves_at_every_scale_and_builds(name, arguments):
    resolves_and_builds(name, arguments, built=("paper", "smoke"))


@pytest.mark.run
@over(CASES)
def test_every_case_resolves_and_builds_at_every_scale(name, arguments):
    resolves_and_builds(name, arguments)


OF_OURS = ("simclr_mnist",)  # a paper's data without its settings: judged as everything of ours


@pytest.mark.parametrize("scale", ["paper", "gpu"])
def test_a_replication_is_judged_by_its_papers_protocol(scale):
    ours = configs.base().evaluators
    inherits = [
        name
        for name in NAMES
        if config_of(name, scale=scale).evaluators.get("linear", {}).get("name") == ours.linear.name
    ]
    inherits = [name for name in inherits if name not in (*OURS, *OF_OURS)]
    assert not inherits


@over([name for name in NAMES if name not in OURS])
def test_small_is_real_images_and_one_network(name):
    for scale, name_of_data in (("small", "cifar10"), ("small_mnist", "mnist")):
        config = config_of(name, scale=scale)
        assert config.encoder.width == 0.125 and config.encoder.depth == 18
        assert config.optimizer.name == "adamw" and config.evaluators
        if name not in ("multidigits", "digit_on_imagenet", "saturation"):
            assert config.data.name == name_of_data
            assert config.augment.size == {"small": 16, "small_mnist": 14}[scale]


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        ("1.5 epochs", 3),
        ("2 epochs", 4),
        ("65 examples", 2),
        ("64 examples", 1),
        ("2.5 steps", 3),
        ("0.7 epochs", 2),
    ],
)
def test_steps_of_a_duration_are_whole(duration, steps):
    assert configs.steps_of("train.duration", duration, examples=100, batch_size=64) == steps


def network_and_method(config) -> tuple[str, str]:
    """What a trace depends on: modules, functions and their choices, not how large a method's numbers are."""
    config = configs.plain(config)
    network = [config[section] for section in ("encoder", "projector", "predictor", "norm", "probe", "dtype")]
    method = [
        config[section] for section in ("target", "candidates", "negatives", "loss", "score", "directions")
    ]
    method += [
        config[section]["name"] for section in ("temperature", "margin", "optimizer", "schedule", "compose")
    ]
    numbers = r'"(size|k|weight|lambda_weight)": [0-9.]+'
    return json.dumps(network), re.sub(numbers, "", json.dumps(method)) + config["augment"]["preset"]


@functools.cache
def distinct(scale: str) -> list:
    """A case for each network and a case for each method, not one for every pair of them."""
    cases, seen = [], set()
    for name, arguments in sorted(CASES, key=lambda case: "digits" in case[0]):
        if scale == "paper" and "digits" in name:
            continue  # digits at any scale
        found = set(network_and_method(config_of(name, **arguments, scale=scale)))
        if found - seen:
            cases.append((name, arguments))
            seen |= found
    return cases


@pytest.mark.parametrize("method", ["simclr", "moco_v2", "byol", "relic_k", "swd_hypersphere", "supervised"])
def test_methods_trace(method):
    traces(config_of("digits", method=method, scale="smoke"))


@pytest.mark.run
@pytest.mark.parametrize("name", NAMES)
def test_smoke_traces(name):
    for _, arguments in filter(lambda case: case[0] == name, distinct("smoke")):
        traces(config_of(name, **arguments, scale="smoke"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_paper_traces(name):
    for _, arguments in filter(lambda case: case[0] == name, distinct("paper")):
        traces(config_of(name, **arguments, scale="paper"))


@over(NAMES)
def test_docstring_says_how_to_run_it_and_what_is_assumed(name):
    text = (FOLDER / f"{name}.py").read_text().split('"""')[1]
    assert f"    contrastive-jax --config=configs/{name}.py" in text
    for spec in re.findall(r"--config=(configs/\S+)", text):  # the commands are commands
        config = configs.load(str(FOLDER.parent / spec))
        for option in re.findall(rf"{re.escape(spec)}(?: --config\.([\w.]+)=\S+)+", text):
            assert option in configs.leaves(config)
    for option in re.findall(r"\(--config\.([\w.]+)", text):
        assert option in configs.leaves(configs.load(str(FOLDER / f"{name}.py")))
    if name in OURS:
        assert "replication" in text or "no number of the paper compares" in text
        return
    for word in ("Protocol:", "Paper", "Arguments:", "Assumed:"):
        assert word in text, word
    for argument in {key for arguments in ARGUMENTS[name] for key in arguments} | {"scale"}:
        assert f"``{argument}``" in text, argument
    for argument in ("method", "loss"):  # every value that is tried here is named there
        for arguments in ARGUMENTS[name]:
            if argument in arguments and "(of ``config/methods.py``" not in text:
                assert re.search(rf"\b{arguments[argument]}\b", text.lower()), arguments


FROZEN = {
    ("flatclr_imagenet.py", "flatclr_imagenet.py:method=simclr"): """
        loss.flat_nce.weight: 1.0 -> absent
        loss.info_nce.weight: absent -> 1.0
    """,
    ("flatclr_cifar10.py", "flatclr_cifar10.py:method=simclr"): """
        loss.flat_nce.weight: 1.0 -> absent
        loss.info_nce.weight: absent -> 1.0
    """,
    ("flatclr_imagenet.py", "flatclr_imagenet.py:ess=0.3"): """
        temperature.name: 'fixed' -> 'ess'
        temperature.tau: 0.1 -> 1.0
        temperature.target: absent -> 0.3
        temperature.rate: absent -> 0.01
        temperature.target_end: absent -> 0.0
        temperature.min_tau: absent -> 0.005
        temperature.max_tau: absent -> 10.0
    """,
    ("simclr_cifar10.py", "simclr_imagenet.py"): """
        name: 'simclr_cifar10' -> 'simclr_imagenet'
        data.name: 'cifar10' -> 'imagenet2012'
        augment.size: 32 -> 224
        augment.strength: 0.5 -> 1.0
        augment.blur: 0.0 -> 0.5
        encoder.depth: 18 -> 50
        encoder.stem: 'cifar' -> 'imagenet'
        temperature.tau: 0.5 -> 0.1
        schedule.learning_rate: 1.0 -> 0.3
        train.duration: '1000 epochs' -> '100 epochs'
        train.batch_size: 512 -> 4096
        evaluate.rows: ['trained', 'untrained', 'raw pixels'] -> ['trained']
        evaluators.linear.batch_size: 512 -> 4096
        evaluators.linear.epochs: 100 -> 90
        evaluators.linear.weight_decay: 0.0 -> 1e-06
    """,
    ("moco_imagenet.py", "moco_v2_imagenet.py"): """
        name: 'moco_imagenet' -> 'moco_v2_imagenet'
        augment.preset: 'moco_v1' -> 'moco_v2'
        augment.strength: [0.4, 0.4, 0.4, 0.4] -> [0.4, 0.4, 0.4, 0.1]
        projector.layers: 1 -> 2
        temperature.tau: 0.07 -> 0.2
        schedule.name: 'step' -> 'cosine'
        schedule.milestones: ['120 epochs', '160 epochs'] -> absent
        schedule.decay: 0.1 -> absent
        schedule.per_epoch: False -> True
        augment.jitter: absent -> 0.8
        augment.blur: absent -> 0.5
        schedule.end_factor: absent -> 0.0
    """,
    ("moco_imagenet.py", "moco_imagenet.py:k=256,alpha=65536"): """
        candidates.size: 65536 -> 256
        margin.name: 'none' -> 'eqco'
        margin.alpha: absent -> 65536.0
    """,
    ("moco_v2_imagenet.py:k=256", "moco_v2_imagenet.py:k=256,alpha=65536"): """
        margin.name: 'none' -> 'eqco'
        margin.alpha: absent -> 65536.0
    """,
    ("eqco_simclr_imagenet.py", "eqco_simclr_imagenet.py:alpha=4096"): """
        margin.alpha: 256.0 -> 4096.0
    """,
    ("simo_imagenet.py", "simo_imagenet.py:k=255,alpha=0,head=released"): """
        projector.norm: 'all' -> 'all_with_bias'
        negatives.k: 16 -> 255
        margin.name: 'eqco' -> 'none'
        margin.alpha: 256.0 -> absent
    """,
    ("moco_v2_imagenet.py", "simo_imagenet.py"): """
        name: 'moco_v2_imagenet' -> 'simo_imagenet'
        projector.norm: 'none' -> 'all'
        norm.scope: 'groups' -> 'joint'
        norm.groups: 8 -> 1
        target.shuffle: True -> False
        candidates.name: 'queue' -> 'other_view'
        candidates.size: 65536 -> absent
        candidates.same_group: 'keep' -> absent
        negatives.name: 'all' -> 'random'
        negatives.engine: 'auto' -> absent
        margin.name: 'none' -> 'eqco'
        schedule.warmup: '0 epochs' -> '10 epochs'
        negatives.k: absent -> 16
        negatives.shared: absent -> True
        negatives.per_example: absent -> False
        margin.alpha: absent -> 256.0
    """,
    ("intriguing_cifar10.py", "intriguing_imagenet.py"): """
        name: 'intriguing_cifar10' -> 'intriguing_imagenet'
        data.name: 'cifar10' -> 'imagenet2012'
        augment.size: 32 -> 224
        augment.strength: 0.5 -> 1.0
        augment.blur: 0.0 -> 0.5
        encoder.stem: 'cifar' -> 'imagenet'
        projector.out: 64 -> 128
        schedule.learning_rate: 0.2 -> 0.075
        train.batch_size: 128 -> 1024
        evaluate.rows: ['trained', 'untrained', 'raw pixels'] -> ['trained']
        evaluators.linear.weight_decay: 0.0 -> 1e-06
        evaluators.linear.batch_size: 512 -> 4096
        evaluators.linear.epochs: 100 -> 90
    """,
    ("intriguing_imagenet.py:layers=2", "intriguing_imagenet.py:layers=3"): """
        projector.layers: 2 -> 3
    """,
    ("intriguing_cifar10.py", "intriguing_cifar10.py:loss=decoupled"): """
        loss.info_nce.weight: 2.0 -> absent
        loss.decoupled_nt_xent.weight: absent -> 15.625
        loss.decoupled_nt_xent.lambda_weight: absent -> 0.5
        loss.decoupled_nt_xent.self_pair: absent -> True
    """,
    ("intriguing_cifar10.py:loss=swd_normal", "intriguing_cifar10.py:loss=swd_hypersphere"): """
        loss.alignment.weight: 1.0 -> 1000.0
        loss.alignment.normalize: False -> True
        loss.sliced_wasserstein.weight: 1.0 -> 1000.0
        loss.sliced_wasserstein.prior: 'normal' -> 'hypersphere'
    """,
    ("intriguing_cifar10.py:loss=swd_normal", "intriguing_cifar10.py:loss=swd_hypercube"): """
        loss.sliced_wasserstein.prior: 'normal' -> 'hypercube'
    """,
    ("multidigits.py:count=2", "multidigits.py:count=16,placement=grid"): """
        compose.count: 2 -> 16
        compose.placement: 'random' -> 'grid'
    """,
    ("multidigits.py:count=2", "multidigits.py:size=60"): """
        compose.size: 28 -> 20
        compose.second_size: 0 -> 60
    """,
    ("multidigits.py:size=60", "multidigits.py:size=60,method=supervised"): """
        probe.weight: 1.0 -> 0.0
        probe.gradient: False -> True
        loss.info_nce.weight: 1.0 -> absent
        loss.cross_entropy_of_parts.weight: absent -> 1.0
        loss.cross_entropy_of_parts.parts: absent -> 2
    """,
    ("digit_on_imagenet.py:unique=10", "digit_on_imagenet.py:unique=1000,tau=0.2"): """
        compose.unique: 10 -> 1000
        temperature.tau: 0.1 -> 0.2
    """,
    ("saturation.py:bits=4", "saturation.py:bits=20,tau=0.1,batch=2048"): """
        compose.bits: 4 -> 20
        temperature.tau: 0.2 -> 0.1
        train.batch_size: 512 -> 2048
        evaluators.entropy.temperature: 0.2 -> 0.1
    """,
    ("randbit_cifar10.py:bits=0", "randbit_cifar10.py:bits=12"): """
        compose.bits: 0 -> 12
    """,
    ("few_negatives_cifar100.py:method=relic,k=1", "few_negatives_cifar100.py:method=simclr,k=2"): """
        projector.widths: [4096, 2048, 1024, 512, 128] -> [2048, 128]
        candidates.name: 'other_view' -> 'both_views'
        negatives.k: 1 -> 2
        loss.relic_kl.weight: 2.0 -> absent
        loss.relic_kl.positive: 'included' -> absent
        loss.relic_kl.stop_gradient_same: False -> absent
    """,
    ("few_negatives_cifar100.py:k=2", "few_negatives_cifar100.py:k=2,reading=printed,draw=example"): """
        negatives.per_example: False -> True
        loss.info_nce.weight: 2.0 -> absent
        loss.relic_kl.positive: 'included' -> 'excluded'
        loss.dcl.weight: absent -> 2.0
    """,
    ("few_negatives_cifar100.py:k=100", "few_negatives_imagenet64.py:k=100"): """
        name: 'few_negatives_cifar100' -> 'few_negatives_imagenet64'
        data.name: 'cifar100' -> 'imagenet_resized/64x64'
        data.memory_limit: 8.0 -> 16.0
        augment.size: 32 -> 64
        augment.strength: 0.5 -> 1.0
        augment.blur: 0.0 -> 0.5
        augment.eval_crop: None -> 1.0
        train.batch_size: 1120 -> 4096
        evaluate.rows: ['trained', 'untrained', 'raw pixels'] -> ['trained']
        evaluators.linear.weight_decay: 0.0 -> 1e-06
        evaluators.linear.batch_size: 512 -> 4096
        evaluators.linear.epochs: 100 -> 90
    """,
    ("macl_cifar10.py", "macl_cifar10.py:method=simclr"): """
        temperature.name: 'macl_a' -> 'fixed'
        temperature.alpha: 2.0 -> absent
        loss.macl.weight: 1.0 -> absent
        loss.info_nce.weight: absent -> 1.0
    """,
    ("macl_cifar10.py", "macl_cifar10.py:method=macl_b"): """
        temperature.name: 'macl_a' -> 'macl_b'
        temperature.alpha: 2.0 -> absent
        temperature.beta: absent -> 0.5
    """,
    ("macl_cifar10.py", "macl_cifar100.py"): """
        name: 'macl_cifar10' -> 'macl_cifar100'
        data.name: 'cifar10' -> 'cifar100'
    """,
    ("macl_cifar10.py", "macl_stl10.py"): """
        name: 'macl_cifar10' -> 'macl_stl10'
        data.name: 'cifar10' -> 'stl10'
        data.train_split: 'train' -> 'train+unlabelled'
        augment.size: 32 -> 96
    """,
    ("moco_imagenet.py", "moco_imagenet.py:scale=gpu"): """
        dtype: 'float32' -> 'bfloat16'
        schedule.milestones: ['120 epochs', '160 epochs'] -> ['12 epochs', '16 epochs']
        train.duration: '200 epochs' -> '20 epochs'
    """,
    ("simclr_cifar10_fast.py", "simclr_cifar10_fast.py:scale=gpu"): """
        dtype: 'float32' -> 'bfloat16'
    """,
    ("simclr_cifar10.py", "simclr_cifar10.py:scale=gpu"): """
        schedule.warmup: '10 epochs' -> '2 epochs'
        train.duration: '1000 epochs' -> '200 epochs'
    """,
}


@pytest.mark.parametrize(("pair", "lines"), FROZEN.items(), ids=map(" ".join, FROZEN))
def test_differs_in_exactly_these_lines(pair, lines):
    one, two = (configs.plain(configs.load(f"{FOLDER}/{spec}")) for spec in pair)
    found = configs.diff_text(one, two).splitlines()
    assert sorted(found) == sorted(line.strip() for line in lines.strip().splitlines())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("moco_imagenet.py:kk=3", ["'kk'", "'k'"]),
        ("moco_imagenet.py:k=many", ["k='many'", "whole number"]),
        ("moco_imagenet.py:k=2.5", ["k='2.5'", "whole number"]),
        ("moco_imagenet.py:alpha=True", ["alpha='True'", "a number"]),
        ("flatclr_imagenet.py:method=flatclar", ["'flatclar'", "'flatclr'"]),
        ("intriguing_cifar10.py:loss=swd", ["'swd'", "nt_xent"]),
        ("intriguing_imagenet.py:layers=5", ["layers=5", "2, 3, 4"]),
        ("few_negatives_cifar100.py:method=byol", ["'byol'", "relic, simclr"]),
        ("macl_stl10.py:method=macl_c", ["'macl_c'", "'macl"]),
        ("simclr_mnist.py:scale=huge", ["'huge'", "cpu"]),
        ("randbit_mnist.py:method=buol", ["'buol'", "'byol'"]),
        ("saturation.py:loss=lse", ["'lse'", "logsumexp"]),
        ("moco_v3_imagenet.py:encoder=vit", ["'vit'", "vit_small"]),
        ("moco_v3_imagenet.py:epochs=200", ["epochs is 200", "100, 300, 1000"]),
        ("folder.py:dir=my photos,2020", ["'2020'", "--config.section.option"]),
        ("multidigits.py:count=17", ["count=17", "1 to 16"]),
        ("multidigits.py:size=81", ["size=81", "20 to 80"]),
        ("multidigits.py:size=30,count=3", ["size=30", "two digits"]),
    ],
)
def test_a_wrong_argument_is_one_sentence_that_names_it(spec, words):
    with pytest.raises(ValueError) as error:
        configs.load(f"{FOLDER}/{spec}")
    message = str(error.value)
    assert all(word in message for word in words), message
    assert "\n" not in message and len(message) < 400


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("moco_imagenet.py:k=1000", ["candidates.size is 1000", "256"]),
        ("simo_imagenet.py:k=256", ["negatives.k is 256", "255"]),
        ("eqco_simclr_imagenet.py:k=511", ["negatives.k is 511", "510"]),
        ("few_negatives_cifar100.py:k=-1", ["negatives.k is -1"]),
        ("eqco_simclr_imagenet.py:alpha=-2", ["margin.alpha is -2.0", "above 0"]),
        ("flatclr_cifar10.py:ess=1.5", ["temperature.target is 1.5", "above 0 and at most 1"]),
    ],
)
def test_an_impossible_value_is_refused_when_the_recipe_is_built(spec, words):
    with pytest.raises(ValueError) as error:
        recipe_of(configs.load(f"{FOLDER}/{spec}"))
    message = str(error.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize("name", [name for name in NAMES if "digits" not in name and name not in OURS])
def test_the_learning_rate_is_the_published_one(name):
    """After warm-up, at the paper's batch; by hand from the papers' numbers and scaling rules."""
    peaks = {
        "simclr_mnist": 1.0 * 512 / 256,
        "flatclr_cifar10": 0.3,
        "flatclr_imagenet": 0.6,  # the released code's default
        "intriguing_cifar10": 0.2 * 128**0.5,
        "intriguing_imagenet": 0.075 * 32,
        "moco_imagenet": 0.03,
        "moco_v2_imagenet": 0.03,
        "moco_v3_imagenet": 0.6 * 4096 / 256,
        "eqco_simclr_imagenet": 0.03,
        "simo_imagenet": 0.03,
        "few_negatives_cifar100": 1.2 * 1120 / 256,
        "few_negatives_imagenet64": 1.2 * 4096 / 256,
        "multidigits": 0.075 * 32,
        "digit_on_imagenet": 0.075 * 32,
        "saturation": 0.2 * 512**0.5,
        "randbit_mnist": 0.2 * 512**0.5,
        "randbit_cifar10": 0.2 * 512**0.5,
        "randbit_imagenet": 0.075 * 32,
        "macl_cifar10": 1e-3,
        "macl_cifar100": 1e-3,
        "macl_stl10": 1e-3,
        "simclr_cifar10": 2.0,
        "simclr_cifar10_fast": 0.03 * 512 / 256,  # its code's default
        "simclr_imagenet": 4.8,
    }
    config = configs.plain(config_of(name, scale="paper"))
    examples, batch_size = (
        len(source_of(settings_of(ConfigDict(config))).train),
        config["train"]["batch_size"],
    )
    warmup = configs.steps_of("schedule.warmup", config["schedule"]["warmup"], examples, batch_size)
    rate = recipe_of(ConfigDict(config)).learning_rate
    assert float(rate(warmup)) == pytest.approx(peaks[name], rel=1e-3)
    total = configs.steps_of("train.duration", config["train"]["duration"], examples, batch_size)
    last = {"moco_imagenet": 0.03 / 100, "macl_cifar10": 1e-3, "macl_cifar100": 1e-3, "macl_stl10": 1e-3}
    if name != "moco_v2_imagenet" and name != "simo_imagenet":  # their cosine waits for an epoch's end
        assert float(rate(total)) == pytest.approx(last.get(name, 0.0), abs=1e-7)


def test_in_simo_a_pass_sees_one_view():
    """Hence its joint batch norm is per view."""
    made = recipe_of(config_of("simo_imagenet"))
    assert (made.online_views, made.target_views) == (slice(0, 1), slice(1, 2))


@pytest.mark.parametrize("encoder", ["resnet", "vit_base"])
def test_moco_v3_adds_two_directions_of_2_tau_info_nce(encoder):
    """A step's loss is the mean over both views' queries, half of that sum."""
    config = config_of("moco_v3_imagenet", encoder=encoder)
    q, k = np.random.default_rng(0).normal(size=(2, 6, 2, 8)).astype(np.float32)
    value = contrastive_loss(q, k, "info_nce", config.temperature.tau, candidates=config.candidates.name)

    def one_way(q, k):
        q, k = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, k))
        logits = q @ k.T / config.temperature.tau
        loss = np.log(np.exp(logits).sum(1)) - np.diag(logits)
        return 2 * config.temperature.tau * loss.mean()

    expected = one_way(q[:, 0], k[:, 1]) + one_way(q[:, 1], k[:, 0])
    assert config.loss.info_nce.weight * value.mean() == pytest.approx(expected, rel=1e-5)


def test_tuple_arguments_list_what_is_allowed():
    parsed = configs.parse("layers=3,loss=b", layers=(2, 3), loss=("a", "b"), k=4, rate=1.0)
    assert parsed.to_dict() == {"layers": 3, "loss": "b", "k": 4, "rate": 1.0}
    assert isinstance(configs.parse("rate=2", rate=1.0).rate, float)


def test_on_one_gpu_warmup_and_milestones_keep_their_share():
    config = configs.base()
    config.schedule.update({"name": "step", "milestones": ("60 epochs", "80 epochs")})
    configs.at_scale(config, "gpu", gpu={"train.duration": "25 epochs", "dtype": "bfloat16"})
    assert config.schedule.warmup == "2.5 epochs" and config.dtype == "bfloat16"
    assert config.schedule.milestones == ("15 epochs", "20 epochs")
    config = configs.at_scale(configs.base(), "gpu", gpu={"train.duration": "1000 steps"})
    assert config.schedule.warmup == "100 steps"  # 10 of 100 epochs
    config = configs.base()
    config.schedule.warmup = "500 steps"
    with pytest.raises(ValueError, match="'500 steps' and '100 epochs' have different units"):
        configs.at_scale(config, "gpu", gpu={"train.duration": "20 epochs"})


@pytest.mark.parametrize("method", ["moco_v2", "eqco_moco", "eqco_simclr", "byol"])
def test_a_folder_takes_of_a_method_what_its_scale_takes(method):
    """Its queue, alpha, K and momentum: on ImageNet's a few hundred images learn nothing."""

    def cut(name, scale):
        config = configs.plain(configs.load(f"configs/{name}.py:method={method},scale={scale}"))
        return {section: config[section] for section in ("candidates", "margin", "target")}

    for scale in ("cpu", "smoke"):
        assert cut("folder", scale) == cut("digits", scale)
    queue = cut("folder", "gpu")["candidates"].get("size", 0)
    assert queue <= 4096
    for scale in configs.SCALES:
        config = configs.load(f"configs/folder.py:method={method},scale={scale}")
        assert config.negatives.get("k", 0) < config.train.batch_size


def test_what_an_override_names_brings_its_own_options():
    """``--config.augment.preset=simclr`` on a config of digits: not one option of digits is left behind."""
    before, config = (configs.load("configs/digits.py") for _ in range(2))
    config.lock()
    config.augment.preset, config.temperature.name = "simclr", "macl_a"
    config.augment.flip = 0.25  # set, so kept
    config.evaluators.linear.name, config.loss = "moco", ConfigDict({"dcl": 1.0})
    config.augment.crop_max = before.augment.crop_max  # set to what it was: kept as well
    tau = config.temperature.tau
    names = {
        "augment.preset",
        "augment.flip",
        "augment.crop_max",
        "temperature.name",
        "evaluators.linear.name",
        "loss",
    }
    settled = configs.plain(configs.settle(config, before, names))
    assert settled["augment"]["crop_max"] == before.augment.crop_max
    assert settled["augment"]["crop_min"] == 0.08 and "shift" not in settled["augment"]
    assert settled["augment"]["size"] == 8 and settled["augment"]["flip"] == 0.25
    assert settled["temperature"] == {"name": "macl_a", "tau": tau, "alpha": 2.0}
    assert settled["evaluators"]["linear"]["learning_rate"] == 30.0
    assert "C" not in settled["evaluators"]["linear"] and settled["loss"] == {"dcl": {"weight": 1.0}}
    unchanged = configs.load("configs/digits.py").lock()
    assert configs.plain(configs.settle(unchanged, before, set())) == configs.plain(before)


@pytest.mark.parametrize(
    ("spec", "leaves", "message"),
    [
        (
            "multidigits.py:size=80,method=supervised,scale=smoke",
            {"loss.cross_entropy_of_parts.parts": 3},
            r"loss.cross_entropy_of_parts: parts is 3; it must divide the 20 classes",
        ),
        ("digit_on_imagenet.py:scale=smoke", {"compose.digits": "minst"}, "compose.digits is 'minst'"),
    ],
)
def test_what_does_not_go_with_the_data_is_refused_at_the_door(spec, leaves, message):
    config = configs.load(f"configs/{spec}")
    with config.unlocked():
        config.update_from_flattened_dict(leaves)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        runs.prepare(configs.plain(config), jax.devices()[:1])


def test_digits_on_a_set_that_has_a_folder_need_none(tmp_path):
    """``data.dir`` is of the images; scikit-learn's digits take none."""
    for name in ("a", "b"):
        for number in range(4):
            path = tmp_path / name / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(np.full((16, 16, 3), number, np.uint8)).save(path)
    config = configs.load("configs/digit_on_imagenet.py:scale=smoke")
    config.data = {"name": "folder", "dir": str(tmp_path), "test_fraction": 0.25}
    source = runs.source_of(configs.plain(configs.complete(config)))
    assert source.train.shape == (32, 32, 3)  # as the config says
