"""The flags of DIAYN, and what they add to environment, learner, evaluation."""

from typing import Any

from absl import flags

from qdrl_haiku.cli import learner_flags

FLAGS = flags.FLAGS

# Scores of an evaluation that may be the fitness of agents with skills.
_FITNESS = (
  "episode_return",
  "diversity_return",
  "discriminator_accuracy",
  "mutual_information_lower_bound",
)
_EPISODES_PER_SKILL = 2
_EPISODES_OF_CONTINUOUS_SKILLS = 64


def define() -> None:
  """Defines the flags of DIAYN."""
  flags.DEFINE_string("skill_type", "discrete", "DIAYN's: or continuous.")
  flags.DEFINE_integer("num_skills", 8, "Of discrete skills.")
  flags.DEFINE_string(
    "skill_prior",
    "sphere",
    "Of continuous skills: sphere (directions) or normal.",
  )
  flags.DEFINE_integer("skill_size", 2, "Numbers in a continuous skill.")
  flags.DEFINE_string(
    "skill_sampling",
    None,
    "fixed: each environment has its skill, the default of discrete skills; "
    "episode: each episode draws one, the default of continuous ones.",
  )
  flags.DEFINE_string(
    "discriminator_input",
    "descriptor",
    "What of a state tells the skill: its descriptor, or the observation.",
  )
  flags.DEFINE_list(
    "discriminator_hidden_layer_sizes",
    None,
    "Widths of the discriminator's hidden layers; by default as the others.",
  )
  flags.DEFINE_bool(
    "subtract_log_prior",
    True,
    "Whether DIAYN's reward is log q(z|s) - log p(z), not log q(z|s) alone.",
  )
  flags.DEFINE_string(
    "fitness",
    "diversity_return",
    f"DIAYN's: which score is the fitness, {', '.join(_FITNESS)}.",
  )


def names() -> list[str]:
  """Returns the names of the flags that concern DIAYN alone."""
  return [flag.name for flag in FLAGS.flags_by_module_dict()[__name__]]


def make_prior() -> Any:
  """Returns what skills are drawn from.

  Raises:
    ValueError: if a flag has no meaning.
  """
  from qdrl_haiku import skills

  priors = {"sphere": skills.sphere, "normal": skills.normal}
  learner_flags.check_choice("skill_type", ("discrete", "continuous"))
  learner_flags.check_choice("skill_prior", priors)
  learner_flags.check_choice("skill_sampling", ("fixed", "episode"))
  if FLAGS.skill_type == "discrete":
    learner_flags.refuse_given(
      ["skill_prior", "skill_size"], "skills are discrete", "skill_type"
    )
    return skills.categorical(FLAGS.num_skills)
  learner_flags.refuse_given(
    ["num_skills"], "skills are continuous", "skill_type"
  )
  try:
    return priors[FLAGS.skill_prior](FLAGS.skill_size)
  except ValueError as error:
    raise ValueError(f"--skill_size={FLAGS.skill_size}: {error}") from error


def make_config() -> Any:
  """Returns the configuration of DIAYN.

  Raises:
    ValueError: if a flag has no meaning.
  """
  from qdrl_haiku import learners

  return learners.DIAYNConfig(
    discriminator_input=FLAGS.discriminator_input,
    discriminator_hidden_layer_sizes=learner_flags.layer_sizes(
      "discriminator_hidden_layer_sizes"
    ),
    activation=FLAGS.activation,
    layer_norm=FLAGS.layer_norm,
    subtract_log_prior=FLAGS.subtract_log_prior,
    normalize_observations=FLAGS.normalize_observations,
  )


def make_agent(env: Any, eval_env: Any) -> learner_flags.Agent:
  """Returns agents with skills in an environment.

  Args:
    env: the environment without skills, to collect in.
    eval_env: likewise, to be evaluated in.

  Returns:
    What training needs of them.

  Raises:
    ValueError: if a flag has no meaning.
  """
  from qdrl_haiku import environments, learners, training

  prior, config = make_prior(), make_config()
  descriptor_size = env.descriptor.size if env.descriptor else None
  arguments = (env.observation_size, prior, descriptor_size, config)
  sampling = FLAGS.skill_sampling
  if sampling is None:
    sampling = "episode" if prior.num_skills is None else "fixed"
  train_env = environments.SkillEnvironment(env, prior, sampling)
  eval_env = environments.SkillEnvironment(eval_env, prior, "fixed")
  base_learner = learners.sac(
    train_env.observation_size,
    env.action_size,
    # DIAYN normalises by itself, and leaves the skills alone.
    learner_flags.make_config(
      learners.SACConfig, normalize_observations=False
    ),
  )
  learner = learners.diayn(base_learner, *arguments)
  num_episodes = _num_eval_episodes(prior)
  return learner_flags.Agent(
    env=train_env,
    eval_env=eval_env,
    learner=learner,
    evaluate=training.skill_evaluation(
      eval_env, learners.discriminator(*arguments), num_episodes
    ),
    replay_extras=("next_descriptor",)
    if config.discriminator_input == "descriptor"
    else (),
    fitness=_fitness(prior),
    num_eval_episodes=num_episodes,
  )


def one_skill(env: Any) -> Any:
  """Returns an environment all of whose episodes have the skill of --skill.

  Args:
    env: the environment with skills.

  Raises:
    ValueError: if the agent has no skills, or not that one.
  """
  from qdrl_haiku import environments, skills

  if FLAGS.learner != "diayn":
    raise ValueError(
      f"--skill={','.join(FLAGS.skill)}, but the run's learner, "
      f"{FLAGS.learner}, has no skills; leave it out."
    )
  prior = make_prior()
  try:
    numbers = [float(text) for text in FLAGS.skill]
    is_index = prior.num_skills is not None and len(numbers) == 1
    skill = int(FLAGS.skill[0]) if is_index else numbers
  except ValueError:
    raise ValueError(
      f"--skill={','.join(FLAGS.skill)} is neither an index nor numbers; give "
      "it like 3 or 0.6,0.8."
    ) from None
  return environments.SkillEnvironment(
    env.env, skills.constant(prior, skill), "episode"
  )


def _num_eval_episodes(prior: Any) -> int:
  """Returns the flag's value, or how many episodes show all skills."""
  if FLAGS.num_eval_episodes is None:
    return (
      _EPISODES_OF_CONTINUOUS_SKILLS
      if prior.num_skills is None
      else _EPISODES_PER_SKILL * prior.num_skills
    )
  if FLAGS.num_eval_episodes < (prior.num_skills or 1):
    raise ValueError(
      f"--num_eval_episodes={FLAGS.num_eval_episodes} can't show all of "
      f"--num_skills={FLAGS.num_skills}; give {FLAGS.num_skills} or more."
    )
  return FLAGS.num_eval_episodes


def _fitness(prior: Any) -> str:
  """Returns the score that is the fitness, as training calls it."""
  learner_flags.check_choice("fitness", _FITNESS)
  if FLAGS.fitness == "discriminator_accuracy" and prior.num_skills is None:
    raise ValueError(
      "--fitness=discriminator_accuracy is for discrete skills; take "
      "mutual_information_lower_bound."
    )
  if FLAGS.fitness == "episode_return":
    return FLAGS.fitness
  return f"diayn/{FLAGS.fitness}"
