"""Tests of where elites go when they act again."""

import base64
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


def _decoded(ways):
  return {
    name: np.frombuffer(base64.b64decode(x["bytes"]), x["dtype"])
    for name, x in ways["columns"].items()
  }


def test_ways_are_those_of_the_agents_in_the_cells(elites):
  ways = rollouts.roll_out(_ENV, _LEARNER, elites, 100)
  found = _decoded(ways)
  assert found["cells"].tolist() == _CELLS
  assert found["ends"].tolist() == [8, 16, 24, 32]
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
  way = np.stack([found["x"], found["y"]], axis=1).reshape(4, 8, 2)
  np.testing.assert_allclose(way, expected.extracted, atol=1e-6)
  np.testing.assert_allclose(
    found["returns"], expected.rewards.sum(axis=1), atol=1e-5
  )
  # Two walls; where one begins, and where it is to go.
  assert len(ways["layout"]["shapes"]) == 2
  assert [trace["name"] for trace in ways["traces"]] == ["start", "goal"]


def test_as_many_act_as_are_asked_for(elites):
  found = _decoded(rollouts.roll_out(_ENV, _LEARNER, elites, 2))
  assert found["cells"].tolist() == [0, 5]
  assert len(found["x"]) == 16


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
  plane = _decoded(rollouts.roll_out(_ENV, _LEARNER, elites, 100))
  monkeypatch.undo()
  flat = _decoded(rollouts.roll_out(_ENV, _LEARNER, elites, 100))
  if leaves_its_plane:
    np.testing.assert_array_equal(plane["x"], flat["x"])
    np.testing.assert_array_equal(plane["y"], flat["y"])
  else:  # When it was where.
    np.testing.assert_allclose(plane["x"].reshape(4, 8)[1], np.arange(8) / 2)
    np.testing.assert_array_equal(plane["y"], flat["x"])
  # Of each, some moments of one stick, side by side.
  x = plane["stick_x"].reshape(4, -1, 2)
  assert x.shape[1] > 3
  np.testing.assert_allclose(np.ptp(x, axis=2), 0.5, atol=1e-6)
  assert np.all(x[:, 1:].min(axis=2) >= x[:, :-1].max(axis=2))
  np.testing.assert_allclose(plane["stick_y"], 0.7, atol=1e-6)
