"""Tests of training in environments whose states jax doesn't hold."""

import numpy as np
import pytest

from qdrl_haiku import controllers, environments
from qdrl_haiku.programs import runs
from tests.programs.runs import common as runs_common
from tests.training import common

gymnasium = pytest.importorskip(
  "gymnasium", reason="Gymnasium is not installed (the extra [gymnasium])")


class _Drift(gymnasium.Env):
  """`common.Drift` in Gymnasium."""

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
    eval_env=environments.create("gymnasium:Drift-v0"))


@pytest.mark.slow
def test_a_broken_member_keeps_its_own_instances():
  assert _setup().sizes.batches == (1,)  # One device, whatever there are.
  trainer = common.Trainer(_setup())
  state, report = trainer.step(common.broken(trainer.first, members=[1]))
  assert report.finite.tolist() == [True, False, True, True]
  assert int(report.decision.parents[1]) != 1
  first = state.members.environment.obs.reshape(8, 2)
  assert len({x.tobytes() for x in first}) == 8
  # They go on, all of them.
  assert trainer.step(state)[1].finite.all()


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_it_had_never_stopped(tmp_path):
  killed, whole = tmp_path / "killed", tmp_path / "whole"
  # Intervals of 8 steps of each instance; episodes have 5, and ages.
  runs_common.run(whole, 3, _setup())
  for generation in (1, 2):
    runs_common.killed_after(
      generation, killed, 3, setup=_setup(), resume=generation > 1)
  # A process has environments of its own.
  runs_common.run(killed, 3, _setup(), resume=True)
  runs_common.assert_same_run(killed, whole, _setup())


@pytest.mark.parametrize(("change", "message"), [
  (lambda setup: {"config": common.setup(pool_size=2).config},
   "pool_size=2 has no effect.*; leave it"),
  (lambda setup: {"eval_env": setup.env}, "eval_env is env.*; create another")])
def test_what_they_can_not_do_is_refused(change, message, tmp_path):
  setup, logdir = _setup(), tmp_path / "run"
  config = runs.RunConfig(logdir=str(logdir), num_timesteps=48)
  with pytest.raises(ValueError, match=message):
    runs.run(setup._replace(**change(setup)), config, {})
  assert not logdir.exists()
