"""Tests of how much memory a run is said to hold."""

import functools
import types

import jax
import pytest

from qdrl_haiku import controllers, distributed, environments, learners
from qdrl_haiku.runs import memory
from tests import configs
from tests.runs import common as runs_common
from tests.training import common, test_teachers

_PBT = controllers.pbt(controllers.PBTConfig(), common.SPACE)
_GIB = 2**30
# Point, observation, reward, done: as Drift has them and once more around; key,
# next observation; discount, steps, episodes, truncation.
_ENVIRONMENT = 4 * (6 + 4 + 2 + 2 + 4)


def _mesh(size):
  return jax.sharding.AbstractMesh(
    (size,), ("population",), axis_types=(jax.sharding.AxisType.Auto,)
  )


def _num_bytes(tree):
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _made(setup):
  return jax.jit(functools.partial(common.init, setup))(common.KEY)


def _programs(setup):
  """Of a run on one device, traced as far as their shapes."""
  mesh = distributed.population_mesh(1, jax.devices()[:1])
  setup = setup._replace(mesh=None)
  return runs_common.RUN.make_programs(setup, mesh, common.KEY)


def _planned(setup, num_reevaluations=0):
  programs = _programs(setup)
  return memory.memory_plan(
    setup, programs.state, programs.initial, num_reevaluations
  )


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
    "repertoire": 0,
  }
  assert plan.held == expected
  # One step of two environments makes two updates of 4 transitions; one buffer
  # is on its way, and as it's sent.
  assert plan.in_turn == {
    "batches to learn from": 4 * 2 * 4 * transition,
    "replay while children inherit": 2 * replay,
  }
  assert plan.total == sum(expected.values()) + 2 * replay


@pytest.mark.parametrize(
  ("controller", "settings", "copies"),
  [(_PBT, {"inherit_replay": True}, 2 + 4), (None, {}, 0)],
)
def test_buffers_are_there_twice_only_where_they_have_to_be(
  controller, settings, copies
):
  plan = _planned(common.setup(controller, **settings))
  found = plan.in_turn.get("replay while children inherit", 0)
  assert found == copies * plan.held["replay"] // 4


@pytest.mark.parametrize(
  ("name", "members"),
  [("variation_batch_size", 4), ("num_initial_genotypes", 0)],
)
def test_offspring_and_first_genotypes_are_planned(name, members):
  many = _planned(common.repertoire_setup(**{name: 4000}))
  # Elites of five numbers and two episodes, with environments as above and
  # their descriptors, and the two axes of each descriptor in each of five
  # steps. Members are among the offspring.
  size = 4 * 5 + 2 * (_ENVIRONMENT + 4 * 3 * 2 + 4 * 5 * 2)
  assert many.held["evaluation"] == (4000 + members) * size


def test_elites_that_are_looked_at_again_are_planned():
  few, many = (_planned(common.repertoire_setup(), n) for n in (2, 400))
  # Six agents, as many as a generation evaluates, and two episodes of each.
  agent, episode = 4 * 5, _ENVIRONMENT + 4 * 3 * 2 + 4 * 5 * 2
  name = "elites evaluated again"
  assert few.in_turn[name] == 6 * agent + 12 * episode
  # One agent after the other, of which there are so many episodes.
  assert many.in_turn[name] == agent + 400 * episode


def _sac_setup():
  env = environments.create("point_maze")
  config = configs.sized(
    learners.SACConfig, (3,), (3,), normalize_observations=False
  )
  learner = learners.sac(env.observation_size, env.action_size, config)
  return common.setup(learner=learner)._replace(env=env, eval_env=env)


@pytest.mark.parametrize(
  "setup",
  [
    _sac_setup(), common.repertoire_setup(),
    common.repertoire_setup(with_pbt=False), test_teachers.setup_of("dcrl"),
  ],
)  # fmt: skip
def test_a_run_holds_the_bytes_that_were_planned(setup):
  plan, state = _planned(setup), _made(setup)
  pool = _num_bytes(_programs(setup).initial.pool)
  # Two counts are left out.
  counts = _num_bytes((state.generation, state.initial_steps))
  held = sum(plan.held.values()) - plan.held["evaluation"]
  assert held == _num_bytes(state) - counts + pool


