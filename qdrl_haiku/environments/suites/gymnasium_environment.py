"""Environments of Gymnasium: stepped on the host, between jax's own steps.

They are Python objects, which jax can neither copy nor shard over devices. So
there is one set of instances: a reset restarts all of them, only the latest
state can be stepped, and evaluation needs another `GymnasiumEnvironment` than
collection. A state holds the seed and the actions of each instance's episode,
with which `restore` replays it.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from qdrl_haiku import checks, names, prng, specs
from qdrl_haiku.environments import environment, hiding, interface
from qdrl_haiku.environments.interface import State
from qdrl_haiku.environments.suites import gymnasium_spaces
from qdrl_haiku.types import Array, Key, Record, Tree


class GymnasiumEnvironment(interface.BatchedEnvironment):
  """Instances of one environment of Gymnasium, with episodes and resets.

  What is observed and done is what `gymnasium_spaces` makes of their spaces.
  """

  abilities = interface.Abilities(copies_states=False, spreads=False)

  def __init__(
    self, env_id: str, *, episode_length: int | None = None,
    hide: Sequence[str] = (), **kwargs: Any,
  ) -> None:
    """Makes one instance, to look at its spaces.

    Args:
      env_id: as registered, or "module:id" with a module that registers it.
      episode_length: truncates episodes, at least 1; by default what Gymnasium
        has registered, or 1,000.
      hide: what agents don't see, see `hiding.what_is_seen`.
      **kwargs: for the environment's constructor.
    """
    gymnasium = names.import_extra(
      f"env_name='gymnasium:{env_id}'", "gymnasium", "Gymnasium")
    self.env_id = env_id
    self._make_vec = functools.partial(
      gymnasium.make_vec, env_id, vectorization_mode="sync",
      # Episodes are ended and reset here, by our own length and seeds.
      vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED},
      max_episode_steps=-1, disable_env_checker=True, **kwargs)
    env = _make(env_id, kwargs)
    self._spaces = gymnasium_spaces.tree(env.observation_space)
    self._whole = jax.tree.map(
      lambda x: gymnasium_spaces.observation_spec(env_id, x), self._spaces)
    self.observation_spec, self._see = hiding.what_is_seen(
      self._whole, hide, _observation_names(env_id, env))
    self._action_space = env.action_space
    self.action_spec = gymnasium_spaces.action_spec(
      env_id, env.action_space)
    registered = env.spec and env.spec.max_episode_steps
    env.close()
    self.episode_length: int = (
      (registered or 1000) if episode_length is None else episode_length)
    checks.check_count(
      "episode_length", self.episode_length, 1, environment.MAX_EPISODE_LENGTH)
    self._envs: Any = None
    # Of the latest state, [B, 2]: the number of resets and steps before it,
    # modulo 2^31 as states hold it in int32, and the index of each instance.
    self._ticket = np.array([[-1, 0]])
    self._reset = jax.jit(self._reset_batch)
    self._step = jax.jit(self._step_batch)

  def reset(self, key: Key) -> State:
    """Starts one episode per key [...], and ends all that there were."""
    key = prng.typed_key(key)
    return environment.environments_as_batch(self._reset, key.shape, key)

  def step(
    self, state: State, action: Array, pool: State | None = None
  ) -> State:
    """Steps the state that was returned last, as `Environment.step` does.

    Args:
      state: leaves [..., E, ...], the one that was returned last.
      action: [..., A] in [-1, 1], scaled to the bounds of a Box; in one of
        integers each has an equal share of [-1, 1].
      pool: None, since states can't be kept.

    Raises:
      ValueError: if a pool is given.
    """
    if pool is not None:
      raise ValueError("pool has no effect on the host; leave it at None.")
    return environment.environments_as_batch(
      self._step, state.done.shape, state, action)

  def advance(self, state: State, action: Array) -> State:
    """Steps as `step` does, but `obs` at an episode's end is its last one.

    The caller masks the steps after it, since the instance has been reset.
    """
    state = self.step(state, action)
    return state.replace(obs=state.info["next_observation"])

  def restore(self, state: State) -> None:
    """Brings all instances to the point at which a state was returned.

    Each begins its episode with its seed and takes its actions again. If one
    then observes something else, a ValueError says so.
    """
    size = state.done.size
    seeds, taken, actions = (
      np.asarray(state.info[name]) for name in ("seed", "taken", "actions"))
    actions = actions.reshape(size, -1, *self.action_spec.shape)
    _, found = self._reset_on_host(seeds.reshape(size))
    for i, number in enumerate(taken.reshape(size)):
      own = gymnasium_spaces.scale_action(
        actions[i, :number], self._action_space)
      for action in own:
        obs = self._observed(self._envs.envs[i].step(action)[0], ())
        jax.tree.map(lambda x, now, i=i: np.copyto(x[i, ...], now), found, obs)
    if not all(jax.tree.leaves(jax.tree.map(
      lambda x, y: np.array_equal(x, np.reshape(y, x.shape), equal_nan=True),
      found, state.obs))):
      raise ValueError(
        f"'gymnasium:{self.env_id}' observes something else after the same "
        "seed and actions, so the run can't go on as it would have; begin "
        "another with warm_start.")
    self._ticket = np.asarray(state.pipeline_state).reshape(size, 2)

  def _reset_batch(self, key: Key) -> State:
    """Resets all instances: one key each, [B]."""
    key, seed = _next_seed(key)
    size = key.shape[0]
    ticket, obs = io_callback(
      self._reset_on_host, (
        jax.ShapeDtypeStruct((size, 2), jnp.int32),
        specs.shapes(self.observation_spec, size)), seed)
    zero, none = jnp.zeros(size, jnp.float32), jnp.zeros(size, jnp.int32)
    actions = specs.zeros(self.action_spec, size, self.episode_length)
    return State(ticket, obs, reward=zero, done=zero, info={
      "next_observation": obs, "discount": zero + 1, "truncation": zero,
      "steps": none, "key": key,
      "seed": seed, "taken": none, "actions": actions})

  def _step_batch(self, state: State, action: Array) -> State:
    """Steps all instances, [B], and resets the ended ones."""
    info = state.info
    next_key, seed = _next_seed(info["key"])
    steps = info["steps"] + 1
    actions = jax.vmap(lambda x, i, row: x.at[i].set(row))(
      info["actions"], info["taken"], action)
    observation = specs.shapes(self.observation_spec, steps.size)
    is_so = jax.ShapeDtypeStruct(steps.shape, jnp.bool_)
    ticket, next_observation, obs, reward, terminated, ended = io_callback(
      self._step_on_host, (
        jax.typeof(state.pipeline_state), observation, observation,
        jax.typeof(state.reward), is_so, is_so),
      state.pipeline_state, action, steps >= self.episode_length, seed)
    begun: dict[str, Tree] = {
      "steps": 0, "key": next_key, "seed": seed, "taken": 0}
    goes_on = info | {"steps": steps, "taken": info["taken"] + 1}
    return state.replace(
      pipeline_state=ticket, obs=obs, reward=reward,
      done=ended.astype(jnp.float32),
      info={
        "next_observation": next_observation,
        "discount": 1 - terminated.astype(jnp.float32),
        "truncation": (ended & ~terminated).astype(jnp.float32),
        "actions": actions,
        **{x: jnp.where(ended, begun[x], goes_on[x]) for x in begun}})

  def _reset_on_host(self, seed: np.ndarray) -> tuple[np.ndarray, Tree]:
    """Resets all instances, making them if there aren't as many."""
    seeds = np.asarray(seed).tolist()
    if self._envs is None or self._envs.num_envs != len(seeds):
      if self._envs is not None:
        self._envs.close()
      self._envs = self._make_vec(num_envs=len(seeds))
    obs, _ = self._envs.reset(seed=seeds)
    return self._next_ticket(), self._observed(obs, (len(seeds),))

  def _step_on_host(
    self, ticket: np.ndarray, action: np.ndarray, expires: np.ndarray,
    seed: np.ndarray,
  ) -> tuple[Tree, ...]:
    """Steps all instances, and resets the ended ones."""
    if not np.array_equal(ticket, self._ticket):
      raise RuntimeError(
        f"'gymnasium:{self.env_id}' can step the state that it returned last "
        "only; create another environment for episodes beside these.")
    action = np.asarray(action)
    obs, reward, terminated, truncated, _ = self._envs.step(
      gymnasium_spaces.scale_action(action, self._action_space))
    leading = reward.shape
    next_observation = self._observed(obs, leading)
    reward = reward.astype(np.float32)
    # A broken instance would stay so, since nothing can take its place.
    finite = np.column_stack([
      np.isfinite(x.reshape(*leading, -1)).all(axis=1)
      for x in jax.tree.leaves((next_observation, reward, action))]).all(axis=1)
    ended = terminated | truncated | np.asarray(expires) | ~finite
    terminated = terminated & finite
    obs = next_observation
    if ended.any():
      fresh, _ = self._envs.reset(
        seed=np.asarray(seed).tolist(), options={"reset_mask": ended})
      obs = self._observed(fresh, leading)
    return (
      self._next_ticket(), next_observation, obs, reward, terminated, ended)

  def _observed(self, observation: Any, leading: tuple[int, ...]) -> Tree:
    """Returns a copy of what Gymnasium observes, as the spec has it."""
    return self._see(jax.tree.map(
      functools.partial(gymnasium_spaces.as_array, leading=leading),
      self._spaces, self._whole, observation))

  def _next_ticket(self) -> np.ndarray:
    """Returns the ticket of what is now the latest state, int32 [B, 2]."""
    number = (int(self._ticket[0, 0]) + 1) % 2**31
    tickets = [(number, i) for i in range(self._envs.num_envs)]
    self._ticket = np.array(tickets, np.int32)
    return self._ticket


