"""Compiles what is called in a Python loop once, not at each call."""

import functools
import inspect
import numbers
from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp

# Programs of one function, so that environments of long ago aren't kept.
_MOST = 16
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Static:
  """An argument that isn't traced: equal to itself, or to the same number."""

  def __init__(self, value: Any) -> None:
    # Holding it, so that no other object gets its id.
    self.value = value
    by_value = isinstance(value, (numbers.Number, str, MethodType))
    self._key = (type(value), value if by_value else id(value))

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Static) and self._key == other._key

  def __hash__(self) -> int:
    return hash(self._key)


def compiled(*static: str) -> Callable[[_Function], _Function]:
  """Makes a function that is compiled when it's called outside of `jax.jit`.

  Within another function that is traced, as by `jax.jit`, it's the function as
  it is written. Outside it's compiled once for the shapes of its arrays and
  for the static arguments: numbers by value, everything else (an environment,
  a learner, a function) by identity. So attributes of a static object that
  change later aren't seen, as of whatever a jitted function refers to; make a
  new object. The last 16 programs of each function are kept.

  Args:
    *static: names of the parameters that aren't trees of arrays.

  Returns:
    What makes such a function of another.
  """

  def decorate(function: _Function) -> _Function:
    signature = inspect.signature(function)

    @functools.lru_cache(_MOST)
    def program(*values: _Static) -> Callable[..., Any]:
      fixed = {
        name: x.value for name, x in zip(static, values, strict=True)
      }
      # A function of its own: jit shares the programs of one function.
      return jax.jit(lambda traced: function(**traced, **fixed))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
      if _is_traced():
        return function(*args, **kwargs)
      given = signature.bind(*args, **kwargs)
      given.apply_defaults()
      values = [_Static(given.arguments.pop(name)) for name in static]
      return program(*values)(given.arguments)

    return cast(_Function, call)

  return decorate


def _is_traced() -> bool:
  """Returns whether what is computed here is part of a larger program."""
  return isinstance(jnp.zeros(()), jax.core.Tracer)
