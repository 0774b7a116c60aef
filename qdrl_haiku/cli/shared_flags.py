"""The flags that launchers share, and what is made of them."""

from typing import Any

from absl import flags

from qdrl_haiku.cli import learner_flags, skill_flags

FLAGS = flags.FLAGS


def define() -> None:
  """Defines the flags that every training launcher has."""
  flags.DEFINE_string(
    "env_name",
    "inverted_pendulum",
    "A brax environment, point_maze, playground:<name>, gymnasium:<id>, or "
    "package.module:function, returning an object with brax's reset and step.",
  )
  flags.DEFINE_string(
    "backend", None, "brax's physics: generalized, spring, positional or mjx."
  )
  flags.DEFINE_integer(
    "episode_length", None, "Steps after which an episode is truncated."
  )
  flags.DEFINE_string(
    "maze_layout", None, "Of point_maze: maze (the default) or open."
  )
  flags.DEFINE_integer("action_repeat", 1, "How often an action is applied.")
  flags.DEFINE_integer("seed", 0, "Seed of all random numbers.")
  flags.DEFINE_integer(
    "num_timesteps", 100_000, "Environment steps per agent in all."
  )
  flags.DEFINE_integer("num_envs", 8, "Environments per agent.")
  flags.DEFINE_integer(
    "num_eval_episodes",
    None,
    "Episodes per evaluation; by default 8, or with skills 2 for each.",
  )
  flags.DEFINE_integer("batch_size", 256, "Transitions per critic step.")
  flags.DEFINE_float(
    "grad_updates_per_step",
    1.0,
    "Critic steps per environment step; may be a fraction.",
  )
  flags.DEFINE_integer(
    "replay_capacity", 100_000, "Transitions in each agent's replay buffer."
  )
  flags.DEFINE_integer(
    "min_replay_size", 1000, "Transitions before learning starts."
  )
  flags.DEFINE_bool(
    "random_warm_up",
    True,
    "Whether actions are drawn uniformly until learning starts.",
  )
  flags.DEFINE_bool(
    "exact_placement",
    False,
    "Computes each agent by itself, so that the number of devices changes no "
    "bit. Slower.",
  )
  learner_flags.define()
  skill_flags.define()
  flags.DEFINE_string(
    "logdir",
    None,
    "Where the run is written; by default a new directory in logs/.",
  )
  flags.DEFINE_string("suffix", None, "Appended to the default logdir.")
  flags.DEFINE_bool(
    "dry_run", False, "Checks the flags, prints the memory needed, and ends."
  )
  flags.DEFINE_bool("resume", False, "Goes on with the run in --logdir.")
  flags.DEFINE_string(
    "warm_start", None, "Directory of a run whose agents to begin with."
  )
  flags.DEFINE_bool("use_tensorboard", True, "Writes TensorBoard events.")
  flags.DEFINE_integer(
    "checkpoint_interval",
    None,
    "Generations from one checkpoint to the next; by default as many as keep "
    "checkpoints to about 5 % of the time.",
  )
  flags.DEFINE_integer("max_checkpoints", 2, "How many checkpoints are kept.")
  flags.DEFINE_bool(
    "checkpoint_replay",
    True,
    "Whether checkpoints hold the replay buffers; if not, a resumed run begins "
    "with empty ones.",
  )
  flags.DEFINE_string(
    "on_divergence",
    "restart",
    "When no agent is finite any more: restart with new ones, or stop.",
  )
  flags.DEFINE_string(
    "coordinator_address",
    None,
    "Of several processes: the first one's host and a free port there, such as "
    "10.0.0.1:1234. Not needed under Slurm, Open MPI and Kubernetes.",
  )
  flags.DEFINE_integer("num_processes", None, "How many processes there are.")
  flags.DEFINE_integer(
    "process_id", None, "Which of them this is, counted from 0."
  )
  flags.DEFINE_string(
    "compilation_cache_dir",
    None,
    "Where compiled programs are kept for the next run; by default in the "
    "user's cache directory, nowhere if empty.",
  )


def make_environment() -> Any:
  """Returns the environment that the flags ask for."""
  from qdrl_haiku import environments

  arguments = {}
  if FLAGS.env_name == "point_maze":
    arguments["layout"] = FLAGS.maze_layout or "maze"
  else:
    learner_flags.refuse_given(
      ["maze_layout"], f"--env_name={FLAGS.env_name} has no layout"
    )
  return environments.create(
    FLAGS.env_name,
    backend=FLAGS.backend or None,
    episode_length=FLAGS.episode_length,
    action_repeat=FLAGS.action_repeat,
    **arguments,
  )


def make_agent() -> learner_flags.Agent:
  """Returns the agents that the flags ask for, in their environment.

  Returns:
    What training needs of them.

  Raises:
    ValueError: if a flag has no meaning for the environment or the learner.
  """
  env = make_environment()
  # What is on the host has one set of instances.
  eval_env = make_environment() if getattr(env, "on_host", False) else env
  if FLAGS.learner == "diayn":
    agent = skill_flags.make_agent(env, eval_env)
  else:
    learner_flags.refuse_given(
      skill_flags.names(), f"{FLAGS.learner} has no skills"
    )
    agent = learner_flags.Agent(
      env=env, eval_env=eval_env, learner=learner_flags.make_learner(env)
    )
  return agent._replace(
    learner=learner_flags.with_given_hyperparams(agent.learner)
  )


def interval(flag: str, learner: Any) -> int:
  """Decides how many environment steps a generation takes.

  Args:
    flag: the name of the flag that says so; it's set where it wasn't given.
    learner: the learner.

  Returns:
    The flag's value; else what cuts the run into about twenty generations.

  Raises:
    ValueError: if there is no such number near by.
  """
  from qdrl_haiku import training

  steps = FLAGS[flag].value
  if steps is None:
    steps = training.default_interval(
      FLAGS.num_timesteps,
      num_envs=FLAGS.num_envs,
      grad_updates_per_step=FLAGS.grad_updates_per_step,
      batches_per_update=learner.batches_per_update,
    )
    FLAGS[flag].value = steps
  return steps


def make_training_config(**settings: Any) -> Any:
  """Returns the configuration of training.

  Args:
    **settings: what isn't the value of the flag of the same name.

  Returns:
    A `training.TrainingConfig`.
  """
  from qdrl_haiku import training

  shared = (
    "num_envs",
    "batch_size",
    "grad_updates_per_step",
    "replay_capacity",
    "min_replay_size",
    "random_warm_up",
    "exact_placement",
  )
  if FLAGS.num_eval_episodes is not None:
    settings["num_eval_episodes"] = FLAGS.num_eval_episodes
  return training.TrainingConfig(
    **{name: getattr(FLAGS, name) for name in shared}, **settings
  )
