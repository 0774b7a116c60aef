"""Containers for several objectives: what none dominates stays.

`mome` keeps a Pareto front in each cell; `nsga2` and `spea2` are populations
without cells. The objectives, all of them maximised, are what
`Evaluated.extra["objectives"]` has, [B, M], beside the fitness; the fitness
ranks nothing here but what is shown.

Who stays never depends on the order of a batch: of individuals that count as
equal an incumbent stays, then the one with the greatest fitness, the least
descriptor, and the least hash of its genotype. A place that is left keeps its
genotype until another is written there.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from qdrl_haiku import trees
from qdrl_haiku.checks import check_count
from qdrl_haiku.map_elites import candidates
from qdrl_haiku.map_elites.containers import pareto
from qdrl_haiku.map_elites.containers.container import Container
from qdrl_haiku.map_elites.emitters.emitter import Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.tessellation import Tessellation, Unstructured
from qdrl_haiku.types import Array, Metrics, Tree

OBJECTIVES = "objectives"
"""The name of an elite's M objectives among what a repertoire keeps."""
StaysFn = Callable[[Array, Array, Array, int, int], Array]
"""Decides who stays: (objectives [N, M]; groups int32 [N]; present bool [N];
how many of them, the last ones, are new; how many of a group may stay) -> bool
[N]. Of individuals that are equal the first one is to stay."""


def mome(
  cells: Tessellation, front_size: int, reference: Sequence[float]
) -> Container:
  """Keeps the individuals of each cell that no other one there dominates.

  Pierrot et al. (2022), "Multi-objective quality diversity optimization",
  arXiv:2202.03057. Of a front that is too large those leave, one by one, whose
  neighbours are nearest to each other (`pareto.crowding_distances`), where the
  paper lets chance decide. Emitters draw a cell, then one of its front.

  Args:
    cells: C cells.
    front_size: F, the most individuals in a cell, >= 1. Individual i of cell c
      is in place c * F + i.
    reference: [M], from which hypervolumes are measured.
  """
  cells = cells.cells_for("container=mome")
  check_count("front_size", front_size, 1)
  places = Unstructured(
    cells.num_cells * front_size, cells.num_dimensions, cells)
  return _fronts("mome", places, cells.cell, front_size, _front, reference)


def nsga2(places: Tessellation, reference: Sequence[float]) -> Container:
  """Keeps a population: the first fronts, and the least crowded of the next.

  Deb et al. (2002), "A fast and elitist multiobjective genetic algorithm:
  NSGA-II". Emitters draw all equally often; in the paper, pairs compete.
  """
  return _population("nsga2", places, _ranked, reference)


def spea2(places: Tessellation, reference: Sequence[float]) -> Container:
  """Keeps a population: those that none dominates, spread, then the strongest.

  Zitzler et al. (2001), "SPEA2: improving the strength Pareto evolutionary
  algorithm", with distances in shares of the population's extent. Of too many
  that none dominates those leave whose k-th neighbours are nearest, all at
  once; in the paper, one by one by their nearest neighbours.
  """
  return _population("spea2", places, _strongest, reference)


def _population(
  name: str, places: Tessellation, stays: StaysFn, reference: Sequence[float]
) -> Container:
  """Makes a container whose individuals all compete."""
  places = places.places_for(f"container={name}")
  return _fronts(
    name, places, lambda descriptors: jnp.zeros(len(descriptors), jnp.int32),
    places.num_cells, stays, reference)


