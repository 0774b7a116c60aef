"""Trains one learner, or several seeds of it side by side.

python launchers/train.py --learner=sac --env_name=reacher --num_seeds=3
"""

import dataclasses

from qdrl_haiku.cli import (
  launch,
  learner_flags,
  shared_flags,
  training_runs,
)
from qdrl_haiku.cli.flags import flag
from qdrl_haiku.cli.shared_flags import TrainingFlags

# Of the settings that have another name where there is a controller.
_FLAG_NAMES = {
  "population_size": "num_seeds",
  "perturbation_interval": "eval_interval",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainFlags(TrainingFlags):
  """Say how many learners train apart from each other."""

  section = "Run"

  num_seeds: int = flag(
    1, "Number of agents, which train apart with seeds from --seed upwards."
  )
  eval_interval: int | None = flag(
    None,
    "Environment steps per agent from one evaluation to the next; by default "
    "about a twentieth of --num_timesteps.",
    section="Evaluation",
  )


def main(flags: TrainFlags) -> None:
  """Trains the learner that the flags ask for.

  Args:
    flags: of the launcher.
  """
  flags = launch.prepare(flags)
  from qdrl_haiku import training

  agent = shared_flags.make_agent(flags)
  interval = shared_flags.interval(flags, flags.eval_interval, agent.learner)
  config = shared_flags.make_training_config(
    flags,
    agent,
    population_size=flags.num_seeds,
    perturbation_interval=interval,
  )
  setup = training.Setup(
    env=agent.env,
    eval_env=agent.eval_env,
    learner=agent.learner,
    controller=None,
    config=config,
    evaluate=agent.evaluate,
  )
  training_runs.run_training(
    dataclasses.replace(flags, eval_interval=interval),
    setup,
    learner_flags.learner_name(flags),
    range(flags.seed, flags.seed + flags.num_seeds),
  )


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  launch.run_main(main, TrainFlags, _FLAG_NAMES)
