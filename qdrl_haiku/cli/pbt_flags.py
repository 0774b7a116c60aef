"""The flags of how hyperparameters are explored, and the controller of them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from absl import flags

from qdrl_haiku.cli import learner_flags

FLAGS = flags.FLAGS


def define() -> None:
  """Defines the flags of exploring, and of the search space."""
  flags.DEFINE_string(
    "controller",
    "pbt",
    "Who takes over from whom: pbt, or package.module:function, a function of "
    "the search space that returns a controllers.Controller.",
  )
  flags.DEFINE_string("explore", "perturb", "Or resample, or mixed.")
  flags.DEFINE_integer(
    "num_parents", None, "How many of the best may be parents."
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
    "or name:fixed:value. Repeatable, the last of a name counts; if given at "
    "all, the hyperparameters that aren't named are fixed.",
  )
  flags.DEFINE_integer(
    "perturbation_interval",
    None,
    "Environment steps per agent from one decision to the next; by default "
    "about a twentieth of --num_timesteps.",
  )


def make_controller(
  search_space: Any, of_pbt: Sequence[str], **settings: Any
) -> Any:
  """Returns the controller that the flags ask for.

  Args:
    search_space: of the learner's hyperparameters.
    of_pbt: flags that are PBT's alone.
    **settings: of who is replaced by whom, with PBT.

  Raises:
    ValueError: if a flag makes no sense.
  """
  from qdrl_haiku import controllers

  if ":" in FLAGS.controller:
    learner_flags.refuse_given(of_pbt, "the controller is your own")
    function = learner_flags.users_function("controller", "search_space")
    controller = function(search_space)
    kind = controllers.Controller
    learner_flags.check_users_result("controller", controller, kind)
    return controller
  learner_flags.check_choice("controller", ("pbt",))
  return controllers.pbt(make_config(**settings), search_space)


def make_config(**settings: Any) -> Any:
  """Returns the controller's configuration.

  Args:
    **settings: of who is replaced by whom.

  Raises:
    ValueError: if a setting is out of its range or has no effect.
  """
  from qdrl_haiku import controllers

  try:
    factors: Any = tuple(float(x) for x in FLAGS.perturbation_factors)
  except ValueError:
    raise ValueError(
      f"--perturbation_factors={','.join(FLAGS.perturbation_factors)} are no "
      "numbers; give them like 0.8,1.25."
    ) from None
  config = controllers.PBTConfig(
    explore=FLAGS.explore,
    resample_probability=FLAGS.resample_probability,
    perturbation_factors=factors,
    **settings,
  )
  if FLAGS.explore != "mixed":
    learner_flags.refuse_given(
      ["resample_probability"], f"--explore={FLAGS.explore} isn't mixed"
    )
  if FLAGS.explore == "resample":
    learner_flags.refuse_given(
      ["perturbation_factors"], "--explore=resample perturbs nothing"
    )
  return config


def ranges(learner: Any) -> dict[str, Any]:
  """Returns what is searched, for `config.json`, where it's by default as well.

  Args:
    learner: the learner.

  Returns:
    Ranges by hyperparameter, their kind and what they are made of.
  """
  from qdrl_haiku.controllers import lineage

  return {
    "ranges": {
      name: {"kind": type(values).__name__} | dataclasses.asdict(values)
      for name, values in lineage.named_leaves(
        make_search_space(learner)
      ).items()
    }
  }


def make_search_space(learner: Any) -> Any:
  """Returns what is searched of a learner's hyperparameters.

  Args:
    learner: the learner.

  Raises:
    ValueError: if a specification is wrong.
  """
  import jax

  from qdrl_haiku import controllers, training

  search_space = training.search_space(
    learner.hyperparams,
    FLAGS.search_space,
    given=learner_flags.given_hyperparams(),
    declared=learner.declared,
  )
  learner_flags.check_search_space(learner, search_space)
  ranges_ = jax.tree.leaves(search_space)
  if all(isinstance(x, controllers.Fixed) for x in ranges_):
    learner_flags.refuse_given(
      ["explore", "perturbation_factors", "resample_probability"],
      "all hyperparameters are fixed",
    )
  return search_space
