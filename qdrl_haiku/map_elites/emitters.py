"""Emitters: where the individuals come from that are tried in a repertoire."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku.checks import check_count
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.variation import VariationFn
from qdrl_haiku.types import Array, Key, Tree

# What these take and return stands in `Emitter`.
InitFn = Callable[[Key, Repertoire], Any]
AskFn = Callable[[Any, Repertoire, Key], tuple[Any, Any]]
TellFn = Callable[[Any, Repertoire, "Evaluated", Key], Any]


class Evaluated(NamedTuple):
  """Individuals, and what their evaluation found.

  Attributes:
    genotypes: leaves [B, ...], of the repertoire's kind.
    fitness: [B].
    descriptors: [B, D].
    extra: by name what an emitter `needs` beside them, leaves [B, ...].
  """

  genotypes: Tree
  fitness: Array
  descriptors: Array
  extra: dict[str, Tree]


class Emitter(NamedTuple):
  """A way to make individuals, as pure functions.

  `map_elites.check` says whether one's own is as described here. Axes: B
  individuals, D descriptor. Keys are consumed; the state is any tree of arrays.

  Attributes:
    init: (key, repertoire) -> state, before the first generation; the
      repertoire may be empty.
    ask: (state, repertoire, key) -> (genotypes, state): new individuals, leaves
      [B, ...] of the repertoire's kind.
    tell: (state, repertoire, evaluated, key) -> state: learns how good the
      individuals of `ask` are, an `Evaluated` of B, after they were added to
      the repertoire.
    batch_size: B, how many individuals `ask` makes.
    needs: names of what `tell` is to find in `evaluated.extra`. Of agents there
      are "transitions" and "state_descriptors", see `training.EMITTER_NEEDS`;
      what nobody needs isn't recorded.
    metrics: (state) -> numbers by name, [], for the row of a generation.
    tell_first: as `tell`, of the first individuals of a repertoire, of which
      there may be another number than B; None where they are of no use.
  """

  init: InitFn
  ask: AskFn
  tell: TellFn
  batch_size: int
  needs: tuple[str, ...] = ()
  metrics: Callable[[Any], dict[str, Array]] = lambda state: {}
  tell_first: TellFn | None = None


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
    evaluated: Evaluated,
    key: Key,
  ) -> Any:
    del repertoire, evaluated, key
    return state

  return Emitter(init, ask, tell, batch_size)


def together(*emitters: Emitter) -> Emitter:
  """Makes one emitter of several that share a repertoire.

  Each is asked and told as if it were alone, and hears of its own individuals
  only.

  Args:
    *emitters: in the order of their individuals.

  Returns:
    The emitter; its state is a tuple of theirs, and what emitter i counts is
    called `<i>/<name>`.

  Raises:
    ValueError: if there is none.
  """
  if not emitters:
    raise ValueError("there is no emitter; give one or more.")
  ends = list(itertools.accumulate(x.batch_size for x in emitters))
  starts = [0, *ends[:-1]]

  def keys(key: Key) -> list[Key]:
    return [jax.random.fold_in(key, i) for i in range(len(emitters))]

  def init(key: Key, repertoire: Repertoire) -> Any:
    return tuple(
      emitter.init(key, repertoire)
      for emitter, key in zip(emitters, keys(key), strict=True)
    )

  def ask(state: Any, repertoire: Repertoire, key: Key) -> tuple[Any, Any]:
    genotypes, states = zip(
      *(
        emitter.ask(state, repertoire, key)
        for emitter, state, key in zip(emitters, state, keys(key), strict=True)
      ),
      strict=True,
    )
    return jax.tree.map(lambda *x: jnp.concatenate(x), *genotypes), states

  def tell(
    state: Any,
    repertoire: Repertoire,
    evaluated: Evaluated,
    key: Key,
  ) -> Any:
    states = []
    for i, (emitter, own_key) in enumerate(
      zip(emitters, keys(key), strict=True)
    ):
      own: Evaluated = jax.tree.map(
        lambda x, i=i: x[starts[i] : ends[i]], evaluated
      )
      states.append(emitter.tell(state[i], repertoire, own, own_key))
    return tuple(states)

  def metrics(state: Any) -> dict[str, Array]:
    return {
      f"{i}/{name}": value
      for i, emitter in enumerate(emitters)
      for name, value in emitter.metrics(state[i]).items()
    }

  tell_first = None
  if any(emitter.tell_first is not None for emitter in emitters):

    def tell_first(
      state: Any, repertoire: Repertoire, evaluated: Evaluated, key: Key
    ) -> Any:
      return tell_each_first(emitters, state, repertoire, evaluated, key)

  needs = sorted({name for emitter in emitters for name in emitter.needs})
  return Emitter(
    init, ask, tell, ends[-1], tuple(needs), metrics, tell_first
  )


def tell_each_first(
  emitters: Sequence[Emitter],
  states: Sequence[Any],
  repertoire: Repertoire,
  evaluated: Evaluated,
  key: Key,
) -> tuple[Any, ...]:
  """Tells several emitters of the first individuals, each of all of them."""
  functions: list[Any] = [emitter.tell_first for emitter in emitters]
  return tuple(
    state
    if tell_first is None
    else tell_first(
      state, repertoire, evaluated, jax.random.fold_in(key, i)
    )
    for i, (tell_first, state) in enumerate(
      zip(functions, states, strict=True)
    )
  )


def breed(
  key: Key,
  variation_fn: VariationFn,
  sample: Callable[[Key, int], Any],
  batch_size: int,
) -> Any:
  """Makes offspring of two sampled parents each."""
  first_key, second_key, variation_key = jax.random.split(key, 3)
  first = sample(first_key, batch_size)
  if not batch_size:
    return first
  return variation_fn(variation_key, first, sample(second_key, batch_size))
