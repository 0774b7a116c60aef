"""Tests of how much memory a run is said to hold."""

import functools
import types

import jax
import numpy as np
import optax
import pytest

from qdrl_haiku import controllers, distributed, environments, learners
from qdrl_haiku.runs import memory
from tests import configs
from tests.runs import common as runs_common
from tests.training import common, test_teachers

_PBT = controllers.pbt(controllers.PBTConfig(), common.SPACE)
_GIB = 2**30


_TWO_DEVICES, _THREE_DEVICES = (
  jax.sharding.AbstractMesh(
    (size,), ("population",), axis_types=(jax.sharding.AxisType.Auto,)
  )
  for size in (2, 3)
)


def _num_bytes(tree):
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _made(setup):
  return jax.jit(functools.partial(common.init, setup))(common.KEY)


def _programs(setup):
  """Of a run on one device, traced as far as their shapes."""
  mesh = distributed.population_mesh(1, jax.devices()[:1])
  return runs_common.RUN.make_programs(setup, mesh, common.KEY)


def _planned(setup, num_reevaluations=0):
  programs = _programs(setup._replace(mesh=None))
  return memory.memory_plan(
    setup, programs.population, programs.initial, num_reevaluations
  )


def _sac_setup():
  env = environments.create("point_maze")
  config = configs.sized(
    learners.SACConfig, (3,), (3,), normalize_observations=False
  )
  learner = learners.sac(env.observation_size, env.action_size, config)
  return common.setup(
    learner=learner, replay_capacity=100, perturbation_interval=16
  )._replace(env=env, eval_env=env)


def test_a_small_population_is_as_worked_by_hand():
  plan = _planned(common.setup(_PBT))
  # A point and two counts.
  assert plan.networks == 4 * (2 + 1 + 1)
  assert plan.optimisers == 0
  # Observation, action, reward, discount, next observation; two counts.
  transition = 4 * (2 + 2 + 1 + 1 + 2)
  assert plan.replay == 48 * transition + 2 * 4
  # Point, observation, reward, done: as Drift has them and once more around;
  # key, next observation; discount, steps, episodes, truncation. Two
  # environments, and eight states in which the episodes of each begin.
  assert plan.environments == 2 * 4 * (6 + 4 + 2 + 2 + 4) * (1 + 8)
  assert plan.num_agents == 4
  # One step of two environments makes two updates of 4 transitions.
  assert plan.batches == 4 * 2 * 4 * transition
  # One on its way, and as it's sent.
  assert plan.copies == 2 * plan.replay
  assert plan.repertoire == 0
  # Two hyperparameters and a fitness of each, one count of generations.
  assert plan.bookkeeping == 4 * (4 * 3 + 1)
  assert plan.held == 4 * (16 + plan.replay + plan.environments) + 52
  # Two episodes of each of four members, of which nothing is recorded.
  assert plan.evaluation == 4 * 2 * 4 * (6 + 4 + 2 + 2 + 4)
  batches = max(plan.batches, plan.copies)
  assert plan.total == plan.held + plan.evaluation + batches


def test_episodes_of_evaluation_are_planned_and_refused():
  few, many = (
    _planned(common.setup(_PBT, num_eval_episodes=n)) for n in (2, 2000)
  )
  assert many.total - few.total == 999 * few.evaluation > 0
  assert "agents while they are evaluated" in memory.describe(many, None)
  with pytest.raises(ValueError, match="evaluation .*lower num_eval_episodes"):
    memory.check(many, many.total - 1)


@pytest.mark.parametrize(
  ("name", "members"),
  [("variation_batch_size", 4), ("num_initial_genotypes", 0)],
)
def test_offspring_and_first_genotypes_are_planned(name, members):
  many = _planned(common.repertoire_setup(**{name: 4000}))
  # Elites of five numbers and two episodes, with environments as above and
  # their descriptors, and the two axes of each descriptor in each of five
  # steps. Members are among the offspring.
  size = 4 * (5 + 2 * (6 + 4 + 2 + 2 + 4 + 3 * 2) + 2 * 5 * 2)
  assert many.evaluation == (4000 + members) * size


@pytest.mark.parametrize(("inherits", "copies"), [(True, 2 + 4), (False, 2)])
def test_buffers_are_there_twice_only_where_they_have_to_be(inherits, copies):
  plan = _planned(common.setup(_PBT, inherit_replay=inherits))
  assert plan.copies == copies * plan.replay


def test_devices_that_share_the_repertoire_hold_less_of_it():
  setup = common.repertoire_setup(mesh=_TWO_DEVICES)
  whole = _planned(setup).repertoire
  plan = setup.map_elites._replace(shard_repertoire=True)
  shared = _planned(setup._replace(map_elites=plan)).repertoire
  # Half of 36 elites of five numbers each.
  assert whole - shared == 4 * 36 * 5 // 2


