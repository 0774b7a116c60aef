"""The members of a population: how they and their episodes begin.

A reset of an environment takes about as long to compile as a step, and an
accelerator resets all instances where any has ended. So programs that train or
evaluate contain no reset: they are given initial states, which another program
draws between generations from the members' keys. Where environments can't copy
states, () stands in for these.
"""

import math

import jax
import jax.numpy as jnp

from qdrl_haiku import actors, environments, learners, prng
from qdrl_haiku.learners.check import check_learner_functions
from qdrl_haiku.training.curriculum import first_curriculum
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import InitialStates, Members
from qdrl_haiku.types import Array, Key, Transition, Tree


def finite_part_of_members(members: Members) -> Tree:
  """Returns what members learn and act with, which has to be finite."""
  # Not their environments: an infinity may stand there by design (a timer that
  # never ends), and an instance that returned anything non-finite is reset.
  return members.learner, members.replay


def member_keys(
  run_key: Key, generation: Array | int, population_size: int
) -> Key:
  """Returns the keys [P] of the members in one `generation`.

  `run_key` is one key, or [P] of runs that are trained side by side;
  `population_size` is P.
  """
  run_key = prng.typed_key(run_key)
  if run_key.ndim:
    indices = jnp.zeros(population_size, jnp.int32)
  else:
    indices = jnp.arange(population_size)
    run_key = jnp.broadcast_to(run_key, (population_size,))
  keys = prng.fold_in_each(run_key, generation)
  return jax.vmap(jax.random.fold_in)(keys, indices)


def members_controller_key(run_key: Key, generation: Array | int) -> Key:
  """Returns the key of the controller in one generation."""
  run_key = prng.typed_key(run_key).ravel()[0]
  return jax.random.fold_in(
    jax.random.fold_in(run_key, generation), prng.OfGeneration.CONTROLLER)


def init_member_agents(setup: Setup, keys: Key) -> Members:
  """Makes new agents, with empty buffers, that aren't in environments yet."""
  learner_states = jax.vmap(setup.learner.init)(keys)
  nothing: Tree = ()
  first: Tree = ()
  if setup.boundaries:
    first = first_curriculum(keys.shape[0], len(setup.boundaries))
  members = Members(learner_states, nothing, nothing, curriculum=first)
  if setup.on_policy:
    return members
  example = member_transition_example(setup)
  buffers = jax.vmap(lambda _: setup.buffer.init(example))(keys)
  return members._replace(replay=buffers)


def put_members_into_environments(
  setup: Setup, members: Members, env_states: environments.State, keys: Key
) -> Members:
  """Gives new agents environments, as if all had been running for long.

  The first episodes are of different ages: otherwise all of an agent's
  environments, which are truncated at the same age, would see new initial
  states at the same time only. Where instances can't be reset alone, they do.

  Args:
    setup: what is trained.
    members: leaves [S, ...], without environments.
    env_states: initial states, leaves [S, E, ...].
    keys: [S], the members'.
  """
  if setup.abilities.resets_instances:
    keys = prng.fold_in_each(keys, prng.OfMember.AGES)
    ages = jax.vmap(lambda key: jax.random.randint(
      key, (setup.config.num_envs,), 0, setup.env.episode_length))(keys)
    env_states = env_states.replace(info=env_states.info | {"steps": ages})
  return members._replace(
    environment=actors.remember(setup.learner, env_states))


def first_members(setup: Setup, keys: Key, pool: Tree = ()) -> Members:
  """Makes new members of a `setup` from `keys` [P], leaves [S, ...].

  Their first states are those of `pool`, leaves [P, E, I, ...], or () to draw
  them.
  """

  def init(setup: Setup, keys: Key, env_states: environments.State) -> Members:
    members = init_member_agents(setup, keys)
    return put_members_into_environments(setup, members, env_states, keys)

  env_states = first_member_states(setup, keys, pool)
  return setup.over_members(init)(keys, env_states)


def new_members(setup: Setup, run_key: Key, generation: Array) -> Members:
  """Returns new members of a `setup` in place of all those of a `generation`.

  Their keys follow from `run_key`, see `member_keys`.
  """
  keys = member_keys(run_key, generation, setup.config.population_size)
  return first_members(setup, prng.fold_in_each(keys, prng.OfMember.RESTART))


def draw_member_pool(setup: Setup, keys: Key) -> environments.State:
  """Draws the states with which the members' next episodes begin."""

  def draw(setup: Setup, keys: Key) -> environments.State:
    # Instances are told apart along the last axis, such as by their skills.
    states = setup.env.reset(jnp.moveaxis(_pool_keys(setup, keys), 2, 0))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), states)

  return setup.over_members(draw)(keys)


