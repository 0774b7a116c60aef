"""A generation of members alone: evaluate, decide, inherit.

`Trainer` says what each function takes, beside the setup, and returns.
"""

import functools

import jax
import jax.numpy as jnp

from qdrl_haiku import actors, controllers, environments, platform, trees
from qdrl_haiku.distributed import moving, sharding
from qdrl_haiku.training import members as members_lib
from qdrl_haiku.training.learning import train_members
from qdrl_haiku.training.setup import Scores, Setup
from qdrl_haiku.training.state import (
  Best,
  GenerationReport,
  InitialStates,
  Members,
  Population,
  State,
  Trained,
  Trainer,
)
from qdrl_haiku.types import Array, Hyperparams, Key, Tree


def make_trainer(setup: Setup) -> Trainer:
  """Makes what trains a population."""
  population = trees.tree_prefix(Population, False, members=True)
  of = functools.partial
  return Trainer(
    setup, of(_draw, setup), of(_init, setup), of(_train, setup),
    of(_evaluate, setup), of(_restart, setup),
    trees.tree_prefix(State, False, emitter=population))


def _draw(
  setup: Setup, run_key: Key, generation: Array | int, num_agents: int
) -> InitialStates:
  """Draws the states in which the episodes of a generation begin."""
  keys = members_lib.member_keys(run_key, generation, num_agents)
  return members_lib.draw_for_members(setup, keys)


def _init(setup: Setup, run_key: Key, initial: InitialStates | None) -> State:
  """Returns new members in environments, and their hyperparameters."""
  members_lib.check_members_learner(setup)
  size = setup.config.population_size
  controller: Tree = ()
  hyperparams = setup.default_hyperparams(size)
  if setup.controller is not None:
    init_controller = setup.controller.init
    controller, hyperparams = platform.decision(
      lambda key: init_controller(key, size)
    )(members_lib.members_controller_key(run_key, 0))
  keys = members_lib.member_keys(run_key, 0, size)
  pool = () if initial is None else initial.pool
  return State(
    generation=jnp.zeros((), jnp.int32),
    emitter=Population(
      members=members_lib.first_members(setup, keys, pool),
      hyperparams=hyperparams,
      recent_fitness=jnp.full(
        (size, setup.config.fitness_window), jnp.nan, jnp.float32),
      controller=controller))


def _train(
  setup: Setup, state: State, pool: Tree, run_key: Key
) -> tuple[State, Trained]:
  """Lets members collect and learn."""
  keys = _next_keys(setup, state, run_key)
  members, *trained = setup.over_members(train_members)(
    state.members._replace(pool=pool), state.hyperparams,
    jax.vmap(jax.random.split)(keys)[:, 0])
  return state.with_members(members), Trained(*trained)


