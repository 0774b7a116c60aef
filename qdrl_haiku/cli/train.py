"""Trains one learner, or several seeds of it side by side.

python launchers/train.py --learner=sac --env_name=reacher --num_seeds=3
"""

from absl import flags

from qdrl_haiku.cli import (
  launch,
  learner_flags,
  shared_flags,
  training_runs,
  tuned,
)

FLAGS = flags.FLAGS
# Of the settings that have another name where there is a controller.
_FLAG_NAMES = {
  "population_size": "num_seeds",
  "perturbation_interval": "eval_interval",
}


def _define() -> None:
  shared_flags.define()
  flags.DEFINE_integer(
    "num_seeds", 1, "How many seeds, counted on from --seed."
  )
  flags.DEFINE_integer(
    "eval_interval",
    None,
    "Environment steps from one evaluation to the next; by default about a "
    "twentieth of --num_timesteps.",
  )


def main() -> None:
  """Trains the learner that the flags ask for."""
  launch.prepare()
  from qdrl_haiku import training

  tuned.apply(searched=False)
  agent = shared_flags.make_agent()
  config = shared_flags.make_training_config(
    population_size=FLAGS.num_seeds,
    replay_extras=agent.replay_extras,
    fitness=agent.fitness,
    perturbation_interval=shared_flags.interval("eval_interval", agent.learner),
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
    setup,
    learner_flags.learner_name(),
    range(FLAGS.seed, FLAGS.seed + FLAGS.num_seeds),
  )


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  _define()
  launch.run_main(main, _FLAG_NAMES)
