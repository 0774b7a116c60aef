"""Tests that a configuration that makes no sense is refused, with the fix."""

import dataclasses
import functools
import math
import re

import jax.numpy as jnp
import pytest

from qdrl_haiku import controllers, environments, learners
from qdrl_haiku.programs import experiment
from tests import configs, toy

_HERE = "tests.programs.experiment.test_refusals"
_FIXED = "--search_space=tau:fixed:0.1"
_PAIR = "--env_name=rastrigin_pair --container="
_CONTINUOUS = "--learner=diayn --skill_type=continuous"
# Program, flags, and what the message must have: what is wrong, and the fix.
_CASES = [
  # Names.
  ("train", "--learner=operator:mul", "--learner=operator:mul returned a int"),
  ("train_pbt", "--controller=os:getcwd", "be called with search_space"),
  # Actions.
  *[("train", f"--env_name=gymnasium:CartPole-v1 --learner={name}",
     "actions are one of 2.* take learner=ppo, dqn, pqn or sac")
    for name in ("td3", "crossq", "xqc")],
  ("train", "--learner=dqn", "are 2 numbers.* take learner=sac, td3 or ppo"),
  ("train", "--learner=pqn", "are 2 numbers.* take learner=sac, td3 or ppo"),
  ("train_me_pbt",
   "--env_name=gymnasium:CartPole-v1 --emitter=pga --learner=td3",
   "actions are one of 2"),
  # Parts of a user's own.
  ("train", f"--learner={_HERE}:learner_of_words", "speed/0='fast'; give a"),
  ("train", f"--learner={_HERE}:learner_that_declares --hyperparam=speed=2",
   "--hyperparam=speed=2.0 makes no sense; .* from 0 to 1"),
  ("train_pbt", f"--controller={_HERE}:controller_that_forgets",
   "the controller's state after an update.*differs"),
  ("train_pbt", f"--controller={_HERE}:controller_without_state",
   "update returns a Decision that is no pair of its state and a Decision"),
  # Lengths.
  ("train", "--perturbation_interval=801", "interval=801 .* 800 or 808"),
  ("train_me_pbt", "--num_generations=2 --num_timesteps=2000",
   "--num_timesteps=2000 has no effect.*--num_generations.*leave"),
  # Memory and time.
  ("train", "--population_size=2147483647",
   "this run would need .* population_size"),
  # Two that don't fit.
  ("train", "--replay_capacity=500", "size=1000 .*capacity=500.*lower"),
  ("train", "--n_step=64 --num_envs=16 --replay_capacity=1000",
   "n_step=64 times num_envs=16 .*capacity=1000"),
  # Hyperparameters and their ranges.
  ("train_pbt", "--search_space=tau:uniform:0.1:5", "tau=5.0 .*at most 1"),
  ("train_pbt", f"--tau=0.1 {_FIXED}", "--tau=0.1.*--search_space.*leave out"),
  # What has no effect.
  ("train", "--learn_temperature=false --target_entropy=-1",
   "--target_entropy=-1.0 has no effect.*leave it out"),
  ("train_pbt", "--controller=random_search --inherit_replay",
   "--inherit_replay=True has no effect: with --controller=random_search"),
  ("train_pbt", f"{_FIXED} --explore=perturb", "all hyperparameters are fixed"),
  ("train", "--initial_height=1 --env_name=hopper",
   "_height=1.0 has no effect: the root of Hopper .*leave it out"),
  # Directories.
  ("train", "--warm_start=/dev/null", "/dev/null holds no run.*name"),
  # Skills.
  ("train_pbt", "--learner=diayn --num_eval_episodes=7", "give 8 or more"),
  ("train_pbt", f"{_CONTINUOUS} --fitness=discriminator_accuracy",
   "fitness=discriminator_accuracy .*mutual_information_lower_bound"),
  ("train", "--learner=sac --policy_learning_rate=1e31",
   "rate=1e[+]31 makes no sense; .* none beyond 1e[+]30 well"),
  ("train_pbt", f"--learner=diayn --env_name={_HERE}:countdown",
   "discriminator_input=descriptor, .*discriminator_input=observation"),
  ("train_pbt", f"--learner=diayn --env_name={_HERE}:countdown "
   "--discriminator_input=observation --fitness=coverage",
   "fitness=coverage .*neither a state descriptor .*diversity_return"),
  ("train_pbt", "--learner=metra --fitness=mutual_information_lower_bound",
   "isn't measured with metra; take"),
  ("train_pbt", "--learner=smerl --skill_type=continuous", "take .*=discrete"),
  ("train_me_pbt", "--learner=diayn", "learner=diayn.*sac or td3"),
  # Repertoires.
  ("train_me_pbt", f"--env_name={_HERE}:countdown", "no state descr.*give"),
  ("train_me_pbt", "--grid_shape=32", "grid_shape=32 .*x, y; give 2 .*32,32"),
  ("train_me_pbt", "--num_cells=16", "no effect: --tessellation=grid"),
  ("train_me_pbt", "--adding=adaptive --shard_repertoire", "leave it out, or"),
  ("train_me_pbt", "--container=soft --tessellation=none", "take a grid or"),
  ("train_me_pbt", "--container=low_spread --num_eval_episodes=1", "2 or more"),
  ("train_me_pbt", "--threshold_min=1", "no effect: --container=cells has"),
  ("train_me_pbt", f"{_PAIR}mome --tessellation=none", "take a grid or"),
  ("train_me_pbt", f"{_PAIR}nsga2", "without cells; take"),
  ("train_me_pbt", "--container=mome", "compares objectives, .*or give yours"),
  ("train_me_pbt", f"{_PAIR}mome --adding=adaptive", "effect: --container=mom"),
  ("train_me_pbt", f"{_PAIR}mome --reference_point=1",
   "reference_point=1.0: give one number of each objective, around_0, arou"),
  ("train_me_pbt", "--variation_batch_size=0 --iso_sigma=0.1", "varies nothin"),
  ("train_me_pbt", "--describer=aurora", "tessellation=grid divides what has"),
  ("train_me_pbt", "--num_looks=3", "effect: --describer=environment has no"),
  ("train_me_pbt", "--container=threshold", "without cells; take tess.*=none"),
  ("train_me_pbt", "--describer=arora", "arora is unknown; .*aurora"),
  ("train_me_pbt",
   "--describer=aurora --tessellation=none --emitter=dcrl --learner=td3",
   "emitter dcrl asks for the environment's own descriptors"),
  # Emitters.
  ("train_me_pbt", "--emitter=ga --variation_batch_size=0", "=0 leaves"),
  ("train_me_pbt", "--emitter=ga --num_envs=48", "--num_envs=48 has no effect"),
  ("train_me_pbt", "--emitter=ga --critic_learning_rate=0.01",
   "rate=0.01 has no effect: with --emitter=ga no agent trains; leave it out"),
  ("train_me_pbt", "--emitter=ga --learner=td3 --policy_delay=3", "trains; le"),
  ("train_me_pbt", f"--emitter=pga --learner=td3 {_FIXED}",
   "no effect: with --emitter=pga no agent trains by hyperparameters of its "),
  ("train_me_pbt", "--emitter=pga --learner=td3 --inherit_replay",
   "--inherit_replay=True has no effect: with --emitter=pga no agent trains"),
  ("train_me_pbt", "--emitter=ga,pga:3", "some have a number of offspring and"),
  ("train_me_pbt", "--emitter=ga:1,ga:2", "is there twice; name each once"),
  ("train_me_pbt", "--emitter=ga:1,pga:0", "an emitter that makes nothing"),
  ("train_me_pbt", "--emitter=pga --learner=sac", "can't share its own"),
  ("train_me_pbt", "--emitter=ga,pbt", "all its agents have to be evaluated"),
  ("train_me_pbt", "--emitter=ga,cma", "cma can't adapt its share, since all"),
  ("train_me_pbt", "--emitter=own:ga", "own:ga has the name of one of ours"),
  ("train_me_pbt",
   "--emitter=pga --learner=td3 --injection_share=0.25 "
   "--variation_batch_size=32",
   "would inject 8 policies of pga's, and it has 1; leave"),
  ("train_me_pbt",
   "--emitter=qdpg:32,ga:8 --learner=td3 --injection_share=0.1",
   "would inject 3 policies of qdpg's, and it has 2; leave"),
  ("train_me_pbt", "--emitter=ga --gradient_share=0.2", "no offspring follows"),
  ("train_me_pbt", "--emitter=ga --num_critic_steps=2", "no critic is shared"),
  ("train_me_pbt", "--emitter=pga --length_scale=1", "no critic sees a target"),
  ("train_me_pbt", "--emitter=ga --step_size=1", "nothing is sampled"),
  ("train_me_pbt", "--emitter=cma --iso_sigma=1", "cma varies nothing"),
  ("train_me_pbt", "--emitter=me_es --learner=td3 --variation_batch_size=2",
   "ME-ES can't make 2 agents, .*; give 3 or more"),
  ("train_me_pbt",
   "--emitter=cma --learner=td3 --hidden_layer_sizes=8 --num_strategies=3 "
   "--variation_batch_size=10", "make 10 offspring; give a multiple of 3 that"),
  # Beside defaults that nobody typed.
  ("train_me_pbt", "--emitter=pbt:2,ga:4 --num_replaced=2",
   "emitter=pbt:2,ga:4: .*size=2 is too small for num_replaced=2, "),
  ("train_me_pbt", "--population_size=2 --num_replaced=2",
   "population_size=2 is too small for num_replaced=2, since no parent"),
  ("train_me_pbt", "--emitter=pbt:6,ga:4 --controller=mf_pbt",
   "emitter=pbt:6,ga:4: .* can't be divided into 2 groups.* multiple of 8"),
  ("train_pbt", "--num_replaced=8", "size=8 is too small for num_replaced=8"),
  ("train_pbt", "--controller=pb2 --population_size=5000",
   "population_size=5000 is more than the 4096 latest changes"),
  ("train", "--learner=ppo --num_envs=1",
   "rollout_length=25 times num_envs=1 are 25 .* a multiple of 4"),
  ("train_me_pbt", "--emitter=cma --learner=td3 --hidden_layer_sizes=8 "
   "--variation_batch_size=1", "make 1 offspring; give .* at least 2, as"),
  ("train_me_pbt", "--adding=adaptive --grid_shape=20000,20000",
   "400000000 cells of 4 individuals are too many; make at most 268435456"),
  ("train_me_pbt", "--emitter=pbt:4,ga:100000000",
   "episode_length, num_initial_genotypes or the numbers in emitter"),
  ("train_pbt", "--num_envs=100000000 --num_timesteps=2000000000",
   "lower batch_size, grad_updates_per_step or population_size")]
