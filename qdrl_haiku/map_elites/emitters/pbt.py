"""ME-PBT: a population of training agents that feeds a repertoire.

Pierrot and Flajolet (2023), "Evolving Populations of Diverse RL Agents with
MAP-Elites", arXiv:2303.12803.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from qdrl_haiku import trees
from qdrl_haiku.map_elites.emitters.emitter import Emitter, Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.variation import Elite, VariationFn, emit_offspring
from qdrl_haiku.prng import OfGeneration, fold_in_indices
from qdrl_haiku.types import Array, Hyperparams, Key, Metrics, Tree


class Agents(NamedTuple):
  """Holds the pure functions of agents that the emitter calls.

  Members are any tree with leaves [P, ...]; keys are [P] and consumed.
  """

  init: Callable[[Key], Tree]  # (keys) -> members.
  # (members, hyperparameters [P], keys) -> (members, metrics [P] by name).
  train: Callable[[Tree, Hyperparams, Key], tuple[Tree, Metrics]]
  # (members) -> what a cell stores of each, leaves [P, ...].
  genotypes: Callable[[Tree], Tree]
  # (members, parents int32 [P], finite bool [P]) -> members, each with what a
  # child inherits of `parents[i]`, bit-identical where that is i. A member that
  # wasn't finite, its evaluation included, inherits replay and environments.
  inherit: Callable[[Tree, Array, Array], Tree]
  # (members, genotypes [P, ...], where bool [P]) -> members, an agent made of
  # the genotype where true, bit-identical elsewhere.
  transplant: Callable[[Tree, Tree, Array], Tree]
  # (members) -> bool [P], whether all of a member is finite.
  is_finite: Callable[[Tree], Array]


class Decision(Protocol):
  """Holds what a controller decides, as `controllers.Decision` does."""

  @property
  def parents(self) -> Array:
    """int32 [P]."""

  @property
  def hyperparams(self) -> Hyperparams:
    """Leaves [P]."""


class DecidingController(Protocol):
  """The part of a `controllers.Controller` that the emitter calls."""

  @property
  def init(self) -> Callable[[Key, int], tuple[Tree, Hyperparams]]:
    """(key, P) -> (state, hyperparameters)."""

  @property
  def update(self) -> Callable[
    [Tree, Key, Array, Hyperparams], tuple[Tree, Decision]]:
    """(state, key, fitness [P], hyperparameters) -> (state, decision)."""


class PBTEmitterState(NamedTuple):
  """The P members, and what was decided about them in the last generation."""

  members: Tree
  hyperparams: Hyperparams  # With which members are trained next.
  # Of the training in `ask`, [P] by name, until `tell`; else none.
  metrics: Metrics
  # Of the last decision, NaN where not finite, and before the first.
  fitness: Array
  decision: Decision  # The controller's last; at first that all members stay.
  # int32 [P], the cell whose elite replaced the member after the last decision,
  # -1 where none did.
  sampled_cells: Array
  controller: Tree = ()  # Its state.


def pbt_emitter(
  agents: Agents, controller: DecidingController, variation_fn: VariationFn, *,
  population_size: int, variation_batch_size: int, num_replaced_by_samples: int,
) -> Emitter:
  """Makes the emitter of a population that trains, and of variations.

  The repertoire's genotypes are `Elite`s. `ask` trains all P members and
  returns them, followed by variations of elites drawn from the repertoire (of
  members as long as it is empty).

  In `tell` the controller decides by the members' fitness, NaN where one isn't
  finite. Then elites drawn uniformly from the repertoire, with their stored
  hyperparameters, replace `num_replaced_by_samples` more: the worst members
  that the decision neither replaced nor made parents, ties by index, the higher
  first, or all such members if they are fewer. The best member is never
  replaced, and no member is while the repertoire is empty. If no member is
  finite, the caller makes new ones in place of each member i with
  `decision.parents[i] == i` and `sampled_cells[i] == -1`.

  Member i draws from `fold_in(key, i)`, whatever P is.

  Args:
    agents: what is trained.
    controller: of population-based training, such as `controllers.pbt`; of its
      decisions the fields `parents`, `hyperparams` and `operator` are read.
    variation_fn: varies `Elite`s. `iso_line` alone would vary hyperparameters
      too; `weights_only` keeps the first parent's.
    population_size: P, >= 1.
    variation_batch_size: how many variations, >= 0.
    num_replaced_by_samples: members that samples replace in each generation,
      in [0, P - 1].

  Returns:
    The emitter, with B = P + variation_batch_size; its state is a
    `PBTEmitterState`.

  Raises:
    ValueError: if samples replace all members, or the population is too small
      for the controller.
  """
  if num_replaced_by_samples >= population_size:
    raise ValueError(
      f"num_replaced_by_samples={num_replaced_by_samples} leaves none of"
      f" population_size={population_size}; use fewer, or a larger population.")

  def decide(key: Key) -> Decision:
    state, hyperparams = controller.init(key, population_size)
    fitness = jnp.zeros(population_size)
    return controller.update(state, key, fitness, hyperparams)[1]

  # The controller refuses a population before anything is trained.
  decision_shapes = jax.eval_shape(decide, jax.random.key(0))

  def init(key: Key, repertoire: Repertoire) -> PBTEmitterState:
    members = agents.init(fold_in_indices(key, population_size))
    remembered, hyperparams = controller.init(
      jax.random.fold_in(key, OfGeneration.CONTROLLER), population_size)
    decision = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype), decision_shapes)._replace(
      parents=jnp.arange(population_size, dtype=jnp.int32),
      # Copied, so that the state can be donated.
      hyperparams=jax.tree.map(jnp.copy, hyperparams))
    return PBTEmitterState(
      members=members, hyperparams=hyperparams, metrics={},
      fitness=jnp.full(population_size, jnp.nan, jnp.float32),
      decision=decision, sampled_cells=jnp.full(population_size, -1, jnp.int32),
      controller=remembered)

  def ask(
    state: PBTEmitterState, repertoire: Repertoire, key: Key
  ) -> tuple[Elite, PBTEmitterState]:
    members, metrics = agents.train(
      state.members, state.hyperparams, fold_in_indices(key, population_size))
    trained = Elite(agents.genotypes(members), state.hyperparams)

    def sample(key: Key, n: int) -> Elite:
      stored_key, own_key = jax.random.split(key)
      own = jax.random.randint(own_key, (n,), 0, population_size)
      is_there = jnp.any(repertoire.occupied)
      return jax.tree.map(
        lambda stored, x: jnp.where(is_there, stored, x[own]),
        repertoire.sample(stored_key, n), trained)

    variation_key = jax.random.fold_in(key, OfGeneration.VARIATION)
    variations = emit_offspring(
      variation_key, variation_fn, sample, variation_batch_size)
    elites = jax.tree.map(lambda *x: jnp.concatenate(x), trained, variations)
    return elites, state._replace(members=members, metrics=metrics)

  def tell(
    state: PBTEmitterState, repertoire: Repertoire, evaluated: Evaluated,
    key: Key,
  ) -> PBTEmitterState:
    fitness = evaluated.one_objective("pbt")[:population_size]
    fitness = jnp.asarray(fitness, jnp.float32)
    fitness = jnp.where(agents.is_finite(state.members), fitness, jnp.nan)
    remembered, decision = controller.update(
      state.controller, jax.random.fold_in(key, OfGeneration.CONTROLLER),
      fitness, state.hyperparams)
    members = agents.inherit(
      state.members, decision.parents, jnp.isfinite(fitness))
    hyperparams = decision.hyperparams
    sampled_cells = jnp.full(population_size, -1, jnp.int32)
    if num_replaced_by_samples:
      turns = _sampling_order(fitness, decision.parents)
      replaced = turns < num_replaced_by_samples
      replaced &= jnp.any(repertoire.occupied)
      drawn = repertoire.sample_cells(
        jax.random.fold_in(key, OfGeneration.SAMPLES), num_replaced_by_samples)
      cells = jnp.where(replaced, drawn.at[turns].get(mode="clip"), 0)
      elites = jax.tree.map(lambda x: x[cells], repertoire.genotypes)
      members = agents.transplant(members, elites.genotype, replaced)
      hyperparams = jax.tree.map(
        lambda new, old: jnp.where(replaced, new, old), elites.hyperparams,
        hyperparams)
      sampled_cells = jnp.where(replaced, cells, -1)
    return PBTEmitterState(
      members=members, hyperparams=hyperparams, metrics={}, fitness=fitness,
      decision=decision, sampled_cells=sampled_cells, controller=remembered)

  return Emitter(
    init, ask, tell, population_size + variation_batch_size,
    shared=trees.tree_prefix(PBTEmitterState, False, members=True))


def _sampling_order(fitness: Array, parents: Array) -> Array:
  """Ranks members by how soon samples replace them; P if they never do."""
  population_size = fitness.shape[0]
  indices = jnp.arange(population_size)
  keeps_place = parents == indices
  # Index P is dropped: a member that is its own parent has no child.
  children_of = jnp.where(keeps_place, population_size, parents)
  is_parent = (
    jnp.zeros(population_size, bool).at[children_of].set(True, mode="drop"))
  fitness = jnp.where(jnp.isfinite(fitness), fitness, -jnp.inf)
  order = jnp.argsort(-fitness, stable=True)
  may_be = keeps_place & ~is_parent & (indices != order[0])
  worst_first = order[::-1]
  turns = jnp.cumsum(may_be[worst_first]) - 1
  turns = jnp.zeros_like(indices).at[worst_first].set(turns)
  return jnp.where(may_be, turns, population_size)
