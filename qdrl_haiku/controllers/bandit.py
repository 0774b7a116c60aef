"""Chooses values of a `Choice` by a bandit whose rewards change in time.

TV.EXP3.M of Parker-Holder et al. (2021), "Tuning Mixed Input Hyperparameters on
the Fly for Efficient Population Based AutoRL", arXiv:2106.15883, section 4.1:
several draws at a time as with Exp3.M (Uchiya et al., 2010, "Algorithms for
Adversarial Bandit Problems with Multiple Plays"), and weights of which a part
is shared out each time, so that what has become good is found again.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku.types import Array, Key

# T, the decisions that a run is thought to have: of how much is explored, and,
# as alpha = 1 / T, of how much is forgotten.
_NUM_ROUNDS = 100
# Gamma where there are as many draws as values, which the paper's formula isn't
# for; its authors' program has the same.
_EXPLORATION = 0.2


class Bandit(NamedTuple):
  """Holds the weights of K choices, of which choice k has C_k values.

  Attributes:
    weights: K of [C_k], omega: how good the values seem, of sum 1.
    gains: float32 [P, K], by how much a reward of 1 raises the logarithm of the
      weight of the value that each member was given by the latest draw; 0 where
      none was drawn for it, or where it teaches nothing.
  """

  weights: tuple[Array, ...]
  gains: Array


def start(num_values: Sequence[int], population_size: int) -> Bandit:
  """Returns what is known at first."""
  return Bandit(
    tuple(jnp.full(n, 1 / n, jnp.float32) for n in num_values),
    jnp.zeros((population_size, len(num_values)), jnp.float32),
  )


def learn(bandit: Bandit, categories: Array, rewards: Array) -> Bandit:
  """Learns what came of the latest draw.

  With g' = g / (B p) for a value of chance p that was drawn with reward g, by
  one of B draws, and S_0 those values whose weights were capped:

    omega <- omega exp(B gamma g' / C) + e alpha / C sum(omega), not in S_0
    omega <- omega + e alpha / C sum(omega), in S_0
  """
  rewards = jnp.where(jnp.isfinite(rewards), rewards, 0.0)
  raised = bandit.gains * rewards[:, None]

  def later(weights: Array, categories: Array, raised: Array) -> Array:
    size = weights.shape[0]
    has = categories[:, None] == jnp.arange(size)
    by = jnp.sum(jnp.where(has, raised[:, None], 0.0), axis=0)
    shared = math.e / (_NUM_ROUNDS * size) * jnp.sum(weights)
    weights = weights * jnp.exp(by) + shared
    return weights * (1 / jnp.sum(weights))

  weights = [
    later(x, categories[:, k], raised[:, k])
    for k, x in enumerate(bandit.weights)
  ]
  return Bandit(tuple(weights), jnp.zeros_like(bandit.gains))


def draw(key: Key, bandit: Bandit, where: Array) -> tuple[Array, Bandit]:
  """Draws values, together for all who get one.

  As with DepRound (Gandhi et al., 2006), B draws are made in which a value of
  chance p is found B p times in the mean, and twice only if B p > 1: they are
  at equal distances along the cumulated chances.
  """
  number = jnp.maximum(jnp.sum(where, dtype=jnp.int32), 1)
  columns, gains = [], []
  for k, weights in enumerate(bandit.weights):
    turn_key, offset_key = jax.random.split(jax.random.fold_in(key, k))
    turn = jax.random.uniform(turn_key, where.shape)
    order = jnp.argsort(jnp.where(where, turn, 2.0))
    turn = jnp.zeros_like(order).at[order].set(jnp.arange(where.shape[0]))
    chances, is_capped, exploration = chances_of(weights, number)
    place = turn + jax.random.uniform(offset_key)
    category = jnp.searchsorted(
      jnp.cumsum(number * chances), place, side="right"
    )
    category = jnp.minimum(category, weights.shape[0] - 1)
    teaches = where & ~is_capped[category]
    gain = exploration / (weights.shape[0] * chances[category])
    columns.append(category.astype(jnp.float32))
    gains.append(jnp.where(teaches, gain, 0.0))
  if not columns:
    return jnp.zeros((where.shape[0], 0)), bandit
  return jnp.stack(columns, axis=1), bandit._replace(
    gains=jnp.stack(gains, axis=1)
  )


def chances_of(
  weights: Array, number: Array | int
) -> tuple[Array, Array, Array]:
  """Returns how likely each value of one choice is drawn.

    p = (1 - gamma) omega' / sum(omega') + gamma / C

  With fewer draws than values, weights are capped, omega' = min(omega, v), so
  that no B p is more than 1:

    v / sum(omega') = (1 / B - gamma / C) / (1 - gamma)
  """
  size = weights.shape[0]
  is_fewer = jnp.asarray(number) < size
  fraction = number / size
  exploration = jnp.sqrt(
    -jnp.log(jnp.minimum(fraction, 1.0))
    / ((math.e - 1) * fraction * _NUM_ROUNDS)
  )
  exploration = jnp.where(is_fewer, jnp.minimum(exploration, 1), _EXPLORATION)
  share = (1 / number - exploration / size) / jnp.maximum(
    1 - exploration, 1e-6
  )
  # The cap if the k + 1 greatest have it: the first that leaves all others be.
  ascending = jnp.sort(weights)
  others = jnp.append(jnp.cumsum(ascending)[-2::-1], 0.0)
  left = 1 - share * jnp.arange(1, size + 1)
  caps = jnp.where(left > 0, share * others / left, jnp.inf)
  cap = caps[jnp.argmax(caps >= jnp.append(ascending[-2::-1], 0.0))]
  is_capped = is_fewer & (weights >= cap)
  capped = jnp.where(is_capped, cap, weights)
  shares = capped * (1 / jnp.sum(capped))
  chances = (1 - exploration) * shares + exploration / size
  return chances, is_capped, exploration
