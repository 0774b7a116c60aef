"""Tests of training in environments whose states jax doesn't hold."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers, environments, runs, training
from tests.launchers import untrained
from tests.training import common

gymnasium = pytest.importorskip(
  "gymnasium", reason="Gymnasium is not installed (the extra [gymnasium])"
)


class _Drift(gymnasium.Env):
  """`common.Drift` in Gymnasium; it knows who steps it how often."""

  observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
  action_space = gymnasium.spaces.Box(-1, 1, (2,))

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.point = self.np_random.normal(size=2)
    return self.point.astype(np.float32), {}

  def step(self, action):
    self.point = self.point + 0.1 * action
    reward = -float(np.sum((action - common.TARGET) ** 2))
    return self.point.astype(np.float32), reward, False, False, {}


@pytest.fixture(autouse=True, scope="module")
def _registered():
  gymnasium.register("Drift-v0", _Drift, max_episode_steps=5)
  yield
  del gymnasium.registry["Drift-v0"]


def _setup(**settings):
  controller = controllers.pbt(controllers.PBTConfig(), common.SPACE)
  return common.setup(controller, **settings)._replace(
    env=environments.create("gymnasium:Drift-v0"),
    eval_env=environments.create("gymnasium:Drift-v0"),
  )


def _run(setup, logdir, **config):
  config = runs.RunConfig(logdir=str(logdir), num_timesteps=48, **config)
  runs.run(setup, config, {})


def test_one_device_is_taken_whatever_there_are():
  assert common.setup().batch_sizes == (4,)
  assert _setup().batch_sizes == (1,)


def test_a_broken_member_keeps_its_own_instances():
  setup = _setup()
  key = jax.random.key(0)
  population = jax.jit(lambda: training.init_population(setup, key))()
  point = population.members.learner.point.at[1].set(jnp.nan)
  learner = population.members.learner._replace(point=point)
  population = population.with_members(
    population.members._replace(learner=learner)
  )
  train = jax.jit(lambda x: training.train_generation(setup, x, key))
  with untrained.quick_compilation():
    population, report = train(population)
  assert report.finite.tolist() == [True, False, True, True]
  assert int(report.decision.parents[1]) != 1
  first = population.members.environment.obs
  assert len({x.tobytes() for x in np.asarray(first).reshape(8, 2)}) == 8
  # They go on, all of them.
  population, report = train(population)
  assert report.finite.all()


def test_resuming_is_refused(tmp_path):
  with pytest.raises(ValueError, match="on the host, .* another with"):
    _run(_setup(), tmp_path / "run", resume=True)
  assert not (tmp_path / "run").exists()


def test_several_devices_are_refused(tmp_path):
  mesh = dataclasses.make_dataclass("Mesh", ["size"])(2)
  with pytest.raises(ValueError, match="mesh has 2 devices.*; leave the mesh"):
    _run(_setup()._replace(mesh=mesh), tmp_path / "run")


def test_several_processes_are_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  with pytest.raises(ValueError, match="there are 2 processes.*; start one"):
    _run(_setup(), tmp_path / "run")


def test_a_pool_of_states_that_cannot_be_kept_is_refused(tmp_path):
  setup = _setup()
  config = dataclasses.replace(setup.config, pool_size=2)
  with pytest.raises(ValueError, match="pool_size=2 has no effect.*; leave it"):
    _run(setup._replace(config=config), tmp_path / "run")


def test_evaluating_where_agents_collect_is_refused(tmp_path):
  setup = _setup()
  with pytest.raises(ValueError, match="eval_env is env.*; create another"):
    _run(setup._replace(eval_env=setup.env), tmp_path / "run")
