"""ESS-scheduled temperature: FlatNCE's Algorithm S1 as printed runs away; with its sign put right it holds.

    python experiments/flatnce/figure_ess.py [--steps 700] [--out experiments/flatnce/results]

FlatNCE on scikit-learn's handwritten digits (the smoke scale's narrow network, batch 32, 62 negatives) with
three targets. As printed, beta = 1 / tau shrinks where the effective sample size lies above its target, which
raises it further: tau ends at a clamp, and the ESS at 1 or near 1 / K. ASSUMED: where the paper starts from
beta = 1, both start here from tau = 0.1, and both are clamped to tau in [0.005, 10].
"""

import argparse
import datetime
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from contrastive_jax import config as configs
from contrastive_jax import data, native
from contrastive_jax.contrast import temperature
from contrastive_jax.contrast.temperature import Temperature
from contrastive_jax.training import run as runs
from contrastive_jax.training.step import init_state, make_train_step

TARGETS = (0.15, 0.3, 0.4)
LAST = 50  # steps at the end, whose mean must lie within TOLERANCE of the target
TOLERANCE = 0.02


def as_printed(target: float, tau: float = 0.1, rate: float = 0.01) -> Temperature:
    """Return Algorithm S1 to the letter: an ESS above its target lowers beta."""
    ours = temperature.ess(1, tau=tau, target=target, rate=rate)

    def update(state, step, ess):
        beta = state["beta"] * jnp.where(ess > target, 1 - rate, 1 + rate)
        return state | {"beta": jnp.clip(beta, 1 / 10.0, 1 / 0.005).astype(state["beta"].dtype)}

    return ours._replace(update=update)


RULES = {"ours": lambda target: temperature.ess(1, tau=0.1, target=target), "as printed": as_printed}


def histories(steps: int, rules: dict[tuple[str, float], Temperature]) -> dict[tuple[str, float], np.ndarray]:
    """Measure ESS and tau of every step, [2, steps], of a run on digits for each temperature rule."""
    config = configs.load("configs/digits.py:method=flatclr_ess,scale=smoke")
    run = runs.prepare(configs.plain(configs.complete(config)), jax.devices()[:1])
    found = {}
    with jax.set_mesh(run.mesh):
        feed = data.Resident(
            run.source.train, seed=0, batch_size=run.settings.train.batch_size, mesh=run.mesh
        )
        for name, rule in rules.items():
            recipe = run.recipe._replace(compare=run.recipe.compare._replace(temperature=rule))
            state = runs.replicate(init_state(recipe, 0), run.mesh)
            step, seen = native.jit(make_train_step(recipe, feed.take), donate_argnums=0), []
            for i in range(steps):
                state, metrics = step(state, feed.feed(i))
                seen.append((metrics["ess"], metrics["tau"]))
            found[name] = np.array(jax.device_get(seen)).T
            held = found[name][0, -LAST:].mean()
            print(f"{name[0]:10s} target {name[1]:.2f}: ESS {held:.3f} over the last {LAST}")
    return found


def draw(found: dict, path: pathlib.Path) -> None:
    """Draw ESS above, tau below; ours to the left, as printed to the right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(8, 5), sharex=True, sharey="row", layout="constrained")
    for column, rule in enumerate(RULES):
        for colour, target in zip(("C0", "C1", "C2"), TARGETS, strict=True):
            ess, tau = found[rule, target]
            axes[0, column].plot(ess, color=colour, linewidth=0.8, label=f"target {target}")
            axes[0, column].axhline(target, color=colour, linestyle=":")
            axes[1, column].plot(tau, color=colour)
        axes[0, column].set_title("ours" if rule == "ours" else "Algorithm S1 as printed")
        axes[1, column].set(yscale="log", xlabel="step")
    axes[0, 0].set_ylabel("ESS of the negatives")
    axes[1, 0].set_ylabel("temperature")
    axes[0, 0].legend(fontsize=8)
    for suffix in ("svg", "png"):
        figure.savefig(path.with_suffix(f".{suffix}"), dpi=110)
    plt.close(figure)


def main() -> None:
    """Train, draw and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = histories(options.steps, {(rule, t): RULES[rule](t) for rule in RULES for t in TARGETS})
    report = {
        "what": "ESS (negatives only) and temperature of FlatNCE on digits, under two controllers",
        "steps": options.steps,
        "last": LAST,
        "date": datetime.date.today().isoformat(),
        "jax": jax.__version__,
        "runs": [
            {
                "rule": rule,
                "target": target,
                "ess_mean_of_last": round(float(ess[-LAST:].mean()), 4),
                "tau_at_the_end": round(float(tau[-1]), 5),
                "ess_every_10": [round(float(x), 4) for x in ess[::10]],
                "tau_every_10": [round(float(x), 5) for x in tau[::10]],
            }
            for (rule, target), (ess, tau) in found.items()
        ],
    }
    (options.out / "ess.json").write_text(json.dumps(report, separators=(",", ":")) + "\n")
    draw(found, options.out / "ess")


if __name__ == "__main__":
    main()
