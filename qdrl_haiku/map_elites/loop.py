"""A generation of MAP-Elites: ask, evaluate, add, tell.

Pure functions, to be compiled as one or scanned; on plain arrays as well as on
agents.
"""

from collections.abc import Callable
from typing import Any

import jax

from qdrl_haiku.map_elites.emitters import Emitter, Evaluated, check_emitter_ask
from qdrl_haiku.map_elites.multi_emitter import MultiEmitterState
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.resampling import DeepArchive
from qdrl_haiku.map_elites.tessellation import Tessellation
from qdrl_haiku.prng import OfGeneration
from qdrl_haiku.types import Array, Key, Tree

EvaluateFn = Callable[[Tree, Key], tuple[Array, Array, dict[str, Tree]]]
"""Says how good individuals are.

Args: genotypes, leaves [B, ...]; the key, consumed.
Returns: their fitness [B]; their descriptors [B, D]; and by name what emitters
need of the evaluation, leaves [B, ...].
"""


def init(
  emitter: Emitter,
  tessellation: Tessellation,
  evaluated: Evaluated,
  key: Key,
) -> tuple[Repertoire, Tree]:
  """Makes a repertoire of first individuals, and the emitter's state.

  Args:
    emitter: where later ones come from.
    tessellation: of the descriptors' space.
    evaluated: the first individuals, leaves [B, ...], B >= 1; its `extra` is
      for `Emitter.tell_first` alone.
    key: consumed.

  Returns:
    The repertoire, and the emitter's state.
  """
  repertoire = Repertoire.init(
    jax.tree.map(lambda x: x[0], evaluated.genotypes), tessellation
  ).add(*evaluated[:3])
  state = emitter.init(loop_ask_key(key), repertoire)
  if emitter.tell_first is not None:
    state = emitter.tell_first(state, repertoire, evaluated, _tell_key(key))
  return repertoire, state


def step(
  emitter: Emitter,
  evaluate: EvaluateFn,
  repertoire: Repertoire,
  state: Tree,
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
    ValueError: if the emitter or the scoring function returns something else
      than `Emitter` and `EvaluateFn` say.
  """
  genotypes, state = check_emitter_ask(
    emitter, repertoire, emitter.ask(state, repertoire, loop_ask_key(key))
  )
  scores = _check_scores(evaluate(genotypes, loop_evaluation_key(key)))
  evaluated = Evaluated(genotypes, *scores)
  repertoire, _, state = add_and_tell(
    emitter, repertoire, (), state, evaluated, key
  )
  return repertoire, state


def add_and_tell(
  emitter: Emitter,
  repertoire: Repertoire,
  archive: DeepArchive | tuple[()],
  state: Tree,
  evaluated: Evaluated,
  key: Key,
) -> tuple[Repertoire, DeepArchive | tuple[()], Tree]:
  """Ends a generation whose individuals are evaluated.

  With an archive the emitter is told of its new individuals alone;
  `multi_emitter` then remembers which emitter found an elite that moved or came
  back, and counts as improvements what is fitter than the elite was.

  Args:
    emitter: that was asked for them.
    repertoire: before they are added.
    archive: of `DeepArchive.sample`; () where each is evaluated once.
    state: the emitter's, of `ask`.
    evaluated: the B individuals; with an archive, then the R that were drawn.
    key: the generation's.

  Returns:
    The repertoire, the archive, and the emitter's state.
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
  state = emitter.tell(state, repertoire, evaluated, _tell_key(key))
  if archive and is_multiple:
    state = state._replace(found_by=archive.elite_labels)
  return repertoire, archive, state


def loop_ask_key(key: Key) -> Key:
  """Returns the part of a generation's key that `ask` draws from."""
  return jax.random.fold_in(key, OfGeneration.ASK)


def loop_evaluation_key(key: Key) -> Key:
  """Returns the part of a generation's key that evaluation draws from."""
  return jax.random.fold_in(key, OfGeneration.EVALUATE)


def _tell_key(key: Key) -> Key:
  """Returns the part of a generation's key that `tell` draws from."""
  return jax.random.fold_in(key, OfGeneration.TELL)


def _check_scores(scores: Any) -> tuple[Array, Array, dict[str, Tree]]:
  """Refuses what a scoring function must not return."""
  values = tuple(scores) if isinstance(scores, (tuple, list)) else (scores,)
  if len(values) != 3 or not isinstance(values[2], dict):
    raise ValueError(
      "the scoring function doesn't return three values: fitness [B], "
      "descriptors [B, D], and a dict of what emitters need, {} for nothing."
    )
  return values
