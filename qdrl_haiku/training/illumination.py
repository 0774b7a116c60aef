"""MAP-Elites with agents: a repertoire of them, and where new ones come from.

A generation asks an emitter for agents, evaluates them, adds them to the
repertoire, and tells the emitter. `train_generation` is one pure function of
the whole, in two parts like that of a population (`generation.py`).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import controllers, map_elites, types
from qdrl_haiku.training import elites as elites_lib
from qdrl_haiku.training import generation as generation_lib
from qdrl_haiku.training import population as population_lib
from qdrl_haiku.training import setup as setup_lib
from qdrl_haiku.training import sharding
from qdrl_haiku.training.learning import train_members
from qdrl_haiku.training.population import Members
from qdrl_haiku.training.setup import MapElites, Setup

# Which numbers are folded into a generation's key for what is no member's own.
_ASK = 2**31 - 10
_EVALUATE = 2**31 - 11
_TELL = 2**31 - 12


class IlluminationReport(NamedTuple):
  """What a generation did to the repertoire.

  Attributes:
    metrics: of the repertoire, [] by name, see `map_elites.metrics`.
    sampled_cells: int32 [P], see `map_elites.PBTEmitterState`; None without a
      gradient population.
    new_hyperparams: leaves [P], with which the members go on; None without.
  """

  metrics: types.Metrics
  sampled_cells: types.Array | None = None
  new_hyperparams: types.Hyperparams | None = None


class Illumination(NamedTuple):
  """Everything that MAP-Elites needs in order to go on.

  Attributes:
    emitter: its state; a `map_elites.PBTEmitterState` if it trains agents.
    repertoire: of `map_elites.Elite`s.
    generation: int32 [], how many have been.
    initial_steps: int32 [], environment steps that evaluating the first
      genotypes took.
  """

  emitter: Any
  repertoire: map_elites.Repertoire
  generation: types.Array
  initial_steps: types.Array

  @property
  def members(self) -> Members | None:
    """The gradient population's, None if there is none."""
    return getattr(self.emitter, "members", None)

  @property
  def hyperparams(self) -> types.Hyperparams | None:
    """The gradient population's, None if there is none."""
    return getattr(self.emitter, "hyperparams", None)

  def with_members(self, members: Members) -> "Illumination":
    """Returns the same with other members of the gradient population."""
    return self._replace(emitter=self.emitter._replace(members=members))


def make_emitter(setup: Setup) -> map_elites.Emitter:
  """The emitter that a setup asks for.

  Args:
    setup: with `map_elites`.

  Returns:
    `map_elites.pbt_emitter` of the population that `train_members` trains if
    there is a controller, otherwise `map_elites.genetic_emitter`.

  Raises:
    ValueError: if the controller is timed, or a setting has no effect.
  """
  setup_lib.check(setup)
  plan = _plan(setup)
  if setup.controller is None:
    return map_elites.genetic_emitter(
      plan.variation_fn, plan.variation_batch_size
    )
  if setup.controller.is_timed:
    raise ValueError(
      "controller is timed, but an emitter doesn't tell it the generation; "
      "give one whose update takes key, fitness and hyperparameters."
    )

  over_members = functools.partial(sharding.over_members, setup)

  def of_members(tree: Any) -> Any:
    return sharding.of_members(setup.mesh, tree, setup.config.population_size)

  def train(
    members: Members, hyperparams: types.Hyperparams, keys: types.Key
  ) -> tuple[Members, types.Metrics]:
    members, *trained = over_members(train_members)(members, hyperparams, keys)
    metrics, num_updates = of_members(trained)
    return members, metrics | {"num_updates": num_updates.astype(float)}

  def transplant(
    members: Members, genotypes: Any, where: types.Array, keys: types.Key
  ) -> Members:
    del keys  # What an agent collects and learns draws from its own.
    where, genotypes = sharding.in_slots(setup.mesh, (where, genotypes))
    states = jax.vmap(setup.learner.from_genotype)(genotypes)
    return members._replace(learner=_choose(where, states, members.learner))

  return map_elites.pbt_emitter(
    map_elites.Agents(
      init=over_members(population_lib.init_members),
      train=train,
      genotypes=lambda members: of_members(
        jax.vmap(setup.learner.genotype)(members.learner)
      ),
      inherit=lambda members, parents, keys: generation_lib.inherit(
        setup, members, parents, _is_finite(setup, members), keys
      ),
      transplant=transplant,
      is_finite=lambda members: _is_finite(setup, members),
    ),
    setup.controller,
    plan.variation_fn,
    population_size=setup.config.population_size,
    variation_batch_size=plan.variation_batch_size,
    num_replaced_by_samples=plan.num_replaced_by_samples,
  )


