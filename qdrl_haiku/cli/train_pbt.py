"""Trains a population of agents and tunes it by population-based training.

python launchers/train_pbt.py --flagfile=launchers/flagfiles/quickstart.flags
"""

from typing import Any

from absl import flags

from qdrl_haiku.cli import (
  launch,
  learner_flags,
  pbt_flags,
  shared_flags,
  training_runs,
  tuned,
)

FLAGS = flags.FLAGS
# Of the controller `pbt` alone.
_OF_PBT = (
  "explore", "exploit", "num_parents", "num_replaced", "perturbation_factors",
  "quantile_fraction", "resample_probability",
)  # fmt: skip


def define() -> None:
  """Defines the flags of this launcher."""
  shared_flags.define()
  pbt_flags.define()
  flags.DEFINE_integer("population_size", 8, "Agents in the population.")
  flags.DEFINE_integer(
    "burn_in_period",
    0,
    "Environment steps before the first decision; until then only agents that "
    "have diverged are replaced.",
  )
  flags.DEFINE_string("exploit", "truncation", "Or tournament, or none.")
  flags.DEFINE_integer(
    "num_replaced",
    None,
    "How many of the worst are replaced, but for who is as fit as the best.",
  )
  flags.DEFINE_float(
    "quantile_fraction",
    0.25,
    "The share that --num_parents and --num_replaced are by default.",
  )
  flags.DEFINE_bool(
    "inherit_replay", False, "Whether a child gets its parent's replay buffer."
  )
  flags.DEFINE_integer(
    "fitness_window", 1, "Fitness is the mean of so many evaluations."
  )


def make_setup() -> Any:
  """Returns the population that the flags ask for, a `training.Setup`.

  Raises:
    ValueError: if a flag makes no sense.
  """
  from qdrl_haiku import training

  agent = shared_flags.make_agent()
  controller = pbt_flags.make_controller(
    pbt_flags.make_search_space(agent.learner),
    _OF_PBT,
    exploit=FLAGS.exploit,
    quantile_fraction=FLAGS.quantile_fraction,
    num_parents=FLAGS.num_parents,
    num_replaced=FLAGS.num_replaced,
  )
  if FLAGS.exploit != "truncation":
    learner_flags.refuse_given(
      ["quantile_fraction"], f"--exploit={FLAGS.exploit} has no quantiles"
    )
  if FLAGS.exploit == "none":
    learner_flags.refuse_given(
      ["inherit_replay"], "with --exploit=none nobody takes over"
    )
  if None not in (FLAGS.num_parents, FLAGS.num_replaced):
    learner_flags.refuse_given(
      ["quantile_fraction"], "--num_parents and --num_replaced are given"
    )
  config = shared_flags.make_training_config(
    population_size=FLAGS.population_size,
    replay_extras=agent.replay_extras,
    fitness=agent.fitness,
    perturbation_interval=shared_flags.interval(
      "perturbation_interval", agent.learner
    ),
    fitness_window=FLAGS.fitness_window,
    burn_in_period=FLAGS.burn_in_period,
    inherit_replay=FLAGS.inherit_replay,
  )
  return training.Setup(
    env=agent.env,
    eval_env=agent.eval_env,
    learner=agent.learner,
    controller=controller,
    config=config,
    evaluate=agent.evaluate,
  )


def main() -> None:
  """Trains the population that the flags ask for."""
  launch.prepare()
  tuned.apply(searched=True)
  setup = make_setup()
  training_runs.run_training(
    setup,
    f"pbt_{learner_flags.learner_name()}",
    [FLAGS.seed],
    more_settings=pbt_flags.ranges(setup.learner),
  )


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  define()
  launch.run_main(main)
