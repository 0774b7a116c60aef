"""Populations without training, in which it is known what PB2 should predict.

What members gain until the next decision is a smooth function of two
hyperparameters and of time.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import controllers

SPACE = {name: controllers.Uniform(0.0, 1.0) for name in "xy"}
_NUM_DECISIONS = 40
_SIZE = 8


class Calibration(NamedTuple):
  """Tells how predictions of the first changes of children fit.

  Attributes:
    within: share of changes within one predicted deviation.
    error: mean of predicted minus observed changes, in the root mean square of
      the predicted deviations.
    gained: mean of what the fittest member gains in a run, without noise.
  """

  within: float
  error: float
  gained: float


def _gain(hyperparams, time):
  """Gains fall with the distance from a point that goes round once, and with
  time, from about 1.5 to about 0.5."""
  angle = 2 * jnp.pi * time / _NUM_DECISIONS
  distance = jnp.hypot(
    hyperparams["x"] - 0.5 - 0.35 * jnp.cos(angle),
    hyperparams["y"] - 0.5 - 0.35 * jnp.sin(angle))
  return (1.5 - time / _NUM_DECISIONS) * (1 - 2 * distance**2)


@functools.cache
def _runs(config):
  """A function of noise, drop and seeds: changes, reasons and best levels."""
  controller = controllers.pb2(config, SPACE)

  def run(noise, drop, seed):
    key = jax.random.key(seed)
    state, hyperparams = controller.init(jax.random.fold_in(key, 0), _SIZE)

    def generation(carry, time):
      state, hyperparams, level, before = carry
      own = jax.random.fold_in(key, time)
      level += _gain(hyperparams, time)
      fitness = level + noise * jax.random.normal(own, level.shape)
      state, decision = controller.update(state, own, fitness, hyperparams)
      after = level[decision.parents] - drop * (decision.operator == 1)
      carry = state, decision.hyperparams, after, fitness[decision.parents]
      return carry, (fitness - before, decision.reasons, jnp.max(level))

    start = jnp.zeros(_SIZE)
    _, (change, reasons, best) = jax.lax.scan(
      generation, (state, hyperparams, start, start),
      jnp.arange(1, 1 + _NUM_DECISIONS))
    return change[1:], jax.tree.map(lambda x: x[:-1], reasons), best[-1]

  return jax.jit(jax.vmap(run, (None, None, 0)))


def calibration(config, noise=0.0, drop=0.0, num_seeds=10) -> Calibration:
  """Lets PB2 decide for populations of eight.

  Args:
    config: of PB2.
    noise: the deviation of an evaluation from a member's true level.
    drop: how far below its parent a child begins.
    num_seeds: number of populations.
  """
  change, reasons, best = jax.device_get(
    _runs(config)(noise, drop, jnp.arange(num_seeds)))
  predicted = reasons["predicted_change"]
  deviation = reasons["predicted_deviation"]
  known = np.isfinite(predicted)
  error = (predicted - change)[known]
  return Calibration(
    float(np.mean(np.abs(error) <= deviation[known])),
    float(np.mean(error) / np.sqrt(np.mean(deviation[known] ** 2))),
    float(np.mean(best)))