def init_illumination(setup: Setup, run_key: types.Key) -> Illumination:
  """A repertoire of random agents, and the emitter's state.

  Args:
    setup: with `map_elites`.
    run_key: the run's key.

  Returns:
    What `train_generation` goes on with.

  Raises:
    ValueError: if a setting has no effect.
  """
  plan = _plan(setup)
  emitter = make_emitter(setup)
  keys = population_lib.member_keys(run_key, 0, plan.num_initial_genotypes)
  elites = elites_lib.random_elites(setup, keys)
  generation_key = jax.random.fold_in(run_key, 0)
  evaluation = elites_lib.evaluate_elites(
    setup, elites, jax.random.fold_in(generation_key, _EVALUATE)
  )
  repertoire = map_elites.Repertoire.init(
    jax.tree.map(lambda x: x[0], elites), plan.tessellation
  ).add(elites, *elites_lib.fitness_and_descriptors(evaluation))
  return Illumination(
    emitter=emitter.init(
      jax.random.fold_in(generation_key, _ASK), repertoire
    ),
    repertoire=repertoire,
    generation=jnp.zeros((), jnp.int32),
    initial_steps=jnp.sum(evaluation.lengths),
  )


def train_generation(
  setup: Setup, state: Illumination, run_key: types.Key
) -> tuple[Illumination, generation_lib.GenerationReport]:
  """Asks, evaluates, adds and tells.

  Args:
    setup: with `map_elites`.
    state: as it is.
    run_key: the run's key; the same in each generation.

  Returns:
    The new state, and what happened: of the gradient population, or of all
    offspring where there is none.
  """
  state, elites = train(setup, state, run_key)
  return select(setup, state, elites, run_key)


def train(
  setup: Setup, state: Illumination, run_key: types.Key
) -> tuple[Illumination, map_elites.Elite]:
  """The first part of `train_generation`: asks, and members train for it.

  Args:
    setup: with `map_elites`.
    state: as it is.
    run_key: as there.

  Returns:
    The state with trained members, and the offspring.
  """
  key = jax.random.fold_in(run_key, state.generation + 1)
  elites, emitter_state = make_emitter(setup).ask(
    state.emitter, state.repertoire, jax.random.fold_in(key, _ASK)
  )
  return state._replace(emitter=emitter_state), elites


