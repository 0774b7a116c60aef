"""Tests of agents that earlier versions left behind."""

import pytest

from qdrl_haiku.programs import artifacts
from qdrl_haiku.programs.storage.checkpoints import Checkpoints
from tests.learners import common, skilled


def _written(path, state):
  """A run's directory with a best agent."""
  (path / "config.json").write_text("{}")
  checkpoints = Checkpoints(path / "best", writes=True)
  checkpoints.save(1, {"learner": state}, {"return": 2.0})
  return str(path)


@pytest.mark.parametrize("name", ["metra", "smerl"])
def test_agents_with_skills_of_0_4_are_read(tmp_path, name):
  learner = skilled.learner(name)
  state, _ = skilled.update(learner, common.fresh(learner), skilled.batches())
  state = state._replace(agent=state.agent.weight)
  seen = {"observation_statistics": state.observation_statistics}
  learned, moments = dict(state.learned), state.optimizers
  if name == "metra":
    old = {
      **learned, "multiplier_optimizer_state": moments["log_multiplier"],
      "representation_optimizer_state": moments["representation_params"]}
  else:
    old = {
      "best_return": learned.pop("best_return"),
      "diversity": {"agent": None, "observation_statistics": None, **learned},
      "diversity_optimizers": {
        "discriminator_optimizer_state": moments["discriminator_params"]}}
  path = _written(tmp_path, {"agent": state.agent, **seen, **old})
  reading = learner._replace(init=lambda key: state)
  found, record = artifacts.read_best(reading, path)
  common.assert_equal(found, state)
  assert record == {"return": 2.0}
  with pytest.raises(ValueError, match="holds agents of another kind"):
    artifacts.read_best(skilled.learner("dads"), path)
