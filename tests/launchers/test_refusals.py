"""Tests that nonsense is refused at once, in one line that says what to do."""

import os
import re
import subprocess
import sys

import jax.numpy as jnp
import pytest

from qdrl_haiku import controllers, learners
from tests.launchers import harness

# The launcher and its flags, and what the message must have: the name and the
# value that are wrong, and what to do instead.
_CASES = [
  # What there isn't.
  ("train_pbt", "--env_name=point_mase", "env_name.*point_mase.*'point_maze'"),
  ("train", "--env_name=no_module:make", "no_module:make.*no module.*check"),
  ("train", "--env_name=os:getcwd", "no method 'reset'; give"),
  ("train_pbt", "--learner=sacc", "--learner=sacc.*did you mean 'sac'"),
  ("train", "--learner=os:joinn", "os:joinn.*has no function 'joinn'"),
  ("train", "--learner=operator:mul", "--learner=operator:mul returned a int"),
  ("train", "--activation=rellu", "activation='rellu'.*'relu'"),
  ("train", "--backend=spring", "backend='spring'.*leave it out"),
  (
    "train",
    "--env_name=inverted_pendulum --backend=springs",
    "backend='springs'.*did you mean 'spring'",
  ),
  ("train_pbt", "--exploit=truncate", "exploit='truncate'.*'truncation'"),
  ("train_pbt", "--explore=perturbb", "explore='perturbb'.*'perturb'"),
  ("train", "extra", "'extra'; flags begin with --"),
  ("train", "--env_name=", "env_name='' is unknown; give one of ant, "),
  ("train", "--env_name=os:", "'os:' is no function; give it as 'package"),
  ("train", "--env_name=..x:make", r"'\.\.x:make' is no function; give it as"),
  ("train", "--env_name=json:loads", "env_name='json:loads': missing .*'s'"),
  ("train", "--env_name=ant_unii", "env_name='ant_unii' .* 'ant_uni'"),
  ("train", "--learner=", "--learner= is unknown; give one of sac, td3"),
  ("train", "--learner=os:", "'os:' is no function; give it as 'package"),
  (
    "train",
    "--learner=os:getcwd",
    "--learner=os:getcwd can't be called with observation_size and action_size",
  ),
  (
    "train",
    "--learner=tests.launchers.test_refusals:learner_of_nothing",
    "the learner has no hyperparameters; give it one",
  ),
  (
    "train",
    "--learner=tests.launchers.test_refusals:learner_of_words",
    "has the hyperparameter speed/0='fast'; give a Python float",
  ),
  ("train", "--activation=", "activation='' is unknown; give one of elu"),
  ("train", "--hyperparam=x", "--hyperparam=x is not of the form name="),
  ("train", "--hyperparam=x=fast", "x=fast is not of the form name=value"),
  ("train", "--hyperparam=tua=0.1", "tua=0.1 is no hyperparameter.*'tau'"),
  ("train", "--hyperparam=tau=2", "without a flag of its own; give --tau=2"),
  (
    "train",
    "--learner=tests.launchers.test_refusals:learner_that_declares "
    "--hyperparam=speed=2",
    "--hyperparam=speed=2.0 makes no sense; .* from 0 to 1",
  ),
  ("train_pbt", "--controller=pbtt", "--controller=pbtt is unknown.*'pbt'"),
  (
    "train_pbt",
    "--controller=os:getcwd",
    "--controller=os:getcwd can't be called with search_space",
  ),
  (
    "train_pbt",
    "--controller=tests.trials.remembering_controller:make_controller "
    "--exploit=none",
    "--exploit=none has no effect: --controller=tests.trials",
  ),
  *(
    (
      launcher,
      f"--controller={controller} {flag}",
      f"{flag.split('=')[0]}=.* has no effect: --controller={controller} has",
    )
    for launcher, controller, flag in (
      ("train_pbt", "pbt", "--optimism=2"),
      ("train_pbt", "pb2", "--explore=resample"),
      ("train_pbt", "pb2", "--frequencies=1,2"),
      ("train_pbt", "mf_pbt", "--exploit=tournament"),
      ("train_pbt", "mf_pbt", "--pb2_window=64"),
      ("train_pbt", "random_search", "--quantile_fraction=0.5"),
      ("train_pbt", "successive_halving", "--perturbation_factors=0.5,2"),
      ("train_me_pbt", "random_search", "--num_parents=1"),
      ("train_me_pbt", "pbt", "--first_rung=1"),
    )
  ),
  (
    "train_pbt",
    "--controller=random_search --inherit_replay",
    "--inherit_replay=True has no effect: with --controller=random_search",
  ),
  ("train_pbt", "--controller=pb2 --pb2_window=0", "window must be .*got 0"),
  (
    "train_pbt",
    "--controller=pb2 --pb2_window=7",
    "window=7 is less than population_size=8; use",
  ),
  ("train_pbt", "--controller=pb2 --optimism=-1", "optimism must be .*got -1"),
  ("train_pbt", "--controller=pb2 --num_parents=0", "num_parents=0 .*use"),
  (
    "train_pbt",
    "--controller=mf_pbt --frequencies=1,x",
    "--frequencies=1,x is no list of integers; give it like",
  ),
  (
    "train_pbt",
    "--controller=mf_pbt --frequencies=1,3,2",
    r"frequencies=\(1, 3, 2\) don't rise from 1.*use",
  ),
  (
    "train_pbt",
    "--controller=mf_pbt --population_size=12",
    "population_size=12 can't be divided.*multiple of 8",
  ),
  (
    "train_pbt",
    "--controller=successive_halving --reduction_factor=1",
    "reduction_factor must be at least 2, got 1",
  ),
  (
    "train_pbt",
    "--controller=successive_halving --first_rung=0",
    "first_rung must be at least 1, got 0",
  ),
  (
    "train_pbt",
    "--search_space=tau:choice:0.1",
    "search_space='tau:choice:0.1'.*leaves no choice; give two",
  ),
  (
    "train_pbt",
    "--search_space=tau:choice:0.1:5",
    "--search_space: tau=5.0 .*above 0 and at most 1",
  ),
  (
    "train_pbt",
    "--controller=tests.launchers.test_refusals:controller_that_forgets",
    "the controller's state after an update.*differs",
  ),
  (
    "train_pbt",
    "--controller=tests.launchers.test_refusals:controller_of_floats",
    "the decision's parents are float32.*, not int32",
  ),
  ("train_pbt", "--exploit=", "exploit='' is unknown; give one of truncation"),
  # Sizes.
  ("train_pbt", "--population_size=0", "population_size must be .* got 0"),
  ("train", "--num_seeds=-2", "num_seeds must be .* got -2"),
  ("train", "--num_envs=0", "num_envs must be .* got 0"),
  ("train_pbt", "--num_envs=-8", "num_envs must be .* got -8"),
  ("train", "--num_timesteps=0", "num_timesteps must be at least 1, got 0"),
  ("train", "--batch_size=0", "batch_size must be .* got 0"),
  ("train", "--replay_capacity=-1", "replay_capacity must be .* got -1"),
  ("train", "--min_replay_size=0", "min_replay_size must be .* got 0"),
  ("train", "--num_eval_episodes=0", "num_eval_episodes must be .* got 0"),
  ("train", "--episode_length=0", "episode_length must be at least 1, got 0"),
  ("train", "--action_repeat=-1", "action_repeat must be at least 1, got -1"),
  ("train_pbt", "--fitness_window=0", "fitness_window must be .* got 0"),
  ("train_pbt", "--burn_in_period=-1", "burn_in_period .* got -1"),
  ("train", "--max_checkpoints=0", "max_checkpoints must be .* got 0"),
  ("train", "--checkpoint_interval=0", "checkpoint_interval must .* got 0"),
  ("train", "--hidden_layer_sizes=64,x", "--hidden_layer_sizes=64,x.*256,256"),
  ("train", "--hidden_layer_sizes=0", "sizes must be at least 1, got 0"),
  (
    "train",
    "--critic_hidden_layer_sizes=-4",
    "critic_hidden_layer_sizes must be at least 1, got -4",
  ),
  ("train", "--seed=-1", "seed must be at least 0.*got -1"),
  ("train", "--seed=99999999999999999999", "be at most 4294967295, got 9"),
  ("train", "--seed=4294967295 --num_seeds=2", "seed .*below.* 4294967296"),
  ("train", "--policy_hidden_layer_sizes=8,", "policy_hidden.*=8, is no list"),
  ("train", "--hidden_layer_sizes=1.5", "sizes=1.5 is no list .*256,256"),
  ("train", "--num_timesteps=-160", "num_timesteps must be .*got -160"),
  ("train", "--eval_interval=-8", "eval_interval must be at least 1, got -8"),
  (
    "train_pbt",
    "--perturbation_interval=0",
    "perturbation_interval must be at least 1, got 0",
  ),
  # Sizes that are too large.
  ("train", "--num_seeds=99999999999", "num_seeds must be at most .*99999999"),
  ("train", "--num_envs=99999999999", "num_envs must be at most .*99999999999"),
  (
    "train",
    "--replay_capacity=99999999999",
    "replay_capacity must be at most .*99999999999",
  ),
  (
    "train",
    "--num_eval_episodes=99999999999",
    "num_eval_episodes must be at most .*99999999999",
  ),
  (
    "train",
    "--num_timesteps=999999999999999999999000",
    "num_timesteps must be at most 9007199254740992, got 9",
  ),
  ("train", "--episode_length=9999999999", "must be at most 1073741823"),
  ("train", "--action_repeat=101", "action_repeat=101 .*length=100.*lower it"),
  (
    "train_pbt",
    "--population_size=99999999999",
    "population_size must be at most .*99999999999",
  ),
  (
    "train_pbt",
    "--fitness_window=99999999999",
    "fitness_window must be at most .*99999999999",
  ),
  (
    "train_pbt",
    "--burn_in_period=99999999999",
    "burn_in_period must be .*at most .*99999999999",
  ),
  # Rates and intervals.
  ("train", "--grad_updates_per_step=0", "grad_updates_per_step .* got 0.0"),
  ("train", "--grad_updates_per_step=nan", "grad_updates_per_step .* got nan"),
  ("train", "--grad_updates_per_step=inf", "grad_updates_per_step .* got inf"),
  ("train", "--grad_updates_per_step=1e9", "grad_updates_per_step .*at most"),
  (
    "train_pbt",
    "--perturbation_interval=801",
    "perturbation_interval 801 .* 800 or 808",
  ),
  ("train", "--eval_interval=801", "eval_interval 801 .* 800 or 808"),
  ("train", "--num_timesteps=801", "num_timesteps 801.*800 can.*eval_interval"),
  (
    "train_pbt",
    "--num_timesteps=801",
    "num_timesteps 801.*800 can.*perturbation_interval",
  ),
  (
    "train",
    "--num_timesteps=900 --eval_interval=800",
    "num_timesteps 900 .* 800 or 1600",
  ),
  (
    "train",
    "--learner=td3 --policy_delay=3 --eval_interval=80 --num_timesteps=80",
    "eval_interval 80 .* 72 or 96",
  ),
  ("train", "--learner=td3 --policy_delay=0", "policy_delay must .* got 0"),
  # Sizes beyond what counts, whose time or memory nobody has.
  ("train", f"--hidden_layer_sizes={10**20}", "at most 2147483647, got 1000"),
  (
    "train",
    "--hidden_layer_sizes=2147483647",
    "networks' hidden layers",
  ),
  ("train", "--num_seeds=2147483647", "this run would need .* or num_seeds"),
  (
    "train_pbt",
    "--controller=pb2 --pb2_window=1000000000000",
    "window must be at most 4096, got 1000000000000",
  ),
  (
    "train_pbt",
    "--controller=mf_pbt --frequencies=1,1000000000000",
    "frequencies must be at most 2147483647, got 1000000000000",
  ),
  (
    "train",
    "--num_eval_episodes=1000000000",
    "evaluation would take the most, .*: lower num_eval_episodes",
  ),
  # Two that don't fit.
  (
    "train",
    "--replay_capacity=200 --min_replay_size=100",
    "batch_size 256 .*replay_capacity 200; lower",
  ),
  (
    "train",
    "--replay_capacity=500",
    "min_replay_size 1000 .*replay_capacity 500.*lower",
  ),
  (
    "train_pbt",
    "--num_parents=5 --num_replaced=4",
    "num_parents=5 and num_replaced=4 .*population_size=8.*lower",
  ),
  ("train_pbt", "--num_parents=0", "num_parents=0 .*use"),
  ("train_pbt", "--num_replaced=-1", "num_replaced must be at least 0, got -1"),
  ("train_pbt", "--quantile_fraction=0.6", "must be at most 0.5, got 0.6"),
  (
    "train_pbt",
    "--explore=mixed --resample_probability=2",
    "resample_probability must be at most 1, got 2",
  ),
  (
    "train_pbt",
    "--perturbation_factors=1,2",
    r"perturbation_factors=\(1.0, 2.0\).*use",
  ),
  (
    "train_pbt",
    "--perturbation_factors=0.8",
    r"perturbation_factors=\(0.8,\) .*use",
  ),
  (
    "train_pbt",
    "--perturbation_factors=0.8,1e300",
    "perturbation_factors must be .*, as float32 holds it",
  ),
  (
    "train_pbt",
    "--perturbation_factors=a,b",
    "--perturbation_factors=a,b is no list of numbers; give it",
  ),
  (
    "train_pbt",
    "--exploit=none --burn_in_period=8",
    "--burn_in_period=8 has no effect: with --exploit=none no",
  ),
  (
    "train_pbt",
    "--num_replaced=0 --burn_in_period=8",
    "burn_in_period=8 has no effect: the controller replaces non-finite",
  ),
  (
    "train_pbt",
    "--controller=random_search --fitness_window=2",
    "--fitness_window=2 has no effect: with --controller=random_search",
  ),
  (
    "train_pbt",
    "--controller=successive_halving --first_rung=21",
    "before its decision 21 .* 100000 has 20 generations; lower first_rung",
  ),
  # Hyperparameters and their ranges.
  ("train", "--reward_scaling=0", "reward_scaling=0.0 .*number above 0[.]"),
  ("train", "--tau=0", "--tau=0.0 .*number above 0 and at most 1[.]"),
  (
    "train_pbt",
    "--search_space=reward_scaling:uniform:0:1",
    "search_space: reward_scaling=0.0 .* above 0[.]",
  ),
  (
    "train",
    "--policy_learning_rate=1e-50",
    "policy_learning_rate=1e-50 .*float32 holds none below 1e-30",
  ),
  ("train", "--discount=1.5", "--discount=1.5 .*from 0 to 1"),
  ("train", "--tau=nan", "--tau=nan .*above 0 and at most 1"),
  ("train", "--policy_learning_rate=-1", "policy_learning_rate=-1.0 .*from 0"),
  ("train_pbt", "--reward_scaling=inf", "--reward_scaling=inf .*finite"),
  ("train", "--initial_temperature=0", "initial_temperature .* got 0.0"),
  ("train", "--initial_temperature=inf", "initial_temperature .* got inf"),
  ("train", "--initial_temperature=1e300", "must be at most 1e.30, got"),
  ("train", "--discount=-0.1", "--discount=-0.1 .*from 0 to 1"),
  ("train", "--tau=2", "--tau=2.0 .*above 0 and at most 1"),
  ("train", "--critic_learning_rate=nan", "critic_learning_rate=nan .*from 0"),
  ("train", "--critic_learning_rate=1e300", "rate=1e.300 .*from 0 on[.]"),
  ("train", "--target_entropy=nan", "--target_entropy=nan .*finite number[.]"),
  (
    "train",
    "--learner=td3 --target_noise_scale=-1",
    "--target_noise_scale=-1.0 .*from 0 on",
  ),
  (
    "train",
    "--learner=td3 --exploration_noise=inf",
    "--exploration_noise=inf .*from 0 on",
  ),
  (
    "train_pbt",
    "--search_space=tau:fixed:x",
    "search_space='tau:fixed:x' has 'x' where numbers belong; write it as",
  ),
  (
    "train_pbt",
    "--search_space=tau:log_uniform:0:1",
    "search_space='tau:log_uniform:0:1'.*low=0.0 has no logarithm; use",
  ),
  (
    "train_pbt",
    "--search_space=discount:one_minus_log_uniform:0.9:1",
    r"search_space='discount:one_minus.*must be in \[0, 1\)",
  ),
  (
    "train_pbt",
    "--search_space=policy_learning_rate:uniform:-1:1",
    "--search_space: policy_learning_rate=-1.0 .*from 0 on",
  ),
  (
    "train_pbt",
    "--search_space=discont:uniform:0:0.9",
    "search_space .*'discont'.*'discount'",
  ),
  (
    "train_pbt",
    "--search_space=tau:unifrm:0:1",
    "search_space='tau:unifrm:0:1'.*'uniform'",
  ),
  (
    "train_pbt",
    "--search_space=tau:uniform:1:0",
    "search_space='tau:uniform:1:0'.*smaller bound first",
  ),
  (
    "train_pbt",
    "--search_space=tau:uniform:1",
    "search_space='tau:uniform:1'.*tau:uniform:low:high",
  ),
  (
    "train_pbt",
    "--search_space=tau:uniform:0.1:5",
    "--search_space: tau=5.0 .*above 0 and at most 1",
  ),
  (
    "train_pbt",
    "--tau=0.1 --search_space=tau:uniform:0:1",
    "--tau=0.1.*--search_space.*leave out",
  ),
  # What would have no effect.
  ("train", "--policy_delay=3", "--policy_delay=3 has no effect.*leave it out"),
  (
    "train_pbt",
    "--learner=td3 --learn_temperature=false",
    "--learn_temperature=False has no effect: --learner=td3 has",
  ),
  (
    "train_pbt",
    "--learner=td3 --target_entropy=-1",
    "--target_entropy=-1.0 has no effect.*leave it out",
  ),
  (
    "train",
    "--learn_temperature=false --target_entropy=-1",
    "--target_entropy=-1.0 has no effect.*leave it out",
  ),
  ("train_pbt", "--exploit=none --num_parents=1", "=1 has no effect: --exp"),
  (
    "train_pbt",
    "--resample_probability=0.5",
    "--resample_probability=0.5 has no effect: --explore=perturb",
  ),
  (
    "train_pbt",
    "--explore=resample --perturbation_factors=0.5,2",
    "--perturbation_factors=.* has no effect: --explore=resample",
  ),
  (
    "train_pbt",
    "--exploit=tournament --quantile_fraction=0.3",
    "--quantile_fraction=0.3 has no effect: --exploit=tournament",
  ),
  (
    "train",
    "--hidden_layer_sizes=8 --policy_hidden_layer_sizes=4 "
    "--critic_hidden_layer_sizes=4",
    "hidden_layer_sizes=.* has no effect: each network is given its own",
  ),
  (
    "train_pbt",
    "--exploit=none --inherit_replay",
    "--inherit_replay=True has no effect: with --exploit=none no agent",
  ),
  *(
    (
      "train_pbt",
      f"--search_space=tau:fixed:0.1 {flag}",
      f"{flag.split('=')[0]}=.* has no effect: all hyperparameters are fixed",
    )
    for flag in ("--explore=perturb", "--perturbation_factors=0.5,2")
  ),
  # Where it is written, and what it begins with.
  ("train", "--resume --logdir=", "--resume needs --logdir"),
  ("train", "--resume", "holds no run.*name the directory"),
  ("train", "--warm_start=/no/such/run", "/no/such/run holds no run.*name"),
  ("train", "--warm_start=/dev/null", "/dev/null holds no run.*name"),
  ("train", "--logdir=/dev/null", "logdir /dev/null .*choose another"),
  ("train", "--logdir=/dev/null/run", "logdir /dev/null/run .*choose another"),
  ("train", "--logdir=/proc/run", "logdir /proc/run .*choose another"),
  # What is wrong with a user's own environment.
  *(
    (
      launcher,
      f"--env_name=tests.environments.liars:{name}",
      f"{message}.*; (return|give|write)",
    )
    for launcher, name, message in (
      ("train", "nan_obs_at_reset", "env[.]reset returned NaN in obs"),
      ("train_pbt", "late_inf_reward", "env[.]step returned inf in reward"),
      ("train", "half_done", "env[.]step returned done=0.5"),
      ("train", "other_size", "obs has shape .2,. instead of .3,."),
      ("train_pbt", "other_keys_at_step", "only one of them has .*distance"),
      ("train", "complex_reward", "reward has dtype complex64"),
      ("train_me_pbt", "nan_descriptor_at_step", "NaN in .*state_descriptor"),
      ("train", "branching", "env[.]step can't be compiled by jax"),
      ("train", "like_gym", "env[.]step of _LikeGym takes other arguments"),
    )
  ),
]


