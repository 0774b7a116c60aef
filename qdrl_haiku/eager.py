"""Compiles functions once that are called in a Python loop."""

import functools
import inspect
import numbers
from collections.abc import Callable
from types import MethodType
from typing import TypeVar, cast

import jax
import jax.numpy as jnp

from qdrl_haiku.types import Tree

# Programs that are kept of one function.
_MOST = 16
_Function = TypeVar("_Function", bound=Callable[..., Tree])


class _Static:
  """An argument that isn't traced: equal to itself, or to the same value."""

  def __init__(self, value: object) -> None:
    self.value = value  # Held, so that no other object gets its id.
    by_value = isinstance(value, (numbers.Number, str, MethodType))
    self._key = (type(value), value if by_value else id(value))

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Static) and self._key == other._key

  def __hash__(self) -> int:
    return hash(self._key)


def compiled_if_eager(*static: str) -> Callable[[_Function], _Function]:
  """Makes a function that is compiled when it's called outside of `jax.jit`.

  Within a trace, such as that of `jax.jit`, the function runs as written.
  Elsewhere it's compiled once for each combination of array shapes and static
  arguments, which `static` names; the last 16 programs are kept. Numbers are
  compared by value, everything else (an environment, a learner, a function) by
  identity: so later changes of a static object aren't seen; make a new one.
  """

  def decorate(function: _Function) -> _Function:
    signature = inspect.signature(function)

    @functools.lru_cache(_MOST)
    def program(*values: _Static) -> Callable[..., Tree]:
      fixed = {name: x.value for name, x in zip(static, values, strict=True)}
      # A new lambda: `jax.jit` shares one cache among uses of one function.
      return jax.jit(lambda traced: function(**traced, **fixed))

    @functools.wraps(function)
    def call(*args: Tree, **kwargs: Tree) -> Tree:
      if isinstance(jnp.zeros(()), jax.core.Tracer):  # Of a larger program.
        return function(*args, **kwargs)
      given = signature.bind(*args, **kwargs)
      given.apply_defaults()
      values = [_Static(given.arguments.pop(name)) for name in static]
      return program(*values)(given.arguments)

    return cast(_Function, call)

  return decorate
