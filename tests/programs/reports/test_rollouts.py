"""Tests of where elites go when they act again."""

import types

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from qdrl_haiku import actors, environments, map_elites
from qdrl_haiku.programs import reports
from qdrl_haiku.programs.reports import rollouts
from tests import toy
from tests.programs.reports import common

_ENV = environments.Environment(toy.Walk(), episode_length=7)
_LEARNER = toy.linear_learner()
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


@pytest.fixture(scope="module")
def elites(tmp_path_factory):
  """Four new agents, in cells of their own."""
  path = tmp_path_factory.mktemp("run")
  common.agents(_LEARNER, _GRID, _CELLS).save(path / "repertoire" / "1.npz")
  return reports.read_elite_table(path)[0]


@pytest.fixture(scope="module")
def expected(elites):
  """Their episodes."""
  saved = map_elites.Repertoire.load(elites.path)
  states = jax.tree.map(
    lambda x: x[jnp.array(_CELLS)], saved.genotypes.genotype)
  key = jax.random.key(0)
  run = jax.jit(
    lambda x: actors.rollout(_ENV, _LEARNER, x, key, 7, lambda s: s.obs))
  return run(states)


def _episodes(found):
  """Cells, returns, and points [M, N, 2] of each of the figure's traces."""
  cells, returns, points = zip(*found["episodes"], strict=True)
  paths = [np.swapaxes(one, 1, 2) for one in zip(*points, strict=True)]
  return list(cells), returns, paths


def test_ways_are_those_of_the_agents_in_the_cells(elites, expected):
  found = rollouts.roll_out_elites(_ENV, _LEARNER, elites, 4)
  cells, returns, (ways, ends) = _episodes(found)
  assert cells == _CELLS
  np.testing.assert_allclose(ways, expected.extracted, rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(ends[:, 0], ways[:, -1])
  np.testing.assert_allclose(returns, expected.rewards.sum(axis=1), rtol=1e-5)
  traces = found["figure"]["data"]
  assert [trace["name"] for trace in traces] == ["way", "end"]


@pytest.mark.parametrize("leaves_its_plane", [True, False])
def test_robots_become_sticks(leaves_its_plane, elites, expected, monkeypatch):
  def extract(state):
    x, y = jnp.unstack(state.obs, axis=-1)
    pos = jnp.stack([x, y * leaves_its_plane, jnp.full_like(x, 0.7)], axis=-1)
    rot = jnp.broadcast_to(jnp.array([1.0, 0, 0, 0]), (*x.shape, 1, 4))
    return {"q": x, "pos": pos[..., None, :], "rot": rot}

  model = mujoco.MjModel.from_xml_string(_ROBOT)
  scene = environments.RobotScene(
    extract, types.SimpleNamespace(mj_model=model), step_seconds=0.5)
  monkeypatch.setattr(environments, "scene", lambda env: scene)
  robot = rollouts.roll_out_elites(_ENV, _LEARNER, elites, 100)
  _, _, (ways, _, sticks) = _episodes(robot)
  if leaves_its_plane:
    np.testing.assert_allclose(ways, expected.extracted, rtol=1e-5, atol=1e-5)
  else:  # When it was where.
    np.testing.assert_allclose(ways[1, :, 0], np.arange(8) / 2)
    np.testing.assert_allclose(
      ways[..., 1], expected.extracted[..., 0], atol=1e-5)
  # Of each, some moments of one stick, side by side.
  x, y = np.unstack(sticks.reshape(4, -1, 3, 2)[:, :, :2], axis=-1)
  assert x.shape[1] > 3
  np.testing.assert_allclose(np.ptp(x, axis=2), 0.5 * np.cos(0.2), atol=1e-4)
  assert np.all(x[:, 1:].min(axis=2) >= x[:, :-1].max(axis=2))
  np.testing.assert_allclose(y.mean(), 0.7 * np.cos(0.3), atol=0.1)
