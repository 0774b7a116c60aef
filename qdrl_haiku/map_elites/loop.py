"""A generation of MAP-Elites: ask, evaluate, add, tell.

Pure functions, to be compiled as one or scanned; on plain arrays as well as on
agents.
"""

from collections.abc import Callable
from typing import Any

import jax

from qdrl_haiku.draws import OfGeneration
from qdrl_haiku.map_elites.emitters import Emitter
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.tessellation import Tessellation
from qdrl_haiku.types import Array, Key

EvaluateFn = Callable[[Any, Key], tuple[Array, Array, dict[str, Any]]]
"""Says how good individuals are.

Args: genotypes, leaves [B, ...]; the key, consumed.
Returns: their fitness [B]; their descriptors [B, D]; and by name what emitters
need of the evaluation, leaves [B, ...].
"""


def begin(
  emitter: Emitter,
  tessellation: Tessellation,
  genotypes: Any,
  fitness: Array,
  descriptors: Array,
  key: Key,
  extra_scores: dict[str, Any] | None = None,
) -> tuple[Repertoire, Any]:
  """Makes a repertoire of first individuals, and the emitter's state.

  Args:
    emitter: where later ones come from.
    tessellation: of the descriptors' space.
    genotypes: leaves [B, ...], B >= 1.
    fitness: [B].
    descriptors: [B, D].
    key: consumed.
    extra_scores: what the emitter needs of the evaluation, leaves [B, ...];
      with `Emitter.tell_first` alone.

  Returns:
    The repertoire, and the emitter's state.
  """
  repertoire = Repertoire.init(
    jax.tree.map(lambda x: x[0], genotypes), tessellation
  ).add(genotypes, fitness, descriptors)
  state = emitter.init(ask_key(key), repertoire)
  if emitter.tell_first is not None:
    state = emitter.tell_first(
      state,
      repertoire,
      genotypes,
      fitness,
      descriptors,
      extra_scores or {},
      jax.random.fold_in(key, OfGeneration.TELL),
    )
  return repertoire, state


def generation(
  emitter: Emitter,
  evaluate: EvaluateFn,
  repertoire: Repertoire,
  state: Any,
  key: Key,
) -> tuple[Repertoire, Any]:
  """Asks an emitter for individuals, evaluates, adds and tells.

  Args:
    emitter: where individuals come from; several are one by `together`.
    evaluate: see `EvaluateFn`.
    repertoire: as it is.
    state: the emitter's.
    key: consumed.

  Returns:
    The repertoire and the emitter's state after it.
  """
  genotypes, state = emitter.ask(state, repertoire, ask_key(key))
  scores = evaluate(genotypes, evaluation_key(key))
  return add_and_tell(emitter, repertoire, state, genotypes, *scores, key)


def add_and_tell(
  emitter: Emitter,
  repertoire: Repertoire,
  state: Any,
  genotypes: Any,
  fitness: Array,
  descriptors: Array,
  extra_scores: dict[str, Any],
  key: Key,
) -> tuple[Repertoire, Any]:
  """Does what a generation does once individuals are evaluated.

  Args:
    emitter: that was asked for them.
    repertoire: before they are added.
    state: the emitter's, of `ask`.
    genotypes: leaves [B, ...].
    fitness: [B].
    descriptors: [B, D].
    extra_scores: what else the evaluation found out, leaves [B, ...].
    key: the generation's.

  Returns:
    The repertoire and the emitter's state after it.
  """
  repertoire = repertoire.add(genotypes, fitness, descriptors)
  state = emitter.tell(
    state,
    repertoire,
    genotypes,
    fitness,
    descriptors,
    extra_scores,
    jax.random.fold_in(key, OfGeneration.TELL),
  )
  return repertoire, state


def ask_key(key: Key) -> Key:
  """Returns the part of a generation's key that `ask` draws from."""
  return jax.random.fold_in(key, OfGeneration.ASK)


def evaluation_key(key: Key) -> Key:
  """Returns the part of a generation's key that evaluation draws from."""
  return jax.random.fold_in(key, OfGeneration.EVALUATE)
