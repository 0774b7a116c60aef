"""MAP-Elites with agents: a repertoire of them, and where new ones come from.

A generation asks an emitter for agents, evaluates them, adds them to the
repertoire, and tells the emitter. `train_generation` is one pure function of
the whole, in two parts like that of a population (`generation.py`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import map_elites, types
from qdrl_haiku.distributed import sharding
from qdrl_haiku.training import elites as elites_lib
from qdrl_haiku.training import emitters, initial_states
from qdrl_haiku.training import population as population_lib
from qdrl_haiku.training import setup as setup_lib
from qdrl_haiku.training.initial_states import InitialStates
from qdrl_haiku.training.population import Members
from qdrl_haiku.training.reports import (
  Best,
  GenerationReport,
  IlluminationReport,
)
from qdrl_haiku.training.setup import Setup


class Illumination(NamedTuple):
  """Everything that MAP-Elites needs in order to go on.

  Attributes:
    emitter: its state; a `map_elites.PBTEmitterState` if it trains agents, a
      `map_elites.MultiEmitterState` of several.
    repertoire: of `map_elites.Elite`s.
    generation: int32 [], how many have been.
    initial_steps: int32 [], environment steps that evaluating the first
      genotypes took.
    contenders: of the repertoire, a `map_elites.DeepArchive`, if agents are
      evaluated again; else ().
  """

  emitter: Any
  repertoire: map_elites.Repertoire
  generation: types.Array
  initial_steps: types.Array
  contenders: Any = ()

  @property
  def population(self) -> map_elites.PBTEmitterState | None:
    """The gradient population's emitter, None if there is none."""
    for state in _states(self.emitter):
      if isinstance(state, map_elites.PBTEmitterState):
        return state
    return None

  @property
  def members(self) -> Members | None:
    """The gradient population's, None if there is none."""
    population = self.population
    return None if population is None else population.members

  @property
  def hyperparams(self) -> types.Hyperparams | None:
    """The gradient population's, None if there is none."""
    population = self.population
    return None if population is None else population.hyperparams

  def with_members(self, members: Any) -> "Illumination":
    """Returns the same with other members, or with () in their place."""
    states = tuple(
      state._replace(members=members)
      if isinstance(state, map_elites.PBTEmitterState)
      else state
      for state in _states(self.emitter)
    )
    if isinstance(self.emitter, map_elites.MultiEmitterState):
      return self._replace(emitter=self.emitter._replace(states=states))
    return self._replace(emitter=states[0])


def draw_initial_states(
  setup: Setup,
  run_key: types.Key,
  generation: types.Array | int,
  num_agents: int,
) -> InitialStates:
  """Draws the states in which the episodes of a generation begin."""
  pool: Any = ()
  if setup.trains_members:
    size = setup.config.population_size
    keys = population_lib.member_keys(run_key, generation, size)
    pool = initial_states.draw_pool(setup, keys)
  key = map_elites.evaluation_key(jax.random.fold_in(run_key, generation))
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_agents))
  return InitialStates(pool, initial_states.draw_evaluation(setup, keys))


