"""Trains a population of agents and tunes it by population-based training.

python launchers/train_pbt.py --flagfile=launchers/flagfiles/quickstart.flags
"""

import learner_flags
import shared_flags
from absl import flags

FLAGS = flags.FLAGS


def _define() -> None:
  shared_flags.define()
  flags.DEFINE_integer("population_size", 8, "Agents in the population.")
  flags.DEFINE_integer(
    "perturbation_interval",
    None,
    "Environment steps per agent from one decision to the next; by default "
    "about a twentieth of --num_timesteps.",
  )
  flags.DEFINE_integer(
    "burn_in_period", 0, "Environment steps before the first decision."
  )
  flags.DEFINE_string("exploit", "truncation", "Or tournament, or none.")
  flags.DEFINE_string("explore", "perturb", "Or resample, or mixed.")
  flags.DEFINE_integer(
    "num_parents", None, "How many of the best may be parents."
  )
  flags.DEFINE_integer(
    "num_replaced", None, "How many of the worst are replaced."
  )
  flags.DEFINE_float(
    "quantile_fraction", 0.25, "The share that makes the two counts above."
  )
  flags.DEFINE_float(
    "resample_probability", 0.25, "Per hyperparameter, with --explore=mixed."
  )
  flags.DEFINE_list(
    "perturbation_factors", ["0.8", "1.25"], "Down and up, when perturbing."
  )
  flags.DEFINE_multi_string(
    "search_space",
    [],
    "name:kind:low:high, kind uniform, log_uniform or one_minus_log_uniform; "
    "or name:fixed:value. Repeatable; if given at all, the hyperparameters "
    "that aren't named are fixed.",
  )
  flags.DEFINE_bool(
    "inherit_replay", False, "Whether a child gets its parent's replay buffer."
  )
  flags.DEFINE_integer(
    "fitness_window", 1, "Fitness is the mean of so many evaluations."
  )


def main() -> None:
  """Trains the population that the flags ask for."""
  shared_flags.use_all_cores()
  from qdrl_haiku import controllers, training

  env = shared_flags.make_environment()
  learner = learner_flags.make_learner(env)
  try:
    factors = tuple(float(x) for x in FLAGS.perturbation_factors)
  except ValueError:
    raise ValueError(
      f"--perturbation_factors={','.join(FLAGS.perturbation_factors)} are no "
      "numbers; give them like 0.8,1.25."
    ) from None
  search_space = training.search_space(
    learner.hyperparams,
    FLAGS.search_space,
    given=learner_flags.given_hyperparams(),
  )
  learner_flags.check_search_space(search_space)
  controller = controllers.pbt(
    controllers.PBTConfig(
      exploit=FLAGS.exploit,
      explore=FLAGS.explore,
      quantile_fraction=FLAGS.quantile_fraction,
      num_parents=FLAGS.num_parents,
      num_replaced=FLAGS.num_replaced,
      resample_probability=FLAGS.resample_probability,
      perturbation_factors=factors,
    ),
    search_space,
  )
  config = shared_flags.make_training_config(
    population_size=FLAGS.population_size,
    perturbation_interval=shared_flags.interval(
      "perturbation_interval", learner
    ),
    fitness_window=FLAGS.fitness_window,
    burn_in_period=FLAGS.burn_in_period,
    inherit_replay=FLAGS.inherit_replay,
  )
  setup = training.Setup(
    env=env,
    eval_env=env,
    learner=learner,
    controller=controller,
    config=config,
  )
  shared_flags.run_training(
    setup, f"pbt_{learner_flags.learner_name()}", [FLAGS.seed]
  )


if __name__ == "__main__":
  _define()
  shared_flags.run_main(main)
