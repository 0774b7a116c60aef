"""Collecting experience: one agent a step at a time, or a population."""

from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp

from qdrl_haiku import checks, eager, environments, types
from qdrl_haiku.trees import named_tree_leaves


class ActingLearner(Protocol):
  """The part of a `learners.Learner` that acts."""

  @property
  def act(
    self,
  ) -> Callable[
    [types.State, types.Hyperparams, types.Array, types.Key], types.Array
  ]:
    """(state, hyperparams, observations, key) -> actions, which explore."""

  @property
  def act_greedy(self) -> Callable[[types.State, types.Array], types.Array]:
    """(state, observations) -> actions, the best known."""

  @property
  def hyperparams(self) -> types.Hyperparams:
    """The defaults."""


@eager.compiled_if_eager("env", "learner", "deterministic")
def step(
  env: environments.BatchedEnvironment,
  learner: ActingLearner,
  state: types.State,
  hyperparams: types.Hyperparams,
  env_state: environments.State,
  key: types.Key,
  deterministic: bool = False,
  pool: environments.State | None = None,
) -> tuple[environments.State, types.Transition]:
  """Steps E environments for one agent.

  Args:
    env: the environment; it resets itself where an episode ends.
    learner: whose `act` or `act_greedy` chooses the actions.
    state: the agent's state.
    hyperparams: the agent's hyperparameters, scalars.
    env_state: the environments' state, leaves [E, ...].
    key: for exploration; consumed.
    deterministic: whether to act greedily, without exploring.
    pool: with which states episodes begin, leaves [E, I, ...], see
      `Environment.step`; None to draw them.

  Returns:
    The environments' next state, and the transitions [E, ...].

  Raises:
    ValueError: if hyperparameters are missing, or aren't those of one agent.
  """
  checks.check_hyperparams(hyperparams, learner.hyperparams)
  for name, leaf in named_tree_leaves({"hyperparams": hyperparams}):
    if jnp.shape(leaf):
      raise ValueError(
        f"{name} has shape {jnp.shape(leaf)}, but a step is of one agent, "
        "whose hyperparameters are numbers; `actors.collect` steps a "
        "population."
      )
  if deterministic:
    action = learner.act_greedy(state, env_state.obs)
  else:
    action = learner.act(state, hyperparams, env_state.obs, key)
  return take_actions(env, env_state, action, pool)


@eager.compiled_if_eager("env", "learner", "num_steps")
def collect(
  env: environments.BatchedEnvironment,
  learner: ActingLearner,
  states: types.State,
  hyperparams: types.Hyperparams,
  env_states: environments.State,
  keys: types.Key,
  num_steps: int,
  pool: environments.State | None = None,
) -> tuple[environments.State, types.Transition]:
  """Steps the environments of a whole population, in one flat batch.

  Args:
    env: the environment; it resets itself where an episode ends.
    learner: whose `act` chooses the actions.
    states: the agents' states, leaves [P, ...].
    hyperparams: the agents' hyperparameters, leaves [P].
    env_states: the environments' states, leaves [P, E, ...].
    keys: [P], for exploration, one per agent; consumed.
    num_steps: T, steps of each environment.
    pool: with which states episodes begin, leaves [P, E, I, ...], see
      `Environment.step`; None to draw them.

  Returns:
    The environments' next states, and the transitions [P, T, E, ...].

  Raises:
    ValueError: if hyperparameters are missing, or if an argument has another
      first axis than P.
  """
  checks.check_hyperparams(hyperparams, learner.hyperparams)
  check_actors(
    env_states=env_states.done,
    states=states,
    hyperparams=hyperparams,
    keys=keys,
  )

  def body(
    env_states: environments.State, keys: types.Key
  ) -> tuple[environments.State, types.Transition]:
    actions = jax.vmap(learner.act)(states, hyperparams, env_states.obs, keys)
    return take_actions(env, env_states, actions, pool)

  step_keys = jax.vmap(jax.random.split, (0, None), 1)(keys, num_steps)
  env_states, transitions = jax.lax.scan(body, env_states, step_keys)
  return env_states, jax.tree.map(lambda x: x.swapaxes(0, 1), transitions)


def take_actions(
  env: environments.BatchedEnvironment,
  env_state: environments.State,
  action: types.Array,
  pool: environments.State | None = None,
) -> tuple[environments.State, types.Transition]:
  """Takes actions in environments with any leading axes."""
  next_state = env.step(env_state, action, pool)
  happened = collect_transition(env_state, action, next_state)
  # Only here, since elsewhere episodes are known as wholes.
  happened.extras["truncation"] = next_state.info["truncation"]
  return next_state, happened


def collect_transition(
  env_state: environments.State,
  action: types.Array,
  next_state: environments.State,
) -> types.Transition:
  """Returns the transition of a step, of environments with any leading axes."""
  extras = {}
  if "state_descriptor" in env_state.info:
    extras["descriptor"] = env_state.info["state_descriptor"]
    extras["next_descriptor"] = next_state.info["next_state_descriptor"]
  if "skill" in env_state.info:
    extras["skill"] = env_state.info["skill"]
  return types.Transition(
    observation=env_state.obs,
    action=action,
    reward=next_state.reward,
    discount=next_state.info["discount"],
    next_observation=next_state.info["next_observation"],
    extras=extras,
  )


def check_actors(**trees: types.Tree) -> None:
  """Refuses trees whose arrays don't all have the same first axis P."""
  (first, first_leaf), *_ = named = named_tree_leaves(trees)
  for name, leaf in named:
    shape = jnp.shape(leaf)
    if not shape or shape[0] != jnp.shape(first_leaf)[0]:
      other = f" (and {first} {jnp.shape(first_leaf)})" if name != first else ""
      raise ValueError(
        f"{name} has shape {shape}{other}, but the first axis of all is P, "
        "agents; give every array that axis. One agent is a population of one: "
        "jax.tree.map(lambda x: x[None], state), the same for the others."
      )
