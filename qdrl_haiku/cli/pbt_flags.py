"""The flags of how hyperparameters are explored, and the controller of them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from qdrl_haiku.cli import learner_flags
from qdrl_haiku.cli.flags import flag
from qdrl_haiku.cli.shared_flags import TrainingFlags

_EXPLOITING = (
  "exploit", "num_parents", "num_replaced", "num_replaced_by_best",
  "quantile_fraction",
)  # fmt: skip
_EXPLORING = ("explore", "perturbation_factors", "resample_probability")
_OF_HALVING = ("first_rung", "reduction_factor")
_OF_PB2 = ("optimism", "pb2_window")
OF_ONE_KIND = ("frequencies", *_OF_HALVING, *_OF_PB2)
"""Flags that a single kind of controller heeds."""
OF_CONTROLLERS = (*_EXPLOITING, *_EXPLORING, *OF_ONE_KIND)
"""Flags that some controllers heed, and others don't."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControllerFlags(TrainingFlags):
  """Say which agents replace others, and how hyperparameters are explored."""

  section = "Controller"

  controller: str = flag(
    "pbt",
    "Controller that replaces agents and changes their hyperparameters: pbt, "
    "pb2, mf_pbt, random_search, successive_halving, or "
    "package.module:function, a function of the search space that returns a "
    "controllers.Controller.",
  )
  perturbation_interval: int | None = flag(
    None,
    "Environment steps per agent from one decision of the controller to the "
    "next; by default about a twentieth of --num_timesteps.",
  )
  search_space: tuple[str, ...] = flag(
    (),
    "Range in which a hyperparameter is searched: name:kind:low:high with kind "
    "uniform, log_uniform or one_minus_log_uniform; name:choice:value:value...;"
    " or name:fixed:value. The last range of a name counts, and "
    "hyperparameters that are not named are fixed; by default the learner's "
    "own ranges are searched.",
    repeatable=True,
  )
  explore: str = flag(
    "perturb",
    "Change of a child's hyperparameters by pbt and mf_pbt: perturb those of "
    "the parent, resample from the search space, or mixed, which chooses one "
    "of the two for each hyperparameter.",
  )
  perturbation_factors: tuple[str, ...] = flag(
    ("0.8", "1.25"),
    "Factors by which pbt and mf_pbt perturb a hyperparameter down and up.",
  )
  resample_probability: float = flag(
    0.25,
    "Probability of each hyperparameter to be resampled with --explore=mixed.",
  )
  num_parents: int | None = flag(
    None,
    "Number of the best agents that may be parents; by default a quarter of "
    "the population.",
  )
  optimism: float = flag(
    1.0,
    "Standard deviations that pb2 adds to the change of fitness it predicts "
    "when it chooses hyperparameters.",
  )
  pb2_window: int = flag(
    128, "Number of the latest changes of fitness from which pb2 predicts."
  )
  frequencies: tuple[str, ...] = flag(
    ("1", "5"),
    "Decisions of mf_pbt from one round to the next, for each of its groups of "
    "agents.",
  )
  first_rung: int = flag(
    2,
    "Number of the first decision in which successive_halving drops "
    "configurations, counted from 1.",
  )
  reduction_factor: int = flag(
    2,
    "Factor by which successive_halving lowers the number of configurations "
    "at a decision, and raises the number of decisions until the next.",
  )


def make_controller(
  flags: ControllerFlags,
  search_space: Any,
  of_controllers: Sequence[str],
  **settings: Any,
) -> Any:
  """Returns the controller that the flags ask for.

  Args:
    flags: that ask for it.
    search_space: of the learner's hyperparameters.
    of_controllers: flags that nothing but some controllers heeds here.
    **settings: of who is replaced by whom, for controllers that have them.

  Raises:
    ValueError: if a flag makes no sense.
  """
  if ":" in flags.controller:
    from qdrl_haiku import controllers

    flags.refuse_given(of_controllers, "the controller is your own")
    function = flags.users_function("controller", "search_space")
    controller = function(search_space)
    kind = controllers.Controller
    flags.check_users_result("controller", controller, kind)
    return controller
  flags.check_choice("controller", _KINDS)
  chosen = _KINDS[flags.controller]
  flags.refuse_given(
    [name for name in of_controllers if name not in chosen.heeds],
    f"--controller={flags.controller} doesn't heed it",
    "controller",
  )
  return chosen.make(flags, search_space, settings)


