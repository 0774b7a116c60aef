"""Tests of spreading members over devices.

Those that need two devices run in a process of their own, since the number of
devices can't be changed once jax has looked for them.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import distributed
from qdrl_haiku.distributed import sharding
from tests.distributed import collective_order
from tests.training import common

_ROOT = pathlib.Path(__file__).parents[2]
# The capacity is a number that no other axis has.
_PROGRAM = """
import json
import jax
from qdrl_haiku import controllers, distributed, training
from qdrl_haiku.runs import programs
from tests.training import common

key = jax.random.key(0)
setup = common.setup(
  controllers.pbt(controllers.PBTConfig(), common.SPACE), replay_capacity=47
)
results = []
for devices in (jax.devices(), jax.devices()[:1]):
  mesh = distributed.population_mesh(4, devices)
  run_key = jax.device_put(key, jax.NamedSharding(mesh, jax.P()))
  made = programs.make_programs(setup._replace(mesh=mesh), mesh, run_key)
  compiled = programs.compile_generation(made)
  population = compiled.init(run_key)
  reports = []
  for generation in (1, 2):
    population, report = compiled.train_generation(
      population, run_key, generation
    )
    reports.append(report)
  leaves = common.leaves((population, reports))
  results.append({name: x.tobytes().hex() for name, x in leaves.items()})
  if len(devices) == 2:
    parts = compiled.training.result(), compiled.evaluating.result()
    program = [part.as_text() for part in parts]
    sharding = str(population.members.replay.storage.reward.sharding)
print(json.dumps([results, program, sharding]))
"""


_UNEVEN_PROGRAM = """
import json
import jax
import jax.numpy as jnp
from qdrl_haiku import controllers, distributed, training
from qdrl_haiku.runs import programs
from tests.training import common

key = jax.random.key(0)
setup = common.setup(
  controllers.pbt(controllers.PBTConfig(), common.SPACE), population_size=5
)

def break_rest(population):
  def put(x):
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return x.at[5:].set(jnp.nan) if is_float else x

  return population.with_members(jax.tree.map(put, population.members))

results = {}
for num_devices in (1, 2, 4):
  mesh = distributed.population_mesh(5, jax.devices()[:num_devices])
  run_key = jax.device_put(key, jax.NamedSharding(mesh, jax.P()))
  compiled = programs.compile_generation(
    programs.make_programs(setup._replace(mesh=mesh), mesh, run_key)
  )
  for breaks in (False, True):
    population = compiled.init(run_key)
    reports = []
    for generation in (1, 2):
      if breaks:
        population = jax.jit(
          break_rest, out_shardings=jax.tree.map(
            lambda x: x.sharding, population
          )
        )(population)
      population, report = compiled.train_generation(
        population, run_key, generation
      )
      reports.append(report)
    members = jax.device_get(population.members)
    slots = len(members.replay.size)
    members = jax.tree.map(lambda x: x[:5], members)
    rest = population.with_members(())
    leaves = common.leaves((members, rest, reports))
    results[f"{num_devices} {breaks}"] = [
      {name: [x.shape, x.tobytes().hex()] for name, x in leaves.items()},
      [mesh.size, slots],
    ]
