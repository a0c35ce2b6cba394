"""Train step that every method shares, and the state before the first step."""

import zlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from contrastive_jax import augment, losses, sharding
from contrastive_jax.contrast import diagnostics
from contrastive_jax.contrast.temperature import Slopes
from contrastive_jax.contrast.terms import total_loss
from contrastive_jax.losses.supervised import mean_of_labelled
from contrastive_jax.training.recipe import Recipe
from contrastive_jax.types import Array, Batch, PyTree, TrainState


def step_key(seed: Array, step: Array, name: str) -> Array:
    """Derive the random key for the purpose ``name`` at one step; the state carries no key."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), zlib.crc32(name.encode()))


def init_state(recipe: Recipe, seed: int) -> TrainState:
    """Return the state before the first step, on the host's default device."""
    return state_of(recipe, seed, *recipe.init_network(seed))


def state_of(recipe: Recipe, seed: int, params: PyTree, stats: PyTree) -> TrainState:
    """Return the state before the first step for given weights of the network."""

    def carried(x: Array) -> Array:  # statistics may be integers
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.asarray(x, recipe.parameter_dtype if floating else x.dtype)

    params, stats = jax.tree.map(carried, (params, stats))
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        seed=jnp.asarray(seed, jnp.uint32),
        params=params,
        stats=stats,
        optimizer=recipe.optimizer.init(params),
        target=recipe.target.init(params, stats),
        candidates=recipe.compare.candidates.init(
            step_key(jnp.asarray(seed, jnp.uint32), jnp.zeros((), jnp.int32), "candidates"),
            recipe.embedding_width,
        ),
        temperature=recipe.temperature.init(),
        gradient_snr=recipe.gradient_snr.init(params),
        normalizer=recipe.normalizer.init(),
    )


def make_train_step(recipe: Recipe, take: Callable[[PyTree, Array], Batch]) -> Callable:
    """Make ``(state, feed) -> (state, metrics)`` for jit. ``take(feed, step)`` returns the batch."""

    def train_step(state: TrainState, feed: PyTree) -> tuple[TrainState, dict[str, Array]]:
        batch = take(feed, state.step)
        rng = {name: step_key(state.seed, state.step, name) for name in ("target", "compare", "loss")}
        keys = augment.example_keys(state.seed, batch.epoch, batch.id)
        # [B, W, h, w, c] of each size; of pairs, [B, 1, ...] of each array
        views, *others = augment.views_of_batch(recipe.augment, keys, batch.image)

        # Zeros added to the queries, to log(1 / tau) and to the bias: their gradients are the loss's derivatives.
        query_offset = sharding.shard_batch(
            jnp.zeros((views.shape[0], recipe.directions, recipe.embedding_width), recipe.parameter_dtype)
        )

        zero = jnp.zeros((), recipe.parameter_dtype)

        def loss_fn(params, query_offset, slopes):
            outputs, stats = recipe.network.apply(
                params, state.stats, (views[:, recipe.online_views], *others), train=True
            )
            keys, target = recipe.target.apply(
                state.target, outputs, params, views[:, recipe.target_views], state.step, rng["target"]
            )
            comparison, candidates = recipe.compare(
                outputs.prediction,
                keys,
                batch.group,
                (state.candidates, recipe.temperature.read(state.temperature, batch.id)),
                state.step,
                rng["compare"],
                query_offset,
                slopes,
            )
            critic = recipe.network.critic(
                params, comparison.query, comparison.key, comparison.positive / comparison.temperature
            )
            u, normalizer = recipe.normalizer.apply(state.normalizer, batch.id, comparison, critic)
            extras = {
                "projection": outputs.projection,
                "prediction": outputs.prediction,
                "target": keys,
                "logits": outputs.logits,
                "label": batch.label,
                "rng": rng["loss"],
                "u": u,
            }
            loss, terms = total_loss(recipe.terms, comparison, extras)
            probe = 0.0
            if recipe.probe_weight:
                values = losses.cross_entropy(outputs.logits, batch.label)
                probe = mean_of_labelled(values, batch.label)
            metrics = {"loss": loss, "probe_loss": probe} | {
                f"loss/{name}": value for name, value in terms.items()
            }
            metrics |= recipe.diagnose(comparison, outputs, batch.label)
            carried = (stats, target, candidates, normalizer, recipe.temperature.outcome(comparison, u))
            return loss + recipe.probe_weight * probe, (carried, metrics)

        (grads, of_queries, slopes), ((stats, target, candidates, normalizer, outcome), metrics) = jax.grad(
            loss_fn, argnums=(0, 1, 2), has_aux=True
        )(state.params, query_offset, Slopes(zero, zero))
        updates, optimizer = recipe.optimizer.update(grads, state.optimizer, state.params)
        snr, gradient_snr = recipe.gradient_snr.apply(state.gradient_snr, grads)
        metrics |= snr | diagnostics.of_query_gradients(of_queries)
        metrics |= {
            "gradient_norm": optax.tree.norm(grads),
            "learning_rate": recipe.learning_rate(state.step),
        }
        state = TrainState(
            step=state.step + 1,
            seed=state.seed,
            params=optax.apply_updates(state.params, updates),
            stats=stats,
            optimizer=optimizer,
            target=target,
            candidates=candidates,
            temperature=recipe.temperature.update(state.temperature, batch.id, state.step, outcome, slopes),
            gradient_snr=gradient_snr,
            normalizer=normalizer,
        )
        return state, metrics

    return train_step
