"""Tests of descriptors, of states, of episodes and of what can be drawn."""

import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments, skills
from tests import toy


def test_descriptors_of_episodes_are_of_their_last_step_and_of_the_mean():
  # Episodes of 3, 1 and 4 steps, and what follows them.
  states = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
  mask = np.arange(4)[:, None] < np.array([3, 1, 4])
  states[~mask] = np.nan
  final, mean = (
    jax.vmap(function, in_axes=1)(jnp.array(states), jnp.array(mask))
    for function in (
      environments.final_descriptor, environments.mean_descriptor))
  np.testing.assert_array_equal(final, states[[2, 0, 3], [0, 1, 2]])
  expected = np.nanmean(states.astype(np.float64), axis=0)
  np.testing.assert_allclose(mean, expected, rtol=1e-6)


def test_a_users_descriptor_replaces_that_of_the_environment():
  positive = environments.Descriptor(("positive",), (0.0,), (1.0,))
  single = environments.with_descriptor(
    toy.Walk(limit=3), lambda state: state.obs[:1] > 0, positive)
  # The rest of the environment is still there.
  assert single.limit == 3
  assert copy.copy(single).env is single.env
  with pytest.raises(AttributeError, match="'Walk' .* 'no_such'"):
    _ = single.no_such
  env = environments.Environment(single, episode_length=5)
  assert env.descriptor == positive
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  state = env.advance(state, jnp.array([[1.0], [-1.0]]))
  np.testing.assert_array_equal(state.info["state_descriptor"], [[1], [0]])


_PLACE = environments.Descriptor(("x",), (0.0,), (1.0,))


def _describe(function):
  return environments.with_descriptor(toy.Walk(), function, _PLACE)


@pytest.mark.parametrize(("call", "message"), [
  (lambda: _describe(environments.final_descriptor),
   r"_fn=final_descriptor is no function of one state; .* descriptor \[D\]"),
  (lambda: _describe(_PLACE), r"_fn=Descriptor\(.* is no function of one sta"),
  (lambda: dataclasses.replace(_PLACE, upper=(1.0, 1.0)),
   "differ in length; give one of each"),
  (lambda: dataclasses.replace(_PLACE, upper=(0.0,)), "must be below"),
  (lambda: dataclasses.replace(_PLACE, function=lambda state: state.obs),
   r"=<lambda> is no function of an episode's descriptors \[T, D\] and mask"),
  (lambda: environments.create(_describe(lambda state: (state.obs[0],))),
   r"_fn=<lambda> returned a tuple; return one array, \[D\]"),
  (lambda: environments.create(_describe(lambda state: state.obs)),
   r"info\['state_descriptor'\] has shape \(2,\) instead of \(1,\)")])
def test_a_function_that_describes_something_else_is_refused(call, message):
  with pytest.raises(ValueError, match=message) as error:
    call()
  assert "\n" not in str(error.value)


_KEYS = jax.random.split(jax.random.key(0), (2, 3))


@pytest.mark.parametrize("layout", ["maze", "open"])
def test_of_a_maze_the_point_and_what_it_walks_among_are_drawn(layout):
  single = maze = environments.PointMaze(layout)
  if layout == "open":  # Inside of all that may be around it.
    single = environments.with_descriptor(
      maze, lambda state: state.obs[:1],
      environments.Descriptor(("x",), (-1.0,), (1.0,)))
  env = environments.Environment(single, episode_length=20)
  if layout == "open":
    env = environments.SkillEnvironment(env, skills.categorical(3))
  scene = environments.scene(env)
  assert isinstance(scene, environments.PlaneScene)
  for name in ("walls", "start", "goal"):
    np.testing.assert_array_equal(getattr(scene, name), getattr(maze, name))
  assert (scene.lower.tolist(), scene.upper.tolist()) == ([-1, -1], [1, 1])
  state = env.reset(_KEYS)
  np.testing.assert_array_equal(scene.extract(state), state.obs[..., :2])


def test_of_others_the_first_two_axes_of_the_descriptor_are_drawn():
  env = environments.Environment(
    environments.with_descriptor(
      toy.Walk(), lambda state: jnp.append(state.obs, 7.0),
      environments.Descriptor(("a", "b", "c"), (0.0,) * 3, (1.0, 2.0, 3.0))),
    episode_length=5)
  scene = environments.scene(env)
  assert scene.names == ("a", "b")
  assert (scene.lower.tolist(), scene.upper.tolist()) == ([0, 0], [1, 2])
  assert scene.walls.shape == (0, 4)
  assert scene.start is None and scene.goal is None
  state = env.advance(env.reset(_KEYS), jnp.ones((2, 3, 1)))
  np.testing.assert_array_equal(scene.extract(state), state.obs)
