"""Tests of reading with which hyperparameters a run's agents were trained."""

import json
import re

import jax
import numpy as np
import pytest

from qdrl_haiku.programs import artifacts
from qdrl_haiku.programs.storage.checkpoints import Checkpoints
from tests.training import common

_INTERVAL = 16


def _row(generation, child, parent, rate, operator="perturb", **columns):
  return {
    "generation": generation, "step": generation * _INTERVAL, "child": child,
    "parent": parent, "operator": operator, "new_hyperparams": {"rate": rate},
    **columns}


_LINEAGE = [
  *(_row(0, i, -1, rate, "init") for i, rate in enumerate([1.0, 2.0, 3.0])),
  _row(1, 2, 0, 1.25),
  _row(2, 0, 2, 7.0, "resample"),
  _row(2, 2, 1, 1.6),
  _row(4, 1, 0, 5.6)]
# What the members had in generations 1 to 5.
_TABLE = [[1, 2, 3], [1, 2, 1.25], [7, 2, 1.6], [7, 2, 1.6], [7, 5.6, 1.6]]


def _write(
  folder, lineage=_LINEAGE, rates=_TABLE, best=(5, 1), settings=None, lost=()
):
  """A run of three agents, as it would have left them."""
  logdir = folder / "run"
  logdir.mkdir()

  def write(name, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (logdir / name).write_text(text)

  (logdir / "config.json").write_text(json.dumps(settings or {}))
  write("pbt_lineage.jsonl", lineage)
  write("pbt_members.jsonl", [
    {
      "generation": g, "step": g * _INTERVAL, "member": i,
      "return": 10.0 * g + i, "hyperparams": {"rate": float(rate)}}
    for g, row in enumerate(rates, start=1)
    for i, rate in enumerate(row)])
  write("metrics.jsonl", [
    {"generation": g, "step": g, "pbt/num_nonfinite": 3 if g in lost else 1}
    for g in range(1, 1 + len(rates))])
  if best is not None:
    checkpoints = Checkpoints(logdir / "best", writes=True)
    record = dict(zip(("generation", "member"), best, strict=True))
    checkpoints.save(7, {"learner": np.zeros(1)}, record)
  return str(logdir)


def _rates(schedule):
  return [hyperparams["rate"] for hyperparams in schedule.hyperparams]


def test_an_agent_has_the_schedule_of_its_ancestors(tmp_path):
  logdir = _write(tmp_path)
  schedule = artifacts.read_schedule(logdir)
  assert _rates(schedule) == [1.0, 1.25, 7.0, 7.0, 5.6]
  assert (schedule.run, schedule.member) == (logdir, 1)
  assert (schedule.generation, schedule.num_generations) == (5, 5)
  assert (schedule.perturbation_interval, schedule.num_steps) == (16, 80)
  assert schedule.episode_return == 51.0
  schedule = artifacts.read_schedule(logdir, member=2)
  assert _rates(schedule) == [2.0, 2.0, 1.6, 1.6, 1.6]
  assert schedule.member == 2 and schedule.generation == 5


def test_a_best_agent_of_before_has_the_schedule_until_then(tmp_path):
  schedule = artifacts.read_schedule(_write(tmp_path, best=(2, 2)))
  assert _rates(schedule) == [1.0, 1.25]
  assert schedule.num_steps == 32 and schedule.episode_return == 22.0


def test_a_member_that_began_anew_has_no_schedule_of_before(tmp_path):
  lineage = [
    *_LINEAGE[:3],
    *(_row(2, i, i, rate, "reinitialise") for i, rate in enumerate([4, 5, 6])),
    _row(3, 1, 0, 3.2)]
  rates = [[1, 2, 3], [1, 2, 3], [4, 5, 6], [4, 3.2, 6]]
  schedule = artifacts.read_schedule(
    _write(tmp_path, lineage, rates, best=(4, 1), lost=(2,)))
  assert _rates(schedule) == [4, 3.2]
  assert (schedule.generation, schedule.num_steps) == (4, 32)


def test_a_schedule_is_played_back_in_the_order_of_the_learner(tmp_path):
  schedule = artifacts.read_schedule(_write(tmp_path))
  learner = common.quadratic_learner()._replace(hyperparams={"rate": 0.5})
  controller = artifacts.play_back(schedule, learner)
  key = jax.random.key(0)
  state, hyperparams = controller.init(key, 2)
  played = [hyperparams["rate"].tolist()]
  for _ in range(6):
    state, decision = controller.update(state, key, np.zeros(2), hyperparams)
    hyperparams = decision.hyperparams
    played.append(hyperparams["rate"].tolist())
  expected = np.float32([1, 1.25, 7, 7, 5.6, 5.6, 5.6]).tolist()
  assert played == [[rate] * 2 for rate in expected]
  with pytest.raises(ValueError, match="other names than learning_rate"):
    artifacts.play_back(schedule, common.quadratic_learner())


_SAMPLE = _row(3, 0, -1, 7.0, "sample", cell=17)


@pytest.mark.parametrize(("changes", "message"), [
  ({"lineage": []}, "no lineage, since nothing tuned its agents; name a run"),
  ({"settings": {"warm_start": "a"}}, "began as those of a, so .*without warm"),
  ({"best": None}, "has nothing in best/; name the directory"),
  ({"best": (5, 3)},
   "a variation of elites, .*schedule[.] Name another member"),
  ({"lineage": [*_LINEAGE, _SAMPLE]},
   "member=1 descends from the elite of cell 17 .* Name another member"),
  ({"lineage": [*_LINEAGE, {"generation": 6, "step": 48}]},
   "pbt_lineage.jsonl is damaged in line .* is None; remove")])
def test_what_has_no_schedule_is_refused(changes, message, tmp_path):
  with pytest.raises(ValueError) as error:
    artifacts.read_schedule(_write(tmp_path, **changes), None)
  assert "\n" not in str(error.value)
  assert re.search(message, str(error.value)), error.value
