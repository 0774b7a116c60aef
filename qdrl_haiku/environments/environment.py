"""Batches of environments, their episodes, and their resets.

Unlike with brax's own wrappers, physics always sees one flat batch, whatever
the leading axes; the true successor observation survives an automatic reset;
each episode starts from an initial state of its own; and states of `reset` have
exactly the type of states of `step`, so that nothing is compiled twice.
"""

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku import checks, compatibility, platform, prng, specs, trees
from qdrl_haiku.environments import interface, validation
from qdrl_haiku.environments.interface import State
from qdrl_haiku.types import Array, Key, Tree

# Steps are counted in int32, beyond the end too.
MAX_EPISODE_LENGTH = 2**30 - 1


class Environment(interface.BatchedEnvironment):
  """Any number of instances of one environment, with episodes and resets.

  Attributes:
    unwrapped: the environment that simulates one instance.
    observation_spec: a tree of `specs.Array`s.
    action_spec: `specs.Continuous` or `specs.Discrete`.
    episode_length: steps after which an episode is truncated.
    descriptor: of states and episodes, or None.
    objectives: what there is beside the reward, or None.
    tunables: what may be tuned of it, by name; none of most.
  """

  def __init__(
    self, env: interface.SingleEnvironment, *, episode_length: int,
    descriptor: interface.Descriptor | None = None,
  ) -> None:
    """Wraps an environment of one instance, and checks what it returns.

    Args:
      env: simulates one instance.
      episode_length: truncates episodes, at least 1.
      descriptor: of `info["state_descriptor"]`; `env.descriptor` by default.
    """
    compatibility.check_numeric_compatibility()
    validation.check_valid_environment(env)
    checks.check_count(
      "episode_length", episode_length, 1, maximum=MAX_EPISODE_LENGTH)
    self.unwrapped = env
    self.episode_length = episode_length
    self.descriptor: interface.Descriptor | None = (
      getattr(env, "descriptor", None) if descriptor is None else descriptor)
    self.objectives: interface.Objectives | None = getattr(
      env, "objectives", None)
    self.tunables = validation.declared_tunables(env)
    # Jitted so that the check below and all later uses share one trace.
    self._env_reset = jax.jit(env.reset)
    self._defaults = {
      name: float(x.default or 0) for name, x in self.tunables.items()}
    self._env_step = jax.jit(
      functools.partial(_step_by, env, self._defaults) if self._defaults
      else env.step)
    self.action_spec = validation.declared_action(env)
    self._batch_functions = self._traced()
    # Jitted also because eager code would return one buffer under two names
    # (brax's metrics are all one zero), and such a state cannot be donated.
    self._reset = jax.jit(self._reset_batch)
    self._advance = jax.jit(self._advance_batch)
    self._step = jax.jit(self._step_batch)

  def _traced(self) -> tuple[Callable[..., State], Callable[..., State]]:
    """Traces and checks one instance; returns reset and step of B of them."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    action = specs.shapes(self.action_spec)
    sizes = {
      f"info['{name}']": None if described is None else len(described.names)
      for name, described in (
        ("state_descriptor", self.descriptor), ("objectives", self.objectives))}
    self._spec, self.observation_spec = validation.valid_environment_spec(
      self._env_reset, self._env_step, key, action,
      validation.declared_observation(self.unwrapped), sizes)
    return (
      self._batched(self._env_reset, key),
      self._batched(self._env_step, self._spec, action))

  def _batched(
    self, function: Callable[..., State], *example: Tree
  ) -> Callable[..., State]:
    """Returns one of B instances, whose states have no weak dtypes."""
    return platform.physics(lambda *args: jax.tree.map(
      lambda x, spec: jax.lax.convert_element_type(x, spec.dtype),
      function(*args), self._spec), *example)

  @functools.cached_property
  def _tuned(self) -> Callable[..., State]:
    """Steps B instances with tunables of their own, leaves [B]."""
    one = {
      name: jax.ShapeDtypeStruct((), jnp.float32) for name in self.tunables}
    return self._batched(
      lambda values, *args: _step_by(self.unwrapped, values, *args), one,
      self._spec, specs.shapes(self.action_spec))

  def reset(self, key: Key) -> State:
    """Starts one episode per key [...]; legacy uint32 keys [..., 2] do too."""
    key = prng.typed_key(key)
    return environments_as_batch(self._reset, key.shape, key)

  def step(
    self, state: State, action: Array, pool: State | None = None,
    tunables: Mapping[str, Array] = MappingProxyType({}),
  ) -> State:
    """Steps every instance, and resets those whose episode ended.

    An episode ends by termination (`done` of the environment) or by truncation
    (at `episode_length`, or where `info["truncation"]` says so); a termination
    at the last step is a termination. If the observation before or after the
    step, the action, the reward or the descriptor isn't finite, the episode
    always ends as truncated, and learners leave that step out.

    Args:
      state: with leading axes [...], from `reset`, `step` or `advance`.
      action: [..., A], in [-1, 1], or int32[...] of discrete ones.
      pool: initial states of `reset`, leaves [..., I, ...]: the j-th automatic
        reset of an instance, j from 0, takes state j modulo I. With None, each
        step in which any episode ends draws one for every instance.
      tunables: values [...] by name; the others have their defaults.

    Returns:
      The state in which to act next. `reward`, `done` and `metrics` are those
      of this step, `info` holds
        next_observation: as `obs`, the successor before any reset,
        discount: [...], 0 where the episode terminated, else 1,
        truncation: [...], 1 where it ended without terminating, else 0,
        steps: int32[...], steps of this episode,
        episodes: int32[...], episodes that have ended since `reset`,
        key: [...], from which the instance's later episodes are drawn,
        state_descriptor and next_state_descriptor: [..., D], of `obs` and of
          `next_observation`, if the environment has one,
        objectives: [..., M], of this step, if the environment has some.
    """
    shape = state.done.shape
    if unknown := ", ".join(tunables.keys() - self.tunables.keys()):
      raise ValueError(
        f"tunables={unknown} is unknown: the environment has "
        f"{', '.join(self.tunables) or 'none'}; leave it out.")
    if tunables:
      tunables = {
        name: jnp.broadcast_to(jnp.float32(tunables.get(name, x)), shape)
        for name, x in self._defaults.items()}
    return environments_as_batch(
      self._step, shape, state, action, pool, dict(tunables))

  def advance(self, state: State, action: Array) -> State:
    """Steps as `step` does, but without resets, as evaluation does.

    An instance whose episode has ended goes on; the caller masks the steps
    after its first `done`.
    """
    return environments_as_batch(self._advance, state.done.shape, state, action)

  def _reset_batch(self, key: Key) -> State:
    """Resets B instances: one key each, [B]."""
    key, reset_key = jnp.unstack(jax.vmap(jax.random.split)(key), axis=1)
    reset, _ = self._batch_functions
    zero = jnp.zeros(key.shape, jnp.float32)
    none = zero.astype(jnp.int32)
    state = self._observe(reset(reset_key), key, none)
    info = {"discount": zero + 1, "truncation": zero, "episodes": none}
    return state.replace(reward=zero, done=zero, info=state.info | info)

  def _advance_batch(
    self, state: State, action: Array, tunables: dict[str, Array] | None = None
  ) -> State:
    """Steps B instances."""
    action = action.astype(self.action_spec.dtype)
    if tunables:
      env_state = self._tuned(tunables, state.pipeline_state, action)
    else:
      env_state = self._batch_functions[1](state.pipeline_state, action)
    reward = env_state.reward.astype(jnp.float32)
    done = env_state.done != 0
    truncated = env_state.info.get("truncation", jnp.zeros_like(done)) != 0
    terminated = done & ~truncated
    steps = state.info["steps"] + 1
    is_last = steps >= self.episode_length
    ended = done | truncated | is_last
    info = {
      "discount": 1 - terminated.astype(jnp.float32),
      "truncation": (ended & ~terminated).astype(jnp.float32),
      "episodes": state.info["episodes"]}
    after = self._observe(env_state, state.info["key"], steps)
    return after.replace(
      reward=reward, done=ended.astype(jnp.float32), info=after.info | info)

  def _step_batch(
    self, state: State, action: Array, pool: State | None,
    tunables: dict[str, Array],
  ) -> State:
    """Steps B instances and resets the ended ones."""
    before = (state.obs, action)
    state = self._advance_batch(state, action, tunables)
    state = _truncate_nonfinite(before, state)
    ended = state.done > 0

    def reset_ended(state: State) -> State:
      begun = self._next_episodes(state, pool)
      info = state.info | {
        # The outcome of the step just taken stays; the next step starts from
        # the state of the new episode.
        name: begun.info[name]
        for name in ("key", "steps", "state_descriptor")
        if name in begun.info}
      info["episodes"] = state.info["episodes"] + 1
      begun = state.replace(
        pipeline_state=begun.pipeline_state, obs=begun.obs, info=info)
      return trees.choose_rows(ended, begun, state)

    # Most steps end no episode, and then a reset should cost nothing.
    branch = jax.lax.cond if pool is None else platform.where_needed
    return branch(jnp.any(ended), reset_ended, lambda x: x, state)

  def _next_episodes(self, state: State, pool: State | None) -> State:
    """Returns the first states of B next episodes."""
    if pool is None:
      return self._reset_batch(state.info["key"])
    index = state.info["episodes"] % pool.done.shape[1]
    env_state, key = jax.vmap(lambda x, i: jax.tree.map(lambda x: x[i], x))(
      (pool.pipeline_state, pool.info["key"]), index)
    return self._observe(env_state, key, jnp.zeros_like(index))

  def _observe(self, env_state: State, key: Key, steps: Array) -> State:
    """Returns states [B] without the outcome of the step that led to them."""
    obs = jax.tree.map(
      lambda x, spec: x.astype(spec.dtype), env_state.obs,
      self.observation_spec)
    info = {"next_observation": obs, "steps": steps, "key": key}
    if "state_descriptor" in env_state.info:
      info["state_descriptor"] = info["next_state_descriptor"] = (
        env_state.info["state_descriptor"].astype(jnp.float32))
    for name in ("reward_terms", interface.CURRICULUM):
      if name in env_state.info:
        info[name] = env_state.info[name]
    if self.objectives is not None:
      info["objectives"] = env_state.info["objectives"].astype(jnp.float32)
    return State(
      pipeline_state=env_state, obs=obs, reward=env_state.reward,
      done=env_state.done, metrics=dict(env_state.metrics), info=info)


def _step_by(
  env: interface.SingleEnvironment, tunables: Mapping[str, Array | float],
  state: State, action: Array,
) -> State:
  """Steps one instance that has tunables with their values []."""
  step: Any = env.step
  return step(state, action, tunables)


def _truncate_nonfinite(before: Tree, state: State) -> State:
  """Ends episodes [B] that didn't stay finite in a step, as truncated."""
  names = ("next_observation", "next_state_descriptor", "objectives")
  after = [state.info.get(name) for name in names]
  finite = trees.all_finite_leaves((before, state.reward, after))
  ends = {
    name: jnp.where(finite, state.info[name], 1)
    for name in ("discount", "truncation")}
  done = jnp.where(finite, state.done, 1)
  return state.replace(done=done, info=state.info | ends)


def environments_as_batch(
  function: Callable[..., State], shape: tuple[int, ...], *args: Tree
) -> State:
  """Calls a `function` of one flat batch [B, ...] on trees with leading axes.

  Leaves of `args` and of what it returns have `shape` in place of the axis B.
  """
  size = math.prod(shape)
  args = jax.tree.map(
    lambda x: jnp.reshape(x, (size, *x.shape[len(shape) :])), args)
  return jax.tree.map(
    lambda x: jnp.reshape(x, (*shape, *x.shape[1:])), function(*args))
