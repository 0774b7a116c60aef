"""Population-based bandits: PBT whose hyperparameters a model suggests.

Parker-Holder et al. (2020), "Provably Efficient Online Hyperparameter
Optimization with Population-Based Bandits", arXiv:2002.02518, algorithm 1.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager
from qdrl_haiku.config import setting
from qdrl_haiku.controllers import (
  bandit,
  exploitation,
  exploration,
  gaussian_process,
  lineage,
  pb2_model,
)
from qdrl_haiku.controllers.bandit import Bandit
from qdrl_haiku.controllers.base import SURVIVE, Controller, Decision
from qdrl_haiku.controllers.choice import Choice
from qdrl_haiku.controllers.exploitation import ExploitationConfig
from qdrl_haiku.controllers.gaussian_process import Parameters
from qdrl_haiku.controllers.pb2_model import Changes
from qdrl_haiku.controllers.ranges import Fixed, Interval
from qdrl_haiku.types import Array, Hyperparams, Key, Metrics

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
    inherited: [P], the fitness of those whose places they took.
    predicted_change: [P], what was believed of who was replaced by the latest
      decision: the mean of its next change of fitness; NaN for survivors.
    predicted_deviation: [P], the deviation that goes with it.
    parameters: of the Gaussian process, which the next decision starts from.
      `parameters.length_scales`, [1 + D], are of fitness and of each searched
      hyperparameter that isn't a `Choice`, in shares of its range: the shorter,
      the more it matters.
    choices: which values of each `Choice` seem good.
  """

  num_decisions: Array
  changes: Changes
  used: Array
  fitness: Array
  decided: Array
  inherited: Array
  predicted_change: Array
  predicted_deviation: Array
  parameters: Parameters
  choices: Bandit


