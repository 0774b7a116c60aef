"""ME-PBT: a population of training agents that feeds a repertoire.

Pierrot and Flajolet (2023), "Evolving Populations of Diverse RL Agents with
MAP-Elites", arXiv:2303.12803.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from qdrl_haiku.checks import check_count
from qdrl_haiku.map_elites.emitters import Emitter, Evaluated, breed
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.variation import VariationFn
from qdrl_haiku.prng import OfGeneration
from qdrl_haiku.types import Array, Hyperparams, Key, Metrics


class Agents(NamedTuple):
  """Holds the pure functions of agents that the emitter calls.

  Members are any tree with leaves [P, ...]; keys are [P] and consumed.

  Attributes:
    init: (keys) -> members.
    train: (members, hyperparameters [P], keys) -> (members, metrics by name,
      floats [P]).
    genotypes: (members) -> what a cell stores of each, leaves [P, ...].
    inherit: (members, parents int32 [P], keys) -> members, each taking over
      what a child inherits of the member `parents[i]`; those with
      `parents[i] == i` bit-identical.
    transplant: (members, genotypes [P, ...], where bool [P], keys) -> members,
      an agent made of the genotype where true, bit-identical elsewhere.
    is_finite: (members) -> bool [P], whether all of a member is finite.
  """

  init: Callable[[Key], Any]
  train: Callable[[Any, Hyperparams, Key], tuple[Any, Metrics]]
  genotypes: Callable[[Any], Any]
  inherit: Callable[[Any, Array, Key], Any]
  transplant: Callable[[Any, Any, Array, Key], Any]
  is_finite: Callable[[Any], Array]


class Controller(Protocol):
  """Defines the controller that replaces members.

  A decision is a named tuple with the fields `parents`, int32 [P], its own
  index for who keeps its place; `hyperparams`, leaves [P]; and `operator`,
  int32 [P], 0 for who survives.
  """

  @property
  def init(self) -> Callable[[Key, int], tuple[Any, Hyperparams]]:
    """(key, population_size) -> its state, and hyperparameters [P]."""

  @property
  def update(
    self,
  ) -> Callable[[Any, Key, Array, Hyperparams], tuple[Any, Any]]:
    """(state, key, fitness [P], hyperparameters [P]) -> state, decision."""


class Elite(NamedTuple):
  """Holds the genotype and the hyperparameters that a cell stores.

  Attributes:
    genotype: what `Agents.genotypes` says.
    hyperparams: with which it was trained last.
  """

  genotype: Any
  hyperparams: Hyperparams


class PBTEmitterState(NamedTuple):
  """The population, and what became of it in the last generation.

  Attributes:
    members: the agents, leaves [P, ...].
    hyperparams: leaves [P], with which they are trained next.
    metrics: of the training in `ask`, [P] by name, until `tell`; else none.
    fitness: float32 [P], what the controller saw, NaN for a member that was
      not finite; NaN before the first decision.
    decision: the controller's last; at first that everybody survives. Where
      a member was replaced by a sample, that comes instead of it.
    sampled_cells: int32 [P], the cell whose elite took the member's place
      after the last decision, -1 where none did.
    controller: what the controller remembers.
  """

  members: Any
  hyperparams: Hyperparams
  metrics: Metrics
  fitness: Array
  decision: Any
  sampled_cells: Array
  controller: Any = ()


def pbt_emitter(
  agents: Agents,
  controller: Controller,
  variation_fn: VariationFn,
  *,
  population_size: int,
  variation_batch_size: int,
  num_replaced_by_samples: int,
) -> Emitter:
  """Makes the emitter of a population that trains, and of variations.

  The repertoire's genotypes are `Elite`s. `ask` trains all P members and
  returns them as they are then, followed by variations of elites drawn from
  the repertoire (from the members as long as it is empty).

  `tell` reads the fitness of the members. The controller decides, as in
  population-based training, which of the worst take over from which of the
  best. Then `num_replaced_by_samples` others are replaced by elites drawn
  uniformly from the repertoire, with hyperparameters as they were stored: the
  worst of those that neither were replaced by that decision nor are a parent
  of it, ties by index, the higher first. They never replace the best member,
  nor anybody while the repertoire is empty; where fewer members remain, they
  replace all of those.

  A member that is not finite has fitness NaN and ranks last; it is up to the
  controller to replace it. Where none is finite there is no parent: samples
  replace as many as they may, and the caller has to make new members of those
  that keep their place, `decision.parents[i] == i`, without a finite fitness
  and with `sampled_cells[i] == -1`.

  Member i draws from `fold_in(key, i)`, or from that of a key that is derived
  from it, so its draws do not depend on P; the controller's key is
  `fold_in(key, 2**31 - 1)`. `ask` and `tell` draw different numbers from the
  same key.

  Args:
    agents: what is trained.
    controller: of population-based training, such as `controllers.pbt`.
    variation_fn: (key, first parents, second parents) -> offspring, all of
      them `Elite`s with leaves [variation_batch_size, ...]. `iso_line` alone
      would vary hyperparameters too; `weights_only` keeps the first parent's.
    population_size: P, >= 1.
    variation_batch_size: how many variations, >= 0.
    num_replaced_by_samples: how many members are replaced by samples in each
      generation, in [0, P - 1].

  Returns:
    The emitter, with B = P + variation_batch_size; its state is a
    `PBTEmitterState`. `init` raises ValueError if the repertoire holds
    something else than these agents' elites.

  Raises:
    ValueError: if a count is out of its range, or too small a population for
      the controller.
  """
  check_count(
    "population_size",
    population_size,
    1,
    "at least 1, or genetic_emitter if no agent is to be trained",
  )
  check_count("variation_batch_size", variation_batch_size, 0)
  check_count("num_replaced_by_samples", num_replaced_by_samples, 0)
  if num_replaced_by_samples > population_size - 1:
    raise ValueError(
      f"num_replaced_by_samples={num_replaced_by_samples} leaves none of"
      f" population_size={population_size}; use at most"
      f" {population_size - 1}, or a larger population."
    )
  # Lets the controller refuse the population before anything is trained.
  decision_shape = _decision_shape(controller, population_size)
  batch_size = population_size + variation_batch_size

  def init(key: Key, repertoire: Repertoire) -> PBTEmitterState:
    keys = _member_keys(key, population_size)
    members = agents.init(keys)
    remembered, hyperparams = controller.init(
      jax.random.fold_in(key, OfGeneration.CONTROLLER), population_size
    )
    _check_elites(repertoire, Elite(agents.genotypes(members), hyperparams))
    nothing = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype), decision_shape
    )
    decision = nothing._replace(
      parents=jnp.arange(population_size, dtype=jnp.int32),
      # Copied, so that the state can be donated.
      hyperparams=jax.tree.map(jnp.copy, hyperparams),
      operator=jnp.zeros(population_size, jnp.int32),
    )
    return PBTEmitterState(
      members=members,
      hyperparams=hyperparams,
      metrics={},
      fitness=jnp.full(population_size, jnp.nan, jnp.float32),
      decision=decision,
      sampled_cells=jnp.full(population_size, -1, jnp.int32),
      controller=remembered,
    )

  def ask(
    state: PBTEmitterState, repertoire: Repertoire, key: Key
  ) -> tuple[Elite, PBTEmitterState]:
    members, metrics = agents.train(
      state.members, state.hyperparams, _member_keys(key, population_size)
    )
    trained = Elite(agents.genotypes(members), state.hyperparams)

    def sample(key: Key, n: int) -> Elite:
      stored_key, own_key = jax.random.split(key)
      own = jax.random.randint(own_key, (n,), 0, population_size)
      return jax.tree.map(
        lambda stored, x: jnp.where(
          jnp.any(repertoire.occupied), stored, x[own]
        ),
        repertoire.sample(stored_key, n),
        trained,
      )

    variations = breed(
      jax.random.fold_in(key, OfGeneration.VARIATION),
      variation_fn,
      sample,
      variation_batch_size,
    )
    elites = jax.tree.map(
      lambda *x: jnp.concatenate(x), trained, variations
    )
    return elites, state._replace(members=members, metrics=metrics)

  def tell(
    state: PBTEmitterState,
    repertoire: Repertoire,
    evaluated: Evaluated,
    key: Key,
  ) -> PBTEmitterState:
    fitness = jnp.asarray(evaluated.fitness, jnp.float32)
    if fitness.shape != (batch_size,):
      raise ValueError(
        f"fitness has shape {fitness.shape}; give {(batch_size,)}, one number"
        " for each individual of `ask`."
      )
    fitness = jnp.where(
      agents.is_finite(state.members), fitness[:population_size], jnp.nan
    )
    remembered, decision = controller.update(
      state.controller,
      jax.random.fold_in(key, OfGeneration.CONTROLLER),
      fitness,
      state.hyperparams,
    )
    inherit_key, transplant_key = (
      jax.random.fold_in(key, draw)
      for draw in (OfGeneration.INHERIT, OfGeneration.TRANSPLANT)
    )
    members = agents.inherit(
      state.members,
      decision.parents,
      _member_keys(inherit_key, population_size),
    )
    hyperparams = decision.hyperparams
    sampled_cells = jnp.full(population_size, -1, jnp.int32)
    if num_replaced_by_samples:
      turns = _turns(fitness, decision.parents)
      replaced = turns < num_replaced_by_samples
      replaced &= jnp.any(repertoire.occupied)
      drawn = repertoire.sample_cells(
        jax.random.fold_in(key, OfGeneration.SAMPLES), num_replaced_by_samples
      )
      cells = jnp.where(replaced, drawn.at[turns].get(mode="clip"), 0)
      elites = jax.tree.map(lambda x: x[cells], repertoire.genotypes)
      members = agents.transplant(
        members,
        elites.genotype,
        replaced,
        _member_keys(transplant_key, population_size),
      )
      hyperparams = jax.tree.map(
        lambda new, old: jnp.where(replaced, new, old),
        elites.hyperparams,
        hyperparams,
      )
      sampled_cells = jnp.where(replaced, cells, -1)
    return PBTEmitterState(
      members=members,
      hyperparams=hyperparams,
      metrics={},
      fitness=fitness,
      decision=decision,
      sampled_cells=sampled_cells,
      controller=remembered,
    )

  return Emitter(init, ask, tell, batch_size)


def _turns(fitness: Array, parents: Array) -> Array:
  """Returns when each member's turn to be replaced by a sample comes."""
  population_size = fitness.shape[0]
  indices = jnp.arange(population_size)
  keeps_place = parents == indices
  # Dropped beyond the end: being one's own parent does not count.
  children_of = jnp.where(keeps_place, population_size, parents)
  is_parent = (
    jnp.zeros(population_size, bool).at[children_of].set(True, mode="drop")
  )
  fitness = jnp.where(jnp.isfinite(fitness), fitness, -jnp.inf)
  order = jnp.argsort(-fitness, stable=True)
  may_be = keeps_place & ~is_parent & (indices != order[0])
  worst_first = order[::-1]
  turns = jnp.cumsum(may_be[worst_first]) - 1
  turns = jnp.zeros_like(indices).at[worst_first].set(turns)
  return jnp.where(may_be, turns, population_size)


def _member_keys(key: Key, population_size: int) -> Key:
  return jax.vmap(jax.random.fold_in, (None, 0))(
    key, jnp.arange(population_size)
  )


def _decision_shape(controller: Controller, population_size: int) -> Any:
  """Returns what a decision consists of: its tree with shapes and dtypes."""

  def decide(key: Key) -> Any:
    state, hyperparams = controller.init(key, population_size)
    fitness = jnp.zeros(population_size)
    return controller.update(state, key, fitness, hyperparams)[1]

  return jax.eval_shape(decide, jax.random.key(0))


def _check_elites(repertoire: Repertoire, elites: Elite) -> None:
  """Refuses a repertoire of something else."""

  def row(x: Any) -> tuple[Any, list[str]]:
    leaves, treedef = jax.tree.flatten(x)
    return treedef, [f"{leaf.dtype}{leaf.shape[1:]}" for leaf in leaves]

  stored, given = row(repertoire.genotypes), row(elites)
  if stored != given:
    raise ValueError(
      f"repertoire holds {stored}, but the members' elites are {given}; make"
      " it with an example of one Elite(genotype, hyperparams)."
    )
