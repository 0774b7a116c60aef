"""Checks of agents that are handed to an actor, by shapes alone."""

from typing import Any

import jax
import jax.numpy as jnp


def check_population(**trees: Any) -> None:
  """Refuses trees whose arrays don't all have the same first axis P."""
  first = None
  for path, leaf in jax.tree_util.tree_leaves_with_path(trees):
    name, shape = _name(path), jnp.shape(leaf)
    first = first or (name, shape)
    if not shape or shape[0] != first[1][0]:
      other = "" if first == (name, shape) else f" (and {first[0]} {first[1]})"
      raise ValueError(
        f"{name} has shape {shape}{other}, but the first axis of all is P, "
        "agents; give every array that axis. One agent is a population of one: "
        "jax.tree.map(lambda x: x[None], state), the same for the others."
      )


def check_one(hyperparams: Any) -> None:
  """Refuses hyperparameters of a population where one agent is due."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(
    {"hyperparams": hyperparams}
  ):
    if jnp.shape(leaf):
      raise ValueError(
        f"{_name(path)} has shape {jnp.shape(leaf)}, but a step is of one "
        "agent, whose hyperparameters are numbers; `actors.collect` steps a "
        "population."
      )


def _name(path: Any) -> str:
  """Returns a leaf's path, which begins with the name of the argument."""
  return jax.tree_util.keystr(path, simple=True, separator="/")
