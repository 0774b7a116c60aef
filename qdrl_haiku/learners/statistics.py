"""Running statistics of observations and of rewards, and their uses."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import specs, types
from qdrl_haiku.types import Tree

LARGEST_NORMALIZED = 10.0
"""To which normalised observations are cut."""
_MIN_STD = 1e-4
_REWARD_RATE = 1e-3
# The square of a difference of two such numbers, summed over 10^7 of them, is
# still a float32; no observation or reward that means anything is as large.
_LARGEST = 1e15


class ObservationStatistics(NamedTuple):
  """Mean and spread of all observations that an agent has collected."""

  # [], how many, a float32. Once it is so large that adding a batch's no longer
  # changes it, old observations are forgotten.
  num_observations: types.Array
  # [O], or a tree like observations, None in the place of integers.
  mean: types.Tree
  # A tree like `mean`, the mean of (observation - mean)^2.
  variance: types.Tree

  @property
  def std(self) -> types.Tree:
    """The standard deviation [O]; 1 until there are two observations."""
    return jax.tree.map(
      lambda x: jnp.where(
        self.num_observations < 2, 1.0, jnp.maximum(jnp.sqrt(x), _MIN_STD)),
      self.variance)


def init_statistics(
  observation_size: int | specs.Observation, are_kept: bool = True
) -> ObservationStatistics | None:
  """Returns statistics of no observation yet, or None if none are kept.

  With statistics of no observation `normalize_by_statistics` only clips.

  Args:
    observation_size: O, or the spec of observations. Where these are integers
      alone, none are kept.
    are_kept: whether observations are to be normalised.
  """
  spec = specs.observation_spec(observation_size)
  # Two arrays, not one twice: a buffer can't be donated twice.
  mean, variance = (
    jax.tree.map(
      lambda x: jnp.zeros(x.shape, jnp.float32) if specs.is_float(x) else None,
      spec)
    for _ in range(2))
  if not are_kept or not jax.tree.leaves(mean):
    return None
  return ObservationStatistics(jnp.zeros((), jnp.float32), mean, variance)


def counts_in_statistics(
  observation: types.Tree, num_axes: int
) -> types.Array:
  """Returns which observations count in statistics: floats within +-1e15.

  The first `num_axes` axes of the leaves are those of the result.
  """
  return functools.reduce(jnp.logical_and, [
    jnp.all(jnp.abs(x) <= _LARGEST, axis=tuple(range(num_axes, x.ndim)))
    for x in jax.tree.leaves(observation)
    if specs.is_float(x)])


def left_out_unless(where: types.Array, observation: types.Tree) -> types.Tree:
  """Makes floats NaN, so that statistics ignore them, where a mask is False."""
  return jax.tree.map(
    lambda x: jnp.where(
      jnp.expand_dims(where, range(where.ndim, x.ndim)), x, jnp.nan)
    if specs.is_float(x) else x,
    observation)


def update_statistics(
  statistics: ObservationStatistics, observation: types.Tree
) -> ObservationStatistics:
  """Adds observations [..., O] to statistics, if they are within +-1e15.

  Chan, Golub and LeVeque's parallel form of Welford's algorithm ("Updating
  formulae and a pairwise algorithm for computing sample variances", 1979).
  """
  tree: Tree
  leaves, tree = jax.tree.flatten(observation)
  means, variances = (
    tree.flatten_up_to(x) for x in (statistics.mean, statistics.variance))
  floats = {
    i: leaves[i].reshape(-1, *mean.shape)
    for i, mean in enumerate(means)
    if mean is not None}
  valid = counts_in_statistics(floats, 1)
  batch_count = jnp.sum(valid.astype(jnp.float32))
  count = statistics.num_observations + batch_count
  share = batch_count / jnp.maximum(count, 1.0)
  # XLA multiplies by it on one device, and would divide on several.
  inverse = 1.0 / jnp.maximum(batch_count, 1.0)
  for i, batch in floats.items():
    counts = jnp.expand_dims(valid, tuple(range(1, batch.ndim)))
    batch = jnp.where(counts, batch, 0.0)
    batch_mean = jnp.sum(batch, axis=0) * inverse
    deviation = jnp.where(counts, batch - batch_mean, 0.0)
    batch_variance = jnp.sum(jnp.square(deviation), axis=0) * inverse
    delta = jnp.where(batch_count > 0, batch_mean - means[i], 0.0)
    means[i] = means[i] + delta * share
    variances[i] = (
      variances[i]
      + share * (batch_variance - variances[i])
      + share * (1.0 - share) * jnp.square(delta))
  return ObservationStatistics(
    count, tree.unflatten(means), tree.unflatten(variances))


def observe_statistics(
  state: types.State, observation: types.Tree
) -> types.State:
  """Updates the statistics of an agent that has some: `Learner.observe`.

  Args:
    state: of the agent, a NamedTuple with the field `observation_statistics`,
      which may be None.
    observation: [..., O], or a tree.

  Returns:
    The state.
  """
  if state.observation_statistics is None:
    return state
  return state._replace(observation_statistics=update_statistics(
    state.observation_statistics, observation))


def normalize_by_statistics(
  statistics: ObservationStatistics | None, observation: types.Tree
) -> types.Tree:
  """Returns observations [..., O] with mean 0 and deviation 1, cut to +-10.

  Integers are returned as they are, and so is all where there are no
  statistics, None.
  """
  if statistics is None:
    return observation

  # One division for each entry: cheaper, and rounded alike on any devices.
  return jax.tree.map(
    lambda x, mean, std: x if mean is None else jnp.clip(
      (x - mean) * (1 / std), -LARGEST_NORMALIZED, LARGEST_NORMALIZED),
    observation, statistics.mean, statistics.std)


def prepare_transitions(
  statistics: ObservationStatistics | None, transitions: types.Transition,
  hyperparams: types.Hyperparams,
) -> types.Transition:
  """Returns transitions [...] as critics learn from them.

  Observations are normalised by `statistics`, if there are any, rewards times
  `reward_scaling`, discounts times `discount`, both of `hyperparams`; what else
  `transitions` have stays.
  """
  return transitions._replace(
    observation=normalize_by_statistics(statistics, transitions.observation),
    next_observation=normalize_by_statistics(
      statistics, transitions.next_observation),
    reward=transitions.reward * hyperparams["reward_scaling"],
    discount=transitions.discount * hyperparams["discount"])


class RewardStatistics(NamedTuple):
  """Holds the size of the rewards that an agent learns from."""

  # int32 [], how many updates there were, at most 2^30 + 1.
  num_updates: types.Array
  # [], the average over updates of their batches' largest |reward|: first the
  # plain average, after 1,000 updates an exponential one with rate 0.001, so
  # that old rewards are forgotten.
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