def _fronts(
  name: str, places: Unstructured, group: Callable[[Array], Array], size: int,
  stays: StaysFn, reference: Sequence[float],
) -> Container:
  """Makes a container of groups, each of `size` places in turn."""

  def init(genotype: Tree, extras: Mapping[str, Tree]) -> Repertoire:
    (num,) = extras[OBJECTIVES].shape
    if num != 2 or len(reference) != 2:
      raise ValueError(
        f"the container {name} measures hypervolumes of two objectives, and "
        f"there are {num}, and {len(reference)} numbers of the reference point "
        f"{','.join(f'{x:g}' for x in reference)}; give two of both.")
    return Repertoire.init(genotype, places, extras, name)

  def add(state: Repertoire, evaluated: Evaluated) -> Repertoire:
    if not evaluated.fitness.size:
      return state
    new = state.candidates(*evaluated)
    order = new.best_first()
    found, gone = _places(
      state, group(new.descriptors)[order], new.valid[order],
      new.extras[OBJECTIVES][order], size, stays)
    found = candidates.scatter_candidates(order, found)
    emptied = dataclasses.replace(
      state, fitness=jnp.where(gone, -jnp.inf, state.fitness),
      descriptors=jnp.where(gone[:, None], 0, state.descriptors))
    return emptied.put(lambda *_: found, *evaluated)

  def show(state: Repertoire) -> Repertoire:
    counts = jnp.sum(state.occupied.reshape(-1, size), axis=1)
    shares = 1 / jnp.maximum(counts, 1)
    return dataclasses.replace(state, weights=jnp.repeat(shares, size))

  return Container(
    places, init, add, show, name, keeps=(OBJECTIVES,),
    metrics=functools.partial(_metrics, reference),
    shared=trees.tree_prefix(
      Repertoire, False, genotypes=True, container=name))


def _metrics(reference: Sequence[float], state: Repertoire) -> Metrics:
  """Returns the hypervolumes of cells' fronts, summed, and of all elites'."""
  objectives, present = state.extras[OBJECTIVES], state.occupied
  everywhere = jnp.zeros(present.size, jnp.int32)
  grid = state.tessellation.places_for(state.container).grid
  cells, num_cells = everywhere, 1
  if grid is not None:
    cells, num_cells = grid.cell(state.descriptors), grid.num_cells
  areas = pareto.hypervolumes(objectives, cells, present, reference, num_cells)
  whole = pareto.hypervolumes(objectives, everywhere, present, reference, 1)
  return {"moqd_score": jnp.sum(areas), "global_hypervolume": whole[0]}


def _places(
  state: Repertoire, groups: Array, valid: Array, objectives: Array, size: int,
  stays: StaysFn,
) -> tuple[Array, Array]:
  """Returns where each of B is written, and which places are left, bool [C]."""
  num_places, num_new = state.fitness.size, groups.size
  num_groups = num_places // size
  groups = jnp.where(valid, groups, num_groups)
  # Only groups with new individuals are looked at. What is valid is in one of
  # these: the last one that doesn't fit is invalid.
  touched = jnp.unique(
    groups, size=min(num_new, num_groups), fill_value=num_groups)
  rows = touched[:, None] * size + jnp.arange(size)
  known = state.fitness.at[rows].get(mode="fill", fill_value=-jnp.inf)
  incumbents = state.extras[OBJECTIVES].at[rows.ravel()].get(
    mode="fill", fill_value=0)
  new_groups = jnp.searchsorted(touched, groups).astype(jnp.int32)
  of_rows = jnp.repeat(jnp.arange(len(touched), dtype=jnp.int32), size)
  kept = stays(
    jnp.concatenate([incumbents, objectives]),
    jnp.concatenate([of_rows, new_groups]),
    jnp.concatenate([known.ravel() > -jnp.inf, valid]), num_new, size)
  kept_known, kept_new = kept[:-num_new].reshape(rows.shape), kept[-num_new:]
  numbers = jnp.arange(num_new)
  before = kept_new[:, None] & (numbers[:, None] < numbers)
  turns = jnp.sum(before & (new_groups[:, None] == new_groups), axis=0)
  # The free places of a group in order, one after the other: 1, 2, ...
  free = jnp.where(kept_known, 0, jnp.cumsum(~kept_known, axis=1))
  chosen = jnp.argmax(
    free.at[new_groups].get(mode="clip") == turns[:, None] + 1, axis=1)
  found = rows.at[new_groups, chosen].get(mode="clip")
  gone = jnp.zeros((num_groups, size), bool).at[touched].set(
    (known > -jnp.inf) & ~kept_known, mode="drop")
  return jnp.where(kept_new, found, num_places + numbers), gone.ravel()


