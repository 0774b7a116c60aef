"""Several emitters by name that share a repertoire, and which found what.

With shares that adapt it is a bandit over emitters: Cully (2021),
"Multi-emitter MAP-Elites", arXiv:2007.05352.
"""

import collections
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import trees
from qdrl_haiku.map_elites.emitters.emitter import Emitter, Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Array, Key, Metrics, Tree

FOUND_BY = "emitter"
"""Name of the extra that says which emitter made an elite, counted from 1."""
_TURN = "turn"  # In which it was made; those of 0 are the first individuals.
# Decay of counts from one generation to the next: ten of them matter.
_MEMORY = 0.9
# B of them share exactly if (2 B - 1) B fits into an int32.
_MAX_SHARED = 2**15


class MultiEmitterState(NamedTuple):
  """Holds the states of K emitters."""

  states: tuple[Tree, ...]
  turn: Array  # How many times `ask` was called, int32 [].
  emitters: Array  # Emitter of each individual of the last `ask`, int32 [B].
  rows: Array  # The individual's row in that emitter's own batch, int32 [B].
  evaluated: Array  # Decayed counts of evaluated individuals, float32 [K].
  improved: Array  # Likewise, of cells filled or improved, float32 [K].
  num_elites: Array  # That each has found, int32 [K].


def multi_emitter(
  emitters: Mapping[str, Emitter], batch_size: int | None = None,
  exploration: float = 0.1,
) -> Emitter:
  """Makes one emitter of several, and says which found which elite.

  Without `batch_size` all of their individuals are evaluated, and each emitter
  is told of its own. With it only B are, chosen one by one from the emitter
  with the greatest m / e + c sqrt(ln N / n): e counts its individuals that were
  evaluated lately, m the cells that these filled or improved, n is e plus those
  already chosen, and N the sum of all n. Those chosen are spread evenly over an
  emitter's batch; it sees its others with fitness NaN and episodes of length 0.

  Args:
    emitters: by name, in the order of their individuals.
    batch_size: B, in [1, 32768], as each emitter makes; None for all.
    exploration: c, >= 0; without a batch size it has no effect.

  Returns:
    The emitter. Its metrics are each emitter's own, its `share` and its
    `num_elites`, named `<name>/<metric>`; its extras are those of each, zeros
    of the others' individuals.
  """
  if batch_size is not None and batch_size > _MAX_SHARED:
    raise ValueError(
      f"{batch_size} individuals are too many for shares that adapt; make at "
      f"most {_MAX_SHARED} in a generation, or give each emitter a number.")
  parts = tuple(emitters.values())
  sizes = [part.batch_size for part in parts]
  size = sum(sizes) if batch_size is None else batch_size

  def of_each(
    function: Callable[[int, Emitter, Key], Tree], key: Key
  ) -> tuple[Tree, ...]:
    return tuple(
      function(i, part, jax.random.fold_in(key, i))
      for i, part in enumerate(parts))

  def init(key: Key, repertoire: Repertoire) -> MultiEmitterState:
    return MultiEmitterState(
      states=of_each(lambda i, part, key: part.init(key, repertoire), key),
      turn=jnp.zeros((), jnp.int32), emitters=jnp.zeros(size, jnp.int32),
      rows=jnp.zeros(size, jnp.int32),
      evaluated=jnp.zeros(len(parts), jnp.float32),
      improved=jnp.zeros(len(parts), jnp.float32),
      num_elites=jnp.zeros(len(parts), jnp.int32))

  def ask(
    state: MultiEmitterState, repertoire: Repertoire, key: Key
  ) -> tuple[Tree, MultiEmitterState]:
    asked = of_each(
      lambda i, part, key: part.ask(state.states[i], repertoire, key), key)
    genotypes, states = zip(*asked, strict=True)
    individuals = jax.tree.map(lambda *x: jnp.concatenate(x), *genotypes)
    counts = jnp.array(sizes, jnp.int32)
    if batch_size is not None:
      counts = multi_emitter_shares(
        state.evaluated, state.improved, size, exploration)
    # The emitter of each individual, and its row among its own.
    ends, numbers = jnp.cumsum(counts), jnp.arange(size)
    chosen = jnp.searchsorted(ends, numbers, side="right").astype(jnp.int32)
    rows = numbers - (ends - counts)[chosen]
    if batch_size is not None:
      # The middles of equal parts, so that all kinds of individuals take part.
      rows = (2 * rows + 1) * size // (2 * counts[chosen])
      places = chosen * size + rows
      individuals = jax.tree.map(lambda x: x[places], individuals)
    return individuals, state._replace(
      states=states, turn=state.turn + 1, emitters=chosen,
      rows=rows.astype(jnp.int32))

  def tell(
    state: MultiEmitterState, repertoire: Repertoire, evaluated: Evaluated,
    key: Key,
  ) -> MultiEmitterState:
    def tell_one(i: int, part: Emitter, key: Key) -> Tree:
      names = {*part.needs, "lengths"} if part.needs else ()
      extra = {name: x for name, x in evaluated.extra.items() if name in names}
      own = evaluated._replace(extra=extra)
      if batch_size is None:
        start = sum(sizes[:i])
        own = jax.tree.map(lambda x: x[start : start + sizes[i]], own)
      else:
        own = _pick_own(state, i, own)
      return part.tell(state.states[i], repertoire, own, key)

    numbers = jnp.arange(len(parts))[:, None]
    made_by = repertoire.extras[FOUND_BY] == 1 + numbers
    made_by &= repertoire.occupied
    is_new = repertoire.extras[_TURN] == state.turn
    return state._replace(
      states=of_each(tell_one, key),
      evaluated=_MEMORY * state.evaluated
      + jnp.sum(state.emitters == numbers, axis=1),
      improved=_MEMORY * state.improved + jnp.sum(made_by & is_new, axis=1),
      num_elites=jnp.sum(made_by, axis=1, dtype=jnp.int32))

  def tell_first(
    state: MultiEmitterState, repertoire: Repertoire, evaluated: Evaluated,
    key: Key,
  ) -> MultiEmitterState:
    return state._replace(states=of_each(
      lambda i, part, key: part.tell_first(
        state.states[i], repertoire, evaluated, key), key))

  def metrics(state: MultiEmitterState) -> Metrics:
    numbers: Metrics = {}
    for i, (name, part) in enumerate(emitters.items()):
      own = part.metrics(state.states[i]) | {
        "share": jnp.mean(state.emitters == i),
        "num_elites": state.num_elites[i]}
      numbers |= {f"{name}/{key}": x for key, x in own.items()}
    return numbers

  def extras(state: MultiEmitterState) -> dict[str, Tree]:
    kept: dict[str, Tree] = {
      FOUND_BY: 1 + state.emitters, _TURN: jnp.full(size, state.turn)}
    for i, (name, part) in enumerate(emitters.items()):
      own = part.extras(state.states[i])
      if both := ", ".join(own.keys() & kept.keys()):
        raise ValueError(
          f"the emitter {name} has extras that are others' too: {both}; rename "
          "them.")
      of_each = jax.tree.map(lambda x: x[state.rows], own)
      kept |= trees.choose_rows(
        state.emitters == i, of_each, jax.tree.map(jnp.zeros_like, of_each))
    return kept

  return Emitter(
    init, ask, tell, size,
    needs=tuple(sorted({name for part in parts for name in part.needs})),
    metrics=metrics, tell_first=tell_first,
    shared=trees.tree_prefix(
      MultiEmitterState, False, states=tuple(part.shared for part in parts)),
    extras=extras, keep=lambda evaluated: dict(collections.ChainMap(
      *(part.keep(evaluated) for part in parts))))


