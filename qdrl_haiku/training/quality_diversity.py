"""A generation of MAP-Elites with agents: ask, evaluate, add, tell.

Of B offspring and R elites that are judged again, by N episodes each:

  draw     run key -> env_states, leaves [B + R, N, ...]
  ask      the repertoire [C] that the container shows of its contents, emitter
           state -> offspring, `Elite`s with leaves [B + R, ...]; members train
  judge    offspring, env_states -> `actors.Evaluation`, returns [B + R, N], and
           `Evaluated`: fitness [B + R], descriptors [B + R, D], and extra, what
           the emitter needs of the episodes and the container keeps
  add      contents, `Evaluated` -> contents, in which some of the B are new
  tell     emitter state, the repertoire after that, `Evaluated` [B] -> emitter
           state, whose members controller and elites have replaced
  improve  describer state, contents -> both, all elites described anew
"""

import functools
from collections.abc import Collection
from typing import cast

import jax
import jax.numpy as jnp

from qdrl_haiku import (
  actors,
  controllers,
  environments,
  map_elites,
  prng,
  trees,
)
from qdrl_haiku.distributed import sharding
from qdrl_haiku.training import members as members_lib
from qdrl_haiku.training import state as state_lib
from qdrl_haiku.training.repertoires import emitters as emitters_lib
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import GenerationReport, State, Trained
from qdrl_haiku.types import Array, Key, Metrics, Tree


def make_trainer(setup: Setup) -> state_lib.Trainer:
  """Makes what fills a repertoire, with members or without."""
  container, keeps = setup.qd.container, list(setup.qd.container.keeps)
  if setup.describer.improve is not None:
    keeps.append(map_elites.EPISODES)
  if setup.qd.measured is not None:
    keeps.append(map_elites.OWN_DESCRIPTORS)
  setup = setup._replace(map_elites=setup.qd._replace(
    container=container._replace(keeps=tuple(keeps))))
  emitter = emitters_lib.make_training_emitter(setup)
  shared = trees.tree_prefix(
    State, False, emitter=emitter.shared,
    repertoire=setup.qd.shard_repertoire and setup.qd.container.shared)
  of = functools.partial
  return state_lib.Trainer(
    setup, of(_draw, setup), of(_init, setup, emitter),
    of(_train, setup, emitter), of(_evaluate, setup, emitter),
    of(_restart, setup), shared, emitter.needs)


def _draw(
  setup: Setup, run_key: Key, generation: Array | int, num_agents: int
) -> state_lib.InitialStates:
  """Draws the states in which the episodes of a generation begin."""
  pool: Tree = ()
  if setup.trains_members:
    size = setup.config.population_size
    keys = members_lib.member_keys(run_key, generation, size)
    pool = members_lib.draw_member_pool(setup, keys)
  key = jax.random.fold_in(run_key, generation)
  key = jax.random.fold_in(key, prng.OfGeneration.EVALUATE)
  keys = prng.fold_in_indices(key, num_agents)
  return state_lib.InitialStates(
    pool, members_lib.draw_member_evaluation(setup, keys))


def _init(
  setup: Setup, emitter: map_elites.Emitter, run_key: Key,
  initial: state_lib.InitialStates | None,
) -> State:
  """Returns a repertoire of random agents, and the emitter's state."""
  qd = setup.qd
  if setup.trains_members:
    members_lib.check_members_learner(setup)
  if initial is None:
    initial = _draw(setup, run_key, 0, qd.num_initial_genotypes)
  keys = members_lib.member_keys(run_key, 0, qd.num_initial_genotypes)
  # Or XLA would divide among the devices what adds them, too.
  elites = emitters_lib.random_elites(setup, keys)
  elites = sharding.replicate(setup.mesh, elites)
  key = jax.random.fold_in(run_key, 0)
  described_by = setup.describer.init(
    jax.random.fold_in(key, prng.OfGeneration.DESCRIBE))
  evaluation, evaluated = judge_elites(
    setup, elites, initial.evaluation, described_by, emitter.needs)
  contents, emitter_state = map_elites.init(
    emitter, qd.container, evaluated, key)
  state = State(
    generation=jnp.zeros((), jnp.int32), emitter=emitter_state,
    repertoire=contents, describer=described_by,
    initial_steps=jnp.sum(evaluation.lengths, dtype=jnp.int32))
  if not setup.trains_members:
    return state
  keys = members_lib.member_keys(run_key, 0, setup.config.population_size)
  put = setup.over_members(members_lib.put_members_into_environments)
  env_states = members_lib.first_member_states(setup, keys, initial.pool)
  return state.with_members(put(state.members, env_states, keys))


