"""Tests of the runs that a comparison plans, and of what it refuses."""

import pytest

from qdrl_haiku.programs.comparisons import plan

_TASKS = ("maze: --env_name=point_maze", "ant: --env_name=ant --backend=spring")
_METHODS = ("pbt:", "pb2: --controller=pb2")


def _config(**changes):
  defaults = {
    "command": "train_pbt --learner=sac", "task": _TASKS, "method": _METHODS,
    "num_seeds": ("2", "ant:1")}
  return plan.CompareConfig(**(defaults | changes))


def _plan(**changes):
  return plan.plan_comparison(_config(**changes))


def test_each_method_is_run_on_each_task_by_each_of_its_seeds():
  assert [row.name for row in _plan()] == [
    "maze/pbt/seed_0", "maze/pb2/seed_0", "ant/pbt/seed_0", "ant/pb2/seed_0",
    "maze/pbt/seed_1", "maze/pb2/seed_1"]


def test_a_methods_flags_come_after_a_tasks_and_before_those_of_both():
  rows = _plan(method=(*_METHODS, "ant/pb2: --tau=0.1"), num_seeds=("1",))
  assert len(rows) == 4
  assert rows[3].launcher == "train_pbt"
  assert rows[3].flags == (
    "--learner=sac", "--env_name=ant", "--backend=spring", "--controller=pb2",
    "--tau=0.1")
  assert not any("--tau=0.1" in row.flags for row in rows[:3])


def test_a_command_may_name_a_preset():
  rows = _plan(command="train_pbt --preset=quickstart")
  assert rows[0].flags[0] == "--preset=quickstart"


def test_train_has_its_seeds_side_by_side():
  rows = _plan(method=("alone: train", "pbt:"), seed=3)
  assert [row.name for row in rows if row.method == "alone"] == [
    "maze/alone/seeds_3_to_4", "ant/alone/seed_3"]
  assert rows[0].launcher == "train"


def test_the_metric_is_the_launchers():
  def metric(**changes):
    config = _config(**changes)
    planned = plan.plan_comparison(config)
    return plan.settle_comparison(config, planned).metric

  assert metric() == "pbt/best_return"
  assert metric(command="train") == "eval/episode_return"
  with pytest.raises(ValueError, match="train, train_pbt have none in common"):
    metric(method=("alone: train", "pbt:"))


def test_a_task_whose_seeds_are_not_counted_has_five():
  rows = _plan(num_seeds=("ant:1",))
  tasks = [row.task for row in rows if row.method == "pbt"]
  assert sorted(tasks) == ["ant"] + 5 * ["maze"]


@pytest.mark.parametrize(("change", "message"), [
  ({"command": "--learner=sac"}, "names no launcher; begin it with one of"),
  ({"command": "report"}, "'report' is no launcher that trains"),
  ({"command": "train --population_size=3"}, "give --num_seeds to the comp"),
  ({"command": "train_pbt --seed=3"}, "--seed is what the comparison gives"),
  ({"task": ("--env_name=ant",)}, "has no name; give it as 'name: flags'"),
  ({"method": ("a:", "a: --explore=mixed")}, "has the name of another"),
  ({"method": ("pb2:", "ant/pb: --tau=0")}, "no method 'pb'; .*'pb2'"),
  ({"method": ("a:", "ant/a: -seed=0")}, "ant/a.*--seed is what the com"),
  ({"num_seeds": ("5", "aunt:3")}, "no task 'aunt'; did you mean 'ant'")])
def test_what_makes_no_sense_is_refused(change, message):
  with pytest.raises(ValueError, match=message):
    _plan(**change)
