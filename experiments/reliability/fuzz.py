"""Random configs at the door: each is traced, or refused in one sentence that names the leaf.

    python -m experiments.reliability.fuzz [--configs 2000] [--trained 100] [--seed 0] [--processes 2]

A config is that of a method on digits with a few leaves replaced: by values of their kind, by values out of range,
of another type, by names of other functions, by sections and options that there are none of. ``prepare`` must
refuse it with a ValueError (or an OSError, of a path) or make a run whose train step traces, with the network
forced tiny. Some of those take 2 real steps, compiled without most optimisations. Nothing may be
written by a config that is refused.

Needs hypothesis (``pip install 'contrastive_jax[test]'``).
"""

import argparse
import collections
import concurrent.futures
import contextlib
import copy
import functools
import json
import math
import multiprocessing
import os
import pathlib
import re
import tempfile
import time
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple
from unittest import mock

import hypothesis
import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from ml_collections import ConfigDict

from contrastive_jax import config as configs
from contrastive_jax.augment import presets
from contrastive_jax.config import methods, schema
from contrastive_jax.data import sources
from contrastive_jax.evaluators import protocols
from contrastive_jax.lookup import functions_of
from contrastive_jax.training import initial, loop, run, step
from contrastive_jax.types import Batch
from experiments.reliability import small

ROOT = pathlib.Path(__file__).parent.parent.parent
RESULT = pathlib.Path(__file__).parent / "results" / "fuzz.md"
NUMBERS = (0, 1, -1, 2, 3, 7, 8, 16, 32, 100, 1437, 4096, 10**6, 2**31 - 1, 2**31, 10**30)
REALS = (0.0, 0.5, -0.5, 1.0, 2.0, 1e-8, 1e-30, 1e8, 1e30, 1e300, math.nan, math.inf, -math.inf)
TEXTS = (
    *(
        "",
        "none",
        "all",
        "auto",
        "digits",
        "cosine",
        "linear",
        "float16",
        "bfloat16",
        "joint",
        "groups",
        "per_view",
    ),
    *(
        "simclr",
        "imagenet",
        "../../etc/passwd",
        "/dev/null",
        "a\0b",
        "é" * 300,
        "os:system",
        "nowhere:f",
        ":",
        "{}",
    ),
    *(
        "0 steps",
        "3 steps",
        "1 epoch",
        "1e9 epochs",
        "-1 epochs",
        "1.2.3 epochs",
        "nan steps",
        "one_way",
        "dot",
        "sgd",
    ),
    *(
        "pooled",
        "projection_1",
        "projection_9",
        "tf",
        "torchvision",
        "bilinear",
        "keep",
        "tiled",
        "dense",
        "step",
    ),
)
JUNK = (None, True, False, [], {}, [1], [0.5, 0.5], ["a"], [[1]], {"a": 1}, {"name": "none"}, [1e30, -1])
ASIDE = (  # sections that a step knows nothing of
    *("name", "log", "checkpoint", "evaluate", "evaluators", "preview", "embed", "export", "init", "profile"),
)
TRACED: set[str] = set()  # what was traced, without these


@functools.cache
def of_method(method: str) -> str:
    """Return a method's smoke config, complete, as JSON."""
    config = configs.load(f"{ROOT}/configs/digits.py:method={method},scale=smoke")
    config.evaluate.final, config.projector.out = False, 8
    return json.dumps(configs.plain(configs.complete(config)))


@functools.cache
def names_of(leaf: str) -> tuple[str, ...]:
    """Return the functions that a leaf may name."""
    section, _, key = leaf.partition(".")
    if section in configs.CHOICES and key == "name":
        return tuple(functions_of(configs.CHOICES[section]))
    if leaf == "augment.preset":
        return tuple(functions_of(presets))
    if section == "evaluators" and key.endswith(".name"):
        return tuple(functions_of(protocols))
    return ()


def values(leaf: str, value: Any) -> st.SearchStrategy:
    """Return what may stand in the place of a leaf's value."""
    likely = st.sampled_from(names_of(leaf)) if names_of(leaf) else _alike(value)
    anything = st.sampled_from((*NUMBERS, *REALS, *TEXTS)) | st.sampled_from(JUNK).map(copy.deepcopy)
    return st.integers(0, 3).flatmap(lambda n: anything if n == 3 else likely)