def test_elites_that_are_looked_at_again_are_planned():
  without, few, many = (
    _planned(common.repertoire_setup(), n) for n in (0, 2, 400)
  )
  assert without.reevaluation == 0
  # Six agents of six numbers, as many as a generation evaluates; two episodes
  # of each, with environments as above and their descriptors, and the two axes
  # of each descriptor in each of five steps.
  episode = 4 * (6 + 4 + 2 + 2 + 4 + 3 * 2) + 4 * 5 * 2
  assert few.reevaluation == 4 * 6 * 6 + 12 * episode
  assert few.total == without.total
  # One agent after the other, of which there are so many episodes.
  assert many.reevaluation == 4 * 6 + 400 * episode
  assert many.total == many.held + many.evaluation + many.reevaluation
  assert "elites evaluated again" in memory.describe(many, None)
  assert "elites evaluated again" not in memory.describe(without, None)


def test_adams_moments_are_optimisers_and_the_rest_are_networks():
  plan = _planned(
    common.setup(
      learner=learners.sac(2, 2, configs.sized(
    learners.SACConfig, (3,), (3,), normalize_observations=False
  ))
    )
  )
  policy = (2 * 3 + 3) + (3 * 4 + 4)
  critics = 2 * ((4 * 3 + 3) + (3 * 1 + 1))
  # The critics and their targets, the temperature.
  assert plan.networks == 4 * (policy + 2 * critics + 1)
  # Two moments of each weight, and three counts.
  assert plan.optimisers == 4 * (2 * (policy + critics + 1) + 3)


def test_any_learners_optimiser_is_found_wherever_it_is():
  quadratic = common.quadratic_learner()
  chain = optax.chain(optax.clip(1.0), optax.sgd(0.1, momentum=0.9))

  def init(key):
    state = quadratic.init(key)
    return state._replace(empty={"mine": [chain.init(state.point)]})

  plan = _planned(
    common.setup(learner=quadratic._replace(init=init))
  )
  assert (plan.networks, plan.optimisers) == (16, 8)


def test_a_population_has_the_bytes_that_were_planned():
  setup = _sac_setup()
  plan, state = _planned(setup), _made(setup)
  pool = _num_bytes(_programs(setup).initial.pool)
  assert plan.held == _num_bytes(state) + pool
  members = state.members
  assert 4 * plan.replay == _num_bytes(members.replay)
  assert 4 * plan.environments == _num_bytes(members.environment) + pool
  assert 4 * plan.networks + 4 * plan.optimisers == _num_bytes(members.learner)


@pytest.mark.parametrize("with_pbt", [True, False])
def test_a_repertoire_has_the_bytes_that_were_planned(with_pbt):
  setup = common.repertoire_setup(with_pbt=with_pbt)
  plan = _planned(setup)
  pool = _num_bytes(_programs(setup).initial.pool) if with_pbt else 0
  assert plan.held == _num_bytes(_made(setup)) + pool
  # 36 cells of a point, a statistic, two hyperparameters, the fitness and two
  # descriptors; the number of those outside.
  assert plan.repertoire == 4 * (36 * (2 + 1 + 2 + 1 + 2) + 1)
  assert plan.num_agents == (4 if with_pbt else 0)


@pytest.mark.parametrize(("emitter", "more"), [("pga", 0), ("dcrl", 2 * 2)])
def test_the_replay_of_a_shared_critic_is_counted_once(emitter, more):
  setup = test_teachers.setup_of(emitter)
  plan = _planned(setup)
  state = _made(setup)
  # Two observations, an action, reward and discount, and descriptors; counts.
  assert plan.shared_replay == 4 * (60 * (2 * 2 + 3 + more) + 2)
  assert plan.held == _num_bytes(state)
  # Four agents' two episodes of three steps, and once more as they're told.
  assert plan.recorded == 2 * 4 * (4 * 2 * 3) * (2 * (2 + 2) + 3)
  # What 300 steps of the critic and 100 of policies draw, four rows each.
  assert plan.batches == 400 * 4 * 4 * (2 * 2 + 3 + more)
  assert plan.total == plan.held + plan.evaluation + plan.batches
  two = _planned(setup._replace(mesh=_TWO_DEVICES))
  assert two.held == 2 * plan.held and two.recorded == 1.5 * plan.recorded
  assert two.batches == 2 * plan.batches


def test_each_device_has_the_repertoire_but_its_share_of_the_agents():
  one = _planned(common.repertoire_setup())
  two = _planned(common.repertoire_setup(mesh=_TWO_DEVICES))
  assert two == one._replace(num_devices=2, copies=2 * one.copies)
  assert two.held == one.held + one.repertoire + one.bookkeeping


