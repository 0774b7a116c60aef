"""Population-based bandits: PBT with hyperparameters suggested by a model.

Parker-Holder et al. (2020), "Provably Efficient Online Hyperparameter
Optimization with Population-Based Bandits", arXiv:2002.02518, algorithm 1.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager
from qdrl_haiku.config import setting
from qdrl_haiku.controllers import (
  bandit,
  exploitation,
  gaussian_process,
  pb2_model,
)
from qdrl_haiku.controllers.bandit import Bandit
from qdrl_haiku.controllers.base import SURVIVE, Controller, Decision
from qdrl_haiku.controllers.exploitation import ExploitationConfig
from qdrl_haiku.controllers.gaussian_process import Parameters
from qdrl_haiku.controllers.pb2_model import Changes
from qdrl_haiku.controllers.ranges import Choice, Fixed, Interval
from qdrl_haiku.controllers.search_space import (
  SearchSpace,
  fold_in,
  member_keys,
)
from qdrl_haiku.types import Array, Hyperparams, Key, Metrics, Tree

_OPERATORS = (SURVIVE, "suggested", "reinitialise")
# With more, a decision takes minutes.
_MAX_WINDOW = 4096


@dataclasses.dataclass(frozen=True)
class PB2Config(ExploitationConfig):
  """Configures `pb2`."""

  window: int = setting(
    128,
    "Latest changes of fitness that the model is made of, one per member and "
    "decision; at least the population's size.",
    low=1,
    high=_MAX_WINDOW,
    flag="pb2_window",
    offered=False,
    needs="members",
  )
  optimism: float = setting(
    1.0,
    "Deviations added to the predicted change of fitness when pb2 chooses "
    "hyperparameters.",
    low=0,
    high=1e6,
    needs="searched",
  )


class PB2State(NamedTuple):
  """Holds the state of `pb2`, of L hyperparameters.

  Attributes:
    num_decisions: int32 [].
    changes: the latest changes of fitness.
    used: [P, L], the hyperparameters before the latest decision.
    fitness: [P], on which it was made.
    decided: [P, L], the hyperparameters after it.
    inherited: [P], the fitness of their parents.
    parameters: of the Gaussian process, from which the next decision starts.
    choices: how good the values of each `Choice` seem.
  """

  num_decisions: Array
  changes: Changes
  used: Array
  fitness: Array
  decided: Array
  inherited: Array
  parameters: Parameters
  choices: Bandit


def pb2(config: PB2Config, search_space: Tree) -> Controller:
  """Makes the controller of population-based bandits.

  Parents are chosen as with `pbt`. A child's hyperparameters are those with the
  highest upper confidence bound of a Gaussian process over time, the fitness
  from which a member starts and its hyperparameters, whose values are changes
  of fitness until the next decision. Children are decided one after the other;
  earlier ones and survivors are pending observations, which lower the deviation
  around them, so that no two are equal.

  Hyperparameters are seen on their own scale (`LogUniform` in its logarithm).
  Of each `Choice` a bandit first draws the values of all children together,
  and the bound chooses the others given them, as in PB2-Mix (arXiv:2106.15883).
  The bandit's rewards are the children's changes of fitness, scaled to [0, 1].
  `config.optimism` is in place of a theorem's factor, which grows with time.

  A change is known of members that trained with the decided hyperparameters,
  or with those before if the decision was not applied, as in a burn-in period.
  Non-finite fitness is never recorded. Where no fitness is finite, all are
  resampled, with the operator "reinitialise".

  `Decision.reasons` has the predicted change of each suggestion and its
  deviation, `Decision.metrics` the number of known changes and the model's
  parameters, such as `length_scale/<name>` as a share of the range.

  Args:
    config: the settings.
    search_space: a tree shaped as the hyperparameters, its leaves ranges of
      this package.

  Returns:
    The controller, whose state is a `PB2State`. Both functions can be jitted
    (with a static `population_size`) and raise ValueError for a population too
    small for the configured counts, or larger than the window.

  Raises:
    ValueError: if a leaf of the search space is not such a range.
  """
  space = SearchSpace(search_space)
  for range_ in space.ranges:
    if not isinstance(range_, Interval | Choice | Fixed):
      raise ValueError(
        f"{range_} has no scale that the model could use; use Uniform,"
        " LogUniform, OneMinusLogUniform, Choice or Fixed."
      )
  coordinates = pb2_model.Coordinates(space.ranges)
  names = [
    name
    for name, range_ in zip(space.names, space.ranges, strict=True)
    if isinstance(range_, Interval)
  ]

  def init(
    key: Key, population_size: int
  ) -> tuple[PB2State, Hyperparams]:
    hyperparams = space.draw(key, population_size)
    exploitation.counts(config, population_size)
    if config.window < population_size:
      raise ValueError(
        f"window={config.window} is less than"
        f" population_size={population_size}; use as much at least."
      )
    # With a dtype, or the second update would be compiled again.
    unknown = jnp.full(population_size, jnp.nan, jnp.float32)
    nothing = jnp.full(
      (population_size, len(space.ranges)), jnp.nan, jnp.float32
    )
    return PB2State(
      num_decisions=jnp.zeros((), jnp.int32),
      changes=pb2_model.no_changes(coordinates, config.window),
      used=nothing,
      fitness=unknown,
      decided=nothing,
      inherited=unknown,
      parameters=gaussian_process.initial_parameters(1 + len(names)),
      choices=bandit.start(coordinates.num_values, population_size),
    ), hyperparams

  @eager.compiled()
  def update(
    state: PB2State, key: Key, fitness: Array, hyperparams: Hyperparams
  ) -> tuple[PB2State, Decision]:
    fitness = jnp.asarray(fitness, jnp.float32)
    leaves = space.flatten(fitness, hyperparams)
    keys = member_keys(key, fitness.shape[0])
    parents, replaced = exploitation.exploit(config, fold_in(keys, 0), fitness)
    lost = ~jnp.any(jnp.isfinite(fitness))
    suggests = replaced & ~lost
    used = jnp.stack([x.astype(jnp.float32) for x in leaves], axis=1)
    time = state.num_decisions + 1
    is_kept = jnp.all(used == state.used, axis=1)
    before = jnp.where(is_kept, state.fitness, jnp.nan)
    is_applied = jnp.all(used == state.decided, axis=1)
    before = jnp.where(is_applied, state.inherited, before)
    changes = pb2_model.record(
      state.changes, coordinates, time, before, fitness, used
    )
    _, categories = coordinates.to_model(used)
    change = jnp.where(is_applied, fitness - before, jnp.nan)
    rewards = pb2_model.rewards(changes, change)
    choices = bandit.learn(state.choices, categories, rewards)
    # The first member's key draws for all members.
    draw_key = jax.random.fold_in(keys[0], 2 + len(leaves))
    drawn, choices = bandit.draw(draw_key, choices, suggests)
    suggested = pb2_model.suggest(
      fold_in(keys, 1),
      state.parameters,
      changes,
      coordinates,
      time + 1,
      fitness,
      parents,
      suggests,
      used,
      drawn,
      config.optimism,
    )
    leaves = [
      jnp.where(replaced, jnp.where(lost, again, child), leaf)
      for leaf, child, again in zip(
        leaves, suggested.leaves, space.sample(keys, 2), strict=True
      )
    ]
    operator = jnp.where(
      lost, _OPERATORS.index("reinitialise"), _OPERATORS.index("suggested")
    )
    operator = jnp.where(replaced, operator, _OPERATORS.index(SURVIVE))
    state = PB2State(
      num_decisions=time,
      changes=changes,
      used=used,
      fitness=fitness,
      decided=jnp.stack(leaves, axis=1),
      inherited=fitness[parents],
      parameters=suggested.parameters,
      choices=choices,
    )
    return state, Decision(
      parents,
      space.unflatten(leaves),
      operator.astype(jnp.int32),
      reasons={
        "predicted_change": suggested.change,
        "predicted_deviation": suggested.deviation,
      },
      metrics=_metrics(names, changes, suggested.parameters),
    )

  return Controller(
    init, update, _OPERATORS, exploitation.first_decision(config)
  )


def _metrics(
  names: list[str], changes: Changes, parameters: Parameters
) -> Metrics:
  """Returns the size and the parameters of the model."""
  length_scales = jnp.asarray(parameters.length_scales)
  return {
    "num_changes": jnp.sum(changes.mask, dtype=jnp.float32),
    "forgetting": jnp.asarray(parameters.forgetting),
    "noise": jnp.asarray(parameters.noise),
    "fitness_length_scale": length_scales[0],
    **{
      f"length_scale/{name}": length_scales[1 + i]
      for i, name in enumerate(names)
    },
  }
