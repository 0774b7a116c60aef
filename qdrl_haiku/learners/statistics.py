"""Running statistics of observations and of rewards, and their uses."""

from typing import NamedTuple

import jax.numpy as jnp

from qdrl_haiku import types

_MAX_NORMALIZED = 10.0
_MIN_STD = 1e-4
_REWARD_RATE = 1e-3
# The square of a difference of two such numbers, summed over 10^7 of them, is
# still a float32; no observation or reward that means anything is as large.
_LARGEST = 1e15


class ObservationStatistics(NamedTuple):
  """Mean and spread of all observations that an agent has collected.

  Attributes:
    num_observations: [], how many, a float32. Once it is so large that adding
      a batch's no longer changes it, old observations are forgotten.
    mean: [O].
    variance: [O], the mean of (observation - mean)^2.
  """

  num_observations: types.Array
  mean: types.Array
  variance: types.Array

  @property
  def std(self) -> types.Array:
    """The standard deviation [O]; 1 until there are two observations."""
    std = jnp.maximum(jnp.sqrt(self.variance), _MIN_STD)
    return jnp.where(self.num_observations < 2, 1.0, std)


def init_statistics(
  observation_size: int, are_kept: bool = True
) -> ObservationStatistics | None:
  """Returns statistics of no observation yet, or None if none are kept.

  With statistics of no observation `normalize_by_statistics` only clips.

  Args:
    observation_size: O.
    are_kept: whether observations are to be normalised.
  """
  if not are_kept:
    return None
  # Two arrays, not one twice: a buffer can't be donated twice.
  return ObservationStatistics(
    num_observations=jnp.zeros((), jnp.float32),
    mean=jnp.zeros((observation_size,), jnp.float32),
    variance=jnp.zeros((observation_size,), jnp.float32))


def counts_in_statistics(observation: types.Array) -> types.Array:
  """Returns which observations statistics take in: those within +-1e15."""
  return jnp.all(jnp.abs(observation) <= _LARGEST, axis=-1)


def update_statistics(
  statistics: ObservationStatistics, observation: types.Array
) -> ObservationStatistics:
  """Takes in observations [..., O], but those that aren't within +-1e15.

  Chan, Golub and LeVeque's parallel form of Welford's algorithm ("Updating
  formulae and a pairwise algorithm for computing sample variances", 1979).
  """
  batch = observation.reshape(-1, observation.shape[-1])
  valid = counts_in_statistics(batch)[:, None]
  batch = jnp.where(valid, batch, 0.0)
  batch_count = jnp.sum(valid.astype(batch.dtype))
  count = statistics.num_observations + batch_count
  batch_mean = jnp.sum(batch, axis=0) / jnp.maximum(batch_count, 1.0)
  deviation = jnp.where(valid, batch - batch_mean, 0.0)
  batch_variance = jnp.sum(jnp.square(deviation), axis=0) / jnp.maximum(
    batch_count, 1.0)
  delta = jnp.where(batch_count > 0, batch_mean - statistics.mean, 0.0)
  share = batch_count / jnp.maximum(count, 1.0)
  return ObservationStatistics(
    num_observations=count, mean=statistics.mean + delta * share,
    variance=statistics.variance
    + share * (batch_variance - statistics.variance)
    + share * (1.0 - share) * jnp.square(delta))


def observe_statistics(
  state: types.State, observation: types.Array
) -> types.State:
  """Updates the statistics of an agent that has some: `Learner.observe`.

  Args:
    state: of the agent, a NamedTuple with the field `observation_statistics`,
      which may be None.
    observation: [..., O].

  Returns:
    The state.
  """
  if state.observation_statistics is None:
    return state
  return state._replace(observation_statistics=update_statistics(
    state.observation_statistics, observation))


def normalize_by_statistics(
  statistics: ObservationStatistics | None, observation: types.Array
) -> types.Array:
  """Returns observations [..., O] with mean 0 and deviation 1, cut to +-10.

  They are returned as they are where there are no statistics, None.
  """
  if statistics is None:
    return observation
  # One division for each entry: cheaper, and rounded alike on any devices.
  normalized = (observation - statistics.mean) * (1 / statistics.std)
  return jnp.clip(normalized, -_MAX_NORMALIZED, _MAX_NORMALIZED)


class RewardStatistics(NamedTuple):
  """Holds the size of the rewards that an agent learns from.

  Attributes:
    num_updates: int32 [], how many updates there were, at most 2^30 + 1.
    largest: [], the average over updates of their batches' largest |reward|:
      first the plain average, after 1,000 updates an exponential one with rate
      0.001, so that old rewards are forgotten.
  """

  num_updates: types.Array
  largest: types.Array


def init_reward_statistics() -> RewardStatistics:
  """Returns statistics of no reward."""
  return RewardStatistics(
    jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))


def update_reward_statistics(
  statistics: RewardStatistics, reward: types.Array
) -> RewardStatistics:
  """Takes in the rewards of an update; one beyond 1e15 counts as 0."""
  size = jnp.abs(reward)
  size = jnp.where(size <= _LARGEST, size, 0.0)
  largest = jnp.mean(jnp.max(size, axis=-1))
  # Stops counting before int32 overflows.
  num_updates = jnp.minimum(statistics.num_updates, jnp.int32(2**30)) + 1
  rate = jnp.maximum(1.0 / num_updates.astype(reward.dtype), _REWARD_RATE)
  return RewardStatistics(
    num_updates, statistics.largest + rate * (largest - statistics.largest))
