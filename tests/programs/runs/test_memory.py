"""Tests of how much memory a run is said to hold."""

import jax
import pytest

from qdrl_haiku import controllers, distributed, training
from qdrl_haiku.programs import runs
from qdrl_haiku.programs.runs import memory
from tests.training import common
from tests.training.repertoires import test_describers, test_teachers

_PBT = controllers.pbt(controllers.PBTConfig(), common.SPACE)
_GIB = 2**30
# Point, observation, reward, done: as Drift has them and once more around; key,
# next observation; discount, steps, episodes, truncation.
_ENVIRONMENT = 4 * (6 + 4 + 2 + 2 + 4)
# With a descriptor, and the two axes of each of five steps.
_EPISODE = _ENVIRONMENT + 4 * 3 * 2 + 4 * 5 * 2
_AGAIN = "elites evaluated again"


def _num_bytes(tree):
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _programs(setup):
  """Of a run on one device, traced as far as their shapes."""
  mesh = distributed.population_mesh(1, jax.devices()[:1])
  trainer = training.prepare(setup._replace(mesh=mesh))
  return runs.make_programs(trainer, common.KEY)


def _planned(setup, num_reevaluations=0):
  programs = _programs(setup)
  return memory.memory_plan(
    training.prepare(setup), programs.state, programs.initial,
    num_reevaluations)


def test_a_small_population_is_as_worked_by_hand():
  plan = _planned(common.setup(_PBT))
  # Observation, action, reward, discount, next observation; two counts.
  transition = 4 * (2 + 2 + 1 + 1 + 2)
  replay = 48 * transition + 2 * 4
  expected = {
    # A point, two counts, two numbers.
    "networks and optimisers": 4 * 4 * (2 + 2 + 2),
    "replay": 4 * replay,
    # Two, and eight states in which the episodes of each begin.
    "environments": 4 * 2 * _ENVIRONMENT * (1 + 8),
    # Two episodes of each, of which nothing is recorded.
    "evaluation": 4 * 2 * _ENVIRONMENT,
    # Two hyperparameters and a fitness of each.
    "emitters and controller": 4 * (4 * 3),
    "repertoire": 0}
  assert plan.held == expected
  # One step of two environments makes two updates of 4 transitions; one buffer
  # is on its way, and as it's sent.
  assert plan.in_turn == {
    "batches to learn from": 4 * 2 * 4 * transition,
    "replay while children inherit": 2 * replay}
  assert plan.total == sum(expected.values()) + 2 * replay


def test_buffers_are_there_twice_where_children_inherit_them():
  plan = _planned(common.setup(_PBT, inherit_replay=True))
  found = plan.in_turn["replay while children inherit"]
  assert found == (2 + 4) * plan.held["replay"] // 4


@pytest.mark.parametrize(("name", "members"), [
  ("variation_batch_size", 4), ("num_initial_genotypes", 0)])
def test_whatever_is_evaluated_is_planned(name, members):
  plan = _planned(common.repertoire_setup(**{name: 4000}), 2)
  # Elites of five numbers, two episodes of each. Members are among the
  # offspring.
  elite = 4 * 5
  assert plan.held["evaluation"] == (4000 + members) * (elite + 2 * _EPISODE)
  # As many agents as a generation evaluates, or as there are cells.
  agents = 36 if members else 6
  assert plan.in_turn[_AGAIN] == agents * (elite + 2 * _EPISODE)


def test_what_is_looked_at_is_planned():
  learned, own = (
    _planned(function(common.Placed, with_pbt=False)).held["evaluation"]
    for function in (test_describers.setup_of, common.repertoire_setup))
  # Of two episodes of six agents five observations, and two that are kept.
  assert learned - own == 6 * 2 * (5 + 2) * 4 * 2


@pytest.mark.parametrize("setup", [
  common.repertoire_setup(), test_teachers.setup_of("dcrl"),
  test_describers.setup_of(common.Placed)])
def test_no_part_of_the_state_is_forgotten(setup):
  programs = _programs(setup)
  state, initial = programs.state, programs.initial
  plan = memory.memory_plan(training.prepare(setup), state, initial, 0)
  # Two counts are left out.
  counts = _num_bytes((state.generation, state.initial_steps))
  held = sum(plan.held.values()) - plan.held["evaluation"]
  assert held == _num_bytes((state, initial.pool)) - counts


@pytest.mark.parametrize("shards", [False, True])
def test_each_device_has_the_repertoire_or_its_share(shards):
  mesh = jax.sharding.AbstractMesh(
    (2,), ("population",), axis_types=(jax.sharding.AxisType.Auto,))
  plan = _planned(common.repertoire_setup(mesh=mesh, shard_repertoire=shards))
  # 36 cells of five numbers, fitness and descriptors; a count.
  elites, rest = 4 * 36 * 5, 4 * (36 * 3 + 1)
  assert plan.held["repertoire"] == elites * (2 - shards) + 2 * rest


def test_a_refusal_says_what_is_largest_and_how_to_lower_it():
  setup = common.setup(_PBT)
  plan = memory.MemoryPlan(
    {"replay": 5 * _GIB, "environments": _GIB}, {"batches to learn from": _GIB})
  message = (
    "^this run would need 7.0 GiB of memory, but there are 7.0 GiB; replay "
    "would take the most, 5.0 GiB: lower replay_capacity or population_size.$")
  with pytest.raises(ValueError, match=message):
    memory.check_memory(plan, plan.total - 1, setup)
  memory.check_memory(plan, plan.total, setup)
  memory.check_memory(plan, None, setup)  # It can't be known.


def test_cpus_share_the_memory_or_a_groups_share(monkeypatch):
  values = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
  monkeypatch.setattr(memory.os, "sysconf", values.__getitem__)
  for limits, expected in (([], 4096_000), ([5000, 7000], 5000)):
    monkeypatch.setattr(memory, "_control_group_limits", lambda _, x=limits: x)
    devices = [jax.devices("cpu")[0]] * 3
    assert memory.available_memory_bytes(devices) == expected


@pytest.mark.parametrize(("own", "files", "expected"), [
  # A job's group within a user's.
  ("0::/user/job:1\n",
   {
     "memory.max": "max\n", "user/memory.max": "700\n",
     "user/job:1/memory.max": "500\n"}, [500, 700]),
  # Version 1, among controllers of other things and a version 2 without. A
  # container's: the named group is the host's.
  ("5:cpu,cpuacct:/a\n4:memory:/docker/5e1f\n0::/\n",
   {
     "memory/memory.limit_in_bytes": "900\n", "cpu,cpuacct/a/memory.max": "1\n"
   }, [900]),
  # Another system's.
  (None, {"memory.max": "1000\n"}, [])])
def test_limits_are_of_the_processs_groups(tmp_path, own, files, expected):
  if own is not None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(own)
  for name, text in files.items():
    path = tmp_path / "sys/fs/cgroup" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  assert memory._control_group_limits(tmp_path) == expected
