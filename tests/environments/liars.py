"""Environments of a user that are wrong in one way each, by name."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku import environments


class Walk:
  """A point in the plane that its action moves; what it returns is given."""

  observation_size = 2
  action_size = 2

  def __init__(
    self,
    at_reset: dict[str, Any] | None = None,
    at_step: dict[str, Any] | None = None,
    start: int = 1,
    info: dict[str, Any] | None = None,
  ) -> None:
    """Takes the fields to be replaced.

    Args:
      at_reset: in what `reset` returns.
      at_step: in what `step` returns, from step `start` on.
      start: of an episode, the first is 1.
      info: of all states before that.
    """
    self._at_reset = at_reset or {}
    self._at_step = at_step or {}
    self._start = start
    self._info = info or {}

  def reset(self, key):
    point = jax.random.uniform(key, (2,))
    zero = jnp.zeros(())
    state = environments.State(0, point, zero, zero, {}, self._info)
    return state.replace(**self._at_reset)

  def step(self, state, action):
    count = state.pipeline_state + 1
    state = state.replace(
      pipeline_state=count,
      obs=state.obs + 0.1 * action,
      reward=-jnp.sum(action**2),
    )
    changed = state.replace(**self._at_step)
    return jax.tree.map(
      lambda x, y: jnp.where(count >= self._start, x, y), changed, state
    )


class _Bare:
  """A `Walk` without what makes it an environment."""

  def __init__(self, **attributes):
    vars(self).update(attributes)


def _descriptor(*values):
  return {"info": {"state_descriptor": jnp.array(values)}}


_NAN = jnp.full(2, jnp.nan)
_ONE_NAN = jnp.array([0.0, jnp.nan])
_THERE = _descriptor(0.0, 0.0)
honest = Walk
nan_obs_at_reset = functools.partial(Walk, {"obs": _NAN})
one_nan_obs_at_step = functools.partial(Walk, None, {"obs": _ONE_NAN})
late_inf_reward = functools.partial(
  Walk, None, {"reward": jnp.float32("inf")}, 3
)
minus_inf_reward_at_reset = functools.partial(
  Walk, {"reward": jnp.float32("-inf")}
)
nan_done = functools.partial(Walk, None, {"done": jnp.float32("nan")})
half_done = functools.partial(Walk, None, {"done": jnp.float32(0.5)})
done_at_reset = functools.partial(Walk, {"done": jnp.float32(1)})
nan_descriptor_at_reset = functools.partial(
  Walk, _descriptor(jnp.nan, 0.0), _THERE
)
nan_descriptor_at_step = functools.partial(
  Walk, None, _descriptor(0.0, jnp.nan), **_THERE
)
truncation_of_two = functools.partial(
  Walk, None, {"info": {"truncation": jnp.float32(2)}},
  info={"truncation": jnp.float32(0)},
)  # fmt: skip


class _Ending(Walk):
  """Its episode ends at the second step, and what follows is NaN."""

  _FIELD = "done"

  def step(self, state, action):
    state = super().step(state, action)
    count = state.pipeline_state
    end = (count == 2).astype(jnp.float32)
    state = state.replace(obs=jnp.where(count > 2, jnp.nan, state.obs))
    if self._FIELD == "done":
      return state.replace(done=end)
    return state.replace(info={"truncation": end})


class _Truncating(_Ending):
  _FIELD = "truncation"

  def __init__(self):
    super().__init__(info={"truncation": jnp.float32(0)})


ending = _Ending
truncating = _Truncating


class _LikeGym(Walk):
  """Its step takes an action alone, as gym's does."""

  def step(self, action):
    return action, 0.0, False, {}


class _Branching(Walk):
  """Decides in Python what depends on a number."""

  def step(self, state, action):
    return state if action[0] > 0 else super().step(state, action)


class _Named(Walk):
  """Its state says what it is."""

  def reset(self, key):
    return super().reset(key).replace(info={"name": "walk"})


named = _Named
like_gym = _LikeGym
branching = _Branching


def other_size():
  env = Walk()
  env.observation_size = 3
  return env


def no_size():
  return _Bare(reset=Walk().reset, step=Walk().step, action_size=2)


def no_info():
  return Walk({"info": None})


def list_of_obs():
  return Walk({"obs": [jnp.zeros(())] * 2})


def other_shape_at_step():
  env, walk = Walk(), Walk()
  env.step = lambda state, action: walk.step(state, action).replace(
    obs=jnp.zeros(3)
  )
  return env


def other_keys_at_step():
  env, walk = Walk(), Walk()
  env.step = lambda state, action: walk.step(state, action).replace(
    info={"distance": jnp.zeros(())}
  )
  return env


def complex_reward():
  return Walk({"reward": jnp.complex64(1)}, {"reward": jnp.complex64(1)})


def int_descriptor():
  descriptor = {"info": {"state_descriptor": jnp.zeros(2, int)}}
  return Walk(descriptor, descriptor)