def _train(
  setup: Setup, emitter: map_elites.Emitter, state: State, pool: Tree,
  run_key: Key,
) -> tuple[State, Trained]:
  """Asks for offspring, for which members train."""
  if setup.trains_members:
    state = state.with_members(state.members._replace(pool=pool))
  key = jax.random.fold_in(run_key, state.generation + 1)
  offspring, contents, emitter_state = map_elites.ask(
    emitter, setup.qd.container, state.repertoire, state.emitter, key)
  state = state._replace(emitter=emitter_state, repertoire=contents)
  return state, Trained(offspring=offspring)


def _evaluate(
  setup: Setup, emitter: map_elites.Emitter, state: State, trained: Trained,
  env_states: Tree, run_key: Key,
) -> tuple[State, GenerationReport]:
  """Evaluates offspring, adds them to the repertoire, and tells the emitter."""
  container = setup.qd.container
  generation = state.generation + 1
  key = jax.random.fold_in(run_key, generation)
  elites = trained.offspring
  evaluation, evaluated = judge_elites(
    setup, elites, env_states, state.describer, emitter.needs)
  fitness, evaluation_steps = evaluated.fitness, evaluation.lengths
  finite = trees.all_finite_leaves((fitness, evaluated.descriptors, elites))
  evaluated = evaluated._replace(fitness=jnp.where(finite, fitness, jnp.nan))
  contents, emitter_state = map_elites.add_and_tell(
    emitter, container, state.repertoire, state.emitter, evaluated, key)
  described_by, contents = map_elites.improve_describer(
    setup.describer, container, state.describer, contents,
    jax.random.fold_in(key, prng.OfGeneration.DESCRIBE))
  if container.again:  # The report is of new agents.
    elites, evaluation, finite, fitness = jax.tree.map(
      lambda x: x[: emitter.batch_size], (elites, evaluation, finite, fitness))
  index = jnp.argmax(jnp.where(finite, fitness, -jnp.inf))
  best = jax.tree.map(lambda x: x[index], elites)
  report = GenerationReport(
    generation=generation, evaluation=evaluation,
    scores={"episode_return": fitness}, fitness=fitness,
    hyperparams=elites.hyperparams, metrics={},
    num_updates=jnp.zeros_like(fitness, jnp.int32), finite=finite,
    decision=None,
    best=state_lib.Best(
      member=index, fitness=jnp.where(finite[index], fitness[index], jnp.nan),
      episode_return=fitness[index], hyperparams=best.hyperparams,
      state=setup.learner.from_genotype(best.genotype)),
    evaluation_steps=evaluation_steps, next_hyperparams=elites.hyperparams,
    sampled_cells=jnp.full_like(fitness, -1, jnp.int32),
    repertoire_metrics=repertoire_metrics(setup, contents, described_by),
    emitter_metrics=emitter.metrics(emitter_state))
  after = state._replace(
    generation=generation, emitter=emitter_state, repertoire=contents,
    describer=described_by)
  if setup.trains_members:
    report = _report_members(
      setup, report, _pbt_state(state), _pbt_state(after))
  return after, report


def repertoire_metrics(
  setup: Setup, contents: Tree, described_by: Tree
) -> Metrics:
  """Returns metrics of a container's contents and of a describer.

  `contents` and `described_by` are the states of the two, which `setup` has.
  """
  container, offset = setup.qd.container, setup.qd.qd_offset
  shown = container.show(contents)
  numbers = map_elites.metrics(setup.measured(shown), offset)
  numbers |= {
    f"qd/{name}": x for name, x in container.metrics(contents).items()}
  learned = dict(setup.describer.metrics(described_by))
  if setup.qd.measured is not None:
    of_learned = map_elites.metrics(shown, offset)
    learned |= {x: of_learned[f"qd/{x}"] for x in ("coverage", "qd_score")}
  return numbers | {f"qd/learned_{name}": x for name, x in learned.items()}


