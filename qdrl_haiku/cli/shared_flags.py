"""The flags that launchers share, and what is made of them."""

import dataclasses
from typing import Any

from qdrl_haiku.cli import kept_programs, learner_flags, skill_flags
from qdrl_haiku.cli.devices import ProcessFlags
from qdrl_haiku.cli.environment_flags import make_environment
from qdrl_haiku.cli.flags import flag
from qdrl_haiku.cli.skill_flags import SkillFlags


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingFlags(SkillFlags, ProcessFlags):
  """Say how agents train, and what a run of it leaves behind."""

  seed: int = flag(0, "Seed of all random numbers.")
  num_timesteps: int = flag(100_000, "Environment steps per agent in all.")
  num_envs: int = flag(8, "Environments per agent.")
  pool_size: int = flag(
    8, "Initial states drawn for each environment before a generation."
  )
  batch_size: int = flag(256, "Transitions per critic step.")
  grad_updates_per_step: float = flag(
    1.0, "Critic steps per environment step; may be a fraction."
  )
  n_step: int = flag(
    1, "Steps over which rewards are summed before bootstrapping."
  )
  replay_capacity: int = flag(
    100_000, "Transitions in each agent's replay buffer."
  )
  min_replay_size: int = flag(1000, "Transitions before learning starts.")
  random_warm_up: bool = flag(
    True, "Whether actions are drawn uniformly until learning starts."
  )
  exact_placement: bool = flag(
    False,
    "Computes each agent by itself, so that the number of devices changes no "
    "bit. Slower.",
  )
  logdir: str | None = flag(
    None, "Where the run is written; by default a new directory in logs/."
  )
  suffix: str | None = flag(None, "Appended to the default logdir.")
  dry_run: bool = flag(
    False, "Checks the flags, prints the memory needed, and ends."
  )
  resume: bool = flag(False, "Goes on with the run in --logdir.")
  warm_start: str | None = flag(
    None, "Directory of a run whose agents to begin with."
  )
  use_tensorboard: bool = flag(True, "Writes TensorBoard events.")
  checkpoint_interval: int | None = flag(
    None,
    "Generations from one checkpoint to the next; by default as many as keep "
    "checkpoints to about 5 % of the time.",
  )
  max_checkpoints: int = flag(2, "How many checkpoints are kept.")
  checkpoint_replay: bool = flag(
    True,
    "Whether checkpoints hold the replay buffers; if not, a resumed run begins "
    "with empty ones.",
  )
  on_divergence: str = flag(
    "restart",
    "When no agent is finite any more: restart with new ones, or stop.",
  )


def make_agent(flags: SkillFlags) -> learner_flags.Agent:
  """Returns the agents that the flags ask for, in their environment.

  Args:
    flags: that ask for them.

  Returns:
    What training needs of them.

  Raises:
    ValueError: if a flag has no meaning for the environment or the learner.
  """
  env = make_environment(flags, kept_programs.sizes_of(flags))
  kept_programs.keep_sizes(flags, env)
  # What is on the host has one set of instances.
  eval_env = make_environment(flags) if getattr(env, "on_host", False) else env
  if flags.learner == "diayn":
    agent = skill_flags.make_agent(flags, env, eval_env)
  else:
    flags.refuse_given(
      skill_flags.NAMES, f"{flags.learner} has no skills"
    )
    agent = learner_flags.Agent(
      env=env, eval_env=eval_env, learner=learner_flags.make_learner(flags, env)
    )
  return agent._replace(
    learner=learner_flags.with_given_hyperparams(flags, agent.learner)
  )


def interval(flags: TrainingFlags, given: int | None, learner: Any) -> int:
  """Decides how many environment steps a generation takes.

  Args:
    flags: of the run.
    given: the value of the flag that says so.
    learner: the learner.

  Returns:
    What was given; else what cuts the run into about twenty generations.

  Raises:
    ValueError: if there is no such number near by.
  """
  from qdrl_haiku import training

  if given is not None:
    return given
  return training.default_interval(
    flags.num_timesteps,
    num_envs=flags.num_envs,
    grad_updates_per_step=flags.grad_updates_per_step,
    batches_per_update=learner.batches_per_update,
  )


def make_training_config(
  flags: TrainingFlags, agent: learner_flags.Agent, **settings: Any
) -> Any:
  """Returns the configuration of training.

  Args:
    flags: of the run.
    agent: of `make_agent`.
    **settings: what isn't the value of the flag of the same name.

  Returns:
    A `training.TrainingConfig`.
  """
  from qdrl_haiku import training

  shared = (
    "num_envs",
    "pool_size",
    "batch_size",
    "grad_updates_per_step",
    "n_step",
    "replay_capacity",
    "min_replay_size",
    "random_warm_up",
    "exact_placement",
  )
  num_episodes = agent.num_eval_episodes or flags.num_eval_episodes
  if num_episodes is not None:
    settings["num_eval_episodes"] = num_episodes
  return training.TrainingConfig(
    **{name: getattr(flags, name) for name in shared},
    replay_extras=agent.replay_extras,
    fitness=agent.fitness,
    **settings,
  )
