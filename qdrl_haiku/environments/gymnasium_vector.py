"""Environments of Gymnasium: stepped on the host, between jax's own steps.

What `Environment` keeps in its states, these keep in Python objects that jax
neither copies, nor spreads over devices, nor writes to a checkpoint. So there
is one set of instances per `GymnasiumEnvironment`: a reset takes all of them,
only the state that was returned last can be stepped, and agents are evaluated
in another `GymnasiumEnvironment` than the one in which they collect. A state
that isn't the last is refused when it is stepped, never stepped out of order.
"""

import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from qdrl_haiku import names, types
from qdrl_haiku.environments import base, gymnasium_spaces, interface

_DEFAULT_EPISODE_LENGTH = 1000


class GymnasiumEnvironment:
  """Instances of one environment of Gymnasium, with episodes and resets.

  Attributes:
    env_id: as in Gymnasium's registry.
    on_host: True, which says that states can't be copied.
    observation_size: O, of the flattened observation.
    action_size: A, of the flattened action.
    episode_length: steps after which an episode is truncated.
    episode_steps: the same.
    descriptor: None.
  """

  on_host = True

  def __init__(
    self, env_id: str, *, episode_length: int | None = None, **kwargs: Any
  ) -> None:
    """Makes one instance, to look at its spaces.

    Args:
      env_id: as in Gymnasium's registry, or "module:id" with a module that
        registers it.
      episode_length: truncates episodes, at least 1; by default what Gymnasium
        has registered, or 1,000.
      **kwargs: for the environment's constructor.

    Raises:
      ValueError: if there is no such environment, if its constructor takes
        other arguments, if its spaces aren't boxes, or if the actions' has no
        bounds, or if the number is out of range.
    """
    import gymnasium

    self.env_id = env_id
    self._make_vec = functools.partial(
      gymnasium.make_vec,
      env_id,
      vectorization_mode="sync",
      # Episodes end where we say, and only what ended is reset, with its seed.
      vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED},
      max_episode_steps=-1,
      disable_env_checker=True,
      **kwargs,
    )
    env = _make(env_id, kwargs)
    spaces: dict[str, Any] = {
      name: getattr(env, name) for name in ("observation_space", "action_space")
    }
    for name, space in spaces.items():
      gymnasium_spaces.check(env_id, name, space)
    self._action_space = spaces["action_space"]
    if episode_length is None:
      spec = env.spec
      episode_length = spec.max_episode_steps if spec else None
      episode_length = episode_length or _DEFAULT_EPISODE_LENGTH
    env.close()
    # Steps are counted in int32.
    if not 1 <= episode_length < 2**30:
      raise ValueError(
        f"episode_length={episode_length} must be at least 1 and below 2**30."
      )
    self.observation_size, self.action_size = (
      math.prod(space.shape) for space in spaces.values()
    )
    self.episode_length: int = episode_length
    self.episode_steps: int = episode_length
    self.descriptor: interface.Descriptor | None = None
    self._envs: Any = None
    # Counts resets and steps, from 0 again after 2^31, since states are int32.
    # Each has the count with which it came, and the numbers of the instances: a
    # ticket, [B, 2].
    self._clock = 0
    self._reset = jax.jit(self._reset_batch)
    self._step = jax.jit(self._step_batch)

  def reset(self, key: types.Key) -> interface.State:
    """Starts one episode per key, and ends all those that there were.

    Args:
      key: [...], consumed.

    Returns:
      As `Environment.reset`.
    """
    return base.as_flat_batch(self._reset, key.shape, key)

  def step(
    self,
    state: interface.State,
    action: types.Array,
    pool: interface.State | None = None,
  ) -> interface.State:
    """Steps every instance, and resets those whose episode ended.

    Args:
      state: with leading axes [...], the one that was returned last.
      action: [..., A], in [-1, 1], scaled to the bounds of the action space;
        where that has integers, each of them has an equal share.
      pool: None, since states can't be kept.

    Returns:
      As `Environment.step`.

    Raises:
      ValueError: if there is a pool.
    """
    if pool is not None:
      raise ValueError("pool has no effect on the host; leave it at None.")
    return base.as_flat_batch(self._step, state.done.shape, state, action)

  def advance(
    self, state: interface.State, action: types.Array
  ) -> interface.State:
    """Steps every instance, as evaluation does.

    Args:
      state: with leading axes [...], the one that was returned last.
      action: [..., A], in [-1, 1].

    Returns:
      As `step`, but `obs` is the successor observation at episode ends as well.
      What follows those is for the caller to mask: the instance has been reset.
    """
    state = self.step(state, action)
    return state.replace(obs=state.info["next_observation"])

  def _reset_batch(self, key: types.Key) -> interface.State:
    """Resets all instances: one key each, [B]."""
    key, seed = _next_seed(key)
    shape = (key.shape[0], self.observation_size)
    ticket, obs = io_callback(
      self._reset_on_host, (_ticket(key), _shape(shape)), seed
    )
    zero = jnp.zeros(key.shape, jnp.float32)
    return interface.State(
      pipeline_state=ticket,
      obs=obs,
      reward=zero,
      done=zero,
      info={
        "next_observation": obs,
        "discount": zero + 1,
        "truncation": zero,
        "steps": jnp.zeros(key.shape, jnp.int32),
        "key": key,
      },
    )

  def _step_batch(
    self, state: interface.State, action: types.Array
  ) -> interface.State:
    """Steps all instances, [B], and resets those that ended."""
    key, steps = state.info["key"], state.info["steps"] + 1
    next_key, seed = _next_seed(key)
    shape = (key.shape[0], self.observation_size)
    ticket, next_observation, obs, reward, terminated, ended = io_callback(
      self._step_on_host,
      (
        _ticket(key),
        _shape(shape),
        _shape(shape),
        _like(key, jnp.float32),
        _like(key, jnp.bool_),
        _like(key, jnp.bool_),
      ),
      state.pipeline_state,
      action,
      steps >= self.episode_length,
      seed,
    )
    return state.replace(
      pipeline_state=ticket,
      obs=obs,
      reward=reward,
      done=ended.astype(jnp.float32),
      info={
        "next_observation": next_observation,
        "discount": 1 - terminated.astype(jnp.float32),
        "truncation": (ended & ~terminated).astype(jnp.float32),
        "steps": jnp.where(ended, 0, steps),
        "key": jnp.where(ended, next_key, key),
      },
    )

  def _reset_on_host(self, seed: Any) -> tuple[np.ndarray, np.ndarray]:
    seeds = np.asarray(seed).tolist()
    if self._envs is None or self._envs.num_envs != len(seeds):
      if self._envs is not None:
        self._envs.close()
      self._envs = self._make_vec(num_envs=len(seeds))
    obs, _ = self._envs.reset(seed=seeds)
    self._clock = (self._clock + 1) % 2**31
    return self._ticket(), _flat(obs)

  def _step_on_host(
    self, ticket: Any, action: Any, expires: Any, seed: Any
  ) -> tuple[np.ndarray, ...]:
    if self._envs is None or not np.array_equal(ticket, self._ticket()):
      raise RuntimeError(
        f"'gymnasium:{self.env_id}' can step the state that it returned last "
        "only; create another environment for episodes beside these."
      )
    obs, reward, terminated, truncated, _ = self._envs.step(
      gymnasium_spaces.scaled(np.asarray(action), self._action_space)
    )
    next_observation, reward = _flat(obs), reward.astype(np.float32)
    # A broken instance would stay so, since nothing can take its place.
    action = np.asarray(action).reshape(len(reward), -1)
    values = np.column_stack([next_observation, reward, action])
    finite = np.isfinite(values).all(axis=1)
    ended = terminated | truncated | np.asarray(expires) | ~finite
    terminated = terminated & finite
    obs = next_observation
    if ended.any():
      fresh, _ = self._envs.reset(
        seed=np.asarray(seed).tolist(), options={"reset_mask": ended}
      )
      obs = _flat(fresh)
    self._clock = (self._clock + 1) % 2**31
    return self._ticket(), next_observation, obs, reward, terminated, ended

  def _ticket(self) -> np.ndarray:
    """Returns that of the only state that can be stepped, int32 [B, 2]."""
    size = self._envs.num_envs
    return np.stack(
      [np.full(size, self._clock, np.int32), np.arange(size, dtype=np.int32)],
      axis=1,
    )


