"""The flags of how hyperparameters are explored, and the controller of them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from qdrl_haiku.cli import learner_flags
from qdrl_haiku.cli.flags import flag
from qdrl_haiku.cli.shared_flags import TrainingFlags


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControllerFlags(TrainingFlags):
  """Say who takes over from whom, and how hyperparameters are explored."""

  controller: str = flag(
    "pbt",
    "Who takes over from whom: pbt, or package.module:function, a function of "
    "the search space that returns a controllers.Controller.",
  )
  explore: str = flag("perturb", "Or resample, or mixed.")
  num_parents: int | None = flag(None, "How many of the best may be parents.")
  resample_probability: float = flag(
    0.25, "Per hyperparameter, with --explore=mixed."
  )
  perturbation_factors: tuple[str, ...] = flag(
    ("0.8", "1.25"), "Down and up, when perturbing."
  )
  search_space: tuple[str, ...] = flag(
    (),
    "name:kind:low:high, kind uniform, log_uniform or one_minus_log_uniform; "
    "or name:fixed:value. Repeatable, the last of a name counts; if given at "
    "all, the hyperparameters that aren't named are fixed.",
    repeatable=True,
  )
  perturbation_interval: int | None = flag(
    None,
    "Environment steps per agent from one decision to the next; by default "
    "about a twentieth of --num_timesteps.",
  )


def make_controller(
  flags: ControllerFlags,
  search_space: Any,
  of_pbt: Sequence[str],
  **settings: Any,
) -> Any:
  """Returns the controller that the flags ask for.

  Args:
    flags: that ask for it.
    search_space: of the learner's hyperparameters.
    of_pbt: flags that are PBT's alone.
    **settings: of who is replaced by whom, with PBT.

  Raises:
    ValueError: if a flag makes no sense.
  """
  from qdrl_haiku import controllers

  if ":" in flags.controller:
    flags.refuse_given(of_pbt, "the controller is your own")
    function = flags.users_function("controller", "search_space")
    controller = function(search_space)
    kind = controllers.Controller
    flags.check_users_result("controller", controller, kind)
    return controller
  flags.check_choice("controller", ("pbt",))
  return controllers.pbt(make_config(flags, **settings), search_space)


def make_config(flags: ControllerFlags, **settings: Any) -> Any:
  """Returns the controller's configuration.

  Args:
    flags: that say how hyperparameters are explored.
    **settings: of who is replaced by whom.

  Raises:
    ValueError: if a setting is out of its range or has no effect.
  """
  from qdrl_haiku import controllers

  try:
    factors: Any = tuple(float(x) for x in flags.perturbation_factors)
  except ValueError:
    raise ValueError(
      f"--perturbation_factors={','.join(flags.perturbation_factors)} are no "
      "numbers; give them like 0.8,1.25."
    ) from None
  config = controllers.PBTConfig(
    explore=flags.explore,
    resample_probability=flags.resample_probability,
    perturbation_factors=factors,
    **settings,
  )
  if flags.explore != "mixed":
    flags.refuse_given(
      ["resample_probability"], f"--explore={flags.explore} isn't mixed"
    )
  if flags.explore == "resample":
    flags.refuse_given(
      ["perturbation_factors"], "--explore=resample perturbs nothing"
    )
  return config


def ranges(flags: ControllerFlags, learner: Any) -> dict[str, Any]:
  """Returns what is searched, for `config.json`, where it's by default as well.

  Args:
    flags: that say what is searched.
    learner: the learner.

  Returns:
    Ranges by hyperparameter, their kind and what they are made of.
  """
  from qdrl_haiku.controllers import lineage

  return {
    "ranges": {
      name: {"kind": type(values).__name__} | dataclasses.asdict(values)
      for name, values in lineage.named_leaves(
        make_search_space(flags, learner)
      ).items()
    }
  }


def make_search_space(flags: ControllerFlags, learner: Any) -> Any:
  """Returns what is searched of a learner's hyperparameters.

  Args:
    flags: that say so.
    learner: the learner.

  Raises:
    ValueError: if a specification is wrong.
  """
  import jax

  from qdrl_haiku import controllers, training

  search_space = training.search_space(
    learner.hyperparams,
    flags.search_space,
    given=learner_flags.given_hyperparams(flags),
    declared=learner.declared,
  )
  learner_flags.check_search_space(learner, search_space)
  ranges_ = jax.tree.leaves(search_space)
  if all(isinstance(x, controllers.Fixed) for x in ranges_):
    flags.refuse_given(
      ["explore", "perturbation_factors", "resample_probability"],
      "all hyperparameters are fixed",
    )
  return search_space
