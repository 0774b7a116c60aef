"""A population in training: what it consists of and how it begins."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import (
  actors,
  eager,
  environments,
  learners,
  prng,
  replay,
  types,
)
from qdrl_haiku.cpu import one_by_one
from qdrl_haiku.distributed import sharding
from qdrl_haiku.training import config as config_lib
from qdrl_haiku.training import initial_states
from qdrl_haiku.training import setup as setup_lib
from qdrl_haiku.training.setup import Setup


class Members(NamedTuple):
  """The agents and all that belongs to each of them, leaves [S, ...].

  S is P unless devices share them unevenly, see `sharding`.

  Attributes:
    learner: the learners' states.
    replay: the replay buffers.
    environment: the environments' states, leaves [S, E, ...].
    pool: with which states their episodes begin in a generation, leaves
      [S, E, I, ...], see `initial_states`; () between generations, and where
      each is drawn when it begins.
  """

  learner: types.State
  replay: replay.ReplayState
  environment: environments.State
  pool: Any = ()


class Population(NamedTuple):
  """Everything that training needs in order to go on.

  Attributes:
    members: the agents.
    hyperparams: their hyperparameters, float32 leaves [P].
    recent_fitness: [P, fitness_window], by the last evaluations, the latest at
      the end, NaN before the first; a child has its parent's.
    generation: int32 [], how many generations have been trained.
    controller: what the controller remembers, see `controllers.Controller`; ()
      where there is none.
  """

  members: Members
  hyperparams: types.Hyperparams
  recent_fitness: types.Array
  generation: types.Array
  controller: Any = ()

  def with_members(self, members: Any) -> "Population":
    """Returns the same with other members, or with () in their place."""
    return self._replace(members=members)


def must_be_finite(members: Members) -> Any:
  """Returns what of members has to be finite: what they learn and act with.

  Not their environments: an infinity may stand there by design (a timer that
  never ends), and an instance that returned anything non-finite is reset, and
  nothing is learned from that step.
  """
  return members.learner, members.replay


def member_keys(
  run_key: types.Key, generation: types.Array | int, population_size: int
) -> types.Key:
  """Returns the keys of the members in one generation."""
  run_key = types.typed_key(run_key)
  if run_key.ndim:
    indices = jnp.zeros(population_size, jnp.int32)
  else:
    indices = jnp.arange(population_size)
    run_key = jnp.broadcast_to(run_key, (population_size,))
  fold_in = jax.vmap(jax.random.fold_in, (0, None))
  return jax.vmap(jax.random.fold_in)(fold_in(run_key, generation), indices)


def draw_initial_states(
  setup: Setup, run_key: types.Key, generation: types.Array | int
) -> initial_states.InitialStates:
  """Draws the states in which the episodes of a generation begin."""
  keys = member_keys(run_key, generation, setup.config.population_size)
  return initial_states.draw_for_members(setup, keys)


def controller_key(
  run_key: types.Key, generation: types.Array | int
) -> types.Key:
  """Returns the key of the controller in one generation."""
  run_key = types.typed_key(run_key)
  if run_key.ndim:
    run_key = run_key[0]
  return jax.random.fold_in(
    jax.random.fold_in(run_key, generation), prng.OfGeneration.CONTROLLER
  )


@eager.compiled("setup")
def init_members(
  setup: Setup, keys: types.Key, env_states: environments.State
) -> Members:
  """Makes new agents, with empty buffers, in environments.

  Args:
    setup: what the population is composed of.
    keys: [P]; consumed.
    env_states: of `setup.env.reset`, leaves [P, E, ...].

  Returns:
    The members.
  """
  members = init_agents(setup, keys)
  return put_into_environments(setup, members, env_states, keys)


def init_agents(setup: Setup, keys: types.Key) -> Members:
  """Makes new agents, with empty buffers, that aren't in environments yet."""
  learner_states = jax.vmap(setup.learner.init)(keys)
  example = _transition_example(setup, learner_states)
  buffers = jax.vmap(lambda _: setup.buffer.init(example))(
    jnp.arange(keys.shape[0])
  )
  nowhere: Any = ()
  return Members(learner_states, buffers, nowhere)


def put_into_environments(
  setup: Setup,
  members: Members,
  env_states: environments.State,
  keys: types.Key,
) -> Members:
  """Gives new agents environments, as if all had been running for long.

  The first episodes are of different ages: otherwise all of an agent's
  environments, which are truncated at the same age, would see new initial
  states at the same time only.
  """
  keys = jax.vmap(jax.random.fold_in, (0, None))(keys, prng.OfMember.AGES)
  ages = jax.vmap(
    lambda key: jax.random.randint(
      key, (setup.config.num_envs,), 0, setup.env.episode_steps
    )
  )(keys)
  info = env_states.info | {"steps": ages}
  return members._replace(environment=env_states.replace(info=info))