def create(
  env_id: str,
  *,
  backend: str | None = None,
  episode_length: int | None = None,
  action_repeat: int = 1,
  **kwargs: Any,
) -> GymnasiumEnvironment:
  """Creates an environment of Gymnasium, if that is installed.

  Args:
    env_id: see `GymnasiumEnvironment`.
    backend: None, since physics is the environment's own.
    episode_length: see `GymnasiumEnvironment`.
    action_repeat: 1, since Gymnasium's wrappers repeat actions.
    **kwargs: for the environment's constructor.

  Returns:
    The environment.

  Raises:
    ValueError: if Gymnasium isn't there, or an argument makes no sense.
  """
  try:
    import gymnasium  # noqa: F401
  except ModuleNotFoundError as error:
    raise ValueError(
      f"env_name='gymnasium:{env_id}' needs Gymnasium; pip install "
      "'qdrl_haiku[gymnasium]'."
    ) from error
  if backend is not None:
    raise ValueError(
      f"backend={backend!r} is not one of 'gymnasium:{env_id}'; leave it out."
    )
  if action_repeat != 1:
    raise ValueError(
      f"action_repeat={action_repeat} isn't done for 'gymnasium:{env_id}'; "
      "leave it out, and register the environment with a wrapper that does."
    )
  return GymnasiumEnvironment(
    env_id, episode_length=episode_length, **kwargs
  )