def _alike(value: Any) -> st.SearchStrategy:
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return st.sampled_from(NUMBERS) | st.integers(-5, 300)
    if isinstance(value, float):
        return st.sampled_from(REALS) | st.floats(-2, 2) | st.floats(0, 1)
    if isinstance(value, list):
        inner = _alike(value[0]) if value else st.sampled_from((*NUMBERS, *TEXTS))
        return st.lists(inner, max_size=4)
    return st.sampled_from(TEXTS) | st.text(max_size=6)


class Changed(NamedTuple):
    """A config, and the leaves in it that were replaced (None: taken away)."""

    config: dict[str, Any]
    changes: dict[str, Any]

    def __repr__(self) -> str:
        """Return what tells it from others."""
        return f"{self.config.get('name')!r} with {self.changes}"


@st.composite
def changed(draw: st.DrawFn) -> Changed:
    """Draw a config, complete, with some leaves replaced."""
    config = json.loads(of_method(draw(st.sampled_from(tuple(methods.METHODS)))))
    changes = {}
    for _ in range(draw(st.integers(1, 4))):
        leaves = configs.leaves(config)
        leaf = draw(st.sampled_from(sorted(leaves)))
        kind = draw(st.integers(0, 19))
        if kind == 19:
            leaf = draw(
                st.sampled_from(
                    (leaf + "s", leaf.partition(".")[0], "nosuch", "nosuch.option", "loss.nosuch")
                )
            )
        path, _, key = leaf.rpartition(".")
        section = config
        for name in filter(None, path.split(".")):
            section = (
                section[name] if isinstance(section.get(name), dict) else section.setdefault(name + "_", {})
            )
        if kind in (17, 18) and key in section:
            gone = leaf.partition(".")[0] if kind == 17 else leaf
            del (config if kind == 17 else section)[gone if kind == 17 else key]
            changes[gone] = None
        else:
            section[key] = changes[leaf] = draw(values(leaf, leaves.get(leaf, "")))
            config = completed(config)
    return Changed(config, changes)


def completed(config: dict[str, Any]) -> dict[str, Any]:
    """Complete a config with the options of the functions that are named now, as the command line has it."""
    with contextlib.suppress(Exception):  # the door has to deal with it as it is
        made = ConfigDict(config)
        with made.unlocked():
            return configs.plain(configs.complete(made))
    return config


@contextlib.contextmanager
def tiny():
    """Make encoders of one block, and read the digits once."""
    with small.one_block(), mock.patch.object(sources, "digits", functools.cache(sources.digits)):
        yield


def forced(config: dict[str, Any]) -> dict[str, Any]:
    """Return the same with a network as small as it gets."""
    config = copy.deepcopy(config)
    config["encoder"]["width"] = 1 / 64
    for head in ("projector", "predictor"):
        section = config[head]
        section |= {name: min(section[name], 8) for name in ("hidden", "out")}
        section |= {"layers": min(section["layers"], 3), "widths": [min(w, 8) for w in section["widths"][:3]]}
    return config


def trace(made: run.Run) -> None:
    """Trace the train step by shapes: the state keeps its shapes and types, metrics are numbers."""
    rows, several = made.settings.train.batch_size, made.source.train.label_shape
    number = jax.ShapeDtypeStruct((rows,), jnp.int32)
    image = jax.ShapeDtypeStruct((rows, *made.source.train.shape), jnp.uint8)
    label = jax.ShapeDtypeStruct((rows, *several), jnp.uint8) if several else number
    batch = Batch(image=image, label=label, id=number, group=number, epoch=number)
    state = jax.eval_shape(lambda: step.init_state(made.recipe, made.settings.seed))
    after, metrics = jax.eval_shape(step.make_train_step(made.recipe, lambda feed, at: feed), state, batch)
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (state, after)]
    if shapes[0] != shapes[1] or any(value.shape for name, value in metrics.items() if name != "c_quantiles"):
        raise AssertionError("the step changes the shapes of its state, or a metric is no number")


