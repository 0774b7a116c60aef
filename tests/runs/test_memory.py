"""Tests of how much memory a run is said to hold."""

import functools
import types

import jax
import optax
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
    setup, programs.population, programs.initial, num_reevaluations
  )


def test_a_small_population_is_as_worked_by_hand():
  plan = _planned(common.setup(_PBT))
  # A point, two counts, two numbers.
  assert plan.networks == 4 * (2 + 2 + 2)
  assert plan.optimisers == plan.repertoire == 0
  # Observation, action, reward, discount, next observation; two counts.
  transition = 4 * (2 + 2 + 1 + 1 + 2)
  assert plan.replay == 48 * transition + 2 * 4
  # Two, and eight states in which the episodes of each begin.
  assert plan.environments == 2 * _ENVIRONMENT * (1 + 8)
  assert plan.num_agents == 4
  # One step of two environments makes two updates of 4 transitions.
  assert plan.batches == 4 * 2 * 4 * transition
  # One on its way, and as it's sent; twice only where it has to be.
  assert plan.copies == 2 * plan.replay
  inherited = _planned(common.setup(_PBT, inherit_replay=True))
  assert inherited.copies == (2 + 4) * plan.replay
  assert _planned(common.setup()).copies == 0
  # Two hyperparameters and a fitness of each, one count of generations.
  assert plan.bookkeeping == 4 * (4 * 3 + 1)
  assert plan.held == 4 * (24 + plan.replay + plan.environments) + 52
  # Two episodes of each of four members, of which nothing is recorded.
  assert plan.evaluation == 4 * 2 * _ENVIRONMENT
  batches = max(plan.batches, plan.copies)
  assert plan.total == plan.held + plan.evaluation + batches


@pytest.mark.parametrize(
  ("name", "members"),
  [("variation_batch_size", 4), ("num_initial_genotypes", 0)],
)
def test_offspring_and_first_genotypes_are_planned(name, members):
  many = _planned(common.repertoire_setup(**{name: 4000}))
  # Elites of five numbers and two episodes, with environments as above and
  # their descriptors, and the two axes of each descriptor in each of five
  # steps. Members are among the offspring.
  size = 4 * 5 + 2 * (_ENVIRONMENT + 4 * 3 * 2) + 4 * 2 * 5 * 2
  assert many.evaluation == (4000 + members) * size


def test_elites_that_are_looked_at_again_are_planned():
  without, few, many = (
    _planned(common.repertoire_setup(), n) for n in (0, 2, 400)
  )
  assert without.reevaluation == 0
  # Six agents, as many as a generation evaluates, and two episodes of each.
  agent, episode = 4 * 5, _ENVIRONMENT + 4 * 3 * 2 + 4 * 5 * 2
  assert few.reevaluation == 6 * agent + 12 * episode
  assert few.total == without.total
  # One agent after the other, of which there are so many episodes.
  assert many.reevaluation == agent + 400 * episode
  assert many.total == many.held + many.evaluation + many.reevaluation


def test_any_learners_optimiser_is_found_wherever_it_is():
  quadratic = common.quadratic_learner()
  chain = optax.chain(optax.clip(1.0), optax.sgd(0.1, momentum=0.9))

  def init(key):
    state = quadratic.init(key)
    return state._replace(empty={"mine": [chain.init(state.point)]})

  plan = _planned(common.setup(learner=quadratic._replace(init=init)))
  assert (plan.networks, plan.optimisers) == (24, 8)


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
  assert plan.held == _num_bytes(state) + pool
  if setup.map_elites is None:
    members = state.members
    assert 4 * plan.replay == _num_bytes(members.replay)
    assert 4 * plan.environments == _num_bytes(members.environment) + pool
    learners_ = 4 * (plan.networks + plan.optimisers)
    assert learners_ == _num_bytes(members.learner)


def test_a_shared_critics_replay_and_batches_are_planned_on_each_device():
  setup = test_teachers.setup_of("dcrl")
  plan, two = (_planned(setup._replace(mesh=_mesh(n))) for n in (1, 2))
  # Two observations, an action, reward and discount, and descriptors; counts.
  assert plan.shared_replay == 4 * (60 * (2 * 2 + 3 + 4) + 2)
  # Four agents' two episodes of three steps, and once more as they're told.
  assert plan.recorded == 2 * 4 * (4 * 2 * 3) * (2 * (2 + 2) + 3)
  # What 300 steps of the critic and 100 of policies draw, four rows each.
  assert plan.batches == 400 * 4 * 4 * (2 * 2 + 3 + 4)
  assert two.held == 2 * plan.held and two.recorded == 1.5 * plan.recorded
  assert two.batches == 2 * plan.batches


def test_each_device_has_the_repertoire_but_its_share_of_the_agents():
  one, two, shared = (
    _planned(common.repertoire_setup(mesh=_mesh(n), shard_repertoire=x))
    for n, x in ((1, False), (2, False), (2, True))
  )
  assert two == one._replace(num_devices=2, copies=2 * one.copies)
  assert two.held == one.held + one.repertoire + one.bookkeeping
  # Half of 36 elites of five numbers each.
  assert two.repertoire - shared.repertoire == 4 * 36 * 5 // 2


def test_slots_that_are_left_over_take_memory_too():
  setup = common.setup(_PBT, inherit_replay=True)
  one, three = (_planned(setup._replace(mesh=x)) for x in (None, _mesh(3)))
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
  lines = memory.describe(plan, 24 * _GIB).splitlines()
  assert lines[:3] + lines[-1:] == [
    "networks of an agent                   512 B",
    "optimisers of an agent               3.0 MiB",
    "replay of an agent                   1.5 GiB",
    "memory needed                       11.0 GiB of 24.0 GiB",
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