def _front(
  objectives: Array, groups: Array, present: Array, num_new: int, size: int
) -> Array:
  """Decides for what none in its group dominates, as a `StaysFn`."""
  numbers = jnp.arange(present.size)
  known, new = numbers[:-num_new], numbers[-num_new:]
  rows = known.reshape(-1, size)
  of_new = rows.at[groups[new]].get(mode="clip")
  everyone = jnp.concatenate(
    [of_new, jnp.broadcast_to(new, (num_new, num_new))], axis=1)
  x, y = objectives[new][:, None], objectives[everyone]
  rivals = present[new][:, None] & present[everyone] & (
    groups[new][:, None] == groups[everyone])
  is_first = everyone < new[:, None]
  wins = rivals & pareto.dominates(x, y)
  loses = rivals & (
    pareto.dominates(y, x) | (jnp.all(x == y, axis=-1) & is_first))
  # Those that are known don't dominate each other.
  beaten = jnp.zeros(rows.shape, bool).at[groups[new]].max(
    wins[:, :size], mode="drop")
  lost = jnp.concatenate([beaten.ravel(), jnp.any(loses, axis=1)])

  def too_many(stay: Array) -> Array:
    counts = jax.ops.segment_sum(stay.astype(jnp.int32), groups, present.size)
    return (counts > size)[groups] & stay

  def without_nearest(stay: Array) -> Array:
    among = too_many(stay)
    distances = pareto.crowding_distances(objectives, groups, among)
    distances = jnp.where(among, distances, jnp.inf)
    least = jax.ops.segment_min(distances, groups, present.size)[groups]
    last = jax.ops.segment_max(
      jnp.where(among & (distances == least), numbers, -1), groups,
      present.size)
    return stay & (numbers != last[groups])

  return jax.lax.while_loop(
    lambda stay: jnp.any(too_many(stay)), without_nearest, present & ~lost)


def _ranked(
  objectives: Array, groups: Array, present: Array, num_new: int, size: int
) -> Array:
  """Decides by fronts, then by crowding, as a `StaysFn` of one group."""
  ranks = pareto.front_ranks(objectives, present)
  distances = pareto.crowding_distances(objectives, ranks, present)
  return _are_first(size, present, ranks, -distances)


def _are_first(size: int, present: Array, *keys: Array) -> Array:
  """Returns which are among the first when they are sorted, bool [N]."""
  order = candidates.order_of_candidates(~present, *keys)
  return present & jnp.zeros_like(present).at[order[:size]].set(True)


def _strongest(
  objectives: Array, groups: Array, present: Array, num_new: int, size: int
) -> Array:
  """Decides by strength and density, as a `StaysFn` of one group."""
  both = present[:, None] & present
  better = pareto.dominates(objectives[:, None], objectives) & both
  # How many those dominate by which one is dominated.
  raw = jnp.sum(better * jnp.sum(better, axis=1)[:, None], axis=0)
  squares = jnp.zeros(both.shape)
  for x in jnp.unstack(objectives, axis=1):
    low = jnp.min(x, where=present, initial=jnp.inf)
    width = jnp.max(x, where=present, initial=-jnp.inf) - low
    # Multiplied, since XLA compiles a division differently on one device.
    shares = (x - low) * jnp.where(width > 0, 1 / width, 0)
    squares += (shares[:, None] - shares) ** 2
  others = both & ~jnp.eye(present.size, dtype=bool)
  k = round(math.sqrt(present.size))
  nearest = jax.lax.top_k(-jnp.where(others, squares, jnp.inf), k)[0]
  density = 1 / (jnp.sqrt(-nearest[:, -1]) + 2)
  return _are_first(size, present, raw + density)