def _restart(setup: Setup, state: State, run_key: Key) -> State:
  """Replaces members by new ones; those made of elites keep their networks."""
  fresh = members_lib.new_members(setup, run_key, state.generation)
  is_sampled = sharding.shard_into_slots(
    setup.mesh, _pbt_state(state).sampled_cells >= 0)
  learners = trees.choose_rows(
    is_sampled, state.members.learner, fresh.learner)
  return state.with_members(fresh._replace(learner=learners))


def _pbt_state(state: State) -> map_elites.PBTEmitterState:
  """Returns what the emitter of members knows of them."""
  assert isinstance(state.population, map_elites.PBTEmitterState)
  return state.population


def _report_members(
  setup: Setup, report: GenerationReport, trained: map_elites.PBTEmitterState,
  told: map_elites.PBTEmitterState,
) -> GenerationReport:
  """Returns the report of the members, which are the first offspring."""
  size = setup.config.population_size
  evaluation = jax.tree.map(lambda x: x[:size], report.evaluation)
  metrics = dict(trained.metrics)
  return report._replace(
    evaluation=evaluation,
    scores={"episode_return": jnp.mean(evaluation.returns, axis=1)},
    fitness=told.fitness, hyperparams=trained.hyperparams,
    num_updates=metrics.pop("num_updates").astype(jnp.int32), metrics=metrics,
    finite=jnp.isfinite(told.fitness),
    decision=cast(controllers.Decision, told.decision),
    sampled_cells=told.sampled_cells, next_hyperparams=told.hyperparams)


def judge_elites(
  setup: Setup, elites: map_elites.Elite, env_states: environments.State,
  described_by: Tree = (), needs: Collection[str] = (),
) -> tuple[actors.Evaluation, map_elites.Evaluated]:
  """Runs greedy episodes of agents made of elites, on all devices.

  Args:
    setup: with a repertoire.
    elites: leaves [B, ...].
    env_states: where episodes begin, leaves [B, N, ...].
    described_by: the describer's state.
    needs: what the emitter needs of an evaluation.

  Returns:
    The evaluation, with the descriptors that measure, and what of it the
    emitter needs and the container keeps.
  """
  describer = setup.describer
  own = setup.eval_env.descriptor if setup.qd.measured else None

  def look(state: environments.State) -> tuple[Tree, Array | None]:
    places = None if own is None else state.info["next_state_descriptor"]
    return describer.look(state), places

  def evaluate(
    setup: Setup, described_by: Tree, genotypes: Tree,
    env_states: environments.State,
  ) -> actors.Evaluation:
    def describe(looks: Tree, mask: Array) -> tuple[Array, Tree, Array | None]:
      seen, places = looks
      episode = describer.summarize(seen, mask)
      kept = () if describer.improve is None else episode
      return (
        describer.describe(described_by, episode), kept,
        None if own is None else own.function(places, mask))

    return actors.evaluate_from_states(
      setup.eval_env, setup.learner,
      jax.vmap(setup.learner.from_genotype)(genotypes), env_states,
      describe, keep_transitions="transitions" in needs, look=look)

  evaluation = sharding.all_gather(
    setup.mesh,
    setup.over_members(evaluate, described_by)(elites.genotype, env_states),
    jax.tree.leaves(elites.genotype)[0].shape[0])
  assert evaluation.descriptors is not None
  descriptors, episodes, of_own = evaluation.descriptors
  extra: dict[str, Tree] = {map_elites.EPISODES: episodes}
  if map_elites.SPREAD in setup.qd.container.keeps:
    extra[map_elites.SPREAD] = map_elites.descriptor_spread(descriptors)
  if own is not None:
    extra[map_elites.OWN_DESCRIPTORS] = jnp.mean(of_own, axis=1)
  if "transitions" in needs:
    extra |= {
      "transitions": evaluation.transitions, "lengths": evaluation.lengths}
  if evaluation.objectives is not None:
    extra[map_elites.OBJECTIVES] = jnp.mean(evaluation.objectives, axis=1)
  evaluated = map_elites.Evaluated(
    elites, jnp.mean(evaluation.returns, axis=1),
    jnp.mean(descriptors, axis=1), extra)
  return evaluation._replace(
    descriptors=descriptors if own is None else of_own, transitions=None
  ), evaluated
