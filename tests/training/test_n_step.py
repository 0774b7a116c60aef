"""Tests of transitions over several steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import types
from qdrl_haiku.training import n_step, order
from tests.training import common

_N, _E, _T = 3, 3, 40
# No multiple of E, so that a step's rows stand on both sides of the end.
_CAPACITY = 32
_DISCOUNT = 0.9
_SETUP = common.setup(n_step=_N, num_envs=_E, replay_capacity=_CAPACITY)


def _history():
  """Steps [T, E] of environments, many of which end an episode."""
  rng = np.random.default_rng(0)
  outcome = rng.choice(3, size=(_T, _E), p=[0.6, 0.2, 0.2])
  time, env = np.meshgrid(np.arange(_T), np.arange(_E), indexing="ij")
  return types.Transition(
    observation=np.stack([env, time], axis=-1).astype(np.float32),
    action=rng.normal(size=(_T, _E, 1)).astype(np.float32),
    reward=rng.normal(size=(_T, _E)).astype(np.float32),
    discount=(outcome != 1).astype(np.float32),
    next_observation=np.stack([env, time + 0.5], axis=-1).astype(np.float32),
    extras={"truncation": (outcome == 2).astype(np.float32)})


def _rows(history, begin, end):
  return jax.tree.map(lambda x: x[begin:end].reshape(-1, *x.shape[2:]), history)


def _expected(history, num_steps, env, time):
  """Sums one window in float64: reward, discount, and its last step."""
  reward, power = 0.0, 1.0
  last = time
  for i in range(_N):
    last = time + i
    reward += power * float(history.reward[last, env])
    power *= float(history.discount[last, env])
    is_last = i == _N - 1 or last == num_steps - 1
    if is_last or not power or history.extras["truncation"][last, env]:
      break
    power *= _DISCOUNT
  return reward, power, last


@jax.jit
def _sample(state, key):
  windows = n_step.sample_n_step(_SETUP, state, key, (200,))
  return n_step.fold_n_step(windows, {"discount": _DISCOUNT})


def _buffer(history, cuts=()):
  """Adds the history a few steps at a time; yields after each addition."""
  example = jax.tree.map(lambda x: x[0, 0], history)
  state = _SETUP.buffer.init(example)
  add = jax.jit(_SETUP.buffer.add)
  for begin in range(0, _T, 5):
    if begin in cuts:
      state = order.cut_order(_SETUP, state)
    state = add(state, _rows(history, begin, begin + 5))
    yield begin + 5, state


def test_sums_are_those_of_recorded_episodes_in_a_buffer_that_wraps():
  history = _history()
  lengths, ends = set(), set()
  for num_steps, state in _buffer(history):
    batch = jax.device_get(_sample(state, jax.random.key(num_steps)))
    oldest = max(0, num_steps * _E - _CAPACITY)
    drawn = set()
    for i in range(batch.reward.shape[0]):
      env, time = (int(x) for x in batch.observation[i])
      drawn.add(time * _E + env)
      reward, discount, last = _expected(history, num_steps, env, time)
      np.testing.assert_allclose(batch.reward[i], reward, rtol=1e-5, atol=1e-6)
      np.testing.assert_allclose(batch.discount[i], discount, rtol=1e-6)
      np.testing.assert_array_equal(
        batch.next_observation[i], history.next_observation[last, env])
      np.testing.assert_array_equal(batch.action[i], history.action[time, env])
      lengths.add(last - time)
      ends.add((
        history.discount[last, env] == 0,
        history.extras["truncation"][last, env] == 1, last == num_steps - 1))
    assert drawn == set(range(oldest, num_steps * _E))
  assert lengths == {0, 1, 2}
  # Terminated, truncated, neither; each at the latest step and before.
  assert len(ends) == 6


def _endless_history():
  """Steps of which none ends an episode."""
  history = _history()
  return history._replace(
    discount=np.ones_like(history.discount),
    extras={"truncation": np.zeros_like(history.reward)})


def test_a_cut_ends_what_came_before():
  history = _endless_history()
  state = dict(_buffer(history, cuts=(20,)))[25]
  batch = _sample(state, jax.random.key(0))
  begin, end = batch.observation[:, 1], batch.next_observation[:, 1] - 0.5
  assert set(np.unique(end[begin < 20])) == {16, 17, 18, 19}
  np.testing.assert_array_equal(end[begin >= 20], np.minimum(
    begin[begin >= 20] + _N - 1, 24))


def test_no_window_holds_or_jumps_over_a_step_that_is_left_out():
  history = _endless_history()
  # One step of one environment, all steps of another time, all of 11 to 13.
  left_out = np.zeros((_T, _E), bool)
  left_out[6, 1] = left_out[8] = left_out[11:14] = True
  broken = jax.tree.map(np.copy, history)
  broken.reward[left_out] = np.nan
  state = _SETUP.buffer.init(jax.tree.map(lambda x: x[0, 0], history))
  add = jax.jit(lambda *args: order.add_in_order(_SETUP, *args))
  drawn = set()
  for time in range(20):
    state = add(state, _rows(broken, time, time + 1), ~left_out[time])
    if time < 3:
      continue
    batch = jax.device_get(_sample(state, jax.random.key(time)))
    assert np.isfinite(batch.reward).all()
    for i in range(batch.reward.shape[0]):
      env, first = (int(x) for x in batch.observation[i])
      drawn.add((first, env))
      assert not left_out[first, env]
      last = int(batch.next_observation[i, 1] - 0.5)
      steps = np.arange(first, last + 1)
      assert not left_out[steps, env].any() and len(steps) <= _N
      reward = np.sum(history.reward[steps, env] * _DISCOUNT ** (steps - first))
      np.testing.assert_allclose(batch.reward[i], reward, rtol=1e-5, atol=1e-6)
  assert drawn == {
    (t, e) for t in range(20) for e in range(_E) if not left_out[t, e]}


@pytest.mark.slow
def test_members_learn_from_sums_by_their_own_discounts():
  base = common.quadratic_learner()

  def update(state, hyperparams, transitions, key):
    assert transitions.extras == {}
    state, _ = base.update(state, hyperparams, transitions, key)
    is_own = jnp.isclose(transitions.discount, hyperparams["discount"])
    return state, {"is_own": jnp.mean(is_own.astype(float))}

  learner = base._replace(
    update=update, hyperparams=base.hyperparams | {"discount": 0.5})
  trainer = common.Trainer(common.setup(learner=learner, n_step=2))
  # Episodes of five steps begin with four that have a next one.
  discounts = np.array([0.25, 0.5, 0.5, 0.75], np.float32)
  hyperparams = trainer.first.hyperparams | {"discount": discounts}
  _, report = trainer.step(common.changed(trainer.first, hyperparams))
  assert np.all(np.abs(report.metrics["is_own"] - 0.7) < 0.3)
