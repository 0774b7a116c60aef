"""Environments of jumanji (Bonnet et al., arXiv 2306.09884), an extra."""

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from qdrl_haiku import names, specs
from qdrl_haiku.environments.interface import State
from qdrl_haiku.types import Array, Key, Tree

if TYPE_CHECKING:
  from jumanji import Environment
  from jumanji.types import TimeStep

# A policy has an output for each combination of a multi-discrete's numbers.
_MOST_ACTIONS = 4096
_EPISODE_LENGTH = 1000  # Of environments without a limit, which end themselves.


class JumanjiEnvironment:
  """One instance of an environment of jumanji.

  Named tuples are observed as dicts. Masks of actions are among what is
  observed, and bind nobody: an action that jumanji calls invalid does what it
  does there, and ends many games. Actions are one of a DiscreteArray, or of all
  combinations of a MultiDiscreteArray.
  """

  observation_spec = None

  def __init__(self, env: "Environment") -> None:
    self._env = env
    self._num_values = _num_values(env.action_spec)
    self.action_spec = specs.Discrete(math.prod(self._num_values))

  def reset(self, rng: Key) -> State:
    """Draws an initial state."""
    return self._state(*self._env.reset(rng))

  def step(self, state: State, action: Array) -> State:
    """Advances by one step with action [A], or one of n."""
    done = self._env.action_spec
    numbers = jnp.unravel_index(action, self._num_values)
    action = jnp.stack(numbers).reshape(done.shape).astype(done.dtype)
    return self._state(*self._env.step(state.pipeline_state, action))

  def _state(self, state: Tree, timestep: "TimeStep") -> State:
    """Returns a state as agents see it."""
    ended = timestep.last()
    return State(
      state, _as_dict(timestep.observation),
      jnp.asarray(timestep.reward, jnp.float32), ended.astype(jnp.float32),
      info={"truncation": jnp.float32(ended & (timestep.discount > 0))})


def _num_values(action_spec: object) -> tuple[int, ...]:
  """Returns how many values each number of an action has, none of a box's."""
  return tuple(map(int, np.ravel(getattr(action_spec, "num_values", ()))))


def _as_dict(observation: Tree) -> Tree:
  """Returns named tuples as dicts, at any depth."""
  if not hasattr(observation, "_asdict"):
    return observation
  return {name: _as_dict(x) for name, x in observation._asdict().items()}


def make_jumanji_environment(
  name: str, **kwargs: Any
) -> tuple[JumanjiEnvironment, int]:
  """Makes one instance of an environment of jumanji.

  Args:
    name: in jumanji's registry.
    **kwargs: of its constructor, such as `time_limit`.

  Returns:
    The environment, and its limit of steps, 1,000 if jumanji gives it none.

  Raises:
    ValueError: if there is no such environment or argument, or if the
      environment is of several agents, or has actions that no policy makes.
  """
  env_name = f"env_name='jumanji:{name}'"
  jumanji = names.import_extra(env_name, "jumanji")
  known = jumanji.registered_environments()
  if name not in known:
    raise ValueError(
      f"{env_name} is unknown; {names.nearest_name(name, known)}")
  try:
    env = jumanji.make(name, **kwargs)
  except (TypeError, OSError) as error:  # Some download their levels.
    raise ValueError(f"{env_name} can't be made: {error}") from error
  num_actions = math.prod(_num_values(env.action_spec))
  problem = ""
  if env.reward_spec.shape:
    problem = "rewards each of several agents, and here one learns"
  elif not 1 < num_actions <= _MOST_ACTIONS:
    problem = (
      f"takes {env.action_spec}, which isn't one of 2 to {_MOST_ACTIONS} "
      "actions")
  if problem:
    raise ValueError(f"{env_name} {problem}; take another environment.")
  limit = getattr(env, "time_limit", None) or _EPISODE_LENGTH
  return JumanjiEnvironment(env), int(limit)
