"""Checks of settings and trees; messages name what is wrong, and the fix."""

import contextlib
import inspect
import math
import numbers
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self, TypeGuard

from qdrl_haiku import trees
from qdrl_haiku.types import Hyperparams, Tree

LARGEST = 2**31 - 1
"""Largest int32, with which jax counts and indexes."""
SMALLEST_FLOAT, LARGEST_FLOAT = 1e-30, 1e30
"""Between them products neither overflow nor become subnormal in float32."""


class Refusals(ValueError):
  """Collects what is refused, to name all of it at once, a line each.

  In a `with`, errors inside of `noted` are collected, and the block's end
  raises them: a single one itself, several as this error.
  """

  def __init__(self, messages: Iterable[str] = ()) -> None:
    super().__init__()
    self.messages = list(messages)
    self._first: ValueError = self

  def __str__(self) -> str:
    return "\n".join(self.messages)

  def __bool__(self) -> bool:
    return bool(self.messages)

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    if error is not None and not (self and isinstance(error, ValueError)):
      return
    if isinstance(error, ValueError):
      self.note(error)
    if self:
      raise self._first if len(self.messages) == 1 else self

  def refuse(self, message: str) -> None:
    """Adds a message."""
    self.note(ValueError(message))

  def note(self, error: ValueError) -> None:
    """Adds an error's messages, but for those that were added before."""
    self._first = self._first if self else error
    found = refusals_of(error)
    self.messages += [x for x in found if x not in self.messages]

  @contextlib.contextmanager
  def noted(self, why: str = "") -> Iterator[None]:
    """Collects what is refused inside the `with`, and goes on after it."""
    try:
      yield
    except ValueError as error:
      self.note(ValueError(f"{why}{error}") if why else error)


def refusals_of(error: ValueError) -> list[str]:
  """Returns an error's messages: several of a `Refusals`, else its own."""
  return error.messages if isinstance(error, Refusals) else [str(error)]


def check_count(
  name: str, value: object, minimum: int, maximum: int = LARGEST
) -> None:
  """Refuses a setting that is no integer from a minimum to a maximum.

  Raises:
    ValueError: if `value` is none from `minimum` to `maximum`; it names `name`.
  """
  if (
    isinstance(value, bool)
    or not isinstance(value, numbers.Integral)
    or not minimum <= int(value) <= maximum
  ):
    raise ValueError(
      f"{name}={value!r} is not a count; use an integer from {minimum} to "
      f"{maximum}.")


def fits_float32(value: float) -> bool:
  """Returns whether a number is 0 or float32 holds its magnitude well."""
  return value == 0 or SMALLEST_FLOAT <= abs(value) <= LARGEST_FLOAT


def takes_arguments(function: object, number: int) -> bool:
  """Returns whether something can be called with a number of arguments."""
  try:
    inspect.signature(function).bind(*range(number))  # type: ignore[arg-type]
  except TypeError:
    return False
  except ValueError:  # Python doesn't know what a built-in function takes.
    pass
  return True


def check_names(field: str, value: object) -> None:
  """Refuses a string in place of a tuple, whose letters would be the names."""
  if isinstance(value, str):
    raise ValueError(f"{field}={value!r} is no tuple; give ({value!r},).")


def check_like(
  what: str, found: Tree, like: Tree, where: str = "that of init"
) -> None:
  """Refuses a tree that isn't like another in structure, shapes and dtypes.

  Args:
    what: names the tree, for the message.
    found: what a user's function returned.
    like: the other tree.
    where: names the other tree.

  Raises:
    ValueError: if they differ.
  """
  if difference := trees.tree_difference(found, like):
    raise ValueError(
      f"{what} differs from {where}: {difference}; return the same tree, "
      "shapes and dtypes.")


def check_hyperparams(hyperparams: Hyperparams, defaults: Hyperparams) -> None:
  """Refuses hyperparameters that lack some of a learner's own defaults."""
  given = trees.tree_leaf_names(hyperparams)
  names = trees.tree_leaf_names(defaults)
  if missing := [name for name in names if name not in given]:
    raise ValueError(
      f"hyperparams lack {', '.join(missing)}; give a tree like the learner's "
      "own, Learner.hyperparams.")


def is_finite_number(value: object) -> TypeGuard[float]:
  """Returns whether something that was parsed is a finite number."""
  return isinstance(value, int | float) and math.isfinite(value)
