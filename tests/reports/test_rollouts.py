"""Tests of where elites go when they act again."""

import types

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from qdrl_haiku import actors, environments, learners, map_elites, reports
from qdrl_haiku.reports import rollouts
from tests import configs
from tests.launchers import untrained
from tests.reports import common

_ENV = environments.create("point_maze", episode_length=7)
_LEARNER = learners.td3(2, 2, configs.sized(
    learners.TD3Config, (4,), (4,), normalize_observations=False
  ))
_GRID = map_elites.Grid((3, 2), (-1.0, -1.0), (1.0, 1.0))
_CELLS = [0, 2, 3, 5]
# A body with one stick, and what stays in the world.
_ROBOT = """
<mujoco><worldbody>
  <geom type="plane" size="1 1 1"/>
  <geom type="capsule" fromto="9 9 0 9 9 1" size="0.1"/>
  <body><freejoint/><geom type="capsule" fromto="0 0 0 0.5 0 0" size="0.1"/>
  </body>
</worldbody></mujoco>
"""


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
  with untrained.quick_compilation():
    yield


@pytest.fixture(scope="module")
def elites(tmp_path_factory):
  """Four new agents, in cells of their own."""
  path = tmp_path_factory.mktemp("run")
  common.agents(_LEARNER, _GRID, _CELLS).save(path / "repertoire" / "1.npz")
  return reports.read_elites(path)[0]


def _points(path):
  return np.stack([np.asarray(one) for one in path])


def test_ways_are_those_of_the_agents_in_the_cells(elites):
  found = rollouts.roll_out(_ENV, _LEARNER, elites, 100)
  assert found.cells.tolist() == _CELLS
  saved = map_elites.Repertoire.load(elites.path)
  genotypes = jax.tree.map(
    lambda x: x[jnp.array(_CELLS)], saved.genotypes.genotype
  )

  @jax.jit
  def episodes(genotypes):
    states = jax.vmap(_LEARNER.from_genotype)(genotypes)
    key = jax.random.key(0)
    return actors.rollout(_ENV, _LEARNER, states, key, 7, lambda s: s.obs)

  expected = episodes(genotypes)
  ways, ends = map(_points, found.paths)
  np.testing.assert_allclose(ways, expected.extracted, atol=1e-6)
  np.testing.assert_array_equal(ends[:, 0], ways[:, -1])
  np.testing.assert_allclose(
    found.returns, expected.rewards.sum(axis=1), atol=1e-5
  )
  (panel,) = found.figure.panels
  names = [trace.name for trace in panel.traces if trace.in_legend]
  assert names == ["way", "end", "start", "goal"]
  few = rollouts.roll_out(_ENV, _LEARNER, elites, 2)
  assert few.cells.tolist() == [0, 5] and len(few.paths[0]) == 2


def test_agents_of_another_kind_are_refused(elites):
  learner = learners.td3(2, 2, configs.sized(
    learners.TD3Config, (5,), (4,), normalize_observations=False
  ))
  with pytest.raises(ValueError, match="agents of another kind"):
    rollouts.roll_out(_ENV, learner, elites, 2)


@pytest.mark.parametrize("leaves_its_plane", [True, False])
def test_robots_are_drawn_as_sticks(leaves_its_plane, elites, monkeypatch):
  def extract(state):
    x, y = jnp.unstack(state.obs, axis=-1)
    pos = jnp.stack([x, y * leaves_its_plane, jnp.full_like(x, 0.7)], axis=-1)
    rot = jnp.broadcast_to(jnp.array([1.0, 0, 0, 0]), (*x.shape, 1, 4))
    return {"q": x, "pos": pos[..., None, :], "rot": rot}

  model = mujoco.MjModel.from_xml_string(_ROBOT)
  scene = environments.RobotScene(
    extract, types.SimpleNamespace(mj_model=model), step_seconds=0.5
  )
  monkeypatch.setattr(environments, "scene", lambda env: scene)
  robot = rollouts.roll_out(_ENV, _LEARNER, elites, 100)
  monkeypatch.undo()
  flat = rollouts.roll_out(_ENV, _LEARNER, elites, 100)
  ways, expected = _points(robot.paths[0]), _points(flat.paths[0])
  if leaves_its_plane:
    np.testing.assert_array_equal(ways, expected)
  else:  # When it was where.
    np.testing.assert_allclose(ways[1, :, 0], np.arange(8) / 2)
    np.testing.assert_array_equal(ways[..., 1], expected[..., 0])
  # Of each, some moments of one stick, side by side.
  x, y = np.unstack(_points(robot.paths[2]).reshape(4, -1, 3, 2)[:, :, :2],
                    axis=-1)
  assert x.shape[1] > 3
  np.testing.assert_allclose(np.ptp(x, axis=2), 0.5 * np.cos(0.2), atol=1e-6)
  assert np.all(x[:, 1:].min(axis=2) >= x[:, :-1].max(axis=2))
  np.testing.assert_allclose(y.mean(), 0.7 * np.cos(0.3), atol=0.1)
