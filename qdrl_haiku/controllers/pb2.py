"""Population-based bandits: PBT with hyperparameters suggested by a model.

Parker-Holder et al. (2020), "Provably Efficient Online Hyperparameter
Optimization with Population-Based Bandits", arXiv:2002.02518, algorithm 1.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from qdrl_haiku import eager, prng
from qdrl_haiku.config import setting
from qdrl_haiku.controllers import exploitation, gaussian_process, pb2_model
from qdrl_haiku.controllers.base import SURVIVE, Controller, Decision
from qdrl_haiku.controllers.exploitation import ExploitationConfig
from qdrl_haiku.controllers.gaussian_process import Parameters
from qdrl_haiku.controllers.pb2_model import Changes
from qdrl_haiku.controllers.search_space import SearchSpace
from qdrl_haiku.ranges import Fixed, Interval
from qdrl_haiku.types import Array, Hyperparams, Key, Tree

_OPERATORS = (SURVIVE, "suggested", "reinitialise")
# With more than the largest, a decision takes minutes.
_WINDOW, _MAX_WINDOW = 128, 4096


@dataclasses.dataclass(frozen=True)
class PB2Config(ExploitationConfig):
  """Configures `pb2`."""

  window: int | None = setting(
    None,
    "Latest changes of fitness that the model is made of, one per member and "
    "decision; at least the population's size, and by default 128 or that.",
    low=1, high=_MAX_WINDOW, flag="pb2_window", offered=False, needs="members")
  optimism: float = setting(
    1.0,
    "Deviations added to the predicted change of fitness when pb2 chooses "
    "hyperparameters.",
    low=0, high=1e6, needs="searched", offered=False)


class PB2State(NamedTuple):
  """Holds the state of `pb2`, of L hyperparameters."""

  num_decisions: Array  # int32 [].
  changes: Changes  # The latest changes of fitness.
  # [P], changes that are unknown yet: hyperparameters from the latest decision,
  # and the fitness of the parents.
  decided: Changes
  kept: Changes  # [P], the same in case that decision is not applied.
  parameters: Parameters  # From which the next decision starts.


def pb2(config: PB2Config, search_space: Tree) -> Controller:
  """Makes the controller of population-based bandits.

  Parents are chosen as with `pbt`. A Gaussian process models the change of a
  member's fitness until the next decision, given the time, its fitness before
  and its hyperparameters. A child gets the hyperparameters with the highest
  upper confidence bound. Children are decided one after the other; earlier ones
  and survivors are pending observations, which lower the deviation around them,
  so that no two are equal.

  The model sees hyperparameters on their own scale (`LogUniform` logarithmic).
  `config.optimism` is the deviation's factor; the paper's grows with time.

  All children's first changes share an unknown offset, which the model infers:
  a parent was lucky in its evaluation, and its child may begin below it.

  A change is recorded if a member trained with the decided hyperparameters, or
  with its earlier ones where the decision was not applied, as in a burn-in
  period, and if fitness is finite. Where no fitness is finite, all are
  resampled, with the operator "reinitialise".

  `Decision.reasons` has the predicted change of each suggestion and its
  deviation, noise included; `Decision.metrics` the number of known changes and
  the model's parameters, such as `length_scale/<name>`, a share of the range.

  Args:
    config: the settings.
    search_space: a tree shaped as the hyperparameters, its leaves ranges.

  Returns:
    The controller, whose state is a `PB2State`. It refuses a population too
    small for the configured counts, or larger than the window.
  """
  space = SearchSpace(search_space)
  for range_ in space.ranges:
    if not isinstance(range_, Interval | Fixed):
      raise ValueError(
        f"{range_} has no scale that pb2 could model; use Uniform, LogUniform,"
        " OneMinusLogUniform or Fixed, or the controller pbt.")
  scales = [
    f"length_scale/{name}"
    for name, range_ in zip(space.names, space.ranges, strict=True)
    if isinstance(range_, Interval)]

  def init(key: Key, population_size: int) -> tuple[PB2State, Hyperparams]:
    hyperparams = space.draw(key, population_size)
    exploitation.exploitation_counts(config, population_size)
    window = config.window or min(max(_WINDOW, population_size), _MAX_WINDOW)
    if window < population_size:
      raise ValueError(
        f"population_size={population_size} is more than the {window} latest"
        " changes that pb2 models (its window); use a smaller population.")
    changes, unknown = (
      pb2_model.empty_pb2_model_changes(size, len(space.ranges))
      for size in (window, population_size))
    return PB2State(
      num_decisions=jnp.zeros((), jnp.int32),
      changes=changes, decided=unknown, kept=unknown,
      parameters=gaussian_process.init_gaussian_process(1 + len(scales)),
    ), hyperparams

  @eager.compiled_if_eager()
  def update(
    state: PB2State, key: Key, fitness: Array, hyperparams: Hyperparams
  ) -> tuple[PB2State, Decision]:
    fitness = jnp.asarray(fitness, jnp.float32)
    leaves = space.flatten(fitness, hyperparams)
    keys = prng.fold_in_indices(key, fitness.shape[0])
    parents, replaced = exploitation.exploit(
      config, prng.fold_in_each(keys, 0), fitness)
    lost = ~jnp.any(jnp.isfinite(fitness))
    suggests = replaced & ~lost
    used = jnp.stack([x.astype(jnp.float32) for x in leaves], axis=1)
    time = state.num_decisions + 1
    is_kept = jnp.all(used == state.kept.used, axis=1)
    before = jnp.where(is_kept, state.kept.before, jnp.nan)
    is_applied = jnp.all(used == state.decided.used, axis=1)
    before = jnp.where(is_applied, state.decided.before, before)
    now = jnp.full_like(fitness, time)
    is_finite = jnp.all(jnp.isfinite(used), axis=1)
    change = jnp.where(is_finite, fitness - before, jnp.nan)
    is_first = is_applied & state.decided.is_first
    new = Changes(now, before, used, change, is_first)
    changes = pb2_model.record_pb2_model_changes(state.changes, new)
    upcoming = Changes(now + 1, fitness[parents], used, now * jnp.nan, replaced)
    suggested, change, deviation, parameters = pb2_model.suggest_by_pb2_model(
      space.ranges, prng.fold_in_each(keys, 1), state.parameters,
      pb2_model.join_pb2_model_changes(changes, upcoming), suggests,
      config.optimism)
    leaves = [
      jnp.where(replaced, jnp.where(lost, again, child), leaf)
      for leaf, child, again in zip(
        leaves, suggested, space.sample(keys, 2), strict=True)]
    operator = jnp.where(
      lost, _OPERATORS.index("reinitialise"), _OPERATORS.index("suggested"))
    operator = jnp.where(replaced, operator, _OPERATORS.index(SURVIVE))
    state = PB2State(
      num_decisions=time, changes=changes,
      decided=upcoming._replace(used=jnp.stack(leaves, axis=1)),
      kept=upcoming._replace(before=fitness, is_first=jnp.zeros_like(replaced)),
      parameters=parameters)
    return state, Decision(
      parents, space.unflatten(leaves), operator.astype(jnp.int32),
      reasons={"predicted_change": change, "predicted_deviation": deviation},
      metrics={
        "num_changes": jnp.sum(changes.mask, dtype=jnp.float32),
        "forgetting": parameters.forgetting, "noise": parameters.noise,
        "fitness_length_scale": parameters.length_scales[0],
        **dict(zip(scales, parameters.length_scales[1:], strict=True))})

  return Controller(init, update, _OPERATORS)