# In messages that say "in Python".
_IN_PYTHON = {"skill_prior"}


def countdown():
  """A user's environment without descriptors."""
  return toy.Countdown(3)


def learner_of_words(observation_size, action_size):
  """A user's learner whose hyperparameters are no numbers."""
  learner = learners.sac(observation_size, action_size)
  return learner._replace(hyperparams={"speed": ["fast"]})


def learner_that_declares(observation_size, action_size):
  """A user's learner that says which values make sense."""
  learner = learners.sac(observation_size, action_size)
  speed = learners.Hyperparameter(0.5, "how fast", high=1.0)
  return learner._replace(hyperparams={"speed": 0.5}, declared={"speed": speed})


def controller_that_forgets(search_space):
  """A user's controller whose state is another one each time."""
  pbt = controllers.pbt(controllers.PBTConfig(), search_space)

  def update(state, key, fitness, hyperparams):
    _, decision = pbt.update((), key, fitness, hyperparams)
    return (*state, jnp.zeros(())), decision

  return pbt._replace(update=update)


def controller_without_state(search_space):
  """A user's controller that returns a decision alone."""
  pbt = controllers.pbt(controllers.PBTConfig(), search_space)
  return pbt._replace(update=lambda *args: pbt.update(*args)[1])


_SETTINGS = {
  name
  for program in experiment.LAUNCHERS.values()
  for name in program.settings()}


