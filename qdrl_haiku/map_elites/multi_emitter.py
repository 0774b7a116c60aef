"""Several emitters by name that share a repertoire, and who found what.

With shares that adapt it is a bandit over emitters: Cully (2021),
"Multi-emitter MAP-Elites", arXiv:2007.05352.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku.checks import check_count
from qdrl_haiku.map_elites.emitters import (
  Emitter,
  Evaluated,
  tell_each_first,
)
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Array, Key

# Of what was improved, from one generation to the next; so that a share is
# about what happened in the last ten.
_MEMORY = 0.9


class MultiEmitterState(NamedTuple):
  """Holds the states of K emitters.

  Attributes:
    states: theirs.
    found_by: int32 [C], which emitter found the elite of each cell; -1 where
      none is, or where it's one of the first.
    fitness: float32 [C], the repertoire's when `ask` was called.
    descriptors: float32 [C, D], likewise.
    emitters: int32 [B], whose the individuals of the last `ask` are.
    rows: int32 [B], which of that emitter's.
    evaluated: float32 [K], how many of each were, lately.
    improved: float32 [K], how many cells each filled or improved, lately.
  """

  states: tuple[Any, ...]
  found_by: Array
  fitness: Array
  descriptors: Array
  emitters: Array
  rows: Array
  evaluated: Array
  improved: Array


def multi_emitter(
  emitters: Mapping[str, Emitter],
  batch_size: int | None = None,
  exploration: float = 0.1,
) -> Emitter:
  """Makes one emitter of several, and remembers who found which elite.

  Without `batch_size` all of their individuals are evaluated, one emitter's
  after the other's, and each emitter is told of its own.

  With it B of all are evaluated, spread evenly over what each emitter makes.
  How many of whom is decided one after the other: the next is of the emitter
  with the greatest m / n + c sqrt(ln N / n), where n are its individuals that
  were evaluated, m the cells that they filled or improved, both lately
  and n including those just decided on, and N the sum of all n. An emitter is
  told of all its individuals, of which those that were not evaluated have
  fitness NaN and episodes of length 0.

  Args:
    emitters: by name, in the order of their individuals.
    batch_size: B, >= 1, of which each emitter makes as many; None for all.
    exploration: c, >= 0; without a batch size it has no effect.

  Returns:
    The emitter; its state is a `MultiEmitterState`. What an emitter counts is
    called `<its name>/<name>`, beside `<its name>/share` of the individuals and
    `<its name>/num_elites` in the repertoire.

  Raises:
    ValueError: if there is no emitter, or if one makes more or fewer than B.
  """
  if not emitters:
    raise ValueError("there is no emitter; give one or more.")
  names, parts = tuple(emitters), tuple(emitters.values())
  num_parts = len(parts)
  ends = list(itertools.accumulate(x.batch_size for x in parts))
  starts = [0, *ends[:-1]]
  if batch_size is not None:
    check_count("batch_size", batch_size, 1)
    for name, part in emitters.items():
      if part.batch_size != batch_size:
        raise ValueError(
          f"emitter {name} makes {part.batch_size} individuals, of which "
          f"{batch_size} may be evaluated; let it make {batch_size}."
        )
  size = ends[-1] if batch_size is None else batch_size

  def keys(key: Key) -> list[Key]:
    return [jax.random.fold_in(key, i) for i in range(num_parts)]

  def init(key: Key, repertoire: Repertoire) -> MultiEmitterState:
    num_cells = repertoire.fitness.shape[0]
    return MultiEmitterState(
      states=tuple(
        part.init(key, repertoire)
        for part, key in zip(parts, keys(key), strict=True)
      ),
      found_by=jnp.full(num_cells, -1, jnp.int32),
      fitness=jnp.copy(repertoire.fitness),
      descriptors=jnp.copy(repertoire.descriptors),
      emitters=jnp.zeros(size, jnp.int32),
      rows=jnp.zeros(size, jnp.int32),
      evaluated=jnp.zeros(num_parts),
      improved=jnp.zeros(num_parts),
    )

  def ask(
    state: MultiEmitterState, repertoire: Repertoire, key: Key
  ) -> tuple[Any, MultiEmitterState]:
    genotypes, states = zip(
      *(
        part.ask(own, repertoire, key)
        for part, own, key in zip(parts, state.states, keys(key), strict=True)
      ),
      strict=True,
    )
    individuals = jax.tree.map(lambda *x: jnp.concatenate(x), *genotypes)
    counts = jnp.array([part.batch_size for part in parts], jnp.int32)
    if batch_size is not None:
      counts = shares(state.evaluated, state.improved, size, exploration)
    numbers = jnp.arange(size)
    chosen = jnp.searchsorted(jnp.cumsum(counts), numbers, side="right")
    chosen = chosen.astype(jnp.int32)
    rows = numbers - (jnp.cumsum(counts) - counts)[chosen]
    if batch_size is not None:
      # The middles of equal parts, so that all kinds of individuals take part.
      rows = (2 * rows + 1) * size // (2 * counts[chosen])
      individuals = jax.tree.map(
        lambda x: x[chosen * size + rows], individuals
      )
    return individuals, state._replace(
      states=states,
      fitness=jnp.copy(repertoire.fitness),
      descriptors=jnp.copy(repertoire.descriptors),
      emitters=chosen,
      rows=rows.astype(jnp.int32),
    )

  def tell(
    state: MultiEmitterState,
    repertoire: Repertoire,
    evaluated: Evaluated,
    key: Key,
  ) -> MultiEmitterState:
    states = []
    for i, (part, own_key) in enumerate(zip(parts, keys(key), strict=True)):
      needed = {
        name: x
        for name, x in evaluated.extra.items()
        if name in part.needs or (part.needs and name == "lengths")
      }
      own = evaluated._replace(extra=needed)
      if batch_size is None:
        own = jax.tree.map(lambda x, i=i: x[starts[i] : ends[i]], own)
      else:
        own = _own(state, i, own)
      states.append(part.tell(state.states[i], repertoire, own, own_key))
    num_cells = repertoire.fitness.shape[0]
    # Some were there before: a cell of the same elite as then.
    cells = repertoire.find(evaluated.fitness, evaluated.descriptors)
    is_same = (repertoire.fitness == state.fitness) & jnp.all(
      repertoire.descriptors == state.descriptors, axis=1
    )
    is_elite = ~is_same.at[cells].get(mode="fill", fill_value=True)
    # Of equal ones the last, so that the order of writing doesn't matter.
    found_by = (
      jnp.full(num_cells, -1, jnp.int32)
      .at[jnp.where(is_elite, cells, num_cells)]
      .max(state.emitters, mode="drop")
    )
    numbers = jnp.arange(num_parts)[:, None]
    return state._replace(
      states=tuple(states),
      found_by=jnp.where(found_by >= 0, found_by, state.found_by),
      evaluated=_MEMORY * state.evaluated
      + jnp.sum(state.emitters == numbers, axis=1),
      improved=_MEMORY * state.improved + jnp.sum(found_by == numbers, axis=1),
    )

  def tell_first(
    state: MultiEmitterState,
    repertoire: Repertoire,
    evaluated: Evaluated,
    key: Key,
  ) -> MultiEmitterState:
    return state._replace(
      states=tell_each_first(
        parts, state.states, repertoire, evaluated, key
      )
    )

  def metrics(state: MultiEmitterState) -> dict[str, Array]:
    numbers: dict[str, Array] = {}
    for i, (name, part) in enumerate(zip(names, parts, strict=True)):
      own = part.metrics(state.states[i])
      own = own | {
        "share": jnp.mean(state.emitters == i),
        "num_elites": jnp.sum(state.found_by == i),
      }
      numbers |= {f"{name}/{key}": x for key, x in own.items()}
    return numbers

  needs = sorted({name for part in parts for name in part.needs})
  hears = any(part.tell_first is not None for part in parts)
  return Emitter(
    init=init,
    ask=ask,
    tell=tell,
    batch_size=size,
    needs=tuple(needs),
    metrics=metrics,
    tell_first=tell_first if hears else None,
  )


def shares(
  evaluated: Array, improved: Array, batch_size: int, exploration: float
) -> Array:
  """Decides how many individuals of each emitter are evaluated."""
  mean = improved / jnp.maximum(evaluated, 1)

  def choose(counts: Array, _: None) -> tuple[Array, None]:
    n = evaluated + counts
    log_sum = jnp.log(jnp.maximum(jnp.sum(n), 1))
    bonus = exploration * jnp.sqrt(log_sum / jnp.maximum(n, 1e-6))
    bound = jnp.where(n > 0, mean + bonus, math.inf)
    return counts.at[jnp.argmax(bound)].add(1), None

  counts = jnp.zeros(evaluated.shape, jnp.int32)
  return jax.lax.scan(choose, counts, None, batch_size)[0]


def _own(
  state: MultiEmitterState, i: int, evaluated: Evaluated
) -> Evaluated:
  """Arranges what was found out as emitter i made its individuals."""
  size = state.rows.shape[0]
  is_own = state.emitters == i
  places = (
    jnp.full(size, -1, jnp.int32)
    .at[jnp.where(is_own, state.rows, size)]
    .set(jnp.arange(size, dtype=jnp.int32), mode="drop")
  )
  known = places >= 0
  own: Evaluated = jax.tree.map(
    lambda x: x[jnp.maximum(places, 0)], evaluated
  )
  if "lengths" in own.extra:
    lengths = jnp.where(known[:, None], own.extra["lengths"], 0)
    own = own._replace(extra=own.extra | {"lengths": lengths})
  return own._replace(fitness=jnp.where(known, own.fitness, jnp.nan))
