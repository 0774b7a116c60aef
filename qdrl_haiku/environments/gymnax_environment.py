"""Environments of gymnax: pure JAX, as brax's are.

Lange (2022), "gymnax": classic control, MinAtar, bsuite, and others. The
package is an extra; nothing of it is imported before it is asked for.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku import names, specs
from qdrl_haiku.environments.interface import State
from qdrl_haiku.types import Array, Key, Tree


class GymnaxEnvironment:
  """One instance of an environment of gymnax.

  What gymnax says is terminated terminates. Its time limit doesn't end an
  episode here: that is `episode_length`, and truncates.

  Pictures of MinAtar are observed as the booleans that they are, other Boxes of
  three axes as they are, the rest as flat vectors of floats, one-hot if they
  are Discrete. Actions are those of a Discrete, or a Box's, from [-1, 1].

  Attributes:
    wrapped: gymnax's environment.
    params: what gymnax's functions are given.
  """

  def __init__(self, env: Any, params: Any, has_booleans: bool) -> None:
    """Wraps one instance with its parameters; see `make_gymnax_environment`."""
    self.wrapped, self.params = env, params
    self._seen, self._done = (
      env.observation_space(params), env.action_space(params))
    self.observation_spec = _observation_spec(self._seen, has_booleans)
    self.action_spec: specs.Action = (
      specs.Discrete(int(self._done.n)) if hasattr(self._done, "n")
      else specs.Continuous(math.prod(self._done.shape)))

  def reset(self, rng: Key) -> State:
    """Draws an initial state."""
    key, reset_key = jax.random.split(rng)
    obs, state = self.wrapped.reset_env(reset_key, self.params)
    zero = jnp.zeros(())
    return State((state, key), self._observed(obs), zero, zero)

  def step(self, state: State, action: Array) -> State:
    """Advances by one step with action [A], or one of n."""
    before, key = state.pipeline_state
    key, step_key = jax.random.split(key)
    if isinstance(self.action_spec, specs.Continuous):
      low, high = (jnp.asarray(x) for x in (self._done.low, self._done.high))
      share = (jnp.clip(action, -1, 1).reshape(self._done.shape) + 1) / 2
      action = low + share * (high - low)
    obs, after, reward, terminated, _ = self.wrapped.step_env(
      step_key, before, action, self.params)
    return State(
      (after, key), self._observed(obs), jnp.asarray(reward, jnp.float32),
      jnp.asarray(terminated, jnp.float32))

  def _observed(self, observation: Array) -> Tree:
    """Returns what gymnax observes, as the spec has it."""
    spec = self.observation_spec
    if hasattr(self._seen, "n"):
      return jax.nn.one_hot(observation, self._seen.n)
    return observation.reshape(spec.shape).astype(spec.dtype)


def make_gymnax_environment(
  name: str, **kwargs: Any
) -> tuple[GymnaxEnvironment, int]:
  """Makes one instance of an environment of gymnax.

  Args:
    name: in gymnax's registry.
    **kwargs: fields of the environment's parameters, such as `memory_length`
      of MemoryChain-bsuite, or arguments of its constructor, such as `size` of
      DeepSea-bsuite. Nothing is derived from them: who changes CartPole-v1's
      `masspole` also gives `total_mass` and `polemass_length`.

  Returns:
    The environment, and the number of steps after which gymnax truncates.
  """
  env_name = f"env_name='gymnax:{name}'"
  try:
    import gymnax
  except ModuleNotFoundError as error:
    if error.name != "gymnax":
      raise
    raise ValueError(
      f"{env_name} needs gymnax; pip install 'qdrl_haiku[gymnax]'.") from error
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
  one = GymnaxEnvironment(env, params, name.endswith("-MinAtar"))
  return one, int(params.max_steps_in_episode)


def _observation_spec(space: Any, has_booleans: bool) -> specs.Array:
  """Returns what is observed of a space of gymnax."""
  if hasattr(space, "n"):
    return specs.Array((int(space.n),), lower=0, upper=1)
  is_picture = len(space.shape) == 3
  return specs.Array(
    space.shape if is_picture else (math.prod(space.shape),),
    bool if has_booleans else jnp.float32,
    float(jnp.min(space.low)), float(jnp.max(space.high)))
