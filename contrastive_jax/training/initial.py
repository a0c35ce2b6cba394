"""Initial state of a run: weights of the seed, or encoders of ``init.checkpoint`` and ``init.second_checkpoint``."""

from collections.abc import Callable
from typing import Any

import jax

from contrastive_jax import config as configs
from contrastive_jax import models, sharding
from contrastive_jax.config import Settings, identity
from contrastive_jax.models import norm
from contrastive_jax.training import encoder, pairs
from contrastive_jax.training.program import Program
from contrastive_jax.training.run import Run
from contrastive_jax.types import TrainState
from contrastive_jax.workdir import checkpoint, remote, weights

OF_INITIAL_WEIGHTS = ("zero_init", "kernel_init")  # options of a ResNet


def pretrained(run: Run, report: Callable[[str], None], number: int = 0) -> encoder.Saved:
    """Return the encoder of ``init.checkpoint`` (a workdir or file); report options that change its function.

    Args:
      run: the run.
      report: function that receives the lines.
      number: 1: the second encoder, of ``init.second_checkpoint``.

    Raises:
      FileNotFoundError: the path does not exist.
      ValueError: the encoder differs from the config's. Both errors name the option.
    """
    path, everywhere = paths(run.settings)[number], sharding.named(run.mesh, sharding.REPLICATED)
    option, before = (("init.checkpoint", ""), ("init.second_checkpoint", models.SECOND))[number]
    option = f"{option}={path!r}"
    try:
        second = bool(number) and encoder.holds_two(path)
        saved = encoder.read(path, modules=("encoder",), second=second, sharding=everywhere, report=report)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"{option}: {error}") from None
    settings, source = pairs.towers(run.settings, run.source)[number]
    encoder.check_example(saved.example, source, option)
    wanted = run.recipe.network.shapes(run.recipe.view)
    for here, there in zip((saved.params, saved.stats), wanted, strict=True):
        if other := weights.difference(here["encoder"], there[f"{before}encoder"]):
            raise ValueError(
                f"{option} does not match the {before}encoder of this config: its {other};"
                " compare the encoder sections of both configs."
            )
    changed = _changed(saved, settings)
    if "encoder.variant" in changed and settings.encoder.name == "resnet":
        was, now = changed["encoder.variant"]
        raise ValueError(
            f"{option} has encoder.variant={was}, and this config has {now}: the arrays"
            f" match, but the function differs. Set --config.{before}encoder.variant={was}."
        )
    report(f"{before}encoder: from {'' if saved.step is None else f'step {saved.step} of '}{path}")
    if changed:
        told = ", ".join(f"{leaf} was {was}, is {now}" for leaf, (was, now) in changed.items())
        report(f"{before}encoder: options differ from those of the checkpoint and change its output: {told}")
    return saved


def paths(settings: Settings) -> tuple[str, str]:
    """Return ``init.checkpoint`` and ``init.second_checkpoint``.

    Raises:
      ValueError: the second without a second encoder.
    """
    first, second = settings.init.checkpoint, settings.init.second_checkpoint
    if second and not pairs.paired(settings):
        raise ValueError(f"init.second_checkpoint is {second!r}; it must be '' without second_encoder.")
    return first, second


def _changed(saved: encoder.Saved, settings: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the leaves that change the saved encoder's function, as (saved, here).

    Shapes do not reveal them all: options of a user-defined encoder, batch norm's epsilon, image normalization
    (unknown for a file of another library).
    ResNet's variants with the same arrays differ in the max-pooling of the ImageNet stem.
    """
    foreign = "augment" not in saved.settings

    def of_function(settings: Settings) -> dict[str, Any]:
        network = {"name": settings.encoder.name, **settings.encoder.options}
        if settings.encoder.name == "resnet":
            leave_out = OF_INITIAL_WEIGHTS + (() if network["stem"] == "imagenet" else ("variant",))
            network = {name: value for name, value in network.items() if name not in leave_out}
        epsilon = norm.norm(**settings.norm.options).epsilon
        options = {} if foreign else settings.augment.options
        images = {name: value for name, value in options.items() if name in ("mean", "std")}
        return {"encoder": network, "norm": {"epsilon": epsilon}, "augment": images}

    changed = configs.diff(of_function(saved.settings), of_function(settings))
    return {
        leaf: (was, now) for leaf, (was, now) in changed.items() if not (foreign and was is identity.ABSENT)
    }


def check(run: Run, workdir: str) -> None:
    """Refuse an ``init.checkpoint`` that does not fit, before anything is written; resumed runs skip this."""
    given = [number for number, path in enumerate(paths(run.settings)) if path]
    if given and not checkpoint.steps_in(remote.checkpoints(workdir)):
        for number in given:
            pretrained(run, lambda message: None, number)


def first_state(program: Program, report: Callable[[str], None]) -> TrainState:
    """Return the state before step 0 of the program's runs; its mesh must be in context."""

    def weights_of(run: Run) -> Any:
        given = paths(run.settings)
        if not any(given):
            return None
        with jax.set_mesh(run.mesh):
            params, stats = run.recipe.init_network(run.settings.seed)
            for number, before in enumerate(("", models.SECOND)[: 1 + pairs.paired(run.settings)]):
                if not given[number]:
                    report(f"{before}encoder: from the seed")
                    continue
                saved = pretrained(run, report, number)
                loaded, loaded_stats = jax.device_get((saved.params, saved.stats))
                params |= {f"{before}encoder": loaded["encoder"]}
                stats |= {f"{before}encoder": loaded_stats["encoder"]}
            return params, stats

    return program.initial_state([weights_of(run) for run in program.runs])
