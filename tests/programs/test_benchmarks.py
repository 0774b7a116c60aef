"""Tests of what the measurements of speed count; none of how fast it is."""

import json

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import controllers, distributed
from qdrl_haiku.programs import benchmarks
from qdrl_haiku.programs.cli import benchmark
from tests.launchers import harness, users_module
from tests.training import common

_KEY = jax.random.key(0)


def _setup(learner=None, **config):
  controller = controllers.pbt(controllers.PBTConfig(), common.SPACE)
  mesh = distributed.population_mesh(4, jax.devices()[:1])
  return common.setup(controller, learner=learner, **config)._replace(mesh=mesh)


@pytest.fixture
def machine(monkeypatch):
  """A machine of a GFLOP per second on which each call takes half a second."""
  monkeypatch.setattr(benchmarks, "_matmul_peak", lambda mesh: 1e9)
  monkeypatch.setattr(
    benchmarks, "measure_median_seconds",
    lambda call, state, n: call(state) and 0.5)


def test_flops_are_those_of_one_critic_step():
  learner = common.quadratic_learner()
  matrix = jnp.ones((50, 50))

  def update(state, hyperparams, transitions, key):
    state, metrics = learner.update(state, hyperparams, transitions, key)
    product = matrix @ jnp.outer(state.point[:1], jnp.ones(40)).repeat(50, 0)
    return state._replace(point=state.point + product[0, 0]), metrics

  setup = _setup(learner._replace(update=update))
  per_step = benchmarks.benchmark_flops_per_update(
    setup._replace(map_elites="left out"))
  product = 2 * 50 * 50 * 40 / learner.batches_per_update
  # The rest is a few operations on vectors of two.
  assert product <= per_step < product + 1000


def test_updates_are_those_of_whole_intervals(machine):
  setup = _setup()
  row = benchmarks.benchmark_updating(setup, 1, _KEY)
  # One update per step of four agents, in half a second.
  rate = 4 * setup.config.perturbation_interval / 0.5
  assert row["updates_per_second"] == rate
  assert row["fraction_of_peak"] == pytest.approx(
    rate * row["flops_per_update"] / 1e9)


@pytest.mark.slow
def test_exploiting_counts_what_children_take_over(machine):
  # A point and four numbers; 48 transitions of 8 numbers, and two counts.
  assert benchmarks.benchmark_exploiting(
    _setup(inherit_replay=True), 1, _KEY) == {
    "exploit_milliseconds": 500.0, "decision_milliseconds": 500.0,
    "num_replaced": 1, "moved_bytes": 6 * 4 + 48 * 8 * 4 + 2 * 4}


@pytest.mark.slow
def test_generations_are_counted_as_a_run_counts_them(machine):
  row = benchmarks.benchmark_generations(_setup(), 2, _KEY, start=0.0)
  per_generation = row["generation_seconds"]
  assert row["repetitions"] == 2
  # Without those of evaluation.
  for name in ("env_steps_per_second", "updates_per_second"):
    assert row[name] * per_generation == pytest.approx(4 * 16)
  assert row["fraction_of_peak"] == pytest.approx(
    row["updates_per_second"] * row["flops_per_update"] / 1e9)


def test_repetitions_end_when_the_minute_is_over(monkeypatch, capsys):
  clock = iter(range(0, 10_000, 15))
  monkeypatch.setattr(benchmarks.time, "monotonic", lambda: next(clock))
  calls = []
  seconds = benchmarks.measure_median_seconds(
    lambda n: calls.append(n) or n, 0, 9)
  # A first one, and as many of 15 seconds as fit.
  assert (seconds, len(calls)) == (15, 3)
  assert "measuring 2 of 9 repetitions, 30 s" in capsys.readouterr().err


def test_an_interval_is_cut_to_what_takes_seconds(monkeypatch):
  # A critic step of a second.
  monkeypatch.setattr(
    benchmarks, "_FLOPS", {jax.default_backend(): 1e9})
  monkeypatch.setattr(
    benchmarks, "benchmark_flops_per_update", lambda setup: 1e9)
  setup = _setup(perturbation_interval=160, min_replay_size=32)
  short = benchmarks.shorten_for_benchmark(setup).config
  # Four agents and 6 seconds: not more than one iteration; and the second
  # interval has all its updates.
  assert (short.perturbation_interval, short.min_replay_size) == (2, 2)
  kept = benchmarks.shorten_for_benchmark(setup, min_replay_size=32).config
  assert (kept.perturbation_interval, kept.min_replay_size) == (2, 32)
  monkeypatch.setattr(
    benchmarks, "benchmark_flops_per_update", lambda setup: 5e4)
  assert benchmarks.shorten_for_benchmark(setup).config == setup.config


@pytest.mark.parametrize(("flags", "message"), [
  (["--algorithm", "me_pbt"], "--algorithm=me_pbt on the command line, in one"),
  (["--algorithm=add", "--sweep=tau:0.1,0.2"], "draws no costs of --algorithm"),
  (["--sweep=tau:0.1,0.2", "--output=nowhere/a.png"], "there is no directory"),
  (["--output=row.json"], "row.json has no effect without --sweep"),
  (["--dry_run"], "--dry_run has no effect on what .* to train_pbt.py"),
  (["--checkpoint_interval=2"], "--checkpoint_interval has no effect"),
])
def test_what_can_not_be_measured_is_refused(capsys, flags, message):
  harness.assert_refused(harness.run(capsys, "benchmark", *flags), message)


def test_costs_of_what_is_never_done_are_left_out():
  rows = [
    {"size": i, "updates_per_second": 0.0, "generation_seconds": 2.0}
    for i in (1, 2)]
  assert len(benchmark.costs_figure(rows, "size").panels) == 1


@pytest.mark.slow
def test_the_launcher_prints_one_line_of_json(capsys, tmp_path, monkeypatch):
  users_module.write(tmp_path)
  monkeypatch.chdir(tmp_path)
  outcome = harness.run(
    capsys, "benchmark", *users_module.FLAGS[:2], "--algorithm=update",
    "--population_size=2", "--num_envs=2", "--batch_size=4",
    "--num_timesteps=400", "--repetitions=1")
  assert outcome.code == 0, outcome.err
  row = json.loads(outcome.out)
  assert row["algorithm"] == "update"
  # Observations, the action, reward and discount.
  assert row["replay_bytes_per_transition"] == 4 * 5
  assert row["updates_per_second"] > 0
  assert row["perturbation_interval"] == 20
  assert row["num_eval_episodes"] == 1
