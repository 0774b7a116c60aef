"""A generation of MAP-Elites: ask, evaluate, add, tell.

Pure functions, to be compiled as one or scanned; on plain arrays as well as on
agents.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku.map_elites import resampling
from qdrl_haiku.map_elites.check import check_asked, check_scores
from qdrl_haiku.map_elites.emitters import Emitter
from qdrl_haiku.map_elites.multi_emitter import MultiEmitterState
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.resampling import Contenders
from qdrl_haiku.map_elites.tessellation import Tessellation
from qdrl_haiku.prng import OfGeneration
from qdrl_haiku.types import Array, Key

EvaluateFn = Callable[[Any, Key], tuple[Array, Array, dict[str, Any]]]
"""Says how good individuals are.

Args: genotypes, leaves [B, ...]; the key, consumed.
Returns: their fitness [B]; their descriptors [B, D]; and by name what emitters
need of the evaluation, leaves [B, ...].
"""


def init(
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


def step(
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

  Raises:
    ValueError: if the emitter or the scoring function returns something else
      than `Emitter` and `EvaluateFn` say.
  """
  genotypes, state = check_asked(
    emitter, repertoire, emitter.ask(state, repertoire, ask_key(key))
  )
  scores = check_scores(evaluate(genotypes, evaluation_key(key)))
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


def resampled_generation(
  emitter: Emitter,
  evaluate: EvaluateFn,
  repertoire: Repertoire,
  contenders: Contenders,
  state: Any,
  key: Key,
) -> tuple[Repertoire, Contenders, Any]:
  """Does what `generation` does where evaluations are noisy.

  Args:
    emitter: where new individuals come from, B of them.
    evaluate: see `EvaluateFn`; called with those and R that were drawn.
    repertoire: as it is.
    contenders: of `first_contenders`, then as they are.
    state: the emitter's.
    key: consumed.

  Returns:
    The repertoire, the contenders, and the emitter's state after it.

  Raises:
    ValueError: as `generation` does.
  """
  genotypes, state = check_asked(
    emitter, repertoire, emitter.ask(state, repertoire, ask_key(key))
  )
  drawn, contenders = resampling.sample_contenders(contenders, key)
  everybody = jax.tree.map(lambda *x: jnp.concatenate(x), genotypes, drawn)
  scores = check_scores(evaluate(everybody, evaluation_key(key)))
  size = emitter.batch_size
  again = scores[0][size:], scores[1][size:]
  fitness, descriptors, extra_scores = jax.tree.map(lambda x: x[:size], scores)
  return contest_and_tell(
    emitter,
    repertoire,
    contenders,
    again,
    state,
    genotypes,
    fitness,
    descriptors,
    extra_scores,
    key,
  )


def contest_and_tell(
  emitter: Emitter,
  repertoire: Repertoire,
  contenders: Contenders,
  again: tuple[Array, Array],
  state: Any,
  genotypes: Any,
  fitness: Array,
  descriptors: Array,
  extra_scores: dict[str, Any],
  key: Key,
) -> tuple[Repertoire, Contenders, Any]:
  """Does what `add_and_tell` does, with means of several evaluations.

  The emitter hears of its new individuals alone. `multi_emitter` finds out
  which emitter found an elite, also of one that moved or came back; it counts
  as improvements those of its new individuals that are fitter than the elite
  was.

  Args:
    emitter: that was asked for new individuals.
    repertoire: before they are added.
    contenders: of `resampling.sample`.
    again: fitness [R] and descriptors [R, D] of those that were drawn.
    state: the emitter's, of `ask`.
    genotypes: of new individuals, leaves [B, ...].
    fitness: theirs, [B].
    descriptors: [B, D].
    extra_scores: what else their evaluation found out, leaves [B, ...].
    key: the generation's.

  Returns:
    The repertoire, the contenders, and the emitter's state after it.
  """
  is_multiple = isinstance(state, MultiEmitterState)
  labels = state.emitters if is_multiple else None
  repertoire, contenders = resampling.update_contenders(
    repertoire, contenders, again, genotypes, fitness, descriptors, labels
  )
  state = emitter.tell(
    state,
    repertoire,
    genotypes,
    fitness,
    descriptors,
    extra_scores,
    jax.random.fold_in(key, OfGeneration.TELL),
  )
  if is_multiple:
    state = state._replace(found_by=contenders.elite_labels)
  return repertoire, contenders, state


def ask_key(key: Key) -> Key:
  """Returns the part of a generation's key that `ask` draws from."""
  return jax.random.fold_in(key, OfGeneration.ASK)


def evaluation_key(key: Key) -> Key:
  """Returns the part of a generation's key that evaluation draws from."""
  return jax.random.fold_in(key, OfGeneration.EVALUATE)