def draw_for_members(setup: Setup, keys: Key) -> InitialStates:
  """Draws all states in which the episodes of a generation begin.

  If one environment without skills is used to collect and to evaluate, one
  reset draws both, since no part of the program takes longer to compile.
  """
  if not setup.abilities.copies_states:
    return InitialStates()
  to_evaluate = member_evaluation_keys(keys)
  is_plain = isinstance(setup.env, environments.Environment)
  if setup.env is not setup.eval_env or not is_plain:
    return InitialStates(
      draw_member_pool(setup, keys), draw_member_evaluation(setup, to_evaluate))

  def draw(setup: Setup, keys: Key, to_evaluate: Key) -> InitialStates:
    of_pool = _pool_keys(setup, keys)
    shape, size = of_pool.shape, math.prod(of_pool.shape[1:])
    of_pool = of_pool.reshape(-1, size)
    of_evaluation = _split(to_evaluate, (setup.config.num_eval_episodes,))
    states = setup.env.reset(jnp.concatenate([of_pool, of_evaluation], axis=1))
    return InitialStates(
      jax.tree.map(lambda x: x[:, :size].reshape(*shape, *x.shape[2:]), states),
      jax.tree.map(lambda x: x[:, size:], states))

  return setup.over_members(draw)(keys, to_evaluate)


def member_evaluation_keys(keys: Key) -> Key:
  """Returns the keys of the members' evaluation in one generation."""
  return jax.vmap(jax.random.split)(keys)[:, 1]


def first_member_states(
  setup: Setup, keys: Key, pool: Tree = ()
) -> environments.State:
  """Returns the states [S, E, ...] in which members begin to collect.

  Args are those of `first_members`.
  """

  def draw(setup: Setup, keys: Key) -> environments.State:
    return setup.env.reset(_pool_keys(setup, keys)[:, :, 0])

  if pool:
    return jax.tree.map(lambda x: x[:, :, 0], pool)
  return setup.over_members(draw)(keys)


def draw_member_evaluation(setup: Setup, keys: Key) -> environments.State:
  """Draws the states in which agents are evaluated."""

  def draw(setup: Setup, keys: Key) -> environments.State:
    return setup.eval_env.reset(_split(keys, (setup.config.num_eval_episodes,)))

  return setup.over_members(draw)(keys)


def _pool_keys(setup: Setup, keys: Key) -> Key:
  """Returns the keys of a pool's states, [P, E, I], of the members' [P]."""
  keys = prng.fold_in_each(keys, prng.OfMember.POOL)
  return _split(keys, (setup.config.num_envs, setup.config.pool_size))


def _split(keys: Key, shape: tuple[int, ...]) -> Key:
  """Returns keys [P, *shape] of keys [P]."""
  return jax.vmap(lambda key: jax.random.split(key, shape))(keys)


def check_members_learner(setup: Setup) -> None:
  """Refuses a learner that can't learn from stored transitions."""
  check_learner_functions(setup.learner)
  extras = member_transition_example(setup).extras
  learners.check(
    setup.learner, setup.env.observation_spec, setup.env.action_spec,
    {name: extras[name] for name in setup.learner.stores if name in extras},
    setup.config.batch_size,
    (setup.config.rollout_length, setup.config.num_envs))


def stored_by_members(setup: Setup, transitions: Transition) -> Transition:
  """Returns transitions with only the extras that learning needs."""
  names = {*setup.learner.stores}
  if setup.keeps_order or setup.on_policy:
    names.add("truncation")
  return transitions._replace(
    extras={name: x for name, x in transitions.extras.items() if name in names})


def rollout_without_nonfinite(
  rollout: Transition, is_finite: Array
) -> Transition:
  """Replaces the non-finite steps of a rollout [T, E] by its first finite one.

  The replacement is an episode of its own, truncated after that step. The step
  before it is truncated too, since the step that followed it is unusable.
  """
  first = jnp.argmax(is_finite)  # Of all, as if there were one axis.

  def filled(x: Array) -> Array:
    instead = x.reshape(-1, *x.shape[2:])[first]
    where = is_finite.reshape(*is_finite.shape, *[1] * (x.ndim - 2))
    return jnp.where(where, x, instead)

  rollout = jax.tree.map(filled, rollout)
  goes_on = is_finite & jnp.roll(is_finite, -1, axis=0).at[-1].set(True)
  # What has terminated isn't truncated too.
  truncation = jnp.where(
    goes_on, rollout.extras["truncation"], rollout.discount)
  return rollout._replace(extras=rollout.extras | {"truncation": truncation})


def member_transition_example(setup: Setup) -> Transition:
  """Returns shapes and dtypes of one transition, as learned from."""
  learner = setup.learner

  def one_step(key: Key) -> Transition:
    env_states = setup.env.reset(key[None])
    _, happened = actors.step(
      setup.env, learner, learner.init(key), learner.hyperparams, env_states,
      key)
    return stored_by_members(setup, happened)

  shapes = jax.eval_shape(one_step, jax.random.key(0))
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), shapes)