def init_illumination(
  setup: Setup, run_key: types.Key, initial: InitialStates | None = None
) -> Illumination:
  """Returns a repertoire of random agents, and the emitter's state.

  Args:
    setup: with `map_elites`.
    run_key: the run's key.
    initial: of `draw_initial_states` of generation 0; drawn by default.

  Returns:
    What `train_generation` goes on with.

  Raises:
    ValueError: if a setting has no effect, if there is no repertoire to fill,
      see `init_population`, or if a learner or an emitter isn't as
      `learners.Learner` or `map_elites.Emitter` says.
  """
  qd = setup_lib.check_repertoire(
    setup, "init_illumination", "init_population"
  )
  emitter = emitters.make_emitter(setup)
  if setup.trains_members:
    population_lib.check_learner(setup)
  if initial is None:
    initial = draw_initial_states(setup, run_key, 0, qd.num_initial_genotypes)
  keys = population_lib.member_keys(run_key, 0, qd.num_initial_genotypes)
  # Or XLA would divide among the devices what adds them, too.
  elites = sharding.replicate(
    setup.mesh, elites_lib.random_elites(setup, keys)
  )
  needs = () if emitter.tell_first is None else emitter.needs
  evaluation = elites_lib.evaluate_elites(
    setup, elites, initial.evaluation, needs=needs
  )
  evaluated = map_elites.Evaluated(
    elites,
    *elites_lib.fitness_and_descriptors(evaluation),
    elites_lib.extra_scores(evaluation, needs),
  )
  repertoire, state = map_elites.init(
    emitter, qd.tessellation, evaluated, jax.random.fold_in(run_key, 0)
  )
  emitters.check_users_emitters(setup, repertoire)
  illumination = Illumination(
    emitter=state,
    repertoire=repertoire,
    generation=jnp.zeros((), jnp.int32),
    initial_steps=jnp.sum(evaluation.lengths),
  )
  if qd.resampling is not None:
    contenders = map_elites.DeepArchive.init(
      qd.resampling, setup.num_offspring, qd.tessellation, evaluated
    )
    illumination = illumination._replace(contenders=contenders)
  if illumination.members is None:
    return illumination
  keys = population_lib.member_keys(run_key, 0, setup.config.population_size)
  put = sharding.over_members(setup, population_lib.put_into_environments)
  env_states = initial_states.first_states(setup, keys, initial.pool)
  return illumination.with_members(
    put(illumination.members, env_states, keys)
  )


def train_generation(
  setup: Setup, state: Illumination, run_key: types.Key
) -> tuple[Illumination, GenerationReport]:
  """Asks, evaluates, adds and tells.

  Args:
    setup: with `map_elites`.
    state: as it is.
    run_key: the run's key; the same in each generation.

  Returns:
    The new state, and what happened: of the gradient population, or of all
    offspring where there is none.

  Raises:
    ValueError: if there is no repertoire to fill, see the one of a population.
  """
  setup_lib.check_repertoire(setup, "train_illumination", "train_generation")
  initial = draw_initial_states(
    setup, run_key, state.generation + 1, setup.batch_sizes[-1]
  )
  state, elites = train(setup, state, initial.pool, run_key)
  return evaluate(setup, state, elites, initial.evaluation, run_key)


def train(
  setup: Setup, state: Illumination, pool: Any, run_key: types.Key
) -> tuple[Illumination, map_elites.Elite]:
  """Does the first part of `train_generation`: asks; members train for it."""
  if state.members is not None:
    state = state.with_members(state.members._replace(pool=pool))
  key = jax.random.fold_in(run_key, state.generation + 1)
  elites, emitter_state = emitters.make_emitter(setup).ask(
    state.emitter, state.repertoire, map_elites.ask_key(key)
  )
  if state.contenders:
    drawn, contenders = state.contenders.sample(key)
    elites = jax.tree.map(lambda *x: jnp.concatenate(x), elites, drawn)
    state = state._replace(contenders=contenders)
  return state._replace(emitter=emitter_state), elites


