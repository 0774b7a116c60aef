"""Successive halving of configurations, all members in step.

Jamieson and Talwalkar (2016), "Non-stochastic Best Arm Identification and
Hyperparameter Optimization", arXiv:1502.07943, algorithm 1; its rungs are those
of Li et al. (2020), "A System for Massively Parallel Hyperparameter Tuning",
arXiv:1810.05934, section 3.1, in their synchronous form.
"""

import dataclasses

import jax.numpy as jnp

from qdrl_haiku import eager, prng
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.controllers.base import SURVIVE, Controller, Decision
from qdrl_haiku.controllers.search_space import SearchSpace
from qdrl_haiku.types import Array, Hyperparams, Key, Tree

_OPERATORS = (SURVIVE, "halved", "reinitialise")
# Decisions are counted in int32.
_LARGEST = jnp.iinfo(jnp.int32).max


@dataclasses.dataclass(frozen=True)
class SuccessiveHalvingConfig(Settings):
  """Configures `successive_halving`."""

  title = "Controller"

  first_rung: int = setting(
    2, "The first decision, from 1, that drops configurations.", low=1,
    offered=False)
  reduction_factor: int = setting(
    2,
    "One in so many configurations is kept at a rung, and the next rung is so "
    "many times as far.",
    low=2, offered=False)


def successive_halving(
  config: SuccessiveHalvingConfig, search_space: Tree
) -> Controller:
  """Makes the controller of synchronous successive halving.

  Hyperparameters are drawn once; members with equal hyperparameters form one
  configuration. At each rung the best configurations are kept, each scored by
  its best member, ties by index. All other members are replaced by copies of
  the kept configurations' best members, in turn, so that the freed places are
  shared; members of one configuration then differ in what they experience.

  Non-finite members are replaced in the same way at once, rung or not. Where no
  fitness is finite, all are resampled, with the operator "reinitialise".

  Args:
    config: the settings.
    search_space: a tree shaped as the hyperparameters, its leaves ranges.

  Returns:
    The controller, whose state is the number of decisions, int32 [].
  """
  space = SearchSpace(search_space)

  def init(key: Key, population_size: int) -> tuple[Array, Hyperparams]:
    hyperparams = space.draw(key, population_size)
    return jnp.zeros((), jnp.int32), hyperparams

  @eager.compiled_if_eager()
  def update(
    state: Array, key: Key, fitness: Array, hyperparams: Hyperparams
  ) -> tuple[Array, Decision]:
    fitness = jnp.asarray(fitness, float)
    leaves = space.flatten(fitness, hyperparams)
    population_size = fitness.shape[0]
    number = state + 1
    finite = jnp.isfinite(fitness)
    lost = ~jnp.any(finite)
    indices = jnp.arange(population_size, dtype=jnp.int32)

    # The best member of each configuration, and the configurations' ranks. A
    # configuration's number is the index of its first member.
    alike = jnp.eye(population_size, dtype=bool) | jnp.all(
      jnp.stack([x[:, None] == x[None] for x in leaves]), axis=0)
    configuration = jnp.argmax(alike, axis=1)
    finite_fitness = jnp.where(finite, fitness, -jnp.inf)
    has = configuration[None] == indices[:, None]
    of_configuration = jnp.where(has, finite_fitness[None], -jnp.inf)
    champions = jnp.argmax(of_configuration, axis=1).astype(jnp.int32)
    scores = jnp.max(of_configuration, axis=1)
    order = jnp.argsort(-scores, stable=True)
    rank = jnp.zeros_like(indices).at[order].set(indices)

    num_kept = jnp.minimum(
      _num_kept(config, number, population_size),
      jnp.sum(jnp.isfinite(scores), dtype=jnp.int32))
    replaced = ~finite | (rank[configuration] >= num_kept)
    turn = jnp.cumsum(replaced) - 1
    kept = order[turn % jnp.maximum(num_kept, 1)]
    parents = jnp.where(replaced & ~lost, champions[kept], indices)

    leaves = [
      jnp.where(lost, again, leaf[parents])
      for leaf, again in zip(
        leaves, space.sample(prng.fold_in_indices(key, population_size)),
        strict=True)]
    operator = jnp.where(
      lost, _OPERATORS.index("reinitialise"), _OPERATORS.index("halved"))
    operator = jnp.where(replaced, operator, _OPERATORS.index(SURVIVE))
    return number, Decision(
      parents=parents, hyperparams=space.unflatten(leaves),
      operator=operator.astype(jnp.int32))

  return Controller(init, update, _OPERATORS)


def _num_kept(
  config: SuccessiveHalvingConfig, number: Array, population_size: int
) -> Array:
  """Returns how many configurations decision `number` keeps."""
  num_kept = jnp.asarray(population_size, jnp.int32)
  rung, left = config.first_rung, population_size
  while left > 1 and rung <= _LARGEST:
    left = max(left // config.reduction_factor, 1)
    num_kept = jnp.where(number == rung, left, num_kept)
    rung *= config.reduction_factor
  return num_kept
