"""Tests of the record of a run, and of what is counted."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.programs.runs import records
from qdrl_haiku.programs.storage.directory import RunDirectory
from tests.programs.runs import common as runs_common
from tests.training import common

_OFFSPRING, _EPISODES, _LONGEST = 4, 2, 5
_GENERATIONS = 5
# Per agent and generation, where no episode ends early.
_FULL = _EPISODES * _LONGEST


class _Ends(common.Placed):
  """Ends where the point leaves a small square, often at the first step."""

  def step(self, state, action):
    state = super().step(state, action)
    is_out = jnp.max(jnp.abs(state.obs)) > 0.8
    return state.replace(done=is_out.astype(jnp.float32))


_SETUP = common.repertoire_setup(
  env=_Ends, with_pbt=False, variations=_OFFSPRING)


def _run(logdir, generations=_GENERATIONS, **config):
  return runs_common.run(
    logdir, generations, _SETUP, {},
    repertoire_interval=2, max_checkpoints=9, num_reevaluations=0, **config)


_rows, _steps_in = runs_common.rows, runs_common.steps


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
  """Where all generations were done at a stretch."""
  logdir = tmp_path_factory.mktemp("runs") / "straight"
  _run(logdir)
  return logdir


def test_steps_are_those_taken_and_generations_as_asked(straight):
  rows = _rows(straight)
  assert [row["generation"] for row in rows] == list(range(_GENERATIONS + 1))
  # Of each offspring in each generation, on average.
  taken = [_EPISODES * row["eval/episode_length"] for row in rows[1:]]
  assert all(_EPISODES <= x < _FULL for x in taken)
  steps = [row["step"] for row in rows]
  assert steps == [0, *(math.floor(x + 1e-4) for x in np.cumsum(taken))]
  total = [row["total_env_steps"] for row in rows]
  assert np.diff(total).tolist() == pytest.approx(
    [_OFFSPRING * x for x in taken])
  assert total[0] >= _EPISODES * common.NUM_INITIAL
  # By which everything is named.
  assert _steps_in(straight / "checkpoints") == steps[1:]
  # Each second generation, and the last.
  assert _steps_in(straight / "repertoire") == [steps[2], steps[4], steps[5]]
  best = _steps_in(straight / "best")
  assert best and set(best) <= set(steps[1:])


def test_fewer_generations_than_are_done_are_refused(straight):
  # Its own steps are fewer than that.
  assert _rows(straight)[-1]["step"] < (_GENERATIONS - 1) * _FULL
  message = f"num_timesteps={4 * _FULL} is less than the {5 * _FULL} that"
  with pytest.raises(ValueError, match=message):
    _run(straight, _GENERATIONS - 1, resume=True)


def test_the_best_is_the_best_ever_and_never_a_diverged_one():
  record, found = records.initial_record(), []
  for returns, finite in (
    ([[3.0], [9.0]], (True, False)),
    ([[2.0], [1.0]], None),
    ([[3.0], [4.0]], None),
    ([[99.0], [99.0]], (False, False)),
  ):
    report = runs_common.report(returns, finite, generation=len(found) + 1)
    record = records.update_record(record, common.setup(), report, 0.0)
    best = record["best"]
    found.append((best["generation"], best["member"], best["return"]))
  assert found == [(1, 0, 3.0), (1, 0, 3.0), (3, 1, 4.0), (3, 1, 4.0)]
  assert record["best"]["hyperparams"] == {"rate": 2.0}
  assert record["total_env_steps"] == 4 * (7 + 7 + 4 * 16)


def test_more_steps_than_an_int32_counts_are_counted():
  setup = common.setup(population_size=3000, perturbation_interval=2**20)
  record, report = records.initial_record(), runs_common.report([[3.0], [9.0]])
  for _ in range(2):
    record = records.update_record(record, setup, report, 0.0)
  assert record["total_env_steps"] == 2 * (3000 * 2**20 + 14)
  steps = np.full((3, 2), 2**30, np.int32)
  many = report._replace(evaluation_steps=steps)
  # What members collect, whatever ends; or all that is evaluated.
  for of, taken, expected in (
    (setup, report, 3000 * 2**20),
    (_SETUP, report, 14),
    (_SETUP, many, 6 * 2**30),
  ):
    rates = records.record_rates(of, taken, 2.0)
    assert rates["training/env_steps_per_second"] == expected / 2


def test_where_all_diverge_each_has_one_row_of_lineage(tmp_path):
  setup, lost = common.repertoire_setup(), [False] * 4
  report = runs_common.report(np.zeros((4, 2)), lost)
  operator = np.full(4, setup.controller.operators.index("reinitialise"))
  report = report._replace(
    decision=report.decision._replace(operator=operator),
    # An elite has taken the last one's place.
    sampled_cells=np.array([-1, -1, -1, 5]))
  directory = RunDirectory(tmp_path)
  records.write_records(directory, setup, report, 48)
  rows = directory.rows("pbt_lineage.jsonl")
  assert [row["child"] for row in rows] == [0, 1, 2, 3]
  operators = [row["operator"] for row in rows]
  assert operators == ["reinitialise"] * 3 + ["sample"]
