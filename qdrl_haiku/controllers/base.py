"""Defines controllers: pure functions that decide, with their own state."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku.types import Array, Hyperparams, Key, Metrics

SURVIVE = "survive"
"""The first operator of every controller: a member stays as it is."""
ROW_COLUMNS = (
  "generation", "step", "child", "parent", "child_fitness", "parent_fitness",
  "old_hyperparams", "new_hyperparams", "operator", "cell",
)  # fmt: skip
"""The columns that rows of the lineage have of any controller."""


class Decision(NamedTuple):
  """Holds a controller's decision, which `inherit` applies to the members.

  Attributes:
    parents: int32 [P], whose place each member takes over; its own index for a
      survivor, and where no member had a finite fitness.
    hyperparams: leaves [P], from now on; a survivor's are bit-identical.
    operator: int32 [P], an index into the controller's `operators`.
    reasons: float32 [P] by name: what else says why a member is replaced. They
      are columns of its row in the lineage, empty where not finite.
    metrics: float32 [] by name: what the controller says of itself, which is
      `controller/<name>` in the rows of metrics.
  """

  parents: Array
  hyperparams: Hyperparams
  operator: Array
  reasons: dict[str, Array] = {}
  metrics: Metrics = {}


class Controller(NamedTuple):
  """A record of pure functions over fitness and hyperparameters.

  What a controller remembers is its state, any tree of arrays, () for one that
  remembers nothing. It is checkpointed with the population, known to every
  device, and handed from one decision to the next.

  Attributes:
    init: (key, population_size) -> (state, hyperparameters), the latter with
      leaves float32 [P].
    update: (state, key, fitness [P], hyperparameters [P]) -> (state, Decision);
      called once after each generation, in the burn-in period too.
    operators: what may happen to a member, by name; `Decision.operator`
      indexes it. The first is "survive": the member stays as it is, and no row
      of the lineage tells of it.
    first_decision: the number, from 1, of the first decision that may replace
      finite members; None if only non-finite ones are ever replaced.
  """

  init: Callable[[Key, int], tuple[Any, Hyperparams]]
  update: Callable[
    [Any, Key, Array, Hyperparams], tuple[Any, Decision]
  ]
  operators: tuple[str, ...] = (SURVIVE, "replace")
  first_decision: int | None = 1


def inherit(members: Any, parents: Array) -> Any:
  """Puts a copy of its parent in each member's place.

  Args:
    members: a tree of arrays [P, ...], typed keys included.
    parents: int32 [P], each in [0, P), such as `Decision.parents`.

  Returns:
    The same tree: leaf[parents], bit-identical where parents[i] is i.

  Raises:
    ValueError: if a leaf has another leading axis than P.
  """
  population_size = parents.shape[0]

  def take(path: Any, leaf: Any) -> Array:
    leaf = jnp.asarray(leaf)
    if leaf.ndim == 0 or leaf.shape[0] != population_size:
      raise ValueError(
        f"members{jax.tree_util.keystr(path)} has shape {leaf.shape}, but there"
        f" are {population_size} parents; give every leaf the leading axis P."
      )
    return leaf.at[parents].get(mode="promise_in_bounds")

  return jax.tree_util.tree_map_with_path(take, members)


def check(controller: Controller, population_size: int) -> None:
  """Refuses a controller that can't be asked again and again.

  Nothing is computed; only shapes are looked at.

  Args:
    controller: of a user's own, perhaps.
    population_size: P.

  Raises:
    ValueError: if it refuses the population, if an update changes the kind of
      its state or of the hyperparameters, or if a decision isn't one.
  """
  key = jax.eval_shape(lambda: jax.random.key(0))
  state, hyperparams = jax.eval_shape(
    lambda key: controller.init(key, population_size), key
  )
  fitness = jax.ShapeDtypeStruct((population_size,), jnp.float32)
  after, decision = jax.eval_shape(
    controller.update, state, key, fitness, hyperparams
  )
  for name, found, expected in (
    ("controller's state after an update", after, state),
    ("decision's hyperparameters", decision.hyperparams, hyperparams),
  ):
    if _kind(found) != _kind(expected):
      raise ValueError(
        f"the {name}, {_kind(found)}, differs from what it was before, "
        f"{_kind(expected)}; return the same tree, shapes and dtypes."
      )
  for name in ("parents", "operator"):
    leaf = getattr(decision, name)
    if leaf.shape != (population_size,) or leaf.dtype != jnp.int32:
      raise ValueError(
        f"the decision's {name} are {leaf.dtype}{leaf.shape}, not "
        f"int32{(population_size,)}; return those."
      )
  for name, leaf in decision.reasons.items():
    if name in ROW_COLUMNS:
      raise ValueError(
        f"the decision's reason {name!r} has the name of a column that every "
        "row of the lineage has; rename it."
      )
    if leaf.shape != (population_size,):
      raise ValueError(
        f"the decision's reason {name!r} is {leaf.dtype}{leaf.shape}, not "
        f"float32{(population_size,)}; give one number per member."
      )
  for name, leaf in decision.metrics.items():
    if leaf.shape:
      raise ValueError(
        f"the decision's metric {name!r} is {leaf.dtype}{leaf.shape}; give one "
        "number."
      )


def _kind(tree: Any) -> tuple[Any, list[str]]:
  """Returns a tree's structure, and its leaves' dtypes and shapes."""
  leaves, treedef = jax.tree.flatten(tree)
  return treedef, [f"{x.dtype}{x.shape}" for x in leaves]