@pytest.fixture(scope="module", autouse=True)
def _checked_once():
  """Makes and checks each environment once."""
  with pytest.MonkeyPatch.context() as patch:
    make = functools.cache(environments.EnvironmentConfig.make)
    patch.setattr(environments.EnvironmentConfig, "make", make)
    yield


def _try(program, flags):
  """Does all that a run does before it compiles or writes anything."""
  if "--env_name" not in flags:
    flags += " --env_name=point_maze"
  config = configs.configured(program, flags)
  run = dataclasses.replace(config.run, dry_run=True)
  return experiment.train(dataclasses.replace(config, run=run))


@pytest.mark.parametrize(
  ("program", "flags", "message"), _CASES,
  ids=[f"{program} {flags}" for program, flags, _ in _CASES])
def test_nonsense_is_refused(program, flags, message, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=message) as error:
    _try(program, flags)
  assert list(tmp_path.iterdir()) == []
  # What is named was typed, or can be in this program.
  known, typed = experiment.LAUNCHERS[program], re.findall(r"--(\w+)", flags)
  named = set(re.findall(r"\w+_\w+", str(error.value))) & _SETTINGS
  assert named <= {*known.flags(), *typed, *_IN_PYTHON}


_LIMITS = [
  ("train_me_pbt", "--emitter=pbt:2,ga:4"), ("train_me_pbt", "--emitter=pbt:1"),
  ("train_me_pbt", "--population_size=2"),
  ("train_pbt", "--num_replaced=7"), ("train_pbt", "--population_size=1"),
  ("train_pbt", "--controller=pb2 --population_size=200"),
  ("train", "--min_replay_size=150000 --num_timesteps=1000000"),
  ("train", "--learner=ppo --num_envs=100004 --num_timesteps=50002000")]


@pytest.mark.parametrize(("program", "flags"), _LIMITS)
def test_defaults_that_nobody_typed_make_room(program, flags):
  _try(program, f"{flags} --hidden_layer_sizes=8")


# Settings that may be any number, or that follow others.
_UNBOUNDED = {
  "narrow_below", "perturbation_factors", "qd_offset", "target_return",
  "widen_above"}


@pytest.mark.parametrize("name", experiment.LAUNCHERS)
def test_each_number_has_a_least_value(name):
  for flag in experiment.LAUNCHERS[name].settings().values():
    is_number = flag.kind.element in (int, float)
    if is_number and flag.section != "Hyperparameters":
      least = max(flag.declared.low, flag.declared.above)
      assert least > -math.inf or flag.name in _UNBOUNDED, flag.name