def multi_emitter_shares(
  evaluated: Array, improved: Array, batch_size: int, exploration: float
) -> Array:
  """Decides how many individuals of each of n emitters are evaluated.

  Args:
    evaluated: [n], how many were, in effect, so far.
    improved: [n], how many of them improved the repertoire.
    batch_size: B, to be divided.
    exploration: the weight of the bonus for what was rarely tried, >= 0.

  Returns:
    int32 [n], whose sum is B.
  """
  mean = improved / jnp.maximum(evaluated, 1)

  def choose(counts: Array, _: None) -> tuple[Array, None]:
    n = evaluated + counts
    log_sum = jnp.log(jnp.maximum(jnp.sum(n), 1))
    bonus = exploration * jnp.sqrt(log_sum / jnp.maximum(n, 1e-6))
    bound = jnp.where(n > 0, mean + bonus, math.inf)
    return counts.at[jnp.argmax(bound)].add(1), None

  counts = jnp.zeros(evaluated.shape, jnp.int32)
  return jax.lax.scan(choose, counts, None, batch_size)[0]


def _pick_own(
  state: MultiEmitterState, i: int, evaluated: Evaluated
) -> Evaluated:
  """Returns the evaluations in the order of emitter i's own batch."""
  size = state.rows.shape[0]
  is_own = state.emitters == i
  places = (
    jnp.full(size, -1, jnp.int32)
    .at[jnp.where(is_own, state.rows, size)]
    .set(jnp.arange(size, dtype=jnp.int32), mode="drop"))
  known, places = places >= 0, jnp.maximum(places, 0)
  own: Evaluated = jax.tree.map(lambda x: x[places], evaluated)
  if "lengths" in own.extra:
    lengths = jnp.where(known[:, None], own.extra["lengths"], 0)
    own = own._replace(extra=own.extra | {"lengths": lengths})
  missing = jnp.full_like(own.fitness, jnp.nan)
  return own._replace(fitness=trees.choose_rows(known, own.fitness, missing))
