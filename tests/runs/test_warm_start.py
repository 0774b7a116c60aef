"""Tests of runs that begin with another run's agents."""

import jax
import pytest

from qdrl_haiku.runs import resume as resume_lib
from qdrl_haiku.storage.directory import RunDirectory
from tests.runs import common as runs_common
from tests.runs.common import SETTINGS, SETUP, assert_same_run, rows, run
from tests.training import common


def test_a_warm_start_takes_the_other_runs_agents_best_first(
  trained, tmp_path
):
  trees, record = runs_common.checkpoint(trained)
  order = sorted(range(4), key=lambda i: -record["returns"][i])
  setup = common.setup(SETUP.controller, population_size=6)
  cold = common.init(setup, jax.random.key(9))
  warm = resume_lib._warm_start(setup, cold, str(trained))
  for i, source in enumerate(order + order[:2]):
    common.assert_bits_equal(
      common.member(warm.members.learner, i),
      common.member(trees["learner"], source),
    )
  for name in ("replay", "environment"):
    common.assert_bits_equal(
      getattr(warm.members, name), getattr(cold.members, name)
    )
  common.assert_bits_equal(warm.hyperparams, cold.hyperparams)


def test_a_warm_started_run_can_be_resumed(trained, tmp_path):
  source = str(trained)
  warm = {"settings": SETTINGS | {"warm_start": source}, "warm_start": source}
  run(tmp_path / "run", 1, **warm)
  first, last = rows(tmp_path / "run")[0], rows(trained)[-1]
  # It begins where the other one was, or a generation on.
  assert first["pbt/best_return"] > last["pbt/mean_return"]
  run(tmp_path / "run", 2, resume=True, **warm)
  run(tmp_path / "whole", 2, **warm)
  assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_warm_start_from_other_agents_or_none_is_refused(trained, tmp_path):
  other = SETUP._replace(learner=common.quadratic_learner(size=3))
  RunDirectory(tmp_path / "new").begin({})
  for setup, source, message in (
    (other, trained, "agents of another kind"),
    (SETUP, tmp_path / "new", "has nothing in checkpoints/"),
  ):
    before = sorted(source.iterdir())
    with pytest.raises(ValueError, match=message):
      run(tmp_path / "run", 1, setup=setup, warm_start=str(source))
    assert not (tmp_path / "run").exists()
    assert sorted(source.iterdir()) == before
