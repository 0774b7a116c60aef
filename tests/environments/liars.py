"""Environments of a user that are wrong in one way each, by name."""

import functools

import jax
import jax.numpy as jnp

from qdrl_haiku import environments


class Walk:
  """A point in the plane that its action moves; what it returns is given."""

  observation_size = 2
  action_size = 2

  def __init__(self, at_reset=None, at_step=None, start=1, info=None):
    """Takes fields of states after a reset, and from step `start` on."""
    self._at_reset, self._at_step = at_reset or {}, at_step or {}
    self._start, self._info = start, info or {}

  def reset(self, key):
    point = jax.random.uniform(key, (2,))
    zero = jnp.zeros(())
    state = environments.State(0, point, zero, zero, {}, self._info)
    return state.replace(**self._at_reset)

  def step(self, state, action):
    count = state.pipeline_state + 1
    state = state.replace(
      pipeline_state=count, obs=state.obs + 0.1 * action,
      reward=-jnp.sum(action**2))
    changed = state.replace(**self._at_step)
    return jax.tree.map(
      lambda x, y: jnp.where(count >= self._start, x, y), changed, state)


def _walk(at_reset=None, at_step=None, *args, **kwargs):
  return functools.partial(Walk, at_reset, at_step, *args, **kwargs)


def _both(**fields):
  return _walk(fields, fields)


def _descriptor(*values):
  return {"info": {"state_descriptor": jnp.array(values)}}


_NAN, _ONE_NAN = jnp.full(2, jnp.nan), jnp.array([0.0, jnp.nan])
_F = jnp.float32
honest = Walk
nan_obs_at_reset = _walk({"obs": _NAN})
one_nan_obs_at_step = _walk(None, {"obs": _ONE_NAN})
nan_obs_as_it_terminates = _walk(None, {"obs": _NAN, "done": _F(1)})
late_inf_reward = _walk(None, {"reward": _F("inf")}, 3)
half_done = _walk(None, {"done": _F(0.5)})
nan_descriptor_at_step = _walk(
  None, _descriptor(0.0, jnp.nan), **_descriptor(0.0, 0.0))
int_descriptor = _both(info={"state_descriptor": jnp.ones(2, int)})
resets_itself = _both(info={"first_obs": jnp.zeros(2)})


def _stepping(change):
  """Returns a function that makes a `Walk` whose step is changed."""
  def make():
    env, walk = Walk(), Walk()
    env.step = lambda state, action: change(walk.step(state, action), action)
    return env

  return make


other_shape_at_step = _stepping(lambda s, _: s.replace(obs=jnp.zeros(3)))
branching = _stepping(lambda s, action: s if action[0] > 0 else s)


def _with(**attributes):
  def make():
    env = Walk()
    vars(env).update(attributes)
    return env

  return make


other_size = _with(observation_size=3)
other_descriptor = _with(descriptor=environments.Descriptor(("x",), (0,), (1,)))
not_a_state = _with(reset=lambda key: ())


class no_size:  # noqa: N801
  """Has no `observation_size`."""

  action_size = 2
  reset, step = Walk.reset, Walk.step


class _Ending(Walk):
  """Its episode ends at the second step, and what follows is NaN."""

  def __init__(self, done=True, **kwargs):
    super().__init__(**kwargs)
    self._done = done

  def step(self, state, action):
    state = super().step(state, action)
    count = state.pipeline_state
    end = (count == 2).astype(jnp.float32)
    state = state.replace(obs=jnp.where(count > 2, jnp.nan, state.obs))
    info = dict.fromkeys(state.info, end)
    return state.replace(done=self._done * end, info=info)


ending = _Ending
truncating = functools.partial(_Ending, info={"truncation": _F(0)})