def refusal_is_fit(message: str, config: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
    """Return whether a refusal is one sentence (or two, with a remedy) that names a leaf, or a section and its
    option."""
    if "\n" in message or not message or len(message) > 1500:
        return False
    if re.match(r"(\w+\.)+\w+ is missing", message):  # a leaf that there is not
        return True
    for leaf in (*configs.leaves(config), *changes, *schema.LEAVES):
        path, _, key = leaf.rpartition(".")
        if re.search(rf"(?<![\w.]){re.escape(leaf)}(?!\w)", message):
            return True
        if (
            path
            and re.search(rf"(?<![\w.]){re.escape(path)}(: |\.name|\b is )", message)
            and re.search(rf"\b{re.escape(key)}\b", message)
        ):
            return True
    return False


def attempt(config: dict[str, Any], changes: Mapping[str, Any], steps: int = 0) -> tuple[str, str]:
    """Try a config: ("refused", the message), ("traced", "") or ("trained", ""); ("failed", why) is a defect."""
    folder = tempfile.mkdtemp(prefix="fuzz-")
    here = os.getcwd()
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                made = run.prepare(config, jax.devices()[:1])
                initial.check(made, folder + "/run")
            except (ValueError, OSError) as error:
                message = str(error)
                if not refusal_is_fit(message, config, changes):
                    return "failed", f"a refusal that names no leaf: {type(error).__name__}: {message}"
                return "refused", message
            small = forced(config)
            key = json.dumps({name: small[name] for name in small if name not in ASIDE}, sort_keys=True)
            if key not in TRACED:
                trace(run.prepare(small, jax.devices()[:1], source=made.source))
                TRACED.add(key)
            if not steps:
                return "traced", ""
            short = forced(config)
            short["train"]["duration"], short["schedule"]["warmup"] = f"{steps} steps", "0 steps"
            short["schedule"] |= {"name": "constant"}
            short["evaluate"] |= {"final": False, "every": "0 steps"}
            with contextlib.suppress(ArithmeticError):  # it diverged, and said so
                loop.train(short, folder + "/run", quiet=True, devices=jax.devices()[:1])
            return "trained", ""
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    finally:
        os.chdir(here)
        written = [
            str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.is_file()
        ]
        if written and not steps:
            raise AssertionError(f"a config that trains nothing wrote {written}")
        _remove(pathlib.Path(folder))


def _remove(folder: pathlib.Path) -> None:
    import shutil

    shutil.rmtree(folder)


class Found(NamedTuple):
    """Results of a search: outcomes, leaves that were changed, and failures, one of a kind."""

    counts: collections.Counter
    leaves: collections.Counter
    failures: dict[str, str]


def search(wanted: int, trained: int, seed: int) -> Found:
    """Try so many configs, of which so many of the valid take 2 real steps."""
    found = Found(collections.Counter(), collections.Counter(), {})
    counts = found.counts
    jax.config.update("jax_disable_most_optimizations", True)

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=wanted, deadline=None, database=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(changed())
    def look(example):
        config, changes = example
        outcome, why = attempt(config, changes)
        if outcome == "traced" and counts["trained"] < trained and counts["traced"] % 3 == 0:
            outcome, why = attempt(config, changes, steps=2)
            counts["traced"] += outcome == "trained"
        counts[outcome] += 1
        found.leaves.update(list(changes))
        if outcome == "failed":
            found.failures.setdefault(re.sub(r"[\d'\"].*", "", why)[:100], f"{changes}: {why}")
            print(f"{changes}: {why}", flush=True)
        if not (looked := counts["refused"] + counts["traced"] + counts["failed"]) % 100:
            print(f"seed {seed}: {looked} of {wanted}", flush=True)

    with tiny(), contextlib.suppress(KeyboardInterrupt):  # the table then says of how many
        look()
    return found


def main() -> None:
    """Print the table, and write it beside this file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("configs", 2000), ("trained", 100), ("seed", 0), ("processes", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    wanted = parser.parse_args()
    began, parts = time.perf_counter(), wanted.processes
    with concurrent.futures.ProcessPoolExecutor(parts, multiprocessing.get_context("spawn")) as pool:
        shares = [[(total + i) // parts for i in range(parts)] for total in (wanted.configs, wanted.trained)]
        found = list(pool.map(search, *shares, range(wanted.seed, wanted.seed + parts)))
    seconds = time.perf_counter() - began
    counts = sum((part.counts for part in found), collections.Counter())
    leaves = sum((part.leaves for part in found), collections.Counter())
    failures = {kind: why for part in found for kind, why in part.failures.items()}
    total = counts["refused"] + counts["traced"] + counts["failed"]
    lines = [
        "# Random configs at the door",
        "",
        f"`python -m experiments.reliability.fuzz --configs {wanted.configs} --trained {wanted.trained}"
        f" --seed {wanted.seed} --processes {parts}`, {seconds:.0f} s.",
        "",
        "| configs | refused in a sentence | traced | of them 2 real steps | failures | leaves changed |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| {total} | {counts['refused']} | {counts['traced']} | {counts['trained']} | {counts['failed']} |"
        f" {len(leaves)} |",
    ]
    lines += ["", *(f"- {failure[:600]}" for failure in failures.values())] if failures else []
    print("\n".join(lines))
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
