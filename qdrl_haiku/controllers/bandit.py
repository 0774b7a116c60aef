"""Chooses values of a `Choice` by a bandit whose rewards change in time.

TV.EXP3.M of Parker-Holder et al. (2021), "Tuning Mixed Input Hyperparameters on
the Fly for Efficient Population Based AutoRL", arXiv:2106.15883, section 4.1:
several draws at a time as with Exp3.M (Uchiya et al., 2010, "Algorithms for
Adversarial Bandit Problems with Multiple Plays"), and a part of the weights is
shared among all values each time, so that one that becomes good is found again.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku.types import Array, Key

# T, the expected decisions of a run: it sets gamma, the exploration, and
# alpha = 1 / T, the share of weights that is shared out.
_NUM_ROUNDS = 100
# Gamma where there are as many draws as values, for which the paper has no
# formula; its authors' program has the same.
_EXPLORATION = 0.2


class Bandit(NamedTuple):
  """Holds the weights of K choices, of which choice k has C_k values.

  Attributes:
    weights: K of [C_k], omega, of sum 1: how good the values seem.
    gains: float32 [P, K], how much a reward of 1 raises the logarithm of the
      weight of the value that was drawn for a member; 0 without a draw, and
      for a capped weight.
  """

  weights: tuple[Array, ...]
  gains: Array


def init_bandit(num_values: Sequence[int], population_size: int) -> Bandit:
  """Returns equal weights."""
  return Bandit(
    tuple(jnp.full(n, 1 / n, jnp.float32) for n in num_values),
    jnp.zeros((population_size, len(num_values)), jnp.float32),
  )


def update_bandit(bandit: Bandit, categories: Array, rewards: Array) -> Bandit:
  """Updates weights by the rewards of the latest draw.

  With g' = g / (B p) for a value of probability p that one of B draws took with
  reward g, and S_0 the values whose weights were capped:

    omega <- omega exp(B gamma g' / C) + e alpha / C sum(omega), not in S_0
    omega <- omega + e alpha / C sum(omega), in S_0
  """
  rewards = jnp.where(jnp.isfinite(rewards), rewards, 0.0)
  raised = bandit.gains * rewards[:, None]

  def updated(weights: Array, categories: Array, raised: Array) -> Array:
    """Updates the weights of one choice."""
    size = weights.shape[0]
    has = categories[:, None] == jnp.arange(size)
    by = jnp.sum(jnp.where(has, raised[:, None], 0.0), axis=0)
    shared = math.e / (_NUM_ROUNDS * size) * jnp.sum(weights)
    weights = weights * jnp.exp(by) + shared
    return weights * (1 / jnp.sum(weights))

  columns = zip(bandit.weights, categories.T, raised.T, strict=True)
  weights = tuple(updated(*column) for column in columns)
  return Bandit(weights, jnp.zeros_like(bandit.gains))


def draw_from_bandit(
  key: Key, bandit: Bandit, where: Array
) -> tuple[Array, Bandit]:
  """Draws values for the members of a mask [P], together.

  As with DepRound (Gandhi et al., 2006), B draws contain a value of probability
  p B p times in the mean, and twice only if B p > 1: they lie at equal
  distances along the cumulated probabilities.
  """
  number = jnp.maximum(jnp.sum(where, dtype=jnp.int32), 1)
  columns, gains = [], []
  for k, weights in enumerate(bandit.weights):
    turn_key, offset_key = jax.random.split(jax.random.fold_in(key, k))
    turn = jax.random.uniform(turn_key, where.shape)
    order = jnp.argsort(jnp.where(where, turn, 2.0))
    turn = jnp.zeros_like(order).at[order].set(jnp.arange(where.shape[0]))
    probability, is_capped, exploration = bandit_probabilities(weights, number)
    place = turn + jax.random.uniform(offset_key)
    category = jnp.searchsorted(
      jnp.cumsum(number * probability), place, side="right"
    )
    category = jnp.minimum(category, weights.shape[0] - 1)
    teaches = where & ~is_capped[category]
    gain = exploration / (weights.shape[0] * probability[category])
    columns.append(category.astype(jnp.float32))
    gains.append(jnp.where(teaches, gain, 0.0))
  if not columns:
    return jnp.zeros((where.shape[0], 0)), bandit
  return jnp.stack(columns, axis=1), bandit._replace(
    gains=jnp.stack(gains, axis=1)
  )


def bandit_probabilities(
  weights: Array, number: Array | int
) -> tuple[Array, Array, Array]:
  """Returns probabilities of one choice, which are capped, and gamma.

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
  share = (1 / number - exploration / size) / jnp.maximum(1 - exploration, 1e-6)
  # The cap if the k + 1 greatest have it: the first that caps no others.
  ascending = jnp.sort(weights)
  others = jnp.append(jnp.cumsum(ascending)[-2::-1], 0.0)
  left = 1 - share * jnp.arange(1, size + 1)
  caps = jnp.where(left > 0, share * others / left, jnp.inf)
  cap = caps[jnp.argmax(caps >= jnp.append(ascending[-2::-1], 0.0))]
  is_capped = is_fewer & (weights >= cap)
  capped = jnp.where(is_capped, cap, weights)
  shares = capped * (1 / jnp.sum(capped))
  probability = (1 - exploration) * shares + exploration / size
  return probability, is_capped, exploration