def select(
  setup: Setup,
  state: Illumination,
  elites: map_elites.Elite,
  run_key: types.Key,
) -> tuple[Illumination, generation_lib.GenerationReport]:
  """The second part of `train_generation`: evaluates, adds and tells.

  Args:
    setup: with `map_elites`.
    state: of `train`.
    elites: of `train`.
    run_key: as there.

  Returns:
    The new state, and what happened.
  """
  generation = state.generation + 1
  key = jax.random.fold_in(run_key, generation)
  evaluation = elites_lib.evaluate_elites(
    setup, elites, jax.random.fold_in(key, _EVALUATE)
  )
  fitness, descriptors = sharding.replicate(
    setup.mesh, elites_lib.fitness_and_descriptors(evaluation)
  )
  repertoire = state.repertoire.add(elites, fitness, descriptors)
  finite = generation_lib.all_finite(
    (fitness, descriptors)
  ) & sharding.replicate(setup.mesh, generation_lib.all_finite(elites))
  told = make_emitter(setup).tell(
    state.emitter,
    repertoire,
    elites,
    jnp.where(finite, fitness, jnp.nan),
    descriptors,
    {},
    jax.random.fold_in(key, _TELL),
  )
  best = jnp.argmax(jnp.where(finite, fitness, -jnp.inf))
  best_elite = jax.tree.map(lambda x: x[best], elites)
  metrics = map_elites.metrics(repertoire, _plan(setup).qd_offset)
  report = generation_lib.GenerationReport(
    generation=generation,
    evaluation=evaluation,
    scores={"episode_return": fitness},
    fitness=fitness,
    hyperparams=elites.hyperparams,
    metrics={},
    num_updates=jnp.zeros_like(fitness, jnp.int32),
    finite=finite,
    decision=None,
    best=generation_lib.Best(
      member=best,
      fitness=jnp.where(finite[best], fitness[best], jnp.nan),
      episode_return=fitness[best],
      hyperparams=best_elite.hyperparams,
      state=setup.learner.from_genotype(best_elite.genotype),
    ),
    env_steps=jnp.sum(evaluation.lengths),
    illumination=IlluminationReport(metrics),
  )
  if setup.controller is not None:
    size = setup.config.population_size
    collected = size * setup.config.perturbation_interval
    of_members = jax.tree.map(lambda x: x[:size], evaluation)
    report = report._replace(
      evaluation=of_members,
      scores={"episode_return": jnp.mean(of_members.returns, axis=1)},
      fitness=told.fitness,
      hyperparams=state.emitter.hyperparams,
      metrics={
        name: x
        for name, x in state.emitter.metrics.items()
        if name != "num_updates"
      },
      num_updates=state.emitter.metrics["num_updates"].astype(jnp.int32),
      finite=jnp.isfinite(told.fitness),
      decision=told.decision._replace(
        operator=jnp.where(
          told.sampled_cells >= 0,
          controllers.OPERATORS.index("sample"),
          told.decision.operator,
        )
      ),
      env_steps=report.env_steps + collected,
      illumination=IlluminationReport(
        metrics, told.sampled_cells, told.hyperparams
      ),
    )
  return (
    state._replace(
      emitter=told, repertoire=repertoire, generation=generation
    ),
    report,
  )


def restart_members(
  setup: Setup, state: Illumination, run_key: types.Key
) -> Illumination:
  """Replaces the members of the gradient population, when none is finite.

  Args:
    setup: with `map_elites`.
    state: of non-finite members; hyperparameters and repertoire stay.
    run_key: the run's key.

  Returns:
    The state with new members, of which those that elites had replaced have
    the elites' networks.
  """
  fresh = population_lib.new_members(setup, run_key, state.generation)
  return state.with_members(
    fresh._replace(
      learner=_choose(
        sharding.in_slots(setup.mesh, state.emitter.sampled_cells >= 0),
        state.emitter.members.learner,
        fresh.learner,
      )
    )
  )


def _plan(setup: Setup) -> MapElites:
  assert setup.map_elites is not None
  return setup.map_elites


def _choose(where: types.Array, on_true: Any, on_false: Any) -> Any:
  """Members of one tree or the other, by bool [S]."""
  choose = jax.vmap(
    lambda where, *trees: jax.tree.map(
      lambda x, y: jnp.where(where, x, y), *trees
    )
  )
  return choose(where, on_true, on_false)


def _is_finite(setup: Setup, members: Members) -> types.Array:
  """Whether each member is finite, bool [P], known to all devices."""
  finite = sharding.replicate(
    setup.mesh, generation_lib.all_finite(population_lib.judged(members))
  )
  return sharding.of_members(setup.mesh, finite, setup.config.population_size)
