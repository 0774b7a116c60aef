"""Tests of the tasks without physics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from qdrl_haiku import environments
from qdrl_haiku.environments import functions

_POINTS = np.random.default_rng(0).uniform(0, 1, (5, 8))


def _arm(point):
  x, y, angle = 0.0, 0.0, 0.0
  for joint in point:
    angle += 2 * np.pi * (joint - 0.5)
    x, y = x + np.cos(angle) / len(point), y + np.sin(angle) / len(point)
  return -np.std(point), [0.5 + x / 2, 0.5 + y / 2]


def _rastrigin(point):
  x = 10 * point - 5
  total = 10 * len(x) + np.sum(x**2 - 10 * np.cos(2 * np.pi * x))
  return -total, point[:2]


def _rastrigin_pair(point):
  xs = 6 * point - 2, 6 * point - 4.2
  both = [-np.sum(x**2 + 10 - 10 * np.cos(2 * np.pi * x)) for x in xs]
  return sum(both), point[:2], both


def _sphere(point):
  return -np.sum((10 * point - 5) ** 2), point[:2]


@pytest.mark.parametrize("name, expected", [
  ("arm", _arm), ("rastrigin", _rastrigin), ("sphere", _sphere),
  ("rastrigin_pair", _rastrigin_pair)])
def test_an_episode_is_the_function_of_its_action(name, expected):
  env = environments.create(name)
  assert env.episode_length == 1 and env.action_size == 8
  state = env.reset(jax.random.split(jax.random.key(0), len(_POINTS)))
  np.testing.assert_array_equal(state.obs, np.ones((5, 1)))
  after = env.advance(state, jnp.asarray(2 * _POINTS - 1, jnp.float32))
  rewards, descriptors, *others = zip(*map(expected, _POINTS), strict=True)
  for both in others:
    np.testing.assert_allclose(after.info["objectives"], both, rtol=1e-4)
  np.testing.assert_allclose(after.reward, rewards, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    after.info["next_state_descriptor"], descriptors, atol=1e-5)
  assert np.all(after.done) and np.all(after.info["discount"] == 1)


def test_no_reward_is_below_the_offset():
  worst = optimize.brute(
    lambda x: _rastrigin((x + 5) / 10)[0], [(-5, 5)], Ns=2001, full_output=True
  )[1]
  assert 0 <= functions._RASTRIGIN_MAX + worst < 1e-3
  points = np.linspace(0, 1, 20001)[:, None]
  worst = min(_rastrigin_pair(x)[2][0] for x in points)
  assert 0 <= functions._PAIR_MAX + worst < 1e-3
  halves = jnp.array([0.0, 1.0])  # As unlike as two joints can be.
  np.testing.assert_allclose(functions.arm_function_scores(halves)[0], -0.5)
  np.testing.assert_allclose(functions.sphere_function_scores(halves)[0], -50)