def learner_of_nothing(observation_size, action_size):
  """A user's learner that has no hyperparameters."""
  learner = learners.sac(observation_size, action_size)
  return learner._replace(hyperparams=())


def learner_that_declares(observation_size, action_size):
  """A user's learner that says which values make sense."""
  learner = learners.sac(observation_size, action_size)
  speed = learners.Hyperparameter(0.5, "how fast", high=1.0)
  return learner._replace(
    hyperparams={"speed": 0.5}, declared={"speed": speed}
  )


def controller_that_forgets(search_space):
  """A user's controller whose state is another one each time."""
  pbt = controllers.pbt(controllers.PBTConfig(), search_space)

  def update(state, key, fitness, hyperparams):
    _, decision = pbt.update((), key, fitness, hyperparams)
    return (*state, jnp.zeros(())), decision

  return pbt._replace(update=update)


def controller_of_floats(search_space):
  """A user's controller whose parents are no indices."""
  pbt = controllers.pbt(controllers.PBTConfig(), search_space)

  def update(state, key, fitness, hyperparams):
    state, decision = pbt.update(state, key, fitness, hyperparams)
    return state, decision._replace(parents=decision.parents * 1.0)

  return pbt._replace(update=update)


def learner_of_words(observation_size, action_size):
  """A user's learner whose hyperparameters are no numbers."""
  learner = learners.sac(observation_size, action_size)
  return learner._replace(hyperparams={"speed": ["fast"]})