def pb2(config: PB2Config, search_space: Any) -> Controller:
  """Makes the controller of population-based bandits.

  Who takes over from whom is as with `pbt`. A child's hyperparameters are those
  with the highest upper confidence bound of a Gaussian process over time, the
  fitness from which a member starts and its hyperparameters, whose values are
  the changes of fitness until the next decision. Children are decided one after
  the other; those before, and the survivors, train with what they have: they
  are pending, which lowers the deviation about them, so that no two are equal.

  Hyperparameters act on their own scale (`LogUniform` in its logarithm). Of
  each that is a `Choice` a bandit first draws the values of all children
  together, and the bound chooses the others given them, as in PB2-Mix
  (arXiv:2106.15883); the model knows values by its kernel. The bandit's rewards
  are changes of fitness between the least and the greatest known. Survivors'
  values weren't drawn, so that they teach it nothing. Changes of fitness are
  standardised for the model, and fitness is put between the least and the
  greatest known. In place of a theorem's factor, which grows with time, is
  `config.optimism`.

  A change is known of who trained with the hyperparameters that were decided,
  or with those before if the decision was not applied to it, as in a burn-in
  period. Non-finite fitness is never recorded. Where no fitness is finite, all
  are resampled, with the operator "reinitialise".

  Of each suggestion `Decision.reasons` tells what is believed of it, and
  `Decision.metrics` of the model how many changes it knows, and by which
  hyperparameters they differ: `length_scale/<name>`, in shares of its range.

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
  ranges, treedef = exploration.flatten(search_space)
  for range_ in ranges:
    if not isinstance(range_, Interval | Choice | Fixed):
      raise ValueError(
        f"{range_} has no scale that the model could use; use Uniform,"
        " LogUniform, OneMinusLogUniform, Choice or Fixed."
      )
  space = pb2_model.Space(ranges)
  names = [
    name
    for name, range_ in lineage.named_leaves(search_space).items()
    if isinstance(range_, Interval)
  ]

  def init(
    key: Key, population_size: int
  ) -> tuple[PB2State, Hyperparams]:
    leaves = exploration.draw(ranges, key, population_size)
    exploitation.counts_of(config, population_size)
    if config.window < population_size:
      raise ValueError(
        f"window={config.window} is less than"
        f" population_size={population_size}; use as much at least."
      )
    # A type of their own, so that nothing is compiled twice.
    unknown = jnp.full(population_size, jnp.nan, jnp.float32)
    nothing = jnp.full(
      (population_size, len(ranges)), jnp.nan, jnp.float32
    )
    state = PB2State(
      num_decisions=jnp.zeros((), jnp.int32),
      changes=pb2_model.no_changes(space, config.window),
      used=nothing,
      fitness=unknown,
      decided=nothing,
      inherited=unknown,
      predicted_change=unknown,
      predicted_deviation=unknown,
      parameters=gaussian_process.initial_parameters(1 + space.num_positions),
      choices=bandit.start(space.num_values, population_size),
    )
    return state, jax.tree.unflatten(treedef, leaves)

  @eager.compiled()
  def update(
    state: PB2State, key: Key, fitness: Array, hyperparams: Hyperparams
  ) -> tuple[PB2State, Decision]:
    fitness = jnp.asarray(fitness, jnp.float32)
    exploration.check_shapes(fitness, hyperparams, treedef)
    keys = exploration.member_keys(key, fitness.shape[0])
    parents, replaced = exploitation.exploit(
      config, exploration.fold_in(keys, 0), fitness
    )
    lost = ~jnp.any(jnp.isfinite(fitness))
    used = jnp.stack(
      [jnp.asarray(x, jnp.float32) for x in jax.tree.leaves(hyperparams)],
      axis=1,
    )
    time = state.num_decisions + 1
    before = jnp.where(_is_now(used, state.used), state.fitness, jnp.nan)
    is_applied = _is_now(used, state.decided)
    before = jnp.where(is_applied, state.inherited, before)
    changes = pb2_model.record(
      state.changes, space, time, before, fitness, used
    )
    _, categories = space.to_model(used)
    change = jnp.where(is_applied, fitness - before, jnp.nan)
    choices = bandit.learn(
      state.choices, categories, pb2_model.rewards(changes, change)
    )
    # Of all members together, and so of the first one's key.
    drawn, choices = bandit.draw(
      jax.random.fold_in(keys[0], 2 + len(ranges)), choices, replaced & ~lost
    )
    suggested = pb2_model.suggest(
      exploration.fold_in(keys, 1),
      state.parameters,
      changes,
      space,
      time + 1,
      fitness,
      parents,
      replaced & ~lost,
      used,
      drawn,
      optimism=config.optimism,
    )
    fresh = [
      jax.vmap(range_.sample)(exploration.fold_in(keys, 2 + i))
      for i, range_ in enumerate(ranges)
    ]
    leaves = [
      jnp.where(replaced, jnp.where(lost, again, child), leaf)
      for leaf, child, again in zip(
        jax.tree.leaves(hyperparams), suggested.leaves, fresh, strict=True
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
      predicted_change=suggested.change,
      predicted_deviation=suggested.deviation,
      parameters=suggested.parameters,
      choices=choices,
    )
    return state, Decision(
      parents,
      jax.tree.unflatten(treedef, leaves),
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
  """Returns what the model is like."""
  of_fitness, *length_scales = jnp.unstack(
    jnp.asarray(parameters.length_scales)
  )
  named = zip(names, length_scales, strict=True)
  return {
    "num_changes": jnp.sum(changes.mask, dtype=jnp.float32),
    "forgetting": jnp.asarray(parameters.forgetting),
    "noise": jnp.asarray(parameters.noise),
    "fitness_length_scale": of_fitness,
    **{f"length_scale/{name}": value for name, value in named},
  }


def _is_now(used: Array, earlier: Array) -> Array:
  """Returns whose hyperparameters [P, L] are what they were, bool [P]."""
  return jnp.all(used == earlier, axis=1)
