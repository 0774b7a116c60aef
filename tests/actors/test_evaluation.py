"""Tests of evaluating episodes, and of rolling one out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import actors, environments
from tests import jaxprs, toy

_LEARNER = toy.linear_learner()
_P, _N, _T = 3, 20, 5
# Offsets whose sine is that of each push.
_PUSHES = np.array([0.5, 0.2, 0.1])
_STATES = {"offset": jnp.arcsin(_PUSHES), "gain": jnp.zeros(_P)}


class _Walk(toy.Walk):
  """Reports its rewards, and minus its steps, as objectives."""

  objectives = environments.Objectives(("way", "haste"), (-1.0, -1.0))

  def _state(self, x, steps, reward, done):
    state = super()._state(x, steps, reward, done)
    both = jnp.stack([reward, -jnp.ones(())])
    return state.replace(info=state.info | {"objectives": both})


_WALK = environments.Environment(_Walk(limit=1.0), episode_length=_T)


def _evaluate(key, states=_STATES, learner=_LEARNER, env=_WALK, **kwargs):
  return actors.evaluate(env, learner, states, key, _N, **kwargs)


_EVALUATE = jax.jit(_evaluate)


def _span(descriptors, mask):
  """The first and last descriptor of an episode, and how many it has."""
  assert (descriptors.shape, mask.shape) == ((_T, 2), (_T,))
  last = descriptors[jnp.sum(mask) - 1]
  return jnp.array([descriptors[0, 0], last[0], last[1], jnp.sum(mask)])


def _record(state):
  return {"x": state.info["next_observation"], "done": state.done > 0}


@pytest.fixture(scope="module")
def evaluated():
  """All that an evaluation can keep."""
  return _evaluate(
    jax.random.key(3), descriptor_fn=_span, record=_record,
    keep_transitions=True)


def _episodes():
  """Member and number of each episode, with its path from the start on."""
  key = jax.random.key(3)
  for i, push in enumerate(_PUSHES):
    keys = jax.random.split(jax.random.fold_in(key, i), _N)
    for j, start in enumerate(_WALK.reset(keys).obs[:, 0]):
      path = start + push * np.arange(_T + 1)
      beyond = np.flatnonzero(path[1:] > 1.0)
      yield i, j, path[: min([*(beyond + 1), _T]) + 1]


def test_first_episodes_are_those_of_greedy_agents(evaluated):
  lengths = set()
  for i, j, path in _episodes():
    length = len(path) - 1
    lengths.add(length)
    assert evaluated.lengths[i, j] == length
    np.testing.assert_allclose(
      evaluated.returns[i, j], path[1:].sum(), rtol=1e-5, atol=1e-5)
    # The mask leaves out what follows the end.
    np.testing.assert_allclose(
      evaluated.descriptors[i, j], [path[1], path[-1], length, length],
      rtol=1e-5, atol=1e-6)
  assert len(lengths) > 2
  np.testing.assert_array_equal(
    evaluated.objectives,
    np.stack([evaluated.returns, -evaluated.lengths], axis=-1))
  assert evaluated.lengths.dtype == jnp.int32


def test_trajectories_and_transitions_are_those_of_each_step(evaluated):
  kept = evaluated.transitions
  assert kept.reward.shape == (_P, _N, _T)
  terminated = set()
  for i, j, path in _episodes():
    count = np.arange(len(path))
    expected = np.stack([path, count], axis=-1)
    place = (i, j, slice(len(path) - 1))
    trajectory, transitions = jax.tree.map(
      lambda x, place=place: x[place], (evaluated.trajectory, kept))
    for seen in (trajectory["x"], transitions.next_observation):
      np.testing.assert_allclose(seen, expected[1:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
      transitions.observation, expected[:-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(transitions.reward, path[1:], rtol=1e-4)
    np.testing.assert_array_equal(
      transitions.action, np.full((len(path) - 1, 1), _STATES["offset"][i]))
    assert trajectory["done"].tolist() == [*[False] * (len(path) - 2), True]
    ends = path[-1] > 1.0
    terminated.add(bool(ends))
    expected = [1.0] * (len(path) - 2) + [0.0 if ends else 1.0]
    assert transitions.discount.tolist() == expected
  assert terminated == {True, False}


def test_one_key_is_folded_into_one_per_member():
  key = jax.random.key(7)
  keys = jnp.stack([jax.random.fold_in(key, i) for i in range(_P)])
  returns = _EVALUATE(key).returns
  assert len(np.unique(returns)) == _P * _N
  np.testing.assert_array_equal(_EVALUATE(keys).returns, returns)
  assert np.all(_EVALUATE(keys[::-1]).returns[0] != returns[0])
  # A member depends neither on its place nor on the others.
  again = jnp.array([2, 0, 0])
  states = jax.tree.map(lambda x: x[again], _STATES)
  np.testing.assert_array_equal(
    _EVALUATE(keys[again], states).returns, returns[again])


def test_all_episodes_are_one_flat_batch():
  sines = jaxprs.named(_evaluate, "sin", jax.random.key(0))
  assert [e.outvars[0].aval.shape for e in sines] == [(_P * _N,)]


def test_evaluation_acts_greedily_until_the_last_episode_has_ended():
  rounds = []

  def refuse(*args):
    raise AssertionError("evaluation called it")

  def act_greedy(*args):
    jax.debug.callback(lambda: rounds.append(1))
    return _LEARNER.act_greedy(*args)

  learner = _LEARNER._replace(
    act_greedy=act_greedy, act=refuse, observe=refuse, update=refuse)
  env = environments.Environment(toy.Countdown(6), episode_length=100)
  lengths = _evaluate(jax.random.key(0), learner=learner, env=env).lengths
  jax.effects_barrier()
  assert len(rounds) in (lengths.max(), _P * lengths.max())


def _extract(state):
  assert state.obs.shape[0] == _P
  return {"x": state.obs}


def test_the_episode_is_the_first_of_an_evaluation_with_the_same_key():
  key = jax.random.key(3)
  found = actors.rollout(_WALK, _LEARNER, _STATES, key, _T + 2, _extract)
  evaluation = actors.evaluate(
    _WALK, _LEARNER, _STATES, key, 4, keep_transitions=True)
  lengths = evaluation.lengths[:, 0]
  np.testing.assert_array_equal(
    found.mask, np.arange(_T + 3) <= lengths[:, None])
  assert len({*lengths.tolist()}) > 1
  for i, length in enumerate(lengths):
    extracted, rewards = found.extracted["x"][i], found.rewards[i]
    happened = jax.tree.map(
      lambda x, i=i, n=length: x[i, 0, :n], evaluation.transitions)
    for actual, expected in (
      (extracted[:length], happened.observation),
      (extracted[1 : length + 1], happened.next_observation),
      (rewards[:length], happened.reward),
    ):
      np.testing.assert_allclose(actual, expected, rtol=1e-6)
