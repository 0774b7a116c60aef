"""Controllers: pure functions that decide, with a state of their own."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import checks, trees
from qdrl_haiku.types import Array, Hyperparams, Key, Metrics, Tree

SURVIVE = "survive"
"""The first operator of every controller: a member stays unchanged."""


class Decision(NamedTuple):
  """Holds a controller's decision, which `inherit` applies to the members."""

  # int32 [P], the member that each one becomes a copy of; its own index for a
  # survivor, and where no member had a finite fitness.
  parents: Array
  # Leaves [P], from now on; a survivor's are bit-identical.
  hyperparams: Hyperparams
  operator: Array  # int32 [P], an index into the controller's `operators`.
  # float32 [P] by name, more columns of a replaced member's row in the lineage,
  # empty where not finite.
  reasons: dict[str, Array] = {}
  # float32 [] by name, `controller/<name>` in the rows of metrics.
  metrics: Metrics = {}


class Controller(NamedTuple):
  """A record of pure functions over fitness and hyperparameters.

  The state is any tree of arrays, () for a controller that remembers nothing.
  It is checkpointed with the population, and equal on every device.

  Attributes:
    init: (key, population_size) -> (state, hyperparameters), the latter with
      leaves float32 [P].
    update: (state, key, fitness [P], hyperparameters [P]) -> (state, Decision);
      called once after each generation, in the burn-in period too.
    operators: names of what may happen to a member; `Decision.operator`
      indexes it. The first is "survive": the member stays unchanged, without a
      row of the lineage. The other names stand in such rows, and tell how the
      new hyperparameters were made.
  """

  init: Callable[[Key, int], tuple[Tree, Hyperparams]]
  update: Callable[[Tree, Key, Array, Hyperparams], tuple[Tree, Decision]]
  operators: tuple[str, ...] = (SURVIVE, "change")


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
  members = jax.tree.map(jnp.asarray, members)
  if {x.shape[:1] for x in jax.tree.leaves(members)} - {parents.shape}:
    raise ValueError(
      f"members have {trees.describe_tree(members)}, but there are"
      f" {parents.shape[0]} parents; give every leaf the leading axis P.")
  return jax.tree.map(
    lambda x: x.at[parents].get(mode="promise_in_bounds"), members)


def check_controller(controller: Controller, population_size: int) -> None:
  """Refuses a controller whose updates can't follow each other.

  Only shapes are computed.

  Args:
    controller: such as a user's own.
    population_size: P.

  Raises:
    ValueError: if it refuses the population, if an update changes the tree,
      shapes or dtypes of its state or of the hyperparameters, or if it
      returns no `Decision`, or one of other shapes.
  """
  key = jax.eval_shape(lambda: jax.random.key(0))
  state, hyperparams = jax.eval_shape(
    lambda key: controller.init(key, population_size), key)
  fitness = jax.ShapeDtypeStruct((population_size,), jnp.float32)
  updated: Tree = jax.eval_shape(
    controller.update, state, key, fitness, hyperparams)
  if not isinstance(updated, tuple) or len(updated) != 2 or not isinstance(
    updated[1], Decision):
    raise ValueError(
      f"the controller's update returns a {type(updated).__name__} that is no "
      "pair of its state and a Decision; return such a pair.")
  after, decision = updated
  members: Tree = jax.ShapeDtypeStruct((population_size,), jnp.int32)
  expected = Decision(
    members, hyperparams, members,
    {k: members.update(dtype=x.dtype) for k, x in decision.reasons.items()},
    {k: x.update(shape=()) for k, x in decision.metrics.items()})
  for name, found, like in (
    ("state after an update", after, state),
    ("decision", decision, expected),
  ):
    checks.check_like(
      f"the controller's {name}", found, like, "what it has to be")
