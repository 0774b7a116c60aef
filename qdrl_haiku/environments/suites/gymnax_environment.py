"""Environments of gymnax (Lange, 2022), an extra: pure JAX, as brax's are."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdrl_haiku import names, specs
from qdrl_haiku.environments.interface import State
from qdrl_haiku.types import Array, Key

if TYPE_CHECKING:
  from gymnax.environments.environment import Environment, EnvParams


class GymnaxEnvironment:
  """One instance of an environment of gymnax.

  What gymnax calls terminated ends an episode, its time limit doesn't. Pictures
  of MinAtar are observed as the booleans that they are, other Boxes of three
  axes as they are, the rest as vectors, one-hot of a Discrete. Actions are one
  of a Discrete, or scaled from [-1, 1] to a Box.
  """

  observation_spec = None

  def __init__(self, env: "Environment", params: "EnvParams") -> None:
    self._env, self._params = env, params
    self._seen_space, self._act_space = (
      env.observation_space(params), env.action_space(params))
    self._dtype = bool if env.name.endswith("-MinAtar") else jnp.float32
    self.action_spec: specs.Action = (
      specs.Discrete(int(self._act_space.n)) if hasattr(self._act_space, "n")
      else specs.Continuous(math.prod(self._act_space.shape)))

  def reset(self, rng: Key) -> State:
    """Draws an initial state."""
    key, reset_key = jax.random.split(rng)
    obs, state = self._env.reset_env(reset_key, self._params)
    zero = jnp.zeros(())
    return State((state, key), self._observed(obs), zero, zero)

  def step(self, state: State, action: Array) -> State:
    """Advances by one step with action [A], or one of n."""
    before, key = state.pipeline_state
    key, step_key = jax.random.split(key)
    if isinstance(self.action_spec, specs.Continuous):
      space = self._act_space
      low, high = jnp.asarray(space.low), jnp.asarray(space.high)
      share = (jnp.clip(action, -1, 1).reshape(space.shape) + 1) / 2
      action = low + share * (high - low)
    obs, after, reward, terminated, _ = self._env.step_env(
      step_key, before, action, self._params)
    return State(
      (after, key), self._observed(obs), jnp.asarray(reward, jnp.float32),
      jnp.asarray(terminated, jnp.float32))

  def _observed(self, observation: Array) -> Array:
    """Returns what gymnax observes, as agents see it."""
    if hasattr(self._seen_space, "n"):
      return jax.nn.one_hot(observation, self._seen_space.n)
    seen = observation.astype(self._dtype)
    return seen if seen.ndim == 3 else seen.reshape(-1)


def make_gymnax_environment(
  name: str, **kwargs: Any
) -> tuple[GymnaxEnvironment, int]:
  """Makes one instance of an environment of gymnax.

  Args:
    name: in gymnax's registry.
    **kwargs: its parameters, such as `memory_length` of MemoryChain-bsuite (of
      CartPole-v1's `masspole`, `total_mass` and `polemass_length` don't
      follow), or arguments of its constructor, as `size` of DeepSea-bsuite.

  Returns:
    The environment, and the number of steps after which gymnax truncates.
  """
  env_name = f"env_name='gymnax:{name}'"
  gymnax = names.import_extra(env_name, "gymnax")
  if name not in gymnax.registered_envs:
    advice = names.nearest_name(name, gymnax.registered_envs)
    raise ValueError(f"{env_name} is unknown; {advice}")
  known: set[str] = set()
  try:
    known |= {x.name for x in dataclasses.fields(gymnax.make(name)[1])}
    changes = {x: kwargs.pop(x) for x in known & kwargs.keys()}
    env, params = gymnax.make(name, **kwargs)
  except (TypeError, OSError) as error:  # Some download what they show.
    raise ValueError(
      f"{env_name} can't be made: {error}; its parameters are "
      f"{', '.join(sorted(known))}.") from error
  params = params.replace(**changes)
  return GymnaxEnvironment(env, params), int(params.max_steps_in_episode)
