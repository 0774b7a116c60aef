"""Tests of runs without cells, and of runs that sample by CMA-ES."""

import json

import numpy as np
import pytest

from qdrl_haiku import map_elites, reports
from tests.launchers import harness, kill

_SMALL = (
  "--learner=td3", "--env_name=arm", "--hidden_layer_sizes=",
  "--num_initial_genotypes=4", "--num_eval_episodes=1", "--num_generations=3",
  "--repertoire_interval=1", "--nouse_tensorboard",
)  # fmt: skip
_CMA = (
  *_SMALL, "--emitter=cma:4,ga:4", "--num_strategies=2",
  "--num_reevaluations=0",
)  # fmt: skip
_NONE = (
  *_SMALL, "--emitter=ga", "--variation_batch_size=6",
  "--iso_sigma=0.5", "--tessellation=none", "--num_cells=5", "--grid_shape=4,4",
  "--num_reevaluations=2", "--reevaluation_interval=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def cma(tmp_path_factory):
  """A run of samples and variations."""
  logdir = tmp_path_factory.mktemp("logs") / "cma"
  harness.start("train_me_pbt", *_CMA, f"--logdir={logdir}")
  return logdir


@pytest.fixture(scope="module")
def none(tmp_path_factory):
  """A run without cells."""
  logdir = tmp_path_factory.mktemp("logs") / "none"
  harness.start("train_me_pbt", *_NONE, f"--logdir={logdir}")
  return logdir


def _rows(logdir):
  text = (logdir / "metrics.jsonl").read_text()
  return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_samples_of_cma_and_variations_fill_a_repertoire(cma):
  row = _rows(cma)[-1]
  assert row["emitter/cma/step_size"] > 0
  assert row["emitter/cma/share"] == row["emitter/ga/share"] == 0.5
  assert row["emitter/cma/num_restarts"] >= 0
  # No agent learns, so that none has a critic.
  with np.load(cma / "repertoire" / f"{row['step']}.npz") as file:
    assert not any("critic_params" in name for name in file.files)


def test_without_cells_as_many_stay_as_there_are_places(none):
  rows = _rows(none)
  assert [row["qd/num_elites"] for row in rows] == [4, 5, 5, 5]
  assert 0 < rows[-1]["qd/coverage"] <= 100 * 5 / 16
  corrected = json.loads((none / "corrected.json").read_text())
  # The function has no noise.
  assert corrected["qd/qd_score"] == pytest.approx(rows[-1]["qd/qd_score"])
  elites, problems = reports.read_elites(none)
  assert problems == [] and len(elites.cells) == 5
  path = none / f"repertoire/{elites.step}.npz"
  assert isinstance(
    map_elites.Repertoire.load(path).tessellation, map_elites.Unstructured
  )


@pytest.mark.slow
def test_elites_without_cells_are_evaluated_and_reported_on(
  none, tmp_path, capsys
):
  for choice in ("--best", "--cell=4", "--descriptor=0.2,0.9"):
    outcome = harness.run(capsys, "evaluate", f"--logdir={none}", choice)
    assert outcome.code == 0, outcome.err
  page = tmp_path / "page.html"
  outcome = harness.run(
    capsys, "report", f"--logdir={none}", f"--output={page}"
  )
  assert outcome.code == 0, outcome.err
  assert "5 of 5 places are occupied" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cma", "none"])
def test_a_run_in_two_parts_is_the_same_to_the_bit(name, request, tmp_path):
  whole = request.getfixturevalue(name)
  arguments = _CMA if name == "cma" else _NONE
  for number, resume in ((1, "--noresume"), (3, "--resume")):
    harness.start(
      "train_me_pbt", *arguments, f"--num_generations={number}", resume,
      f"--logdir={tmp_path / 'parts'}",
    )  # fmt: skip
  found, expected = (kill.contents(x) for x in (tmp_path / "parts", whole))
  assert kill.differences(found, expected) == []


@pytest.mark.parametrize(
  "flags, complaint",
  [
    (["--emitter=ga", "--step_size=1"], "nothing is sampled"),
    (["--emitter=cma", "--iso_sigma=1"], "--emitter=cma varies nothing"),
    (["--emitter=cma", "--num_strategies=3"], "can't share 10 offspring even"),
    (["--emitter=cma", "--step_size=0"], "step_size must be above 0"),
    (["--emitter=cma", "--hidden_layer_sizes=64,64"], "at most 1024, such as"),
    (["--emitter=cma", "--tessellation=none"], "by the cells that they improv"),
    (["--emitter=ga", "--tessellation=nune"], "did you mean 'none'"),
    (["--emitter=ga", "--tessellation=none", "--num_cells=0"], "at least 1"),
    (["--emitter=ga", "--tessellation=none", "--grid_shape=4"], "give 2 numb"),
  ],
)
def test_flags_that_make_no_sense_are_refused(
  flags, complaint, capsys, tmp_path
):
  small = [x for x in _SMALL if x.split("=")[0] not in str(flags)]
  outcome = harness.run(
    capsys, "train_me_pbt", *small, *flags, f"--logdir={tmp_path / 'x'}"
  )
  assert outcome.code == 2 and complaint in outcome.err, outcome.err
