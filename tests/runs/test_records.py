"""Tests of what is counted of a run of which episodes end early."""

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import runs
from qdrl_haiku.runs import interruption, records
from qdrl_haiku.storage.directory import RunDirectory
from qdrl_haiku.training import illumination
from tests.training import test_illumination

_RUN = sys.modules["qdrl_haiku.runs.run"]
_OFFSPRING, _EPISODES, _LONGEST = 4, 2, 5
_GENERATIONS = 5
# Per agent and generation, where no episode ends early.
_FULL = _EPISODES * _LONGEST
_TIMES = ("walltime", "per_second", "compile_seconds")


class _Ends(test_illumination.Drift):
  """Ends where the point leaves a small square, often at the first step."""

  def step(self, state, action):
    state = super().step(state, action)
    is_out = jnp.max(jnp.abs(state.obs)) > 0.8
    return state.replace(done=is_out.astype(jnp.float32))


_SETUP = test_illumination.setup(
  env=_Ends, with_pbt=False, variations=_OFFSPRING
)


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
  """Lets the runs of this module share their programs."""
  make_programs, known = _RUN.make_programs, []

  def make_or_know(setup, mesh, run_key, kept):
    if not known:
      programs = make_programs(setup, mesh, run_key)
      known.append(_RUN.compile_generation(programs))
    return known[0]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(_RUN, "make_programs", make_or_know)
    patch.setattr(_RUN, "compile_generation", lambda programs: programs)
    yield


def _run(logdir, generations=_GENERATIONS, **config):
  num_timesteps = generations * _FULL
  return runs.run(
    _SETUP,
    runs.RunConfig(
      logdir=str(logdir),
      num_timesteps=num_timesteps,
      use_tensorboard=False,
      repertoire_interval=2,
      checkpoint_interval=1,
      max_checkpoints=9,
      # What was found at a former end stays in its row.
      num_reevaluations=0,
      **config,
    ),
    {"num_timesteps": num_timesteps},
    may_change=["num_timesteps"],
  )


def _rows(logdir):
  """Rows without what depends on the clock."""
  return [
    {key: x for key, x in row.items() if not key.endswith(_TIMES)}
    for row in RunDirectory(logdir).rows("metrics.jsonl")
  ]


def _steps_in(folder):
  return sorted(int(path.name.removesuffix(".npz")) for path in folder.iterdir()
                if path.name.removesuffix(".npz").isdecimal())


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
  """Where all generations were done at a stretch."""
  logdir = tmp_path_factory.mktemp("runs") / "straight"
  _run(logdir)
  return logdir


def test_steps_are_those_that_were_taken_and_generations_as_many_as_asked(
  straight,
):
  rows = _rows(straight)
  assert [row["generation"] for row in rows] == list(range(_GENERATIONS + 1))
  # Of each offspring in each generation, on average.
  taken = [_EPISODES * row["eval/episode_length"] for row in rows[1:]]
  assert all(_EPISODES <= x < _FULL for x in taken)
  steps = [row["step"] for row in rows]
  assert steps == [0, *(math.floor(x + 1e-4) for x in np.cumsum(taken))]
  assert all(isinstance(step, int) for step in steps)
  assert np.all(np.diff(steps) > 0)
  total = [row["total_env_steps"] for row in rows]
  assert np.diff(total).tolist() == pytest.approx(
    [_OFFSPRING * x for x in taken]
  )
  assert total[0] >= _EPISODES * test_illumination._INITIAL


def test_everything_is_named_by_the_same_steps(straight):
  steps = [row["step"] for row in _rows(straight)]
  assert _steps_in(straight / "checkpoints") == steps[1:]
  # Each second generation, and the last.
  assert _steps_in(straight / "repertoire") == [steps[2], steps[4], steps[5]]
  best = _steps_in(straight / "best")
  assert best and set(best) <= set(steps[1:])


def test_a_run_in_parts_counts_as_one_at_a_stretch(straight, tmp_path):
  _run(tmp_path / "parts", 2)
  assert len(_rows(tmp_path / "parts")) == 1 + 2
  _run(tmp_path / "parts", resume=True)
  assert _rows(tmp_path / "parts") == _rows(straight)
  # Once it's finished there is nothing more to do.
  _run(tmp_path / "parts", resume=True)
  assert _rows(tmp_path / "parts") == _rows(straight)


def test_a_run_that_is_told_to_stop_can_go_on(straight, tmp_path, monkeypatch):
  with monkeypatch.context() as patch, pytest.raises(runs.Interrupted):
    patch.setattr(interruption.Interruption, "requested", True)
    _run(tmp_path / "run")
  assert len(_rows(tmp_path / "run")) == 1 + 1
  _run(tmp_path / "run", resume=True)
  assert _rows(tmp_path / "run") == _rows(straight)


def test_fewer_generations_than_are_done_are_refused(straight):
  # Its own steps are fewer than that.
  assert _rows(straight)[-1]["step"] < (_GENERATIONS - 1) * _FULL
  message = f"num_timesteps {4 * _FULL} is less than the {5 * _FULL} that"
  with pytest.raises(ValueError, match=message):
    _run(straight, _GENERATIONS - 1, resume=True)


@pytest.mark.parametrize("with_pbt", [False, True])
@pytest.mark.slow
def test_rates_count_what_was_stepped(with_pbt):
  setup = test_illumination.setup(env=_Ends, with_pbt=with_pbt)
  key = jax.random.key(3)
  _, report = jax.jit(
    lambda: illumination.train_generation(
      setup, illumination.init_illumination(setup, key), key
    )
  )()
  rate = records.rates(setup, jax.device_get(report), 2.0)[
    "training/env_steps_per_second"
  ]
  if with_pbt:  # What members collect, 16 steps each, whatever ends.
    assert rate == 4 * 16 / 2
  else:
    assert rate == np.sum(report.evaluation.lengths) / 2
    assert rate < test_illumination._VARIATIONS * _FULL / 2
