"""The agents that a configuration describes, in their environment."""

import dataclasses
from typing import Any

from qdrl_haiku import config as config_lib
from qdrl_haiku import environments, learners, training
from qdrl_haiku.config import Settings
from qdrl_haiku.programs.experiment.config import Config

_EVAL_EPISODES = 8


def make_experiment_agent(config: Config) -> training.Setup:
  """Makes the agents that a configuration describes, in their environment.

  The setup has no controller and no repertoire.

  Raises:
    ValueError: if a setting doesn't fit the environment or the learner.
  """
  setup = make_default_agent(config)
  return setup._replace(
    learner=training.with_hyperparameters(setup.learner, config.hyperparams))


def make_default_agent(config: Config) -> training.Setup:
  """Makes the agents with the defaults of all hyperparameters."""
  env = config.environment.make()
  # One whose states can't be kept has one set of instances.
  eval_env = env if env.abilities.copies_states else config.environment.make()
  choice = _learner_config(config)
  if isinstance(choice, learners.SkillAgentConfig):
    setup = _with_skills(config, choice, env, eval_env)
  else:
    learner = learners.make_learner(
      choice, env.observation_spec, env.action_spec, env.episode_length)
    settings = _with_episodes(config.training, _EVAL_EPISODES)
    setup = training.Setup(env, eval_env, learner, None, settings)
    if settings.coverage_cells is not None:
      evaluate = training.coverage_evaluation(eval_env, settings.coverage_cells)
      setup = setup._replace(evaluate=evaluate)
  # Which checks them.
  learner = training.with_hyperparameters(setup.learner, {})
  anew = config.environment.pay_anew
  if anew is None and config.training.n_step > 1:
    anew = False  # Sums of rewards of several steps have no terms.
  if _tunes_environment(config, env):
    moved: set[str] = set()
    if setup.boundaries:  # Those that are named nevertheless are refused.
      moved = {*setup.boundaries, environments.BOUNDARY_SHARE}
      moved -= {
        name.partition(":")[0].removeprefix(environments.TUNABLE)
        for name in (*config.search_space, *config.hyperparams)}
    learner = training.with_tunables(
      learner, env, pay_anew=anew, leave_out=moved)
  elif anew:
    raise ValueError(
      "pay_anew has no effect, since no tunable of the environment is searched "
      "or given; leave it out.")
  return setup._replace(learner=learner)


def _tunes_environment(
  config: Config, env: environments.BatchedEnvironment
) -> bool:
  """Returns whether any tunable is searched, by default too, or given."""
  names = [*config.search_space, *config.hyperparams]
  is_searched = any(x.search is not None for x in env.tunables.values())
  return (is_searched and not config.search_space) or any(
    name.startswith(environments.TUNABLE) for name in names)


def make_skill_objective(
  choice: learners.SkillAgentConfig, env: environments.BatchedEnvironment
) -> learners.SkillObjective:
  """Makes the objective that rewards skills; `env` is without skills.

  Raises:
    ValueError: if a setting doesn't fit the environment or the skills.
  """
  # A learner of a user's own has no such settings.
  shape = learners.AgentConfig()
  if isinstance(choice.base, learners.AgentConfig):
    shape = choice.base
  descriptor_size = env.descriptor.size if env.descriptor else None
  return learners.make_objective(
    choice, env.observation_spec, descriptor_size, shape)


def _with_episodes(
  settings: training.TrainingConfig, default: int, **changes: Any
) -> training.TrainingConfig:
  """Fills in the default number of evaluation episodes, and other changes."""
  number = settings.num_eval_episodes or default
  return dataclasses.replace(settings, num_eval_episodes=number, **changes)


def _learner_config(config: Config) -> Settings:
  """Returns the learner's settings, with a repertoire's defaults of some."""
  repertoire, learner = config.repertoire, config.learner
  if repertoire is None or not isinstance(learner, learners.AgentConfig):
    return learner
  changes: dict[str, Any] = {}
  # A variation has one parent's statistics, but weights of two.
  if learner.normalize_observations is None:
    changes["normalize_observations"] = False
  # New policies whose last layers are near 0 all act alike, and the first
  # repertoire would be a few cells.
  is_ours = learner.policy_network is None
  if is_ours and learner.network.policy_final_init is None:
    changes["network"] = dataclasses.replace(
      learner.network, policy_final_init="fan_in")
  # No emitter trains an agent by its own critics.
  if isinstance(learner, learners.TD3Config) and not repertoire.trains_alone:
    changes["own_critics"] = False
  return dataclasses.replace(learner, **changes)


def _with_skills(
  config: Config, choice: learners.SkillAgentConfig,
  env: environments.BatchedEnvironment,
  eval_env: environments.BatchedEnvironment,
) -> training.Setup:
  """Returns agents with skills, as `make_experiment_agent` does."""
  if config.repertoire is not None:
    name = config_lib.config_tree_values(config)["learner"]
    raise ValueError(
      f"learner={name} has skills, which elites of a repertoire can't have; "
      "take sac or td3.")
  prior, base = choice.skills.prior(), choice.base
  if isinstance(base, learners.AgentConfig):
    # The objective says whether observations are normalised, but for skills.
    base = dataclasses.replace(base, normalize_observations=False)
  given = config.training.num_eval_episodes
  if given is not None and given < (prior.num_skills or 1):
    raise ValueError(
      f"--num_eval_episodes={given} can't show all of --num_skills="
      f"{prior.num_skills}; give {prior.num_skills} or more.")
  has_cells = env.descriptor is not None or environments.robot_position(env)
  if choice.fitness == "coverage" and not has_cells:
    raise ValueError(
      "fitness=coverage counts cells that are visited, but the environment has "
      "neither a state descriptor nor a robot that moves; take "
      "diversity_return.")
  objective = make_skill_objective(choice, env)
  train_env = environments.SkillEnvironment(
    env, prior, choice.skills.sampling, "skill_return" in objective.extras)
  eval_env = environments.SkillEnvironment(eval_env, prior, "fixed")
  learner = learners.skill_learner(
    learners.make_learner(
      base, train_env.observation_spec, env.action_spec, env.episode_length),
    env.observation_spec, objective)
  scores = {"episode_return": "episode_return", "coverage": "eval/coverage"}
  return training.Setup(
    env=train_env, eval_env=eval_env, learner=learner, controller=None,
    config=_with_episodes(
      config.training, choice.skills.num_eval_episodes,
      fitness=scores.get(choice.fitness, f"{objective.name}/{choice.fitness}")),
    evaluate=training.skill_evaluation(
      eval_env, objective, config.training.coverage_cells))
