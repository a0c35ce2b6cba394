"""Every option refuses what its annotation does not allow: in a config when it is resolved, and in a direct call."""

import inspect
import math
import types
import typing
from pathlib import Path
from typing import Annotated, Literal

import pytest
from suite import over

from contrastive_jax import augment, kinds
from contrastive_jax import config as configs
from contrastive_jax.config import schema
from contrastive_jax.kinds import Ge, Gt, Le, Lt

OUTSIDE = {Ge: -1, Gt: 0, Lt: 0, Le: 1}  # of a bound: the nearest whole step that it does not allow
OTHERS = {  # of a type: what is beyond its range, or of another kind
    int: (2**31, -(2**31), 1.5, "7", True),
    float: (3.5e38, -3.5e38, math.inf, math.nan, "7", True),
    bool: (1, "True"),
    str: (7, True),
}


def refused(kind) -> list:
    """Values that a kind does not allow: below, above, and of another kind."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        bounds = [part for part in parts[1:] if isinstance(part, kinds.Bound)]
        found = [bound.value + OUTSIDE[type(bound)] for bound in bounds] + refused(parts[0])
    elif origin is Literal:
        numbers = [choice for choice in parts if isinstance(choice, int)]
        found = ["no such choice", None, *([min(numbers) - 1, max(numbers) + 1] if numbers else [])]
    elif origin in (typing.Union, types.UnionType):
        found = [value for part in parts if part is not types.NoneType for value in refused(part)]
    elif origin is not None:
        found = [5, *([] if parts[-1] is ... or origin is not tuple else [(), (1,) * 9])]
        fitting = [first(part) for part in parts if part is not ...]
        for place, part in enumerate(parts if parts[-1] is not ... else parts[:1]):
            found += [(*fitting[:place], value, *fitting[place + 1 :]) for value in refused(part)]
    else:
        found = list(OTHERS[kind])
    return [value for value in found if not kinds.fits(value, kind)]


def first(kind):
    """A value that a kind allows."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind == kinds.Duration:
        return 1
    if origin is Annotated:
        ends = [bound.value for bound in parts[1:]]
        near = [value for end in ends for value in (end, end + 1, end - 1, end / 2)]
        return next(value for value in near if kinds.fits(value, kind))
    return parts[0] if origin is Literal else kind(1)


def place(option: schema.Option) -> tuple[dict, str]:
    """A config that has an option, and the option's leaf in it."""
    path, _, key = option.name.rpartition(".")
    section, name = path.partition(".")[0], option.function.__name__
    config = configs.plain(configs.complete(configs.base()))
    leaf = option.name.replace("loss.*", f"loss.{name}").replace("evaluators.*", "evaluators.column")
    if section == "loss":
        config["loss"] = {name: {"weight": 1.0}}
    elif section == "evaluators":
        config["evaluators"]["column"] = {"name": name}
    elif section in (*configs.CHOICES, "data"):
        config[section] = {"name": name}
    elif section == "augment" and name != "make_views":
        config["augment"] = {"preset": name} | ({} if augment.of_arrays(augment.find(name)) else {"size": 8})
    return config, leaf


def put(config: dict, leaf: str, value) -> dict:
    *path, key = leaf.split(".")
    section = config
    for name in path:
        section = section[name]
    section[key] = value
    return config


OPTIONS = {
    f"{option.name} of {option.function.__name__}": option for option in schema.every() if option.function
}


@over(OPTIONS)
def test_a_config_refuses_what_an_option_does_not_take(name):
    option = OPTIONS[name]
    assert option.kind is not None
    wrong = refused(option.kind)
    assert len(wrong) > 1
    for value in wrong:
        config, leaf = place(option)
        with pytest.raises(ValueError) as error:
            schema.check(put(config, leaf, value))
        message = str(error.value)
        assert message.startswith(f"{leaf} is {kinds.short(value)}; it must be ") and "\n" not in message


@over(OPTIONS)
def test_an_option_takes_its_default_and_the_ends_of_its_range(name):
    option = OPTIONS[name]
    config, leaf = place(option)
    if option.default is not inspect.Parameter.empty:
        assert option.default is None or kinds.fits(option.default, option.kind)
        schema.check(put(config, leaf, option.default))
    if typing.get_origin(option.kind) is Annotated:
        closed = [b.value for b in typing.get_args(option.kind)[1:] if isinstance(b, Ge | Le)]
        assert all(kinds.fits(end, option.kind) for end in closed)


CALLED = {
    name: option
    for name, option in OPTIONS.items()
    if not inspect.isclass(option.function) and not option.name.startswith("loss.")
}


@over(CALLED)
def test_a_direct_call_refuses_it_too(name):
    """What a config cannot hold is not looked at before."""
    option = CALLED[name]
    key = option.name.rpartition(".")[2]
    context = [
        None
        for parameter in inspect.signature(option.function).parameters.values()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is parameter.empty
    ]
    needed = {
        name: first(p.annotation)
        for name, p in kinds.parameters(option.function).items()
        if p.default is p.empty and name != key
    }
    for value in refused(option.kind):
        with pytest.raises(ValueError) as error:
            option.function(*context, **needed, **{key: value})
        assert f"{key} is {kinds.short(value)}; it must be " in str(error.value)


@pytest.mark.parametrize(
    ("leaf", "text", "sentence"),
    [
        ("encoder", "vitt", "encoder.name is 'vitt'; it must be one of conv1d, mlp, resnet, transformer, vit. Did"),
        ("optimizer", "admaw", "optimizer.name is 'admaw'; it must be one of adam, adamw, lars, sgd. Did you mean"),
        ("augment.strength", "-1", "augment.strength is -1; it must be from 0 to 2.5."),
        ("augment.jitter", "1.5", "augment.jitter is 1.5; it must be from 0 to 1."),
        ("evaluators.knn.k", "0", "evaluators.knn.k is 0; it must be at least 1."),
        ("evaluators.knn", "kn", "evaluators.knn.name is 'kn'; it must be one of byol, "),
        ("train.batch_size", "1", "train.batch_size is 1; it must be at least 2."),
        ("temperature.tau", "nan", "temperature.tau is nan; it must be a finite number below 3.4e38."),
        ("directions", "bot", "directions is 'bot'; it must be one of both, one_way. Did you mean 'both'?"),
    ],
)  # fmt: skip
def test_resolving_refuses_it(leaf, text, sentence):
    with pytest.raises(ValueError) as error:
        configs.resolve(None, {leaf: text})
    assert str(error.value).startswith(sentence), error.value


def test_numbers_as_arrays_are_numbers():
    import jax.numpy as jnp
    import numpy as np

    from contrastive_jax.contrast import temperature

    for tau in (np.float32(0.5), np.array(0.5), jnp.asarray(0.5)):
        temperature.fixed(1, tau=tau)
    kinds.check_values(
        {"sizes": tuple[kinds.Positive, ...], "dir": str}, {"sizes": (np.float32(0.5), 1), "dir": Path("x")}
    )
    for tau in (np.float32(-0.5), jnp.asarray(-0.5)):
        with pytest.raises(ValueError, match=r"temperature\.tau is -0\.5; it must be above 0\."):
            temperature.fixed(1, tau=tau)
