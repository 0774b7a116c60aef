"""Adding to a repertoire where evaluations are noisy: Extract-ME.

Flageat et al. (2025), "Extract-QD framework: a generic approach for
quality-diversity in noisy, stochastic or uncertain domains", arXiv:2502.06585.

Each cell keeps its `depth` fittest individuals, each with the means of all its
evaluations. In each generation some of them are evaluated again, more often the
fitter ones of a cell, and ranked by their new means. The repertoire has the
fittest of each cell.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import trees
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.map_elites.emitters import Evaluated
from qdrl_haiku.map_elites.repertoire import (
  Repertoire,
  canonical_in_repertoire,
  hash_for_repertoire,
)
from qdrl_haiku.map_elites.tessellation import MAX_CELLS, Tessellation
from qdrl_haiku.prng import OfGeneration
from qdrl_haiku.types import Array, Key, Tree


@dataclasses.dataclass(frozen=True)
class Resampling(Settings):
  """Says how often individuals are evaluated again (--adding=adaptive)."""

  title = "Repertoire"

  share: float = setting(
    0.25,
    "Share of a generation's evaluations that evaluate stored agents again, "
    "with --adding=adaptive. They are in addition to those of new agents.",
    above=0, high=0.999999, flag="resampling_share", offered=False,
    needs="resampling")
  # With a depth of 1 an elite that a lucky newcomer displaces is lost, and a
  # cell is empty once its elite has moved.
  depth: int = setting(
    4,
    "Agents kept for each cell, with --adding=adaptive: the elite, and those "
    "next in line.",
    low=1, flag="resampling_depth", offered=False, needs="resampling")

  def num_drawn(self, batch_size: int) -> int:
    """Returns R >= 1, so that R / (B + R) is about the share of B new ones."""
    return max(1, round(batch_size * self.share / (1 - self.share)))


class DeepArchive(NamedTuple):
  """Holds all individuals that cells keep, in S = C * depth unordered places.

  As in Deep-Grid, Flageat and Cully (2020), "Fast and stable MAP-Elites in
  noisy domains using deep grids".
  """

  genotypes: Tree  # Leaves [S, ...].
  fitness: Array  # float32 [S], the mean of all evaluations; -inf where free.
  descriptors: Array  # float32 [S, D], likewise; 0 where a place is free.
  num_evaluations: Array  # int32 [S], 0 where a place is free.
  ranks: Array  # int32 [S], how many of its cell are fitter; S where free.
  labels: Array  # int32 [S], the emitter that made each; -1 if unknown.
  elites: Array  # int32 [C], the place of each cell's first; S where empty.
  drawn: Array  # int32 [R], the places that are evaluated again; S for none.

  @classmethod
  def init(
    cls, resampling: Resampling, batch_size: int, tessellation: Tessellation,
    evaluated: Evaluated,
  ) -> "DeepArchive":
    """Makes the archive of first individuals.

    Args:
      resampling: how often individuals are evaluated again.
      batch_size: B, new individuals in later generations.
      tessellation: of C cells.
      evaluated: the first individuals, leaves [N, ...], N >= 1.
    """
    if tessellation.num_cells * resampling.depth > MAX_CELLS:
      raise ValueError(
        f"{tessellation.num_cells} cells of {resampling.depth} individuals are "
        f"too many; make at most {MAX_CELLS // resampling.depth} cells.")
    genotype = jax.tree.map(lambda x: x[0], evaluated.genotypes)
    empty = Repertoire.init(genotype, tessellation)
    num_cells, num_dimensions = empty.descriptors.shape
    size = num_cells * resampling.depth
    num_drawn = resampling.num_drawn(batch_size)
    archive = cls(
      genotypes=jax.tree.map(
        lambda x: jnp.zeros((size, *x.shape[1:]), x.dtype), empty.genotypes),
      fitness=jnp.full(size, -jnp.inf, jnp.float32),
      descriptors=jnp.zeros((size, num_dimensions), jnp.float32),
      num_evaluations=jnp.zeros(size, jnp.int32),
      ranks=jnp.full(size, size, jnp.int32),
      labels=jnp.full(size, -1, jnp.int32),
      elites=jnp.full(num_cells, size, jnp.int32),
      drawn=jnp.full(num_drawn, size, jnp.int32))
    nothing = (
      jnp.zeros(num_drawn, jnp.float32),
      jnp.zeros((num_drawn, num_dimensions), jnp.float32))
    return archive.add(empty, evaluated, nothing)[1]

  @property
  def elite_labels(self) -> Array:
    """Labels of the cells' elites, int32 [C]; -1 where a cell is empty."""
    return _take(self.labels, self.elites, -1)

  @property
  def evaluations_per_elite(self) -> Array:
    """Mean number of evaluations of the elites, []; NaN if there are none."""
    counts = _take(self.num_evaluations, self.elites, 0)
    num_elites = jnp.sum(self.elites < self.fitness.shape[0])
    return jnp.where(num_elites > 0, jnp.sum(counts) / num_elites, jnp.nan)

  def sample(self, key: Key) -> tuple[Tree, "DeepArchive"]:
    """Draws individuals that are evaluated again.

    They are drawn without replacement, with probabilities in proportion to
    exp(-rank), by the Gumbel top-k trick.

    Returns their genotypes, leaves [R, ...], arbitrary beyond the number of
    individuals in the archive; and the archive, with `drawn`.
    """
    size, num_drawn = self.fitness.shape[0], self.drawn.shape[0]
    key = jax.random.fold_in(key, OfGeneration.RESAMPLE)
    noise = jax.random.gumbel(key, (size,))
    scores = jnp.where(self.num_evaluations > 0, noise - self.ranks, -jnp.inf)
    best, places = jax.lax.top_k(scores, min(num_drawn, size))
    places = jnp.where(best > -jnp.inf, places, size).astype(jnp.int32)
    places = jnp.full(num_drawn, size, jnp.int32).at[: places.size].set(places)
    genotypes = jax.tree.map(
      lambda x: x.at[places].get(mode="clip"), self.genotypes)
    return genotypes, self._replace(drawn=places)

  def add(
    self, repertoire: Repertoire, evaluated: Evaluated,
    reevaluated: tuple[Array, Array], labels: Array | None = None,
  ) -> tuple[Repertoire, "DeepArchive"]:
    """Updates means, and keeps the fittest of each cell, new or old.

    As with `Repertoire.add` the order of a batch doesn't matter, an incumbent
    wins a tie, and what isn't finite drops out, also when evaluated again.

    Args:
      repertoire: of the first of each cell.
      evaluated: new individuals, leaves [B, ...].
      reevaluated: fitness [R] and descriptors [R, D] of those that were drawn.
      labels: what to remember of each new one, int32 [B]; -1 by default.
    """
    assert repertoire.has_cells, "Individuals are compared within cells."
    known = self._with_evaluations(*reevaluated)
    genotypes, fitness, descriptors = jax.tree.map(
      jnp.asarray, tuple(evaluated[:3]))
    num_places, num_cells = known.fitness.shape[0], known.elites.shape[0]
    size, depth = fitness.shape[0], num_places // num_cells
    fitness = canonical_in_repertoire(fitness)
    descriptors = canonical_in_repertoire(descriptors)
    finite = trees.all_finite_leaves((genotypes, fitness, descriptors))
    # All together, those that are known first.
    all_fitness = jnp.concatenate([known.fitness, fitness])
    places_of_all = jnp.concatenate([known.descriptors, descriptors])
    valid = jnp.concatenate([known.num_evaluations > 0, finite])
    cells = repertoire.cells_of(places_of_all)
    valid &= jnp.isfinite(all_fitness) & (cells < num_cells)
    cells = jnp.where(valid, cells, num_cells)
    numbers = jnp.arange(num_places + size, dtype=jnp.int32)
    keys = (
      cells,
      -all_fitness,
      numbers >= num_places,
      *jnp.unstack(places_of_all, axis=1),
      *(
        jnp.pad(x, (num_places, 0))
        for x in hash_for_repertoire(jax.tree.leaves(genotypes))),
      numbers)
    sorted_cells, *_, order = jax.lax.sort(keys, num_keys=len(keys))
    is_first = jnp.diff(sorted_cells, prepend=-1) != 0
    in_turn = numbers - jax.lax.cummax(jnp.where(is_first, numbers, 0))
    ranks = jnp.zeros_like(numbers).at[order].set(in_turn, unique_indices=True)
    kept = valid & (ranks < depth)
    # Newcomers take the free places in sorted order, not in the batch's.
    old, new = slice(num_places), slice(num_places, None)
    turns = jnp.cumsum(kept[order] & (order >= num_places)) - 1
    turns = jnp.zeros_like(turns).at[order].set(turns, unique_indices=True)[new]
    free = jnp.argsort(kept[old], stable=True)
    places = jnp.where(
      kept[new], free.at[turns].get(mode="clip"), num_places + numbers[:size])

    def write(stored: Array, values: Array) -> Array:
      return stored.at[places].set(values, mode="drop", unique_indices=True)

    def rewrite(values: Array, empty: float) -> Array:
      return write(jnp.where(kept[old], values[old], empty), values[new])

    if labels is None:
      labels = jnp.full(size, -1, jnp.int32)
    new_ranks = rewrite(ranks, num_places)
    firsts = jnp.where(new_ranks == 0, rewrite(cells, num_cells), num_cells)
    elites = jnp.full(num_cells, num_places, jnp.int32)
    elites = elites.at[firsts].set(numbers[old], mode="drop")
    ones = jnp.ones(size, jnp.int32)
    archive = DeepArchive(
      genotypes=jax.tree.map(write, known.genotypes, genotypes),
      fitness=rewrite(all_fitness, -jnp.inf),
      descriptors=write(
        jnp.where(kept[old, None], known.descriptors, 0), descriptors),
      num_evaluations=rewrite(
        jnp.concatenate([known.num_evaluations, ones]), 0),
      ranks=new_ranks,
      labels=rewrite(jnp.concatenate([known.labels, labels]), -1),
      elites=elites, drawn=jnp.full_like(known.drawn, num_places))
    outside = valid & repertoire.tessellation.outside(places_of_all)
    return dataclasses.replace(
      repertoire,
      genotypes=jax.tree.map(lambda x: _take(x, elites, 0), archive.genotypes),
      fitness=_take(archive.fitness, elites, -jnp.inf),
      descriptors=_take(archive.descriptors, elites, 0),
      num_outside=repertoire.count_outside(outside[new])), archive

  def _with_evaluations(
    self, fitness: Array, descriptors: Array
  ) -> "DeepArchive":
    """Moves the means of those that were drawn towards what was seen now."""
    counts = _take(self.num_evaluations, self.drawn, 0) + 1

    def moved(means: Array, seen: Array) -> Array:
      mean = _take(means, self.drawn, 0)
      weights = counts.reshape(-1, *[1] * (seen.ndim - 1))
      mean = canonical_in_repertoire(mean + (seen - mean) / weights)
      return means.at[self.drawn].set(mean, mode="drop")

    return self._replace(
      fitness=moved(self.fitness, fitness),
      descriptors=moved(self.descriptors, descriptors),
      num_evaluations=self.num_evaluations.at[self.drawn].set(
        counts, mode="drop"))


def _take(values: Array, places: Array, empty: float) -> Array:
  """Returns the values in some places, and another beyond the last."""
  return values.at[places].get(mode="fill", fill_value=empty)
