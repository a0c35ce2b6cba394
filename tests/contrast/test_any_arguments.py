"""Public losses called with anything: a value, or one sentence; of 2,000 drawn calls the default tier takes some."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive_jax import contrastive_loss, macl_temperature, ntxent, sigmoid_loss

X = jax.random.normal(jax.random.key(0), (4, 3))
ROWS = [
    X,
    X,
    X,
    np.asarray(X),
    X.astype("bfloat16"),
    X * 1e30,
    X * 0,
    X[:, :0],
    X[0],
    X[:2],
    None,
    [],
    "a",
    3,
    np.array(["a"] * 4),
    np.arange(4),
]
IDS = [
    None,
    np.array([0, 0, 1, 1]),
    jnp.arange(4),
    np.arange(4) + 2**40,
    np.zeros(4, bool),
    np.zeros(3, int),
    [0, 0, 1, 1],
    np.ones(4),
    "a",
    {},
    object(),
]
NUMBERS = [
    0.1,
    1,
    0,
    -1,
    1e-3,
    1e-46,
    10**30,
    10**400,
    float("inf"),
    float("nan"),
    True,
    None,
    "0.1",
    [],
    {},
    object(),
    1j,
    np.float32(0.5),
    jnp.array(0.2),
    jnp.ones(2),
    np.array("a"),
    jnp.array(1j),
    lambda A: 0.1 + 0 * A,
    lambda A: "a",
    lambda A: None,
]
WORDS = [
    "auto",
    "dense",
    "tiled",
    "ring",
    "cosine",
    "dot",
    "out",
    "in",
    "both",
    "one_way",
    "other_view",
    "",
    None,
    [],
    {},
    3,
    np.arange(2),
    object,
]
NAMES = [
    "info_nce",
    "flat_nce",
    "dcl",
    "macl",
    "eqco",
    "ntxent",
    "relic",
    "",
    None,
    [],
    3,
    object,
    int,
    print,
    max,
    lambda c: c,
    lambda: 3,
    lambda c: "a",
    lambda c: 3,
]


def call(draw):
    def maybe(**choices):
        return {name: draw.choice(values) for name, values in choices.items() if draw.random() < 0.3}

    def rows():
        return X if draw.random() < 0.6 else draw.choice(ROWS)

    match draw.randrange(4):
        case 0:
            return ntxent, (rows(), draw.choice(IDS)), maybe(temperature=NUMBERS, engine=WORDS)
        case 1:
            options = maybe(temperature=NUMBERS, bias=NUMBERS, positives=IDS, score=WORDS, engine=WORDS)
            return sigmoid_loss, (rows(), rows()), options
        case 2:
            return macl_temperature, (), maybe(tau0=NUMBERS, alpha=NUMBERS, form=["linear", *WORDS])
    options = maybe(
        temperature=NUMBERS,
        score=WORDS,
        candidates=WORDS,
        directions=WORDS,
        negatives=NUMBERS,
        key=[jax.random.key(0), *ROWS],
        queue=ROWS,
        group=IDS,
        positives=IDS,
        summation=WORDS,
        engine=WORDS,
        margin=NUMBERS,
        alpha=NUMBERS,
    )
    few = dict(draw.sample(sorted(options.items(), key=lambda item: item[0]), min(3, len(options))))
    return contrastive_loss, (rows(), rows(), draw.choice(NAMES)), few


def attempt(seeds):
    wrong = []
    for seed in seeds:
        function, arguments, options = call(random.Random(seed))
        try:
            result = function(*arguments, **options)
            assert callable(result) or result.dtype in (np.float32, np.float64)
        except ValueError as error:
            text = str(error)
            if "\n" in text or "Traceback" in text or not text.endswith((".", "?", ")")):
                wrong.append(f"{seed} {function.__name__}{arguments[2:]}{options}: {text}")
        except Exception as error:
            wrong.append(
                f"{seed} {function.__name__}{arguments[2:]}{options}: {type(error).__name__} {error}"
            )
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:40])


def test_some_calls():
    attempt(range(0, 2000, 50))


@pytest.mark.slow
def test_many_calls():
    attempt(range(2000))