def _next_seed(key: Key) -> tuple[Key, Array]:
  """Returns instances' next keys, and seeds of next resets, uint32 [B]."""
  key, seed_key = jnp.unstack(jax.vmap(jax.random.split)(key), axis=1)
  return key, jax.vmap(jax.random.bits)(seed_key)


def _make(env_id: str, kwargs: Record) -> Any:
  """Makes one instance, or says in one line why it can't be made."""
  import gymnasium

  if ":" in env_id:  # A module that registers it.
    names.search_names_in_working_directory()
  try:
    return gymnasium.make(env_id, disable_env_checker=True, **kwargs)
  except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
    reason = " ".join(str(error).split())
    raise ValueError(
      f"env_name='gymnasium:{env_id}' can't be made: {reason}") from error


def _observation_names(env_id: str, env: Any) -> dict[str, Sequence[int]]:
  """Returns the places of velocities in what is observed, if they're known."""
  # Of MuJoCo's, the sizes of the parts that follow on each other.
  sizes = dict(getattr(env.unwrapped, "observation_structure", {}))
  sizes.pop("skipped_qpos", None)
  parts = [part for part, size in sizes.items() for _ in range(size)]
  places = [i for i, part in enumerate(parts) if part in ("qvel", "cvel")]
  return {"velocity": places} if parts else hiding.observation_names(env_id)