@pytest.fixture
def refuse(capsys, monkeypatch, tmp_path):
  """Runs a launcher that must stop before it compiles or writes anything."""

  def compile_generation(*_):
    raise AssertionError("It wasn't refused.")

  monkeypatch.chdir(tmp_path)
  import qdrl_haiku.runs  # noqa: F401

  monkeypatch.setattr(
    sys.modules["qdrl_haiku.runs.run"],
    "compile_generation",
    compile_generation,
  )

  def run(launcher, flags):
    logdir = [] if "--logdir" in flags else ["--logdir=run"]
    env_name = [] if "--env_name" in flags else ["--env_name=point_maze"]
    return harness.run(capsys, launcher, *env_name, *logdir, *flags.split())

  yield run
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  ("launcher", "flags", "message"),
  _CASES,
  ids=[f"{launcher} {flags}" for launcher, flags, _ in _CASES],
)
def test_nonsense_is_refused_in_one_line_and_nothing_is_written(
  refuse, launcher, flags, message
):
  outcome = refuse(launcher, flags)
  assert outcome.code == 2
  assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
  assert "Traceback" not in outcome.out + outcome.err
  assert re.search(message, outcome.err), outcome.err


def test_a_directory_in_use_is_refused(capsys, tmp_path):
  (tmp_path / "thesis.tex").write_text("precious")
  outcome = harness.run(
    capsys, "train", "--env_name=point_maze", f"--logdir={tmp_path}"
  )
  assert outcome.code == 2 and "is not empty" in outcome.err
  assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_with_debug_the_error_is_shown_where_it_comes_from(refuse):
  with pytest.raises(ValueError, match="num_envs"):
    refuse("train", "--num_envs=0 --debug")