def _next_seed(key: types.Key) -> tuple[types.Key, types.Array]:
  """Returns instances' next keys, and seeds of next resets, uint32 [B]."""
  key, seed_key = jnp.unstack(jax.vmap(jax.random.split)(key), axis=1)
  return key, jax.vmap(lambda key: jax.random.bits(key, (), jnp.uint32))(
    seed_key
  )


def _shape(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.float32)


def _ticket(key: types.Key) -> jax.ShapeDtypeStruct:
  """See `GymnasiumEnvironment`."""
  return jax.ShapeDtypeStruct((*key.shape, 2), jnp.int32)


def _like(key: types.Key, dtype: Any) -> jax.ShapeDtypeStruct:
  """Returns one number for each instance."""
  return jax.ShapeDtypeStruct(key.shape, dtype)


def _flat(observation: np.ndarray) -> np.ndarray:
  """[B, ...] -> [B, O]."""
  return observation.reshape(observation.shape[0], -1).astype(np.float32)


def _make(env_id: str, kwargs: dict[str, Any]) -> Any:
  """Makes one instance, or says in one line why it can't be made."""
  import gymnasium

  if ":" in env_id:  # A module that registers it.
    names.search_working_directory()
  fix = ""
  try:
    return gymnasium.make(env_id, disable_env_checker=True, **kwargs)
  except (gymnasium.error.Error, ModuleNotFoundError) as error:
    problem: BaseException = error
  except TypeError as error:
    cause = error.__cause__
    if cause is None:  # It's no environment of Gymnasium's.
      problem = error
    elif cause.__traceback__ is None or cause.__traceback__.tb_next is None:
      # The call itself failed, nothing that was called.
      problem = cause
      fix = _missing_arguments(str(cause))
    else:
      raise
  reason = " ".join(str(problem).split())
  raise ValueError(
    f"env_name='gymnasium:{env_id}' can't be made: {reason}{fix}"
  ) from problem


def _missing_arguments(reason: str) -> str:
  """Says how what a constructor lacks is given."""
  if " missing " not in reason:
    return ""
  missing = re.findall(r"'(\w+)'", reason)
  registered = ", ".join(f"{name!r}: ..." for name in missing)
  given = ", ".join(f"{name}=..." for name in missing)
  return (
    f"; register it with gymnasium.register(..., kwargs={{{registered}}}), or "
    f"make it by environments.create(..., {given})."
  )
