"""What a controller searches: by default, and as users say it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from qdrl_haiku import controllers, learners, names, types
from qdrl_haiku.controllers import lineage


def search_space(
  hyperparams: types.Hyperparams,
  specifications: Sequence[str],
  given: Mapping[str, float],
  declared: Mapping[str, learners.Hyperparameter] = MappingProxyType({}),
) -> Any:
  """Returns a range for each hyperparameter of a learner.

  Args:
    hyperparams: the learner's, a tree of the values that they have where they
      aren't searched. A name is a leaf's path in it, joined by "/".
    specifications: like "tau:log_uniform:1e-3:1e-1", see
      `controllers.search_space.parse`; of two for one name the later counts.
      If there is none, the default ranges are searched.
    given: values that the user has fixed, by name.
    declared: what the learner says of them, see `learners.Learner`.

  Returns:
    A tree of the same structure, its leaves ranges; `Fixed` for those that
    aren't searched.

  Raises:
    ValueError: if a specification is wrong, or names no hyperparameter, or
      names one that is fixed.
  """
  named = lineage.named_leaves(hyperparams)
  said = dict(
    controllers.search_space.parse(text) for text in specifications
  )
  for name in said:
    if name not in named:
      raise ValueError(
        f"search_space names {name!r}, which is no hyperparameter of the "
        f"learner; {names.nearest(name, named)}"
      )
    if name in given:
      raise ValueError(
        f"{flag_of(name)}={given[name]} fixes what --search_space searches; "
        "leave out one of the two."
      )
  searched: dict[str, controllers.Range | None] = dict(said) or {
    name: _by_default(name, declared) for name in named if name not in given
  }
  ranges = [
    searched.get(name) or controllers.Fixed(value)
    for name, value in named.items()
  ]
  return jax.tree.unflatten(jax.tree.structure(hyperparams), ranges)


def declaration(
  name: str, declared: Mapping[str, learners.Hyperparameter]
) -> learners.Hyperparameter | None:
  """Finds what is known of a hyperparameter.

  Args:
    name: its path in the learner's tree.
    declared: what the learner says, see `learners.Learner`.

  Returns:
    What it says of this one; else what holds for one of ours of that name; None
    if nothing is known.
  """
  return declared.get(name) or learners.HYPERPARAMETERS.get(name)


def flag_of(name: str) -> str:
  """Returns the flag that gives a hyperparameter a value.

  Args:
    name: its path in the learner's tree.

  Returns:
    What stands before the value's equals sign.
  """
  own = name in learners.HYPERPARAMETERS
  return f"--{name}" if own else f"--hyperparam={name}"


def _by_default(
  name: str, declared: Mapping[str, learners.Hyperparameter]
) -> controllers.Range | None:
  """Returns the range in which one is searched if nothing is said."""
  known = declaration(name, declared)
  if known is None or known.search is None:
    return None
  return controllers.search_space.parse(f"{name}:{known.search}")[1]
