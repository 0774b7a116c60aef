"""Tests of batches, episodes and resets."""

import warnings
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from tests import jaxprs
from tests.environments import liars


class Drift:
  """Two numbers that actions add up in, and a count; in Python's types.

  The reward is the count, an action above 0.9 terminates, as does the count
  `limit`. The sine stands for physics, to be found in a jaxpr.
  """

  observation_size = 3
  action_size = 2
  descriptor = environments.Descriptor(("x", "y"), (-5.0, -5.0), (5.0, 5.0))

  def __init__(self, limit=1000):
    self.limit = limit
    self.traces = 0

  def _state(self, x, count, reward, done):
    obs = jnp.append(x, count)
    return environments.State(
      {"x": x, "count": count}, obs, reward, done, {"twice": reward},
      {"state_descriptor": x})

  def reset(self, key):
    return self._state(jax.random.uniform(key, (2,)), 0, 0, False)

  def step(self, state, action):
    self.traces += 1
    x = state.pipeline_state["x"] + jnp.sin(action)
    count = state.pipeline_state["count"] + 1
    done = (action[0] > 0.9) | (count >= self.limit)
    return self._state(x, count, count * jnp.bfloat16(1), done)


def _make(limit=1000, episode_length=10, **kwargs):
  return environments.Environment(
    Drift(limit), episode_length=episode_length, **kwargs)


@pytest.fixture(scope="module")
def env():
  """One that ends at its second step, compiled once for many tests."""
  return _make(episode_length=2)


@pytest.fixture(scope="module")
def long():
  """One of ten steps."""
  return _make()


def _keys(*shape, seed=0):
  return jax.random.split(jax.random.key(seed), shape)


def _still(*shape):
  return jnp.zeros((*shape, 2))


def _numbers(state):
  """The leaves of a state as NumPy arrays, keys as their data."""
  def convert(x):
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)

  return jax.tree.map(convert, state)


def test_any_leading_axes_give_the_same_numbers_from_one_flat_batch(env):
  actions = jax.random.uniform(jax.random.key(1), (3, 6, 2))

  def run(shape, step):
    state = env.reset(_keys(6).reshape(shape))
    for action in actions:
      state = step(state, action.reshape(*shape, 2))
    return state

  flat, nested = run((6,), env.step), run((2, 3), env.step)
  assert nested.obs.shape == (2, 3, 3)
  jax.tree.map(
    lambda a, *others: [
      np.testing.assert_array_equal(a, b.reshape(a.shape)) for b in others],
    *map(_numbers, (flat, nested, run((2, 3), jax.vmap(env.step)))))
  for method in (env.step, env.advance):
    sines = jaxprs.named(method, "sin", nested, _still(2, 3))
    assert [e.outvars[0].aval.shape for e in sines] == [(6, 2)]
  # It was traced for its check, and never again.
  assert env.unwrapped.traces == _make().unwrapped.traces


def _with_backend(name):
  return mock.patch.object(jax, "default_backend", lambda: name)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_episodes_begin_with_the_states_of_their_own_pool_in_order(backend):
  env = _make(episode_length=3)
  pool = env.reset(_keys(4, 2, seed=1))
  state, begun = env.reset(_keys(4)), np.zeros(4, int)
  with _with_backend(backend):
    step = jax.jit(env.step)
    for t in range(9):
      # The first instance terminates at every second step.
      state = step(state, _still(4).at[0, 0].set(t % 2), pool)
      for i in np.flatnonzero(state.done):
        expected = jax.tree.map(lambda x, i=i: x[i, begun[i] % 2], pool)
        names = ("key", "steps", "state_descriptor")
        jax.tree.map(
          lambda x, y, i=i: np.testing.assert_array_equal(x[i], y),
          *(
            _numbers((x.obs, x.pipeline_state, [x.info[n] for n in names]))
            for x in (state, expected)))
        begun[i] += 1
  np.testing.assert_array_equal(state.info["episodes"], begun)
  assert begun.tolist() == [4, 3, 3, 3]


def test_a_reset_costs_nothing_while_no_episode_ends_or_with_a_pool(env):
  args, pool = (env.reset(_keys(3)), _still(3)), env.reset(_keys(3, 2))

  def draws(*args, **kwargs):
    return len(jaxprs.named(env.step, "random_bits", *args, **kwargs))

  assert draws(*args) == 1
  assert draws(*args, outside_of="cond") == draws(*args, pool) == 0


def test_reset_returns_exactly_the_type_that_step_returns(env):
  state = jax.eval_shape(env.reset, _keys(3))
  for method in (env.step, env.advance):
    after = jax.eval_shape(method, state, _still(3))
    assert after == state
    assert after.reward.dtype == after.done.dtype == jnp.float32
  assert not any(x.weak_type for x in jax.tree.leaves(state))


