"""Emitters: where the individuals come from that are tried in a repertoire.

A generation of MAP-Elites, whatever the emitter:

  genotypes, state = emitter.ask(state, repertoire, ask_key)
  fitness, descriptors, extra_scores = evaluate(genotypes, evaluation_key)
  repertoire = repertoire.add(genotypes, fitness, descriptors)
  state = emitter.tell(
    state, repertoire, genotypes, fitness, descriptors, extra_scores, tell_key
  )

All of it can be compiled as one function, or scanned.
"""

import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.variation import VariationFn
from qdrl_haiku.types import Array, Key

InitFn = Callable[[Key, Repertoire], Any]
"""An emitter's state before its first generation.

Args: the key, consumed; the repertoire, which may be empty.
Returns: the state.
"""

AskFn = Callable[[Any, Repertoire, Key], tuple[Any, Any]]
"""New individuals. Args: the state; the repertoire; the key, consumed.
Returns: genotypes, leaves [B, ...], and the new state."""

TellFn = Callable[
  [Any, Repertoire, Any, Array, Array, dict[str, Any], Key], Any
]
"""What became of them.

Args: the state; the repertoire, after they were added; the genotypes, leaves
[B, ...]; their fitness [B]; their descriptors [B, D]; whatever else the
evaluation found out, by name, leaves [B, ...]; the key, consumed.
Returns: the new state.
"""


class Emitter(NamedTuple):
  """A way to make individuals, as pure functions.

  Attributes:
    init: makes the state, see `InitFn`.
    ask: makes individuals, see `AskFn`.
    tell: hears how good they were, see `TellFn`.
    batch_size: B, how many individuals `ask` makes.
  """

  init: InitFn
  ask: AskFn
  tell: TellFn
  batch_size: int


def genetic_emitter(variation_fn: VariationFn, batch_size: int) -> Emitter:
  """Varies pairs of elites, each drawn uniformly from the occupied cells.

  Mouret and Clune (2015), "Illuminating search spaces by mapping elites",
  arXiv:1504.04909. While the repertoire is empty all parents are zeros, so add
  a first batch of individuals before the first `ask`.

  Args:
    variation_fn: makes offspring, see `VariationFn`; such as `iso_line` with
      its sigmas bound. Not called if the batch size is 0.
    batch_size: B, >= 0.

  Returns:
    The emitter; its state is ().

  Raises:
    ValueError: if the batch size is not a count.
  """
  check_count("batch_size", batch_size, 0)

  def init(key: Key, repertoire: Repertoire) -> Any:
    del key, repertoire
    return ()

  def ask(state: Any, repertoire: Repertoire, key: Key) -> tuple[Any, Any]:
    return breed(key, variation_fn, repertoire.sample, batch_size), state

  def tell(
    state: Any,
    repertoire: Repertoire,
    genotypes: Any,
    fitness: Array,
    descriptors: Array,
    extra_scores: dict[str, Any],
    key: Key,
  ) -> Any:
    del repertoire, genotypes, fitness, descriptors, extra_scores, key
    return state

  return Emitter(init, ask, tell, batch_size)


def breed(
  key: Key,
  variation_fn: VariationFn,
  sample: Callable[[Key, int], Any],
  batch_size: int,
) -> Any:
  """Makes offspring of two sampled parents each.

  Args:
    key: consumed.
    variation_fn: see `VariationFn`; not called if there is no offspring, which
      not every function would be prepared for.
    sample: (key, n) -> genotypes, leaves [n, ...].
    batch_size: B.

  Returns:
    Genotypes, leaves [B, ...].
  """
  first_key, second_key, variation_key = jax.random.split(key, 3)
  first = sample(first_key, batch_size)
  if not batch_size:
    return first
  return variation_fn(variation_key, first, sample(second_key, batch_size))


def check_count(name: str, value: Any, minimum: int, hint: str = "") -> None:
  """Refuses a setting that is not a count.

  Args:
    name: of the setting.
    value: of the setting.
    minimum: the least that it may be.
    hint: what to use instead, if there is more to say than the minimum.

  Raises:
    ValueError: if it is not an integer of at least the minimum.
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