def evaluate(
  setup: Setup,
  state: Illumination,
  elites: map_elites.Elite,
  env_states: Any,
  run_key: types.Key,
) -> tuple[Illumination, GenerationReport]:
  """Does the second part of `train_generation`: evaluates, adds and tells."""
  generation = state.generation + 1
  key = jax.random.fold_in(run_key, generation)
  emitter = emitters.make_emitter(setup)
  evaluation = elites_lib.evaluate_elites(
    setup, elites, env_states, needs=emitter.needs
  )
  fitness, descriptors = elites_lib.fitness_and_descriptors(evaluation)
  extra_scores = elites_lib.extra_scores(evaluation, emitter.needs)
  evaluation = evaluation._replace(trajectory=None, transitions=None)
  evaluation_steps = evaluation.lengths
  finite = types.all_finite((fitness, descriptors, elites))
  evaluated = map_elites.Evaluated(
    elites, jnp.where(finite, fitness, jnp.nan), descriptors, extra_scores
  )
  if not state.contenders:
    repertoire, emitter_state = map_elites.add_and_tell(
      emitter, state.repertoire, state.emitter, evaluated, key
    )
  else:
    size = emitter.batch_size
    evaluation_steps = evaluation_steps.at[size:].multiply(
      _is_somebody(state.contenders)[:, None]
    )
    # What the rest of this says is about new agents.
    elites, evaluation, finite, fitness = jax.tree.map(
      lambda x: x[:size], (elites, evaluation, finite, fitness)
    )
    repertoire, contenders, emitter_state = map_elites.resampled_add_and_tell(
      emitter,
      state.repertoire,
      state.contenders,
      state.emitter,
      evaluated,
      key,
    )
    state = state._replace(contenders=contenders)
  best = jnp.argmax(jnp.where(finite, fitness, -jnp.inf))
  best_elite = jax.tree.map(lambda x: x[best], elites)
  assert setup.map_elites is not None
  metrics = map_elites.metrics(repertoire, setup.map_elites.qd_offset)
  if state.contenders:
    metrics["qd/evaluations_per_elite"] = (
      state.contenders.evaluations_per_elite
    )
  changes = IlluminationReport(
    metrics, emitter_metrics=emitter.metrics(emitter_state)
  )
  report = GenerationReport(
    generation=generation,
    evaluation=evaluation,
    scores={"episode_return": fitness},
    fitness=fitness,
    hyperparams=elites.hyperparams,
    metrics={},
    num_updates=jnp.zeros_like(fitness, jnp.int32),
    finite=finite,
    decision=None,
    best=Best(
      member=best,
      fitness=jnp.where(finite[best], fitness[best], jnp.nan),
      episode_return=fitness[best],
      hyperparams=best_elite.hyperparams,
      state=setup.learner.from_genotype(best_elite.genotype),
    ),
    evaluation_steps=evaluation_steps,
    illumination=changes,
  )
  told = state._replace(emitter=emitter_state).population
  if setup.trains_members:
    trained = state.population
    assert trained is not None and told is not None
    size = setup.config.population_size
    of_members = jax.tree.map(lambda x: x[:size], evaluation)
    report = report._replace(
      evaluation=of_members,
      scores={"episode_return": jnp.mean(of_members.returns, axis=1)},
      fitness=told.fitness,
      hyperparams=trained.hyperparams,
      metrics={
        name: x
        for name, x in trained.metrics.items()
        if name != "num_updates"
      },
      num_updates=trained.metrics["num_updates"].astype(jnp.int32),
      finite=jnp.isfinite(told.fitness),
      decision=told.decision,
      illumination=changes._replace(
        sampled_cells=told.sampled_cells,
        new_hyperparams=told.hyperparams,
      ),
    )
  return (
    state._replace(
      emitter=emitter_state, repertoire=repertoire, generation=generation
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

  Raises:
    ValueError: if there is no repertoire, see the one of a population.
  """
  setup_lib.check_repertoire(setup, "restart_illumination", "restart_members")
  population = state.population
  assert population is not None
  fresh = population_lib.new_members(setup, run_key, state.generation)
  return state.with_members(
    fresh._replace(
      learner=population_lib.choose(
        sharding.in_slots(setup.mesh, population.sampled_cells >= 0),
        population.members.learner,
        fresh.learner,
      )
    )
  )


def _is_somebody(contenders: map_elites.DeepArchive) -> types.Array:
  """Tells which of those that were drawn are contenders, bool [R]."""
  return contenders.drawn < contenders.fitness.shape[0]


def _states(emitter_state: Any) -> tuple[Any, ...]:
  """Returns the states of all emitters, of which there may be one."""
  if isinstance(emitter_state, map_elites.MultiEmitterState):
    return emitter_state.states
  return (emitter_state,)
