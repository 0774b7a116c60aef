"""Tests of counting the cells that episodes visit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import actors, environments
from qdrl_haiku.environments import State
from tests import toy


class _Line(toy.Walk):
  """A walk with a descriptor of one axis."""

  descriptor = environments.Descriptor(("x",), (-10.0,), (10.0,))

  def _state(self, *args):
    state = super()._state(*args)
    return state.replace(info={"state_descriptor": state.obs[:1]})


def _at(positions):
  """States of which only the descriptor is known."""
  positions = jnp.asarray(positions, jnp.float32)
  return State((), (), (), (), {}, {"next_state_descriptor": positions})


@pytest.mark.parametrize(("count", "expected"), [(None, 20), (4, 4)])
def test_cells_of_the_descriptor_are_those_of_numpys_histogram(count, expected):
  env = environments.create("point_maze")
  positions = np.random.default_rng(0).uniform(-1, 1, (3, 30, 2))
  cells = actors.coverage_cells(env, count)(_at(positions))
  found = actors.count_cells(cells, jnp.ones((3, 30), bool))
  for n in range(3):
    histogram, *_ = np.histogram2d(
      *positions[n].T, bins=expected, range=[(-1, 1)] * 2)
    assert found[n] == np.count_nonzero(histogram)


def test_a_descriptor_of_one_axis_has_its_cells_along_that():
  env = environments.Environment(_Line(), episode_length=3)
  cells = actors.coverage_cells(env, 5)(_at([[-9.0], [-7.0], [1.0], [99.0]]))
  assert actors.count_cells(cells, jnp.ones(4, bool)) == 3


def test_steps_that_do_not_count_visit_nothing():
  cells = jnp.array([[3, 3, 5, 7], [1, 2, 3, 4]])
  counted = jnp.array([[True, True, True, False], [False] * 4])
  np.testing.assert_array_equal(actors.count_cells(cells, counted), [2, 0])


def test_a_robots_cells_are_unit_squares_however_far_it_goes():
  # With the sizes that it has, which need no trace then.
  robot = environments.create("halfcheetah", backend="spring")
  state = jax.eval_shape(robot.reset, jax.random.split(jax.random.key(0), 4))
  state = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), state)
  physics = state.pipeline_state.pipeline_state
  places = np.array([[0.1, 0.1], [0.9, 0.2], [-0.1, 0.1], [900.5, 0.0]])
  pos = physics.x.pos.at[:, 0, :2].set(places)
  physics = physics.replace(x=physics.x.replace(pos=pos))
  state = state.replace(
    pipeline_state=state.pipeline_state.replace(pipeline_state=physics))
  cells = actors.coverage_cells(robot)(state)
  assert cells[0] == cells[1]
  assert actors.count_cells(cells, jnp.ones(4, bool)) == 3


def test_what_has_neither_place_nor_descriptor_is_not_counted():
  env = environments.create("reacher")
  assert actors.coverage_cells(env) is None
  with pytest.raises(ValueError, match="coverage_cells=5 .* none; leave it"):
    actors.coverage_cells(env, 5)
  walk = environments.Environment(toy.Walk(), episode_length=3)
  with pytest.raises(ValueError, match="coverage_cells=0 .* no robot; give a"):
    actors.coverage_cells(walk, 0)
