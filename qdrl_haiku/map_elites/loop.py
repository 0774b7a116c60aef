"""A generation of MAP-Elites: ask, evaluate, add, tell.

Pure functions, to be compiled as one or scanned; on plain arrays as well as on
agents.
"""

from typing import Protocol

import jax

from qdrl_haiku.map_elites.emitters import Emitter, Evaluated, check_emitter_ask
from qdrl_haiku.map_elites.multi_emitter import MultiEmitterState
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.resampling import DeepArchive
from qdrl_haiku.map_elites.tessellation import Tessellation
from qdrl_haiku.prng import OfGeneration
from qdrl_haiku.types import Array, Key, Tree


class EvaluateFn(Protocol):
  """Says how good individuals are; any function of genotypes and a key."""

  def __call__(
    self, genotypes: Tree, key: Key, /
  ) -> tuple[Array, Array, dict[str, Tree]]:
    """Evaluates individuals.

    Args:
      genotypes: leaves [B, ...], of the repertoire's kind.
      key: consumed.

    Returns:
      Fitness [B], floats; descriptors [B, D], floats; and by name what an
      emitter `needs` of the evaluation, leaves [B, ...], {} for most.
    """


def init(
  emitter: Emitter, tessellation: Tessellation, evaluated: Evaluated, key: Key
) -> tuple[Repertoire, Tree]:
  """Makes a repertoire of first individuals, and the emitter's state.

  Args:
    emitter: where later ones come from.
    tessellation: of the descriptors' space.
    evaluated: the first individuals, leaves [B, ...], B >= 1; its `extra` is
      for `Emitter.tell_first` alone.
    key: consumed.
  """
  repertoire = Repertoire.init(
    jax.tree.map(lambda x: x[0], evaluated.genotypes), tessellation
  ).add(*evaluated[:3])
  state = emitter.init(jax.random.fold_in(key, OfGeneration.ASK), repertoire)
  if emitter.tell_first is not None:
    key = jax.random.fold_in(key, OfGeneration.TELL)
    state = emitter.tell_first(state, repertoire, evaluated, key)
  return repertoire, state


def step(
  emitter: Emitter, evaluate: EvaluateFn, repertoire: Repertoire, state: Tree,
  key: Key,
) -> tuple[Repertoire, Tree]:
  """Asks an emitter for individuals, evaluates, adds and tells.

  Args:
    emitter: where individuals come from; several are one by `multi_emitter`.
    evaluate: see `EvaluateFn`.
    repertoire: as it is.
    state: the emitter's.
    key: consumed.

  Returns:
    The repertoire and the emitter's state.

  Raises:
    ValueError: if the emitter returns something else than `Emitter` says.
  """
  asked = emitter.ask(
    state, repertoire, jax.random.fold_in(key, OfGeneration.ASK))
  genotypes, state = check_emitter_ask(emitter, repertoire, asked)
  evaluate_key = jax.random.fold_in(key, OfGeneration.EVALUATE)
  evaluated = Evaluated(genotypes, *evaluate(genotypes, evaluate_key))
  repertoire, _, state = add_and_tell(
    emitter, repertoire, (), state, evaluated, key)
  return repertoire, state


def add_and_tell(
  emitter: Emitter, repertoire: Repertoire, archive: DeepArchive | tuple[()],
  state: Tree, evaluated: Evaluated, key: Key,
) -> tuple[Repertoire, DeepArchive | tuple[()], Tree]:
  """Adds evaluated individuals and tells the emitter; takes a generation's key.

  With an archive the B new individuals are followed by the R that
  `DeepArchive.sample` drew, and the emitter is told of the new ones alone. The
  archive then tells `multi_emitter` which emitter found each elite, as an elite
  may have moved to another cell or come back.
  """
  is_multiple = isinstance(state, MultiEmitterState)
  if archive:
    labels = state.emitters if is_multiple else None
    size = emitter.batch_size
    again = evaluated.fitness[size:], evaluated.descriptors[size:]
    evaluated = jax.tree.map(lambda x: x[:size], evaluated)
    repertoire, archive = archive.add(repertoire, evaluated, again, labels)
  else:
    repertoire = repertoire.add(*evaluated[:3])
  tell_key = jax.random.fold_in(key, OfGeneration.TELL)
  state = emitter.tell(state, repertoire, evaluated, tell_key)
  if archive and is_multiple:
    state = state._replace(found_by=archive.elite_labels)
  return repertoire, archive, state