def make_config(flags: ControllerFlags, **settings: Any) -> Any:
  """Returns the configuration of population-based training.

  Args:
    flags: that say how hyperparameters are explored.
    **settings: of who is replaced by whom.

  Raises:
    ValueError: if a setting is out of its range or has no effect.
  """
  from qdrl_haiku import controllers

  config = controllers.PBTConfig(**_exploring(flags), **settings)
  _refuse_unexplored(flags)
  return config


def _exploring(flags: ControllerFlags) -> dict[str, Any]:
  """Returns the settings of how hyperparameters are explored."""
  try:
    factors = tuple(float(x) for x in flags.perturbation_factors)
  except ValueError:
    raise ValueError(
      f"--perturbation_factors={','.join(flags.perturbation_factors)} are no "
      "numbers; give them like 0.8,1.25."
    ) from None
  return {
    "explore": flags.explore,
    "resample_probability": flags.resample_probability,
    "perturbation_factors": factors,
  }


def _refuse_unexplored(flags: ControllerFlags) -> None:
  """Refuses flags that have no effect on how hyperparameters are explored."""
  if flags.explore != "mixed":
    flags.refuse_given(
      ["resample_probability"], f"--explore={flags.explore} isn't mixed"
    )
  if flags.explore == "resample":
    flags.refuse_given(
      ["perturbation_factors"], "--explore=resample perturbs nothing"
    )


def _make_pbt(
  flags: ControllerFlags, search_space: Any, settings: dict[str, Any]
) -> Any:
  from qdrl_haiku import controllers

  return controllers.pbt(make_config(flags, **settings), search_space)


def _make_pb2(
  flags: ControllerFlags, search_space: Any, settings: dict[str, Any]
) -> Any:
  from qdrl_haiku import controllers

  config = controllers.PB2Config(
    window=flags.pb2_window, optimism=flags.optimism, **settings
  )
  return controllers.pb2(config, search_space)


def _make_mf_pbt(
  flags: ControllerFlags, search_space: Any, settings: dict[str, Any]
) -> Any:
  from qdrl_haiku import controllers

  del settings
  if not all(x.isdecimal() for x in flags.frequencies):
    raise ValueError(
      f"--frequencies={','.join(flags.frequencies)} are no counts; give them "
      "like 1,5."
    )
  frequencies = tuple(int(x) for x in flags.frequencies)
  config = controllers.MFPBTConfig(
    frequencies=frequencies, **_exploring(flags)
  )
  _refuse_unexplored(flags)
  return controllers.mf_pbt(config, search_space)


def _make_random_search(
  flags: ControllerFlags, search_space: Any, settings: dict[str, Any]
) -> Any:
  from qdrl_haiku import controllers

  del flags, settings
  return controllers.random_search(search_space)


def _make_successive_halving(
  flags: ControllerFlags, search_space: Any, settings: dict[str, Any]
) -> Any:
  from qdrl_haiku import controllers

  del settings
  config = controllers.SuccessiveHalvingConfig(
    first_rung=flags.first_rung, reduction_factor=flags.reduction_factor
  )
  return controllers.successive_halving(config, search_space)


class _Kind(NamedTuple):
  """A kind of controller, and the flags that it heeds."""

  make: Callable[[ControllerFlags, Any, dict[str, Any]], Any]
  heeds: tuple[str, ...]


_KINDS = {
  "mf_pbt": _Kind(_make_mf_pbt, ("frequencies", *_EXPLORING)),
  "pb2": _Kind(_make_pb2, (*_OF_PB2, *_EXPLOITING)),
  "pbt": _Kind(_make_pbt, (*_EXPLOITING, *_EXPLORING)),
  "random_search": _Kind(_make_random_search, ()),
  "successive_halving": _Kind(_make_successive_halving, _OF_HALVING),
}


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
      [*_EXPLORING, *_OF_PB2], "all hyperparameters are fixed"
    )
  return search_space
