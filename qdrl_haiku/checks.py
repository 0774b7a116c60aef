"""Checks of settings and trees; messages name what is wrong, and the fix."""

import numbers

import jax
import jax.numpy as jnp

from qdrl_haiku.types import Array, Hyperparams, Tree

LARGEST = 2**31 - 1
"""Largest int32, with which jax counts and indexes."""
SMALLEST_FLOAT, LARGEST_FLOAT = 1e-30, 1e30
"""Magnitudes between which float32 neither overflows nor becomes subnormal,
which XLA may flush to zero, when numbers are multiplied or divided."""


def check_count(
  name: str, value: object, minimum: int, hint: str = "", maximum: int = LARGEST
) -> None:
  """Refuses a setting that is no integer from a minimum to a maximum.

  Args:
    name: of the setting.
    value: of the setting.
    minimum: the least that it may be.
    hint: what to use instead, if there is more to say than the minimum.
    maximum: the most that it may be.
  """
  if (
    isinstance(value, bool)
    or not isinstance(value, numbers.Integral)
    or value < minimum
  ):
    raise ValueError(
      f"{name}={value!r} is not a count; use"
      f" {hint or f'an integer of at least {minimum}'}."
    )
  if int(value) > maximum:
    raise ValueError(
      f"{name}={value!r} is too large; use an integer of at most {maximum}."
    )


def fits_float32(value: float) -> bool:
  """Returns whether a number is 0 or float32 holds its magnitude well."""
  return value == 0 or SMALLEST_FLOAT <= abs(value) <= LARGEST_FLOAT


def check_float(name: str, value: float, *, may_be_zero: bool) -> None:
  """Refuses a setting that is negative, or overflows or vanishes in float32."""
  if value < 0 or (value == 0 and not may_be_zero) or not fits_float32(value):
    least = "at least 0" if may_be_zero else "above 0"
    raise ValueError(
      f"{name}={value!r} must be finite and {least}, in float32 too; use "
      f"{'0 or ' if may_be_zero else ''}a number from {SMALLEST_FLOAT:g} to "
      f"{LARGEST_FLOAT:g}."
    )


def check_hyperparams(hyperparams: Hyperparams, defaults: Hyperparams) -> None:
  """Refuses hyperparameters that lack some of a learner's own defaults."""
  given = leaf_names(hyperparams)
  missing = [name for name in leaf_names(defaults) if name not in given]
  if missing:
    raise ValueError(
      f"hyperparams lack {', '.join(missing)}; give a tree like the learner's "
      "own, Learner.hyperparams."
    )


def difference(found: Tree, expected: Tree) -> str | None:
  """Returns how two trees of arrays or shapes differ; None if they don't."""
  structures: list[object] = [jax.tree.structure(x) for x in (found, expected)]
  if structures[0] != structures[1]:
    return f"the tree is {structures[0]}, not {structures[1]}"
  leaves = zip(named_leaves(found), jax.tree.leaves(expected), strict=True)
  for (name, x), y in leaves:
    if (x.shape, x.dtype) != (y.shape, y.dtype):
      return (
        f"{name or 'the array'} is {x.dtype}{x.shape}, not {y.dtype}{y.shape}"
      )
  return None


def describe(tree: Tree) -> str:
  """Describes a tree of arrays by the shapes of its first two leaves."""
  shapes = [
    f"{name or 'an array'} {jnp.shape(x)}" for name, x in named_leaves(tree)
  ]
  return ", ".join(shapes[:2] + ["..."] * (len(shapes) > 2)) or "no array"


def leaf_names(tree: Tree) -> list[str]:
  """Returns the names of a tree's leaves, their paths joined by "/"."""
  return [name for name, _ in named_leaves(tree)]


def named_leaves(tree: Tree) -> list[tuple[str, Array]]:
  """Returns a tree's leaves and their names, as `leaf_names` does."""
  return [
    (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]