def test_a_script_refuses_too(tmp_path):
  done = subprocess.run(
    [
      sys.executable, harness.LAUNCHERS / "train_pbt.py",
      "--env_name=point_maze", "--num_envs=0", "--logdir=run",
    ],
    cwd=tmp_path,
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    timeout=120,
  )  # fmt: skip
  assert done.returncode == 2
  assert done.stderr == (
    "error: num_envs must be at least 1, got 0.\n"
  )
  assert list(tmp_path.iterdir()) == []


def test_a_choice_overrides_what_a_flagfile_says_for_another(refuse, tmp_path):
  """Flags after a flagfile override it, with all that goes with them."""
  flagfile = tmp_path.parent / f"{tmp_path.name}.flags"
  flagfile.write_text("--learner=diayn\n--num_skills=16\n")
  flags = f"--flagfile={flagfile} --skill_type=continuous"
  # It comes as far as this.
  outcome = refuse("train", f"{flags} --num_timesteps=0")
  assert "num_timesteps must be at least 1" in outcome.err
  outcome = refuse("train", f"{flags} --num_skills=16")
  assert "--num_skills=16 has no effect" in outcome.err
  flagfile.write_text(
    "--learner=diayn\n--skill_type=continuous\n--num_skills=16\n"
  )
  outcome = refuse("train", f"--flagfile={flagfile}")
  assert "--num_skills=16 has no effect" in outcome.err
