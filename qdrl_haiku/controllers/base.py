"""Controllers: pure functions that decide, with a state of their own."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import trees
from qdrl_haiku.types import Array, Hyperparams, Key, Metrics, Tree

SURVIVE = "survive"
"""The first operator of every controller: a member stays as it is."""
ROW_COLUMNS = (
  "generation", "step", "child", "parent", "child_fitness", "parent_fitness",
  "old_hyperparams", "new_hyperparams", "operator", "cell",
)  # fmt: skip
"""The columns of the lineage that every controller has."""


class Decision(NamedTuple):
  """Holds a controller's decision, which `inherit` applies to the members.

  Attributes:
    parents: int32 [P], the member that each one becomes a copy of; its own
      index for a survivor, and where no member had a finite fitness.
    hyperparams: leaves [P], from now on; a survivor's are bit-identical.
    operator: int32 [P], an index into the controller's `operators`.
    reasons: float32 [P] by name, more columns of a replaced member's row in the
      lineage, empty where not finite.
    metrics: float32 [] by name, `controller/<name>` in the rows of metrics.
  """

  parents: Array
  hyperparams: Hyperparams
  operator: Array
  reasons: dict[str, Array] = {}
  metrics: Metrics = {}


class Controller(NamedTuple):
  """A record of pure functions over fitness and hyperparameters.

  The state is any tree of arrays, () for a controller that remembers nothing.
  It is checkpointed with the population, equal on every device, and handed from
  one decision to the next.

  Attributes:
    init: (key, population_size) -> (state, hyperparameters), the latter with
      leaves float32 [P].
    update: (state, key, fitness [P], hyperparameters [P]) -> (state, Decision);
      called once after each generation, in the burn-in period too.
    operators: names of what may happen to a member; `Decision.operator`
      indexes it. The first is "survive": the member stays as it is, without a
      row of the lineage.
    first_decision: the number, from 1, of the first decision that may replace
      finite members; None if only non-finite ones are ever replaced.
  """

  init: Callable[[Key, int], tuple[Tree, Hyperparams]]
  update: Callable[
    [Tree, Key, Array, Hyperparams], tuple[Tree, Decision]
  ]
  operators: tuple[str, ...] = (SURVIVE, "replace")
  first_decision: int | None = 1


def inherit(members: Tree, parents: Array) -> Tree:
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

  def take(path: jax.tree_util.KeyPath, leaf: Array) -> Array:
    """Copies the parents of one leaf."""
    leaf = jnp.asarray(leaf)
    if leaf.ndim == 0 or leaf.shape[0] != population_size:
      raise ValueError(
        f"members{jax.tree_util.keystr(path)} has shape {leaf.shape}, but there"
        f" are {population_size} parents; give every leaf the leading axis P."
      )
    return leaf.at[parents].get(mode="promise_in_bounds")

  return jax.tree_util.tree_map_with_path(take, members)


def check_controller(controller: Controller, population_size: int) -> None:
  """Refuses a controller whose updates can't follow each other.

  Only shapes are computed.

  Args:
    controller: such as a user's own.
    population_size: P.

  Raises:
    ValueError: if it refuses the population, if an update changes the tree,
      shapes or dtypes of its state or of the hyperparameters, or if a
      decision has other shapes than `Decision`.
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
    if difference := trees.tree_difference(found, expected):
      raise ValueError(
        f"the {name} differs from what it was before: {difference}; return the "
        "same tree, shapes and dtypes."
      )
  members = (population_size,)
  reasons, metrics = decision.reasons, decision.metrics
  for name, leaf, dtype, shape in (
    ("parents are", decision.parents, "int32", members),
    ("operator is", decision.operator, "int32", members),
    *((f"reason {k!r} is", x, x.dtype, members) for k, x in reasons.items()),
    *((f"metric {k!r} is", x, x.dtype, ()) for k, x in metrics.items()),
  ):
    if leaf.shape != shape or leaf.dtype != dtype:
      raise ValueError(
        f"the decision's {name} {leaf.dtype}{leaf.shape}, not "
        f"{dtype}{shape}; return that."
      )
  if taken := [x for x in reasons if x in ROW_COLUMNS]:
    raise ValueError(
      f"the decision's reason {taken[0]!r} has the name of a column that every "
      "row of the lineage has; rename it."
    )
