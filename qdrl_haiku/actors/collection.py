"""Collecting experience: one agent a step at a time, or a population."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import jax
import jax.numpy as jnp

from qdrl_haiku import checks, eager, environments, trees, types
from qdrl_haiku.types import Acted, Array, Hyperparams, Key, Transition, Tree


class ActingLearner(Protocol):
  """The part of a `learners.Learner` that acts."""

  @property
  def act(self) -> Callable[..., Acted]:
    """(state, hyperparams, observations, memory, key) -> explores."""

  @property
  def act_greedy(self) -> Callable[[types.State, Array, Tree], Acted]:
    """(state, observations, memory) -> acts as well as it can."""

  @property
  def memory(self) -> Callable[[], Tree]:
    """() -> what an agent remembers where an episode begins."""

  @property
  def hyperparams(self) -> Hyperparams:
    """The default values, a tree with leaves []."""


@eager.compiled_if_eager("env", "learner", "deterministic")
def step(
  env: environments.BatchedEnvironment, learner: ActingLearner,
  state: types.State, hyperparams: Hyperparams, env_state: environments.State,
  key: Key, deterministic: bool = False, pool: environments.State | None = None,
) -> tuple[environments.State, Transition]:
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
    The environments' next state, with what the agent remembers in each of them
    (`memory`), and the transitions [E, ...].
  """
  checks.check_hyperparams(hyperparams, learner.hyperparams)
  seen = remember(learner, env_state)
  if deterministic:
    acted = learner.act_greedy(state, seen.obs, seen.memory)
  else:
    acted = learner.act(state, hyperparams, seen.obs, seen.memory, key)
  tunables = _tunables(env, hyperparams)
  return take_actions(env, learner, seen, acted, pool, *tunables)


@eager.compiled_if_eager("env", "learner", "num_steps")
def collect(
  env: environments.BatchedEnvironment, learner: ActingLearner,
  states: types.State, hyperparams: Hyperparams, env_states: environments.State,
  keys: Key, num_steps: int, pool: environments.State | None = None,
  more_tunables: Mapping[str, Array] | None = None,
) -> tuple[environments.State, Transition]:
  """Steps the environments of a whole population, in one flat batch.

  Args:
    env: the environment; it resets itself where an episode ends.
    learner: whose `act` chooses the actions.
    states: the agents' states, leaves [P, ...].
    hyperparams: the agents' hyperparameters, leaves [P].
    env_states: the environments' states, leaves [P, E, ...].
    keys: [P], for exploration, one per agent; consumed.
    num_steps: T, steps of each environment.
    pool: as of `step`, leaves [P, E, I, ...].
    more_tunables: values [P] of tunables of `env` by name, beside those that
      the hyperparameters say.

  Returns:
    The environments' next states, and the transitions [P, T, E, ...].
  """
  checks.check_hyperparams(hyperparams, learner.hyperparams)
  tunables = _tunables(env, hyperparams, more_tunables or {})

  def body(
    env_states: environments.State, keys: Key
  ) -> tuple[environments.State, Transition]:
    acted = jax.vmap(learner.act)(
      states, hyperparams, env_states.obs, env_states.memory, keys)
    return take_actions(env, learner, env_states, acted, pool, *tunables)

  step_keys = jax.vmap(jax.random.split, (0, None), 1)(keys, num_steps)
  env_states, transitions = jax.lax.scan(
    body, remember(learner, env_states), step_keys)
  return env_states, jax.tree.map(lambda x: x.swapaxes(0, 1), transitions)


def _tunables(
  env: environments.BatchedEnvironment, hyperparams: Hyperparams,
  more: Mapping[str, Array] = MappingProxyType({}),
) -> list[dict[str, Array]]:
  """Returns what hyperparameters [...], and more, say of tunables by name.

  They are [..., 1], for all of an agent's instances; nothing, if none is said.
  """
  known, prefix = getattr(env, "tunables", {}), environments.TUNABLE
  said = {
    name.removeprefix(prefix): jnp.expand_dims(x, -1)
    for name, x in trees.named_tree_leaves(hyperparams)
    if name.startswith(prefix) and name.removeprefix(prefix) in known}
  said |= {name: jnp.expand_dims(x, -1) for name, x in more.items()}
  return [said] if said else []


def remember(
  learner: ActingLearner, env_state: environments.State
) -> environments.State:
  """Puts an agent's first memories, if it has any, into states without."""
  if jax.tree.leaves(env_state.memory):
    return env_state
  shape = env_state.done.shape
  return env_state.replace(memory=jax.tree.map(
    lambda x: jnp.broadcast_to(x, (*shape, *jnp.shape(x))), learner.memory()))


def take_actions(
  env: environments.BatchedEnvironment, learner: ActingLearner,
  env_state: environments.State, acted: Acted,
  pool: environments.State | None = None, *tunables: dict[str, Array],
) -> tuple[environments.State, Transition]:
  """Takes actions in environments with any leading axes.

  Args:
    env: the environment; it resets itself where an episode ends.
    learner: whose `memory` begins anew with an episode.
    env_state: the environments' states, leaves [..., E, ...].
    acted: actions, memories and extras of the learner's `act`.
    pool: initial states of later episodes, see `Environment.step`.
    *tunables: at most one dict: values [..., 1] of `env.tunables` by name.

  Returns:
    The environments' next states, and the transitions [..., E, ...].

  Raises:
    ValueError: if extras of the learner and of the environment share a name.
  """
  next_state = env.step(
    env_state.replace(memory=()), acted.action, pool, *tunables)
  ends = next_state.done > 0.5
  # A memory begins anew where an episode does.
  memory = jax.tree.map(
    lambda first, x: jnp.where(
      jnp.expand_dims(ends, range(ends.ndim, x.ndim)), first, x),
    learner.memory(), acted.memory)
  happened = collect_transition(env_state, acted.action, next_state)
  # Only here: evaluation, which keeps whole episodes, knows their ends.
  happened.extras["truncation"] = next_state.info["truncation"]
  if (told := next_state.info.get(environments.CURRICULUM)) is not None:
    episodes = {"episodes": next_state.info["episodes"]}
    happened.extras[environments.CURRICULUM] = told | episodes
  if both := ", ".join(acted.extras.keys() & happened.extras.keys()):
    raise ValueError(
      f"the learner's act returns extras with names that the environment uses "
      f"({both}); rename them.")
  return next_state.replace(memory=memory), happened._replace(
    extras=acted.extras | happened.extras)


def collect_transition(
  env_state: environments.State, action: Array, next_state: environments.State
) -> Transition:
  """Returns the transition [...] of an `action` [..., A].

  It leads from `env_state` to `next_state`, states with any leading axes [...].
  """
  before, after = env_state.info, next_state.info
  names = ["skill", "skill_return"]
  extras = {name: before[name] for name in names if name in before}
  if "state_descriptor" in before:
    extras["descriptor"] = before["state_descriptor"]
    extras["next_descriptor"] = after["next_state_descriptor"]
  if "reward_terms" in after:
    extras["reward_terms"] = after["reward_terms"]
  return Transition(
    env_state.obs, action, next_state.reward, after["discount"],
    after["next_observation"], extras)
