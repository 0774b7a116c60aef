"""Names, compares and describes trees of arrays."""

import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp

from qdrl_haiku.types import Array, Tree


def all_finite_leaves(tree: Tree, num_axes: int = 1) -> Array:
  """Returns whether all floats of a tree are finite, for each of its members.

  The first `num_axes` axes of the leaves index members, and are the axes of the
  result.
  """
  leaves = jax.tree.leaves(tree)
  per_leaf = [
    jnp.all(jnp.isfinite(x), axis=tuple(range(num_axes, x.ndim)))
    for x in leaves
    if jnp.issubdtype(x.dtype, jnp.floating)]
  if not per_leaf:
    return jnp.ones(leaves[0].shape[:num_axes], bool)
  return jnp.all(jnp.stack(per_leaf), axis=0)


def tree_prefix(kind: Callable[..., Tree], rest: object, **parts: Tree) -> Tree:
  """Makes a tree prefix, a named tuple of a `kind`: `rest`, but for `parts`."""
  fields = inspect.signature(kind).parameters
  return kind(**(dict.fromkeys(fields, rest) | parts))


def choose_rows(where: Array, on_true: Tree, on_false: Tree) -> Tree:
  """Chooses rows of trees [B, ...]: `on_true` where `where`, bool [B], is.

  Elsewhere they are those of `on_false`.
  """
  return jax.tree.map(
    lambda x, y: jax.vmap(jnp.where)(where, x, y), on_true, on_false)


def row_shapes(tree: Tree, n: int) -> Tree:
  """Returns shapes and dtypes [n, ...] of rows like those of a tree."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype), tree)


def tree_difference(found: Tree, expected: Tree) -> str | None:
  """Returns how two trees of arrays or shapes differ; None if they don't."""
  structures: list[object] = [jax.tree.structure(x) for x in (found, expected)]
  if structures[0] != structures[1]:
    return f"the tree is {structures[0]}, not {structures[1]}"
  leaves = zip(named_tree_leaves(found), jax.tree.leaves(expected), strict=True)
  for (name, x), y in leaves:
    if (x.shape, x.dtype) != (y.shape, y.dtype):
      return (
        f"{name or 'the array'} is {x.dtype}{x.shape}, not {y.dtype}{y.shape}")
  return None


def describe_tree(tree: Tree) -> str:
  """Describes a tree of arrays by the shapes of its first two leaves."""
  shapes = [
    f"{name or 'an array'} {jnp.shape(x)}"
    for name, x in named_tree_leaves(tree)]
  return ", ".join(shapes[:2] + ["..."] * (len(shapes) > 2)) or "no array"


def tree_leaf_names(tree: Tree) -> list[str]:
  """Returns the names of a tree's leaves, their paths joined by "/"."""
  return [name for name, _ in named_tree_leaves(tree)]


def named_tree_leaves(tree: Tree) -> list[tuple[str, Array]]:
  """Returns a tree's leaves and their names, as `tree_leaf_names` does."""
  return [
    (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def tree_leaves_by_name(tree: Tree) -> dict[str, Tree]:
  """Returns a tree's leaves by name; refuses two leaves of one name."""
  names, leaves = tree_leaf_names(tree), jax.tree.leaves(tree)
  if len({*names}) < len(names):
    raise ValueError(
      f"of {len(names)} leaves, some have the same name: {', '.join(names)};"
      " rename one.")
  return dict(zip(names, leaves, strict=True))