def _evaluate(
  setup: Setup, state: State, trained: Trained, env_states: Tree, run_key: Key
) -> tuple[State, GenerationReport]:
  """Evaluates members, and replaces those that the controller says."""
  config = setup.config
  generation = state.generation + 1
  if not setup.abilities.copies_states:  # So none were drawn before.
    env_states = members_lib.draw_member_evaluation(
      setup,
      members_lib.member_evaluation_keys(_next_keys(setup, state, run_key)))
  members, hyperparams, recent_fitness, controller = state.emitter
  with jax.named_scope("evaluate"):
    evaluated = setup.over_members(_evaluate_members)(members, env_states)
    # A few numbers per member, which every device then knows of all of them.
    (evaluation, scores, finite), trained = sharding.all_gather(
      setup.mesh, (evaluated, trained), config.population_size)
  if config.fitness not in scores:
    raise ValueError(
      f"fitness={config.fitness!r} is no score of this evaluation; give one of "
      f"{', '.join(sorted(scores))}.")
  latest = scores[config.fitness]
  finite = finite & trees.all_finite_leaves(
    (hyperparams, latest, scores["episode_return"]))
  latest = jnp.where(finite, latest, jnp.nan)
  recent_fitness = jnp.roll(recent_fitness, -1, axis=1)
  recent_fitness = recent_fitness.at[:, -1].set(latest)
  fitness = platform.decision(_windowed_mean)(recent_fitness)
  index = jnp.argmax(jnp.where(finite, latest, -jnp.inf))
  best_state, turn = moving.move_member_to_all(
    setup.mesh, members.learner, index)
  report = GenerationReport(
    generation=generation, evaluation=evaluation, scores=scores,
    fitness=fitness, hyperparams=hyperparams, metrics=trained.metrics,
    num_updates=trained.num_updates, finite=finite, decision=None,
    best=Best(
      member=index, fitness=latest[index],
      episode_return=scores["episode_return"][index],
      hyperparams=jax.tree.map(lambda x: x[index], hyperparams),
      state=best_state),
    evaluation_steps=evaluation.lengths, next_hyperparams=hyperparams,
    sampled_cells=jnp.full_like(fitness, -1, jnp.int32))
  if setup.controller is not None:
    decide = platform.decision(setup.controller.update)
    with jax.named_scope("decide"):
      controller, decision = sharding.run_replicated(setup.mesh, decide)(
        controller, members_lib.members_controller_key(run_key, generation),
        fitness, hyperparams)
    # During burn-in only non-finite members are replaced. Rounded up; the
    # steps themselves might not fit into an int32.
    burn_in = -(-config.burn_in_period // config.perturbation_interval)
    decision = _sparing(finite & (generation < burn_in), decision, hyperparams)
    with jax.named_scope("inherit"):
      members = inherit_in_population(
        setup, members, decision.parents, finite, turn)
    recent_fitness = recent_fitness[decision.parents]
    hyperparams = decision.hyperparams
    report = report._replace(decision=decision, next_hyperparams=hyperparams)
  population = Population(members, hyperparams, recent_fitness, controller)
  return State(generation, population), report


def _restart(setup: Setup, state: State, run_key: Key) -> State:
  """Replaces all members by new ones, which have no fitness yet."""
  return state._replace(emitter=state.emitter._replace(
    members=members_lib.new_members(setup, run_key, state.generation),
    recent_fitness=jnp.full_like(state.emitter.recent_fitness, jnp.nan)))


def _next_keys(setup: Setup, state: State, run_key: Key) -> Key:
  """Returns the members' keys [P] in the generation that follows."""
  return members_lib.member_keys(
    run_key, state.generation + 1, setup.config.population_size)


def _evaluate_members(
  setup: Setup, members: Members, env_states: environments.State
) -> tuple[actors.Evaluation, Scores, Array]:
  """Evaluates members, P of them, which may be a device's share."""
  scores: Scores = {}
  if setup.evaluate is None:
    evaluation = actors.evaluate_from_states(
      setup.eval_env, setup.learner, members.learner, env_states)
  else:
    evaluation, scores = setup.evaluate(
      setup.learner, members.learner, env_states)
  scores |= {"episode_return": jnp.mean(evaluation.returns, axis=1)}
  finite_part = members_lib.finite_part_of_members(members)
  return evaluation, scores, trees.all_finite_leaves(finite_part)


def _sparing(
  spared: Array, decision: controllers.Decision, hyperparams: Hyperparams
) -> controllers.Decision:
  """Returns a decision that leaves the spared members, bool [P], unchanged."""
  survival = (
    jnp.arange(decision.parents.shape[0], dtype=jnp.int32),
    hyperparams,
    jnp.zeros_like(decision.operator))
  parents, hyperparams, operator = jax.tree.map(
    lambda x, y: jnp.where(spared, x, y), survival, decision[:3])
  return decision._replace(
    parents=parents, hyperparams=hyperparams, operator=operator)


def inherit_in_population(
  setup: Setup, members: Members, parents: Array, finite: Array,
  turn: Array | int = 0,
) -> Members:
  """Gives children what they inherit.

  A non-finite member gets its parent's buffer and environments too, whatever
  the settings, since its own may hold non-finite values. Environments that
  can't be copied have been reset already.

  Args:
    setup: what is trained.
    members: leaves [S, ...].
    parents: int32 [P], of each member; a survivor's is itself.
    finite: bool [P], which members are.
    turn: the number of the first move, see `distributed.moving`.
  """
  indices = jnp.arange(parents.shape[0], dtype=parents.dtype)
  sources = jnp.where(finite, indices, parents)
  mesh = setup.mesh
  learner, buffers, environment, _, curriculum = members
  if setup.config.inherit_replay:
    (learner, buffers), turn = moving.inherit_by_moving(
      mesh, (learner, buffers), parents, turn)
  else:
    learner, turn = moving.inherit_by_moving(mesh, learner, parents, turn)
    if not setup.on_policy:
      # In place, since a non-finite member's parent is finite, no child.
      buffers, turn = moving.inherit_by_moving(
        mesh, buffers, sources, turn, in_place=True)
  if setup.abilities.copies_states:
    environment, turn = moving.inherit_by_moving(
      mesh, environment, sources, turn, in_place=True)
  if setup.boundaries:
    curriculum, _ = moving.inherit_by_moving(mesh, curriculum, parents, turn)
  return Members(learner, buffers, environment, curriculum=curriculum)


def _windowed_mean(recent_fitness: Array) -> Array:
  """Returns the mean of what the window holds; NaN if the latest return is."""
  return jnp.where(
    jnp.isfinite(recent_fitness[:, -1]), jnp.nanmean(recent_fitness, axis=1),
    jnp.nan)