def test_states_can_be_donated_and_scanned_by_one_program(env):
  step = jax.jit(env.step, donate_argnums=0)
  first = state = env.reset(_keys(3))
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    for _ in range(3):  # If two leaves were one buffer, it would be an error.
      state = step(state, _still(3))
  assert first.info["steps"].is_deleted()
  assert step._cache_size() == 1
  _, dones = jax.lax.scan(
    lambda s, a: (env.step(s, a), s.done), env.reset(_keys(3)), _still(5, 3))
  np.testing.assert_array_equal(dones.sum(axis=1), [0, 0, 3, 0, 3])


def test_a_reset_keeps_the_true_successor(env):
  start = env.reset(_keys(1))
  state = env.step(env.step(start, _still(1)), _still(1))
  np.testing.assert_allclose(
    state.info["next_observation"][0], [*start.obs[0, :2], 2])
  assert state.obs[0, 2] == 0
  np.testing.assert_array_equal(
    state.info["next_state_descriptor"], start.info["state_descriptor"])
  np.testing.assert_array_equal(
    state.info["state_descriptor"], state.obs[:, :2])
  assert (state.info["state_descriptor"] != start.obs[:, :2]).all()


@pytest.mark.parametrize(("make", "episode_length", "discount"), [
  (lambda: Drift(2), 10, 0), (Drift, 2, 1),
  # At the last step of all, a termination is a termination.
  (lambda: Drift(2), 2, 0),
  # What the environment itself calls a truncation is one.
  (liars.truncating, 10, 1), (lambda: liars.truncating(done=False), 10, 1)])
def test_only_a_termination_has_discount_0(make, episode_length, discount):
  env = environments.Environment(make(), episode_length=episode_length)
  state = env.step(env.reset(_keys(1)), _still(1))
  assert (state.done, state.info["discount"]) == (0, 1)
  state = env.step(state, _still(1))
  assert (state.done, state.info["steps"]) == (1, 0)
  assert state.info["discount"] == state.info["truncation"] == discount


@pytest.mark.parametrize(("make", "num_steps", "with_pool"), [
  (liars.one_nan_obs_at_step, 1, True), (liars.late_inf_reward, 3, False),
  (liars.nan_descriptor_at_step, 1, False),
  (liars.nan_obs_as_it_terminates, 1, False)])
def test_a_nonfinite_episode_is_truncated(make, num_steps, with_pool):
  env = environments.Environment(make(), episode_length=10)
  pool = env.reset(_keys(2, 3, seed=1)) if with_pool else None
  state = env.reset(_keys(2))
  for _ in range(num_steps):
    assert not state.done.any()
    before, state = state, env.step(state, _still(2), pool)
  assert state.done.tolist() == state.info["truncation"].tolist() == [1, 1]
  assert state.info["discount"].tolist() == [1, 1]
  # It goes on from the first state of another episode.
  assert state.info["steps"].tolist() == [0, 0]
  assert np.isfinite(state.obs).all()
  assert state.pipeline_state.pipeline_state.tolist() == [0, 0]
  if with_pool:
    np.testing.assert_array_equal(state.obs, pool.obs[:, 0])
    # Evaluation goes on with what it sees.
    state = env.advance(before, _still(2))
    assert not state.done.any() and np.isnan(state.obs).any()


def test_an_action_that_is_not_finite_ends_its_own_episode_alone(long):
  state = long.step(long.reset(_keys(3)), _still(3).at[1, 0].set(jnp.nan))
  assert state.info["truncation"].tolist() == [0, 1, 0]
  assert state.info["steps"].tolist() == [1, 0, 1]
  assert np.isfinite(state.obs).all()


def test_only_ended_instances_are_reset_and_each_draws_afresh(long):
  first = long.reset(_keys(3))
  action = jnp.array([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
  second = long.step(first, action)
  third = long.step(second, action)
  np.testing.assert_array_equal(second.done, [1, 0, 1])
  np.testing.assert_array_equal(third.info["steps"], [0, 2, 0])
  np.testing.assert_array_equal(third.obs[1], [*first.obs[1, :2], 2])
  starts = [*first.obs[:, 0], *second.obs[::2, 0], *third.obs[::2, 0]]
  assert len(np.unique(starts)) == 7


def test_advance_goes_on_after_the_end(env):
  state, dones = env.reset(_keys(1)), []
  for _ in range(3):
    state = env.advance(state, _still(1))
    dones.append(int(state.done[0]))
  assert dones == [0, 1, 1]
  assert (state.obs[0, 2], state.reward, state.info["steps"]) == (3, 3, 3)
  np.testing.assert_array_equal(state.obs, state.info["next_observation"])
