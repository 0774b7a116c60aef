"""Maximises the upper confidence bound of a Gaussian process."""

import jax
import jax.numpy as jnp
import optax

from qdrl_haiku.controllers.gaussian_process import Points, Posterior, predict
from qdrl_haiku.types import Array, Key

_NUM_CANDIDATES = 128
_NUM_CLIMBED = 8
_NUM_STEPS = 12
_LEARNING_RATE = 0.1
# Of each range. Two that are nearer, in all, are one.
_NEAR = 0.01


def bound(posterior: Posterior, points: Points, optimism: float) -> Array:
  """Returns the upper confidence bound of some points.

    mean(x) + optimism * deviation(x)

  The deviation may be that after pending points too, whatever will come of them
  (Desautels et al., 2014, "Parallelizing Exploration-Exploitation Tradeoffs in
  Gaussian Process Bandit Optimization", equation 4, as in PB2).
  """
  mean, deviation = predict(posterior, points)
  return mean + optimism * deviation


def maximise(
  key: Key,
  posterior: Posterior,
  time: Array,
  fixed: Array,
  category: Array,
  taken: tuple[Array, Array, Array],
  optimism: float,
) -> Points:
  """Looks for settings at which the upper confidence bound is high.

  Random candidates, of which the best climb for some steps of Adam. The best of
  all wins, but for those that are as good as equal to what somebody else has
  already.
  """
  others, other_categories, counts = taken
  num_coordinates = others.shape[-1]

  def points(coordinates: Array) -> Points:
    size = coordinates.shape[0]
    position = jnp.concatenate(
      [jnp.broadcast_to(fixed, (size, fixed.shape[0])), coordinates], axis=1
    )
    return Points(
      jnp.full(size, time),
      position,
      jnp.broadcast_to(category, (size, category.shape[0])),
    )

  def value(coordinates: Array) -> Array:
    return bound(posterior, points(coordinates), optimism)

  shape = (_NUM_CANDIDATES, num_coordinates)
  candidates = jax.random.uniform(key, shape, jnp.float32)
  values = value(candidates)
  # What isn't a number is not the best.
  _, best = jax.lax.top_k(jnp.nan_to_num(values, nan=-jnp.inf), _NUM_CLIMBED)
  climbing = candidates[best]

  # Smaller and smaller steps.
  adam = optax.adam(optax.linear_schedule(_LEARNING_RATE, 0.0, _NUM_STEPS))

  def step(
    carry: tuple[Array, optax.OptState], _: None
  ) -> tuple[tuple[Array, optax.OptState], None]:
    coordinates, state = carry
    gradient = jax.grad(lambda x: -jnp.sum(value(x)))(coordinates)
    updates, state = adam.update(jnp.nan_to_num(gradient), state)
    return (jnp.clip(coordinates + updates, 0.0, 1.0), state), None

  (climbed, _), _ = jax.lax.scan(
    step, (climbing, adam.init(climbing)), length=_NUM_STEPS
  )
  candidates = jnp.concatenate([candidates, climbed])
  values = jnp.concatenate([values, value(climbed)])
  values = jnp.nan_to_num(values, nan=-jnp.inf)
  apart = jnp.any(jnp.abs(candidates[:, None] - others) > _NEAR, axis=-1)
  apart |= jnp.any(category != other_categories, axis=-1)
  is_new = jnp.all(apart | ~counts, axis=-1)
  # Where all are taken, one of them has to do.
  ranked = jnp.where(jnp.any(is_new) & ~is_new, -jnp.inf, values)
  winner = jnp.argmax(ranked)
  # Where none is a number, the first new one.
  winner = jnp.where(ranked[winner] > -jnp.inf, winner, jnp.argmax(is_new))
  chosen = points(candidates[winner][None])
  return jax.tree.map(lambda x: x[0], chosen)
