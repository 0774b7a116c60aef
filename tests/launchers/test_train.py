"""Tests of what `train.py` does with seeds, and of going on with a run."""

import json
import sys

import pytest

from tests.launchers import harness, users_module

_SEEDS = (5, 6, 7, 8)


def _rows(folder):
  lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


def _start(*arguments):
  harness.start(
    "train", *users_module.FLAGS, "--logdir=run", "--nouse_tensorboard",
    *arguments,
  )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Where four seeds were trained for as long as makes intervals of 8."""
  folder = tmp_path_factory.mktemp("train")
  users_module.write(folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    patch.setattr(sys, "path", list(sys.path))
    _start("--num_seeds=4", "--seed=5", "--num_timesteps=160")
    yield folder
  for name in ("users_own", "users_own.things"):
    sys.modules.pop(name, None)


def test_each_seed_and_their_interquartile_mean_are_logged(folder):
  rows = _rows(folder)
  assert len(rows) >= 20
  for row in rows[:20]:
    seeds = [row[f"eval/episode_return/seed_{seed}"] for seed in _SEEDS]
    assert len(set(seeds)) == 4
    low, *middle, high = sorted(seeds)
    assert row["eval/episode_return_iqm"] == pytest.approx(sum(middle) / 2)
    assert row["eval/episode_return"] == pytest.approx(sum(seeds) / 4)
    assert low < high


def test_nothing_about_a_controller_is_written(folder):
  assert not list((folder / "run").glob("pbt_*"))
  assert not [name for name in _rows(folder)[0] if name.startswith("pbt/")]
  plots = {path.name for path in (folder / "run" / "plots").iterdir()}
  assert plots == {"learning_curves.png", "diagnostics.png"}


def test_a_longer_run_goes_on_in_the_same_intervals(folder, capsys):
  before = _rows(folder)[:20]
  _start(
    "--num_seeds=4", "--seed=5", "--num_timesteps=176", "--resume"
  )
  rows = _rows(folder)
  assert rows[:20] == before
  assert [row["step"] for row in rows] == list(range(8, 177, 8))
  # They go on from where they were.
  assert rows[20]["eval/episode_return"] > rows[19]["eval/episode_return"]
  assert "generation 22/22" in capsys.readouterr().out


def test_going_on_with_another_setting_is_refused(folder, capsys):
  outcome = harness.run(
    capsys, "train", *users_module.FLAGS, "--logdir=run", "--resume",
    "--num_seeds=4", "--seed=6", "--num_timesteps=176",
  )  # fmt: skip
  assert outcome.code == 2
  assert "--seed was 5 and is 6" in outcome.err