def test_slots_that_are_left_over_take_memory_too():
  settings = {"inherit_replay": True}
  one = _planned(common.setup(_PBT, **settings))
  three = _planned(
    common.setup(_PBT, **settings)._replace(mesh=_THREE_DEVICES)
  )
  # Four members in six slots; each device sends and receives one of them.
  assert three == one._replace(
    num_agents=6,
    num_devices=3,
    batches=6 * one.batches // 4,
    copies=(6 + 3 * 2) * one.replay,
    evaluation=6 * one.evaluation // 4,
  )
  assert three.agents == 6 * one.agents // 4


def _plan(**parts):
  """Two agents on two devices, whose parts are of one GiB but for these."""
  gib = {
    name: _GIB * parts.get(name, 1)
    for name in memory.MemoryPlan._fields
  } | {"num_agents": 2, "num_devices": 2, "bookkeeping": 0}
  return memory.MemoryPlan(**gib)


@pytest.mark.parametrize(
  ("part", "takes", "settings"),
  [
    ("networks", 10, "population_size or the networks' hidden layers"),
    ("replay", 11, "replay_capacity or population_size"),
    ("environments", 10, "num_envs, pool_size or population_size"),
    ("repertoire", 10, "grid_shape, num_cells or resampling_depth"),
    ("batches", 5, "batch_size, grad_updates_per_step, num_critic_steps, nu"),
    ("evaluation", 5, "num_eval_episodes, population_size, variation_batch_"),
    ("reevaluation", 5, "num_reevaluations"),
  ],
)
def test_a_refusal_says_what_is_largest_and_how_to_lower_it(
  part, takes, settings
):
  plan = _plan(**{part: 5})
  with pytest.raises(ValueError) as error:
    memory.check(plan, plan.total - 1)
  message = str(error.value)
  assert f"{part} would take the most, {takes}.0 GiB: lower {settings}" in (
    message
  )
  # Fourteen with one GiB each: four parts of two agents, two repertoires, two
  # shared buffers, the evaluation, and the copies, the batches, the elites'
  # evaluation or what is recorded, whichever are more.
  total = 14 + (8 if takes != 5 else 4)
  assert message.startswith(f"this run would need {total}.0 GiB of memory")
  assert "\n" not in message
  memory.check(plan, plan.total)
  memory.check(plan, None)  # It can't be known.


def test_a_description_has_aligned_lines_with_units():
  plan = _plan(replay=1.5)._replace(networks=512, optimisers=3 * 2**20)
  assert memory.describe(plan, 24 * _GIB).splitlines() == [
    "networks of an agent                   512 B",
    "optimisers of an agent               3.0 MiB",
    "replay of an agent                   1.5 GiB",
    "environments of an agent             1.0 GiB",
    "agents, 2 in all                     5.0 GiB",
    "batches to learn from                1.0 GiB",
    "replay while children inherit        1.0 GiB",
    "agents while they are evaluated      1.0 GiB",
    "elites evaluated again               1.0 GiB",
    "transitions of episodes              1.0 GiB",
    "shared replay on each of 2 devices   1.0 GiB",
    "repertoire on each of 2 devices      1.0 GiB",
    "memory needed                       11.0 GiB of 24.0 GiB",
  ]


def _accelerator(stats):
  def memory_stats():
    if isinstance(stats, Exception):
      raise stats
    return stats

  return types.SimpleNamespace(platform="gpu", memory_stats=memory_stats)


def test_accelerators_have_the_sum_of_what_jax_may_use():
  devices = [_accelerator({"bytes_limit": x, "num_allocs": 1}) for x in (3, 5)]
  assert memory.available_bytes(devices) == 8


@pytest.mark.parametrize(
  "stats", [None, {"num_allocs": 1}, jax.errors.JaxRuntimeError("no stats")]
)
def test_one_accelerator_that_does_not_tell_makes_it_unknown(stats):
  devices = [_accelerator({"bytes_limit": 3}), _accelerator(stats)]
  assert memory.available_bytes(devices) is None


def test_cpus_share_the_machines_memory(monkeypatch):
  monkeypatch.setattr(memory, "_control_group_limits", lambda _: [])
  values = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
  monkeypatch.setattr(memory.os, "sysconf", values.__getitem__)
  cpu = jax.devices("cpu")[0]
  assert memory.available_bytes([cpu] * 3) == 4096 * 1000


def test_a_control_group_lowers_what_cpus_have_and_never_raises_it(monkeypatch):
  values = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
  monkeypatch.setattr(memory.os, "sysconf", values.__getitem__)
  for limits, expected in (([5000, 7000], 5000), ([2**63 - 4096], 4096000)):
    monkeypatch.setattr(
      memory, "_control_group_limits", lambda _, limits=limits: limits
    )
    assert memory.available_bytes(jax.devices("cpu")) == expected


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
    ("0::/\n", {}, []),
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
  np.testing.assert_array_equal(
    memory._control_group_limits(tmp_path), expected
  )