@pytest.mark.parametrize("num_devices", [1, 2])
def test_each_device_has_the_repertoire_or_its_share(num_devices):
  whole, shared = (
    _planned(
      common.repertoire_setup(mesh=_mesh(num_devices), shard_repertoire=x)
    ).held["repertoire"]
    for x in (False, True)
  )
  # 36 cells of five numbers, fitness and descriptors; a count.
  elites, rest = 4 * 36 * 5, 4 * (36 * 3 + 1)
  assert whole == num_devices * (elites + rest)
  assert shared == elites + num_devices * rest


@pytest.mark.parametrize(
  "part",
  [
    "networks and optimisers", "replay", "environments", "repertoire",
    "evaluation", "emitters and controller",
  ],
)  # fmt: skip
def test_a_refusal_says_what_is_largest_and_how_to_lower_it(part):
  names = ("replay", "environments", "repertoire", part)
  held = {name: 5 * _GIB if name == part else _GIB for name in names}
  plan = memory.MemoryPlan(held, {"batches to learn from": _GIB})
  with pytest.raises(ValueError) as error:
    memory.check(plan, plan.total - 1)
  message = str(error.value)
  total = len(held) + 5
  assert message.startswith(f"this run would need {total}.0 GiB of memory")
  assert f"{part} would take the most, 5.0 GiB: lower " in message
  assert "\n" not in message
  memory.check(plan, plan.total)
  memory.check(plan, None)  # It can't be known.


def test_a_description_has_aligned_lines_with_units():
  plan = memory.MemoryPlan(
    {"replay": 3 * 2**29, "environments": 512, "repertoire": 0},
    {"batches to learn from": 3 * 2**20},
  )
  assert memory.describe(plan, 24 * _GIB).splitlines() == [
    "replay                               1.5 GiB",
    "environments                           512 B",
    "batches to learn from                3.0 MiB",
    "memory needed                        1.5 GiB of 24.0 GiB",
  ]


def _accelerator(stats):
  def memory_stats():
    if isinstance(stats, Exception):
      raise stats
    return stats

  return types.SimpleNamespace(platform="gpu", memory_stats=memory_stats)


@pytest.mark.parametrize(
  ("stats", "expected"),
  [
    ({"bytes_limit": 5, "num_allocs": 1}, 3 + 5),
    # One that doesn't tell makes it unknown.
    (None, None),
    ({"num_allocs": 1}, None),
    (jax.errors.JaxRuntimeError("no stats"), None),
  ],
)
def test_accelerators_have_the_sum_of_what_jax_may_use(stats, expected):
  devices = [_accelerator({"bytes_limit": 3}), _accelerator(stats)]
  assert memory.available_bytes(devices) == expected


@pytest.mark.parametrize(
  ("limits", "expected"),
  [([], 4096_000), ([5000, 7000], 5000), ([2**63 - 4096], 4096_000)],
)
def test_cpus_share_the_machines_memory_and_a_control_group_lowers_it(
  limits, expected, monkeypatch
):
  values = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
  monkeypatch.setattr(memory.os, "sysconf", values.__getitem__)
  monkeypatch.setattr(memory, "_control_group_limits", lambda _: limits)
  assert memory.available_bytes([jax.devices("cpu")[0]] * 3) == expected


def test_a_machine_that_cannot_be_asked_makes_it_unknown(monkeypatch):
  monkeypatch.delattr(memory.os, "sysconf")
  assert memory.available_bytes(jax.devices("cpu")) is None


@pytest.mark.parametrize(
  ("own", "files", "expected"),
  [
    ("0::/\n", {"memory.max": "1000\n"}, [1000]),
    ("0::/\n", {"memory.max": "max\n"}, []),
    # A job's group within a user's.
    (
      "0::/user/job:1\n",
      {"user/memory.max": "700\n", "user/job:1/memory.max": "500\n"},
      [500, 700],
    ),
    # Version 1, among controllers of other things and a version 2 without.
    (
      "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n",
      {
        "memory/a/memory.limit_in_bytes": "300\n",
        "memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
        "cpu,cpuacct/a/memory.max": "1\n",
      },
      [300, 2**63 - 4096],
    ),
    # A container's: the named group is the host's.
    (
      "4:memory:/docker/5e1f\n",
      {"memory/memory.limit_in_bytes": "900\n"},
      [900],
    ),
    (None, {"memory.max": "1000\n"}, []),
  ],
)
def test_limits_are_those_of_the_processs_groups(
  tmp_path, own, files, expected
):
  if own is not None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(own)
  for name, text in files.items():
    path = tmp_path / "sys/fs/cgroup" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  assert list(memory._control_group_limits(tmp_path)) == expected
