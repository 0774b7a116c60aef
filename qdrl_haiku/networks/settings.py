"""What settings of networks are called, and checks of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from qdrl_haiku import names
from qdrl_haiku.checks import check_count

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "elu": jax.nn.elu,
  "gelu": jax.nn.gelu,
  "leaky_relu": jax.nn.leaky_relu,
  "relu": jax.nn.relu,
  "swish": jax.nn.swish,
  "tanh": jnp.tanh,
}
"""Those of hidden layers, by name."""
NUM_CRITICS = 2
"""How many critics an agent has: twins."""
_T = TypeVar("_T")


def named(setting: str, name: str, known: Mapping[str, _T]) -> _T:
  """Returns what has that name, or says which names there are.

  Args:
    setting: what is set by the name.
    name: given for it.
    known: what there is, by name.

  Returns:
    What is meant.

  Raises:
    ValueError: if there is nothing of that name.
  """
  if name in known:
    return known[name]
  raise ValueError(
    f"{setting}={name!r} is unknown; {names.nearest(str(name), known)}"
  )


def check_sizes(name: str, sizes: Any) -> None:
  """Refuses what is no sequence of layers' widths.

  Args:
    name: of the setting.
    sizes: its value.

  Raises:
    ValueError: if it isn't a sequence of positive integers.
  """
  if not isinstance(sizes, Sequence) or isinstance(sizes, str):
    raise ValueError(
      f"{name} is {sizes!r}: use a sequence of integers such as (256, 256)"
    )
  for i, size in enumerate(sizes):
    check_count(f"{name}[{i}]", size, 1)
