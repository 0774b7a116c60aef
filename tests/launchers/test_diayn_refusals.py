"""Tests that nonsense about skills is refused, in one line."""

import re
import sys

import pytest

from tests.launchers import harness

_CONTINUOUS = "--learner=diayn --skill_type=continuous"
_REFUSALS = [
  ("--learner=diayn --skill_type=discret", "skill_type='discret' .*'discrete'"),
  (f"{_CONTINUOUS} --skill_prior=spher", "skill_prior='spher' .*'sphere'"),
  ("--learner=diayn --skill_sampling=always", "sampling='?always'? .*episode"),
  (
    "--learner=diayn --discriminator_input=state",
    "discriminator_input='state' .*observation",
  ),
  (
    "--learner=diayn --discriminator_hidden_layer_sizes=8,x",
    "--discriminator_hidden_layer_sizes=8,x .*256,256",
  ),
  ("--learner=diayn --num_skills=1", "num_skills must be .* got 1"),
  (
    "--learner=diayn --num_eval_episodes=7",
    "--num_eval_episodes=7 .*--num_skills=8; give 8 or more",
  ),
  (f"{_CONTINUOUS} --num_eval_episodes=0", "must be at least 1, got 0"),
  (
    f"{_CONTINUOUS} --fitness=discriminator_accuracy",
    "fitness=discriminator_accuracy .*mutual_information_lower_bound",
  ),
  ("--learner=diayn --fitness=return", "fitness='return' .*'episode_return'"),
  (
    "--learner=diayn --num_skills=99999999999",
    "num_skills must be at most .* got 99999999999",
  ),
  (f"{_CONTINUOUS} --skill_size=4", "skill_size=4: size must be 2 or 3 "),
  (
    f"{_CONTINUOUS} --skill_prior=normal --skill_size=0",
    "skill_size must be at least 1, got 0",
  ),
  (
    f"{_CONTINUOUS} --num_skills=16",
    "--num_skills=16 has no effect: --skill_type=continuous",
  ),
  ("--learner=diayn --skill_size=3", "=3 has no effect: --skill_type=discrete"),
  (
    "--learner=diayn --skill_prior=normal",
    "--skill_prior=normal has no effect: --skill_type=discrete",
  ),
  (
    f"{_CONTINUOUS} --num_skills=16",
    "--num_skills=16 has no effect: .*; leave it out",
  ),
  (
    "--learner=diayn --hidden_layer_sizes=8 --policy_hidden_layer_sizes=8 "
    "--critic_hidden_layer_sizes=8 --discriminator_hidden_layer_sizes=8",
    "hidden_layer_sizes=.* has no effect: each network is given its own",
  ),
  ("--learner=diayn --policy_delay=3", "=3 has no effect: --learner=diayn"),
  (
    "--learner=diayn --exploration_noise=1",
    "--exploration_noise=1.0 has no effect",
  ),
  ("--learner=diayn --task_reward_weight=-1", "task_reward_weight=-1.0 .*from"),
  (
    "--learner=diayn --discriminator_learning_rate=nan",
    "discriminator_learning_rate=nan .*finite",
  ),
  (
    "--learner=diayn --env_name=inverted_pendulum",
    "discriminator_input=descriptor, .*discriminator_input=observation",
  ),
  (
    "--env_name=inverted_pendulum --maze_layout=open",
    "--maze_layout=open has no effect: --env_name=inverted_pendulum",
  ),
  ("--maze_layout=opne", "layout='opne' is unknown.*maze"),
  *(
    (
      f"--learner={learner} {flag}",
      f"{flag.split('=')[0]}=.* has no effect: --learner={learner} has",
    )
    for learner, flag in (
      ("sac", "--skill_type=discrete"),
      ("sac", "--num_skills=8"),
      ("td3", "--skill_prior=sphere"),
      ("sac", "--skill_size=2"),
      ("td3", "--skill_sampling=fixed"),
      ("sac", "--discriminator_input=descriptor"),
      ("sac", "--discriminator_hidden_layer_sizes=8"),
      ("sac", "--fitness=episode_return"),
    )
  ),
  (
    "--learner=sac --nosubtract_log_prior",
    "--subtract_log_prior=False has no effect: --learner=sac has",
  ),
  (
    "--learner=sac --discriminator_learning_rate=0.1",
    "--discriminator_learning_rate=0.1 has no effect",
  ),
]


@pytest.mark.parametrize(
  ("arguments", "message"), _REFUSALS, ids=[flags for flags, _ in _REFUSALS]
)
def test_nonsense_is_refused_in_one_line_and_nothing_is_written(
  arguments, message, capsys, monkeypatch, tmp_path
):
  import qdrl_haiku.runs  # noqa: F401

  def compile_generation(*_):
    raise AssertionError("It wasn't refused.")

  monkeypatch.setattr(
    sys.modules["qdrl_haiku.runs.run"],
    "compile_generation",
    compile_generation,
  )
  env_name = [] if "--env_name" in arguments else ["--env_name=point_maze"]
  outcome = harness.run(
    capsys, "train_pbt", *env_name, f"--logdir={tmp_path}/run",
    *arguments.split(),
  )  # fmt: skip
  assert outcome.code == 2
  assert outcome.err.count("\n") == 1
  assert re.search(message, outcome.err), outcome.err
  assert list(tmp_path.iterdir()) == []