print(json.dumps(results))
"""


def _run_program(program, num_devices):
  """What a program prints at last, as JSON, with so many devices."""
  num = str(num_devices)
  done = subprocess.run(
    [sys.executable, "-c", textwrap.dedent(program)],
    cwd=_ROOT,
    env=os.environ | {"JAX_NUM_CPU_DEVICES": num, "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    timeout=900,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def two_devices():
  """Results by leaf with two devices and with one, and the program for two."""
  return _run_program(_PROGRAM, 2)


@pytest.fixture(scope="module")
def five_members():
  """Results of five members by leaf, on how many devices in how many slots.

  By how many devices there were, and whether what is in the slots that are
  left over was broken before each generation.
  """
  return _run_program(_UNEVEN_PROGRAM, 4)


@pytest.mark.slow
def test_two_devices_draw_and_decide_what_one_does(two_devices):
  (two, one), _, _ = two_devices
  assert two.keys() == one.keys()
  assert [name for name in two if two[name] != one[name]] == []


@pytest.mark.slow
def test_devices_that_share_unevenly_draw_and_decide_what_one_does(
  five_members,
):
  expected, on_one = five_members["1 False"]
  assert on_one == [1, 5]
  for case, placement in (("2 False", [2, 6]), ("4 False", [3, 6])):
    results, found = five_members[case]
    assert found == placement
    assert results.keys() == expected.keys()
    assert [x for x in results if results[x] != expected[x]] == []


@pytest.mark.slow
def test_what_is_in_slots_that_are_left_over_never_counts(five_members):
  expected = five_members["1 False"][0]
  for case in ("2 True", "4 True"):
    results = five_members[case][0]
    assert [x for x in results if results[x] != expected[x]] == []


@pytest.mark.slow
def test_members_are_spread_over_the_devices(two_devices):
  assert "'population': 2" in two_devices[2]


def _sent(program):
  """Shapes of all that one device sends to others, outside of loops."""
  shapes, name = [], None
  in_loops = set(re.findall(r"body=%?([\w.\-]+)", program))
  for line in program.splitlines():
    if header := re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line):
      name = header[1]
    sent = re.search(r"= (.*) all-(?:gather|reduce)(?:-start)?\(", line)
    if sent and name not in in_loops:
      shapes += re.findall(r"\w+\[[\d,]*\]", sent[1])
  return shapes


@pytest.mark.slow
def test_no_replay_buffer_is_sent_where_none_is_inherited(two_devices):
  sent = _sent("".join(two_devices[1]))
  # A few numbers of each member are, and the best one's networks.
  assert "u32[4]" in sent
  assert not [shape for shape in sent if re.search(r"\b47\b", shape)]


@pytest.mark.slow
def test_devices_wait_for_each_other_in_one_order(two_devices):
  for program in two_devices[1]:
    assert collective_order.in_one_order(program)


def _devices(count):
  """Stand-ins, of which only the number matters."""
  return list(range(count))


@pytest.mark.parametrize(
  ("sizes", "available", "expected"),
  [
    ((8,), 8, 8),
    ((8,), 3, 3),  # 3 on each, where two have 4.
    ((6,), 4, 3),  # 2 on each, and four would have no less to do.
    ((7,), 4, 4),
    ((1,), 4, 1),
    ((2,), 8, 2),
    ((11,), 8, 6),  # 2 on each, but one.
    ((11,), 16, 11),
    ((0,), 8, 1),
    ((10,), 8, 5),
    ((10, 20), 8, 7),  # 2 to train from five on, 3 to evaluate from seven on.
    ((10, 20), 16, 10),  # 1 to train, 2 to evaluate.
    ((4, 12), 8, 6),  # 1 to train from four on, 2 to evaluate from six on.
  ],
)
def test_so_many_devices_as_have_least_to_do(sizes, available, expected):
  assert sharding.num_devices(sizes, available) == expected


@pytest.fixture
def made(monkeypatch):
  """The meshes that are made, of stand-ins."""
  made = []
  monkeypatch.setattr(
    jax, "make_mesh", lambda shape, *_, **kwargs: made.append((shape, kwargs))
  )
  return made


def test_the_mesh_has_the_first_of_the_devices(made):
  distributed.population_mesh(11, _devices(8))
  distributed.population_mesh(10, _devices(8), [20])
  for (shape, kwargs), expected in zip(made, (6, 7), strict=True):
    assert shape == (expected,)
    assert kwargs["devices"] == _devices(expected)


def test_the_mesh_of_several_processes_has_all_devices(made, monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  distributed.population_mesh(3, _devices(8))
  (shape, kwargs), = made
  assert shape == (8,)
  assert kwargs["devices"] == _devices(8)


def test_slots_that_are_left_over_hold_the_last_member():
  mesh = jax.sharding.AbstractMesh((4,), ("population",))
  members = {
    "x": jnp.arange(10.0).reshape(5, 2),
    "keys": jax.random.split(jax.random.key(0), 5),
  }
  filled = sharding.in_slots(mesh, members)
  expected = jax.tree.map(lambda x: x[jnp.array([0, 1, 2, 3, 4, 4, 4, 4])],
                          members)
  common.assert_bits_equal(filled, expected)
  common.assert_bits_equal(sharding.in_slots(mesh, filled), expected)
  common.assert_bits_equal(sharding.in_slots(None, members), members)


def test_what_has_no_slots_is_shared_evenly():
  # Five would have less to do than four, but can't share 256 cells.
  assert sharding.num_devices((10, 20), 6) == 5
  assert sharding.num_devices((10, 20), 6, num_shared_cells=256) == 4


def test_the_mesh_has_one_axis_that_vmap_can_use():
  mesh = distributed.population_mesh(4, jax.devices()[:1])
  assert mesh.axis_names == ("population",)
  assert mesh.axis_types == (jax.sharding.AxisType.Auto,)
