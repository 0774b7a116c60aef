"""The flags of DIAYN, and what they add to environment, learner, evaluation."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from qdrl_haiku.cli import learner_flags
from qdrl_haiku.cli.environment_flags import EnvironmentFlags
from qdrl_haiku.cli.flags import flag
from qdrl_haiku.cli.learner_flags import LearnerFlags

# Scores of an evaluation that may be the fitness of agents with skills.
_FITNESS = (
  "episode_return",
  "diversity_return",
  "discriminator_accuracy",
  "mutual_information_lower_bound",
)
_EPISODES_PER_SKILL = 2
_EPISODES_OF_CONTINUOUS_SKILLS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkillFlags(EnvironmentFlags, LearnerFlags):
  """Shape DIAYN, and say how many episodes show what an agent can do."""

  skill_type: str = flag("discrete", "DIAYN's: or continuous.")
  num_skills: int = flag(8, "Of discrete skills.")
  skill_prior: str = flag(
    "sphere", "Of continuous skills: sphere (directions) or normal."
  )
  skill_size: int = flag(2, "Numbers in a continuous skill.")
  skill_sampling: Literal["fixed", "episode"] | None = flag(
    None,
    "fixed: each environment has its skill, the default of discrete skills; "
    "episode: each episode draws one, the default of continuous ones.",
  )
  discriminator_input: Literal["descriptor", "observation"] = flag(
    "descriptor",
    "What of a state tells the skill: its descriptor, or the observation.",
  )
  discriminator_hidden_layer_sizes: tuple[str, ...] | None = flag(
    None,
    "Widths of the discriminator's hidden layers; by default as the others.",
  )
  subtract_log_prior: bool = flag(
    True,
    "Whether DIAYN's reward is log q(z|s) - log p(z), not log q(z|s) alone.",
  )
  fitness: str = flag(
    "diversity_return",
    f"DIAYN's: which score is the fitness, {', '.join(_FITNESS)}.",
  )


NAMES = tuple(SkillFlags.__annotations__)
"""The flags that concern DIAYN alone."""


def of_agents() -> list[str]:
  """Returns the flags that shape what agents compute, in any environment."""
  return [
    name for name in SkillFlags.kinds() if name not in EnvironmentFlags.kinds()
  ]


def make_prior(flags: SkillFlags) -> Any:
  """Returns what skills are drawn from.

  Args:
    flags: that shape them.

  Raises:
    ValueError: if a flag has no meaning.
  """
  from qdrl_haiku import skills

  priors = {"sphere": skills.sphere, "normal": skills.normal}
  flags.check_choice("skill_type", ("discrete", "continuous"))
  flags.check_choice("skill_prior", priors)
  flags.check_choice("skill_sampling", ("fixed", "episode"))
  if flags.skill_type == "discrete":
    flags.refuse_given(
      ["skill_prior", "skill_size"], "skills are discrete", "skill_type"
    )
    return skills.categorical(flags.num_skills)
  flags.refuse_given(
    ["num_skills"], "skills are continuous", "skill_type"
  )
  try:
    return priors[flags.skill_prior](flags.skill_size)
  except ValueError as error:
    raise ValueError(f"--skill_size={flags.skill_size}: {error}") from error


def make_config(flags: SkillFlags) -> Any:
  """Returns the configuration of DIAYN.

  Args:
    flags: that say what it is.

  Raises:
    ValueError: if a flag has no meaning.
  """
  from qdrl_haiku import learners

  return learners.DIAYNConfig(
    discriminator_input=flags.discriminator_input,
    discriminator_hidden_layer_sizes=learner_flags.layer_sizes(
      flags, "discriminator_hidden_layer_sizes"
    ),
    activation=flags.activation,
    layer_norm=flags.layer_norm,
    subtract_log_prior=flags.subtract_log_prior,
    normalize_observations=flags.normalize_observations,
  )


def make_agent(
  flags: SkillFlags, env: Any, eval_env: Any
) -> learner_flags.Agent:
  """Returns agents with skills in an environment.

  Args:
    flags: that ask for them.
    env: the environment without skills, to collect in.
    eval_env: likewise, to be evaluated in.

  Returns:
    What training needs of them.

  Raises:
    ValueError: if a flag has no meaning.
  """
  from qdrl_haiku import environments, learners, training

  prior, config = make_prior(flags), make_config(flags)
  descriptor_size = env.descriptor.size if env.descriptor else None
  arguments = (env.observation_size, prior, descriptor_size, config)
  sampling = flags.skill_sampling
  if sampling is None:
    sampling = "episode" if prior.num_skills is None else "fixed"
  train_env = environments.SkillEnvironment(env, prior, sampling)
  eval_env = environments.SkillEnvironment(eval_env, prior, "fixed")
  base_learner = learners.sac(
    train_env.observation_size,
    env.action_size,
    # DIAYN normalises by itself, and leaves the skills alone.
    learner_flags.make_config(
      flags, learners.SACConfig, normalize_observations=False
    ),
  )
  learner = learners.diayn(base_learner, *arguments)
  num_episodes = _num_eval_episodes(flags, prior)
  return learner_flags.Agent(
    env=train_env,
    eval_env=eval_env,
    learner=learner,
    evaluate=training.skill_evaluation(
      eval_env, learners.discriminator(*arguments)
    ),
    replay_extras=("next_descriptor",)
    if config.discriminator_input == "descriptor"
    else (),
    fitness=_fitness(flags, prior),
    num_eval_episodes=num_episodes,
  )


def one_skill(flags: SkillFlags, env: Any, given: Sequence[str]) -> Any:
  """Returns an environment all of whose episodes have one skill.

  Args:
    flags: that the agent was trained with.
    env: the environment with skills.
    given: the skill, as --skill has it.

  Raises:
    ValueError: if the agent has no skills, or not that one.
  """
  from qdrl_haiku import environments, skills

  if flags.learner != "diayn":
    raise ValueError(
      f"--skill={','.join(given)}, but the run's learner, "
      f"{flags.learner}, has no skills; leave it out."
    )
  prior = make_prior(flags)
  try:
    numbers = [float(text) for text in given]
    is_index = prior.num_skills is not None and len(numbers) == 1
    skill = int(given[0]) if is_index else numbers
  except ValueError:
    raise ValueError(
      f"--skill={','.join(given)} is neither an index nor numbers; give "
      "it like 3 or 0.6,0.8."
    ) from None
  return environments.SkillEnvironment(
    env.env, skills.constant(prior, skill), "episode"
  )


def _num_eval_episodes(flags: SkillFlags, prior: Any) -> int:
  """Returns the flag's value, or how many episodes show all skills."""
  if flags.num_eval_episodes is None:
    return (
      _EPISODES_OF_CONTINUOUS_SKILLS
      if prior.num_skills is None
      else _EPISODES_PER_SKILL * prior.num_skills
    )
  if flags.num_eval_episodes < (prior.num_skills or 1):
    raise ValueError(
      f"--num_eval_episodes={flags.num_eval_episodes} can't show all of "
      f"--num_skills={flags.num_skills}; give {flags.num_skills} or more."
    )
  return flags.num_eval_episodes


def _fitness(flags: SkillFlags, prior: Any) -> str:
  """Returns the score that is the fitness, as training calls it."""
  flags.check_choice("fitness", _FITNESS)
  if flags.fitness == "discriminator_accuracy" and prior.num_skills is None:
    raise ValueError(
      "--fitness=discriminator_accuracy is for discrete skills; take "
      "mutual_information_lower_bound."
    )
  if flags.fitness == "episode_return":
    return flags.fitness
  return f"diayn/{flags.fitness}"
