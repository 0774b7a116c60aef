"""Tests of what training does with the decisions of every controller."""

import functools
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers, training
from qdrl_haiku.controllers import lineage
from qdrl_haiku.training import population as population_lib
from tests.training import common

_ROOT = pathlib.Path(__file__).parents[2]
_KEY = jax.random.key(0)
_SIZE = 8
_GENERATIONS = 6
MAKE = {
  "mf_pbt": lambda: controllers.mf_pbt(
    controllers.MFPBTConfig(frequencies=(1, 2)), common.SPACE
  ),
  "pb2": lambda: controllers.pb2(
    controllers.PB2Config(window=16), common.SPACE
  ),
  "successive_halving": lambda: controllers.successive_halving(
    controllers.SuccessiveHalvingConfig(first_rung=3), common.SPACE
  ),
}


class _Trained:
  """A population that has burnt in for one generation, and then evolved."""

  def __init__(self, name):
    controller = MAKE[name]()
    self.setup = common.setup(
      controller, population_size=_SIZE, inherit_replay=True, burn_in_period=32
    )
    self.train = jax.jit(
      functools.partial(training.train_generation, self.setup)
    )
    population = training.init_population(self.setup, _KEY)
    self.rows = lineage.initial_rows(population.hyperparams)
    self.populations, self.reports = [], []
    for generation in range(1, _GENERATIONS + 1):
      population, report = self.train(population, _KEY)
      self.populations.append(jax.device_get(population))
      self.reports.append(jax.device_get(report))
      self.rows += lineage.rows(
        generation, 16 * generation, report.decision, report.fitness,
        report.hyperparams, controller.operators,
      )  # fmt: skip
    self.last = population


@pytest.fixture(
  scope="module",
  params=[
    "mf_pbt",
    pytest.param("pb2", marks=pytest.mark.slow),
    pytest.param("successive_halving", marks=pytest.mark.slow),
  ],
)
def trained(request):
  return _Trained(request.param)


def test_nobody_is_replaced_while_burning_in(trained):
  first, *later = (report.decision for report in trained.reports)
  np.testing.assert_array_equal(first.parents, np.arange(_SIZE))
  assert not first.operator.any()
  assert any(decision.operator.any() for decision in later)


def test_children_have_their_parents_weights_and_replay(trained):
  num_children = 0
  pairs = zip(trained.populations, trained.reports, strict=True)
  for population, report in pairs:
    parents = report.decision.parents
    for child in np.flatnonzero(parents != np.arange(_SIZE)):
      parent = parents[child]
      assert parents[parent] == parent
      num_children += 1
      members = [
        common.member(population.members, i) for i in (child, parent)
      ]
      common.assert_bits_equal(members[0].learner, members[1].learner)
      common.assert_bits_equal(members[0].replay, members[1].replay)
      common.assert_bits_equal(
        common.member(population.hyperparams, child),
        common.member(report.decision.hyperparams, child),
      )
  assert num_children >= 2


def test_the_schedule_of_a_member_is_that_of_its_ancestors(trained):
  for member in range(_SIZE):
    rows = lineage.schedule(trained.rows, member, _GENERATIONS)
    ancestor = member
    for generation in range(_GENERATIONS, 0, -1):
      report = trained.reports[generation - 1]
      if generation < _GENERATIONS:
        ancestor = int(report.decision.parents[ancestor])
      row = rows[generation - 1]
      assert (row["generation"], row["member"]) == (generation, ancestor)
      rate = float(report.hyperparams["learning_rate"][ancestor])
      assert row["hyperparams"]["learning_rate"] == rate


def test_where_all_have_diverged_all_begin_anew(trained):
  members = trained.last.members
  learner = members.learner
  learner = learner._replace(point=jnp.full_like(learner.point, jnp.nan))
  population, report = trained.train(
    trained.last._replace(members=members._replace(learner=learner)), _KEY
  )
  assert not np.asarray(report.finite).any()
  operators = trained.setup.controller.operators
  rows = lineage.rows(
    7, 112, report.decision, report.fitness, report.hyperparams, operators
  )
  assert [row["operator"] for row in rows] == ["reinitialise"] * _SIZE
  old = set(np.asarray(report.hyperparams["learning_rate"]).tolist())
  new = np.asarray(population.hyperparams["learning_rate"]).tolist()
  assert len(set(new)) == _SIZE and not old & set(new)
  restarted = population_lib.restart_members(trained.setup, population, _KEY)
  for _ in range(2):
    restarted, report = trained.train(restarted, _KEY)
    assert np.asarray(report.finite).all()


# Decisions and everything that follows from them.
_PROGRAM = """
import hashlib, json
import jax
from qdrl_haiku import distributed
from qdrl_haiku.runs import programs
from tests.training import common, test_every_controller

key = jax.random.key(0)
results = {}
for name in ("mf_pbt", "pb2"):
  setup = common.setup(
    test_every_controller.MAKE[name](), population_size=8
  )
  for num_devices in (1, 2, 4):
    mesh = distributed.population_mesh(8, jax.devices()[:num_devices])
    run_key = jax.device_put(key, jax.NamedSharding(mesh, jax.P()))
    compiled = programs.compile_generation(
      programs.make_programs(setup._replace(mesh=mesh), mesh, run_key)
    )
    population, decisions = compiled.init(run_key), []
    for generation in range(1, 7):
      population, report = compiled.train_generation(
        population, run_key, generation
      )
      decisions.append(report.decision)
    leaves = common.leaves((population, decisions))
    results.setdefault(name, []).append({
      path: hashlib.sha256(x.tobytes()).hexdigest()
      for path, x in leaves.items()
    } | {"replaced": int(sum((x.operator > 0).sum() for x in decisions))})
print(json.dumps(results))
"""


@pytest.mark.slow
def test_how_many_devices_there_are_changes_no_decision():
  done = subprocess.run(
    [sys.executable, "-c", _PROGRAM],
    cwd=_ROOT,
    env=os.environ | {"JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert done.returncode == 0, done.stderr
  for found in json.loads(done.stdout.splitlines()[-1]).values():
    one, *others = found
    assert one["replaced"] > 4
    for several in others:
      assert several.keys() == one.keys()
      assert [x for x in one if one[x] != several[x]] == []
