"""Initial state of a run: weights of the seed, or the encoder of ``init.checkpoint``."""

from collections.abc import Callable
from typing import Any

import jax

from contrastive_jax import config as configs
from contrastive_jax import sharding
from contrastive_jax.config import Settings
from contrastive_jax.models import norm
from contrastive_jax.training import encoder, pairs
from contrastive_jax.training.program import Program
from contrastive_jax.training.run import Run
from contrastive_jax.types import TrainState
from contrastive_jax.workdir import checkpoint, remote, weights


def pretrained(run: Run, report: Callable[[str], None]) -> encoder.Saved:
    """Return the encoder of ``init.checkpoint`` (a workdir or file); report options that change its function.

    Raises:
      FileNotFoundError: the path does not exist.
      ValueError: the encoder differs from the config's. Both errors name the option.
    """
    path, everywhere = run.settings.init.checkpoint, sharding.named(run.mesh, sharding.REPLICATED)
    try:
        saved = encoder.read(path, modules=("encoder",), sharding=everywhere, report=report)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"init.checkpoint={path!r}: {error}") from None
    encoder.check_example(saved.example, run.source, f"init.checkpoint={path!r}")
    wanted = run.recipe.network.shapes(run.recipe.view)
    for here, there in zip((saved.params, saved.stats), wanted, strict=True):
        if other := weights.difference(here["encoder"], there["encoder"]):
            raise ValueError(
                f"init.checkpoint={path!r} does not match the encoder of this config: its {other};"
                " compare the encoder sections of both configs."
            )
    changed = _changed(saved, run.settings)
    if "encoder.variant" in changed and run.settings.encoder.name == "resnet":
        was, now = changed["encoder.variant"]
        raise ValueError(
            f"init.checkpoint={path!r} has encoder.variant={was}, and this config has {now}: the arrays"
            f" match, but the function differs. Set --config.encoder.variant={was}."
        )
    if pairs.paired(run.settings):
        report("second_encoder: from the seed, as init.checkpoint initialises the first encoder only")
    report(f"encoder: from {'' if saved.step is None else f'step {saved.step} of '}{path}")
    if changed:
        told = ", ".join(f"{leaf} was {was}, is {now}" for leaf, (was, now) in changed.items())
        report(f"encoder: options differ from those of the checkpoint and change its output: {told}")
    return saved


def _changed(saved: encoder.Saved, settings: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the leaves that change the saved encoder's function, as (saved, here); {} for a foreign file.

    Shapes do not reveal them all: options of a user-defined encoder, batch norm's epsilon, image normalization.
    ResNet's variants with the same arrays differ in the max-pooling of the ImageNet stem.
    """

    def of_function(settings: Settings) -> dict[str, Any]:
        network = {"name": settings.encoder.name, **settings.encoder.options}
        if settings.encoder.name == "resnet" and network["stem"] != "imagenet":
            del network["variant"]
        epsilon = norm.norm(**settings.norm.options).epsilon
        images = {name: value for name, value in settings.augment.options.items() if name in ("mean", "std")}
        return {"encoder": network, "norm": {"epsilon": epsilon}, "augment": images}

    if "augment" not in saved.settings:
        return {}
    return configs.diff(of_function(saved.settings), of_function(settings))


def check(run: Run, workdir: str) -> None:
    """Refuse an ``init.checkpoint`` that does not fit, before anything is written; resumed runs skip this."""
    if run.settings.init.checkpoint and not checkpoint.steps_in(remote.checkpoints(workdir)):
        pretrained(run, lambda message: None)


def first_state(program: Program, report: Callable[[str], None]) -> TrainState:
    """Return the state before step 0 of the program's runs; its mesh must be in context."""

    def weights_of(run: Run) -> Any:
        if not run.settings.init.checkpoint:
            return None
        with jax.set_mesh(run.mesh):
            saved = pretrained(run, report)
            params, stats = run.recipe.init_network(run.settings.seed)
            loaded, loaded_stats = jax.device_get((saved.params, saved.stats))
            return params | loaded, stats | loaded_stats

    return program.initial_state([weights_of(run) for run in program.runs])
