"""Tests of runs whose agents share a critic, and of several emitters."""

import json

import numpy as np
import pytest

from qdrl_haiku import learners, map_elites, reports
from tests.launchers import harness, kill

_SMALL = (
  "--learner=td3", "--env_name=point_maze", "--episode_length=10",
  "--hidden_layer_sizes=4", "--num_initial_genotypes=4", "--grid_shape=4,4",
  "--num_eval_episodes=1", "--batch_size=8", "--min_replay_size=16",
  "--replay_capacity=200", "--num_critic_steps=4", "--num_policy_steps=2",
  "--num_generations=3", "--repertoire_interval=1", "--nouse_tensorboard",
  "--num_reevaluations=0",
)  # fmt: skip
_MIX = (
  *_SMALL,
  "--emitter=pga:3,dcrl:4,pbt:3,ga:2,tests.trials.learning_emitter:make_emitter:2",
  "--num_replaced_by_best=1", "--num_replaced_by_samples=1", "--num_envs=2",
  "--perturbation_interval=16", "--adding=adaptive",
)  # fmt: skip
_NAMES = ("pbt", "pga", "dcrl", "ga", "make_emitter")
_ADAPTING = (
  *_SMALL, "--emitter=pga,ga", "--variation_batch_size=6",
)  # fmt: skip


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
  """A run of all emitters, one of them a user's own."""
  logdir = tmp_path_factory.mktemp("logs") / "mix"
  harness.start("train_me_pbt", *_MIX, f"--logdir={logdir}")
  return logdir


@pytest.fixture(scope="module")
def adapting(tmp_path_factory):
  """A run of emitters whose shares adapt."""
  logdir = tmp_path_factory.mktemp("logs") / "adapting"
  harness.start("train_me_pbt", *_ADAPTING, f"--logdir={logdir}")
  return logdir


def _rows(logdir):
  text = (logdir / "metrics.jsonl").read_text()
  return [json.loads(line) for line in text.splitlines()]


def _latest(logdir):
  return max(
    (logdir / "repertoire").glob("*.npz"), key=lambda path: int(path.stem)
  )


@pytest.mark.slow
def test_each_emitter_of_a_mix_has_its_numbers_in_the_rows(mix):
  *_, last = _rows(mix)
  shares = [last[f"emitter/{name}/share"] for name in _NAMES]
  assert shares == pytest.approx(np.array([3, 3, 4, 2, 2]) / 14)
  # Each remembers what its own agents did, and of the first what all did.
  assert last["emitter/pga/replay_size"] == 40 + 2 * 30
  assert last["emitter/dcrl/replay_size"] == 40 + 2 * 40
  assert last["emitter/make_emitter/num_updates"] > 0
  assert last["pbt/num_replaced"] == 2
  assert last["emitter/pga/critic_loss"] > 0
  assert "pbt/hyperparams/discount/mean" in last


@pytest.mark.slow
def test_a_mix_says_who_found_which_elite(mix):
  elites, problems = reports.read_elites(mix)
  assert problems == [] and elites.emitters == _NAMES
  finds = elites.finds
  assert sum(finds.values()) == len(elites.cells) == len(elites.found_by)
  last = _rows(mix)[-1]
  for name in _NAMES:
    assert finds[name] == last[f"emitter/{name}/num_elites"]


@pytest.mark.slow
def test_agents_have_critics_only_where_somebody_trains_them(mix, adapting):
  stored = [
    map_elites.Repertoire.load(_latest(logdir)).genotypes.genotype
    for logdir in (mix, adapting)
  ]
  assert isinstance(stored[1], learners.TD3Genotype)
  assert stored[0].critic_params and stored[1].critic_params is None


@pytest.mark.slow
def test_adapting_shares_are_of_all_that_are_evaluated(adapting):
  for row in _rows(adapting)[1:]:
    shares = [row[f"emitter/{name}/share"] for name in ("pga", "ga")]
    assert sum(shares) == pytest.approx(1)
  # Nothing is remembered of agents that were not evaluated.
  sizes = [row["emitter/pga/replay_size"] for row in _rows(adapting)[1:]]
  told = [row["emitter/pga/share"] * 60 for row in _rows(adapting)[1:-1]]
  assert sizes == pytest.approx([40, 40 + told[0], 40 + sum(told)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mix", "adapting"])
def test_their_elites_are_evaluated_exported_and_reported_on(
  name, request, tmp_path, capsys
):
  logdir = request.getfixturevalue(name)
  elites, _ = reports.read_elites(logdir)
  for choice in ("--best", f"--cell={elites.cells[0]}"):
    outcome = harness.run(
      capsys, "evaluate", f"--logdir={logdir}", choice,
      f"--export={tmp_path / choice}.npz",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert '"mean"' in outcome.out
  page = tmp_path / "page.html"
  outcome = harness.run(
    capsys, "report", f"--logdir={logdir}", f"--output={page}", "--rollouts=1"
  )
  assert outcome.code == 0, outcome.err
  for emitter, number in elites.finds.items():
    assert f"{emitter} {number}" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [_MIX, _ADAPTING], ids=["mix", "adapt"])
def test_a_run_in_two_parts_is_the_same_to_the_bit(
  arguments, request, tmp_path
):
  whole = request.getfixturevalue("mix" if arguments is _MIX else "adapting")
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
    (["--emitter=pgaa"], "pgaa is unknown; did you mean 'pga'"),
    (["--emitter=ga,pga:3"], "some have a number of offspring and some have"),
    (["--emitter=ga:1,ga:2"], "one is there twice; name each once"),
    (["--emitter=ga:1,pga:0"], "has an emitter that makes nothing"),
    (["--emitter=ga,pbt"], "all its members have to be evaluated"),
    (["--emitter=ga", "--num_critic_steps=2"], "no critic is shared"),
    (["--emitter=pga", "--length_scale=1"], "no critic sees a target"),
    (["--emitter=pga", "--grad_updates_per_step=2"], "--num_critic_steps says"),
    (["--emitter=ga:2,pga:3", "--variation_batch_size=4"], "has the numbers"),
    (["--emitter=pga", "--gradient_share=2"], "gradient_share must be at most"),
    (["--emitter=pga", "--learner=sac"], "the learner can't share its own"),
    (["--emitter=pga", "--num_critic_steps=3"], "must be a multiple of the 2"),
    (["--emitter=pga", "--injection_share=0.5"], "would inject one policy mor"),
    (["--emitter=pga", "--replay_capacity=99"], "replay_capacity 99 is less"),
  ],
)
def test_flags_of_emitters_that_make_no_sense_are_refused(
  flags, complaint, tmp_path, capsys
):
  few = [x for x in _SMALL if not x.startswith("--num_critic")]
  if "pga" not in flags[0]:
    few = [x for x in few if not x.startswith(_UNUSED)]
  outcome = harness.run(
    capsys, "train_me_pbt", *few, *flags, f"--logdir={tmp_path / 'run'}"
  )
  assert outcome.code == 2 and complaint in outcome.err
  assert not (tmp_path / "run").exists()


_UNUSED = (
  "--num_policy", "--batch_size", "--min_replay", "--replay_capacity",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pga", "dcrl"])
def test_presets_of_halfcheetah_are_runs(name, tmp_path, capsys):
  outcome = harness.run(
    capsys, "train_me_pbt", f"--preset={name}_halfcheetah_uni", "--dry_run"
  )
  assert outcome.code == 0, outcome.err
  assert "shared replay" in outcome.out