@eager.compiled("setup")
def init_population(
  setup: Setup,
  run_key: types.Key,
  pool: Any = (),
) -> Population:
  """Returns a population before its first generation.

  Args:
    setup: what it is composed of.
    run_key: the run's key, or keys [P], see `member_keys`.
    pool: in whose first states members begin, of generation 0, see
      `initial_states.draw_pool`; drawn by default.

  Returns:
    The population.

  Raises:
    ValueError: if the settings don't fit each other, if one has no effect, as
      `map_elites` would, see `init_illumination`, or if the learner isn't as
      `learners.Learner` says.
  """
  setup_lib.check_no_repertoire(setup, "init_population", "init_illumination")
  setup_lib.check(setup)
  check_learner(setup)
  size = setup.config.population_size
  config_lib.iterations(setup.config, setup.learner.batches_per_update)
  state: Any = ()
  if setup.controller is None:
    hyperparams = jax.tree.map(
      lambda x: jnp.full(size, x, jnp.float32), setup.learner.hyperparams
    )
  else:
    init = setup.controller.init
    state, hyperparams = one_by_one.alone(lambda key: init(key, size))(
      controller_key(run_key, 0)
    )
  return Population(
    members=_members(setup, member_keys(run_key, 0, size), pool),
    hyperparams=hyperparams,
    recent_fitness=jnp.full(
      (size, setup.config.fitness_window), jnp.nan, jnp.float32
    ),
    generation=jnp.zeros((), jnp.int32),
    controller=state,
  )


@eager.compiled("setup")
def restart_members(
  setup: Setup, population: Population, run_key: types.Key
) -> Population:
  """Replaces all members by new ones, when none is left to inherit from.

  Args:
    setup: what the population is composed of.
    population: of non-finite members; its hyperparameters stay.
    run_key: the run's key, or keys [P], see `member_keys`.

  Returns:
    The population with new members, which have no fitness yet.

  Raises:
    ValueError: if there is a repertoire, see `restart_illumination`.
  """
  setup_lib.check_no_repertoire(
    setup, "restart_members", "restart_illumination"
  )
  return population._replace(
    members=new_members(setup, run_key, population.generation),
    recent_fitness=jnp.full_like(population.recent_fitness, jnp.nan),
  )


def new_members(
  setup: Setup, run_key: types.Key, generation: types.Array
) -> Members:
  """Returns new members in place of all those of a generation."""
  keys = member_keys(run_key, generation, setup.config.population_size)
  keys = jax.vmap(jax.random.fold_in, (0, None))(keys, prng.OfMember.RESTART)
  return _members(setup, keys)


def _members(setup: Setup, keys: types.Key, pool: Any = ()) -> Members:
  """Returns new members in their slots, of keys [P]."""
  return sharding.over_members(setup, init_members)(
    keys, initial_states.first_states(setup, keys, pool)
  )


def choose(where: types.Array, on_true: Any, on_false: Any) -> Any:
  """Chooses for each member between two trees."""
  select = jax.vmap(
    lambda where, *trees: jax.tree.map(
      lambda x, y: jnp.where(where, x, y), *trees
    )
  )
  return select(where, on_true, on_false)


def check_learner(setup: Setup) -> None:
  """Refuses a learner that can't learn from what is stored, see its `check`."""
  env = setup.env
  # What is stored is known of any learner that acts.
  zeros = jax.vmap(lambda observation: jnp.zeros(env.action_size))
  still = setup.learner._replace(
    act=lambda state, hyperparams, observations, key: zeros(observations),
    hyperparams={},
  )
  example = _transition_example(setup._replace(learner=still), jnp.zeros(1))
  learners.check(
    setup.learner,
    env.observation_size,
    env.action_size,
    {name: example.extras[name] for name in setup.config.replay_extras},
    setup.config.batch_size,
  )


def stored(setup: Setup, transitions: types.Transition) -> types.Transition:
  """Returns what of transitions the replay buffer keeps."""
  names = {*setup.config.replay_extras}
  if missing := names - transitions.extras.keys():
    raise ValueError(
      f"replay_extras name {', '.join(sorted(missing))}, which transitions of "
      "this environment don't have; name some of "
      f"{', '.join(sorted(transitions.extras))}."
    )
  if setup.config.n_step > 1:
    names.add("truncation")
  return transitions._replace(
    extras={name: transitions.extras[name] for name in sorted(names)}
  )


def _transition_example(
  setup: Setup, learner_states: types.State
) -> types.Transition:
  """Returns shapes and dtypes of one stored transition."""
  def one_step(states: Any) -> types.Transition:
    keys = jax.random.split(
      jax.random.key(0), jax.tree.leaves(states)[0].shape[0]
    )
    env_states = setup.env.reset(keys[:, None])
    hyperparams = jax.tree.map(
      lambda x: jnp.full(keys.shape, x, jnp.float32),
      setup.learner.hyperparams,
    )
    _, transitions = actors.collect(
      setup.env, setup.learner, states, hyperparams, env_states, keys, 1
    )
    return stored(setup, transitions)

  shapes = jax.eval_shape(one_step, learner_states)
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape[3:], x.dtype), shapes
  )
