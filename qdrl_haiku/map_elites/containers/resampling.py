"""A container for evaluations that are noisy: Extract-ME.

Flageat et al. (2025), "Extract-QD framework: a generic approach for
quality-diversity in noisy, stochastic or uncertain domains", arXiv:2502.06585.

Each cell keeps its `depth` fittest individuals, each with the means of all its
evaluations. In each generation some of them are evaluated again, more often the
fitter ones of a cell, and ranked by their new means. What is shown is the
fittest of each cell.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku.config import Settings, setting
from qdrl_haiku.map_elites import candidates
from qdrl_haiku.map_elites.containers.container import Again, Container
from qdrl_haiku.map_elites.emitters.emitter import Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.tessellation import MAX_CELLS, Tessellation
from qdrl_haiku.types import Array, Key, Metrics, Tree


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


_NAME = "deep_archive"
_NUM = "num_evaluations"


class DeepArchive(NamedTuple):
  """Holds all individuals that cells keep, in S = C * depth unordered places.

  As in Deep-Grid, Flageat and Cully (2020), "Fast and stable MAP-Elites in
  noisy domains using deep grids".
  """

  genotypes: Tree  # Leaves [S, ...].
  fitness: Array  # float32 [S], the mean of all evaluations; -inf where free.
  descriptors: Array  # float32 [S, D], means too; 0 where free.
  # By name, leaves [S, ...]; among them `num_evaluations`, int32, 0 where free.
  extras: dict[str, Tree]
  ranks: Array  # int32 [S], how many of its cell are fitter; S where free.
  elites: Array  # int32 [C], the place of each cell's first; S where empty.
  drawn: Array  # int32 [R], the places that are evaluated again; S for none.
  num_outside: Array  # int32 [], of descriptors when they were added.
  tessellation: Tessellation

  @property
  def num_evaluations(self) -> Array:
    """Counts how often each was evaluated, int32 [S]."""
    count: Array = self.extras[_NUM]
    return count


def deep_archive(
  tessellation: Tessellation, resampling: Resampling, batch_size: int
) -> Container:
  """Keeps the best of each cell by their means; asks for evaluations again.

  As with `Repertoire.add` the order of a batch doesn't matter, an incumbent
  wins a tie, and what isn't finite drops out, also when evaluated again.

  Args:
    tessellation: of C cells.
    resampling: how often individuals are evaluated again.
    batch_size: B, new individuals in each generation.
  """
  tessellation = tessellation.cells_for("adding=adaptive")
  if tessellation.num_cells * resampling.depth > MAX_CELLS:
    raise ValueError(
      f"{tessellation.num_cells} cells of {resampling.depth} individuals are "
      f"too many; make at most {MAX_CELLS // resampling.depth} cells.")
  num_drawn = resampling.num_drawn(batch_size)

  def init(genotype: Tree, extras: Mapping[str, Tree]) -> DeepArchive:
    num_cells, depth = tessellation.num_cells, resampling.depth
    if _NUM in extras:
      raise ValueError(f"the emitter's extra {_NUM} is taken; rename it.")
    kept = {**extras, _NUM: jax.ShapeDtypeStruct((), jnp.int32)}
    one = Repertoire.init(genotype, tessellation, kept)
    size = num_cells * depth
    genotypes, kept, descriptors = jax.tree.map(
      lambda x: jnp.zeros((size, *x.shape[1:]), x.dtype),
      (one.genotypes, one.extras, one.descriptors))
    return DeepArchive(
      genotypes=genotypes, fitness=jnp.full(size, -jnp.inf, jnp.float32),
      descriptors=descriptors, extras=kept,
      ranks=jnp.full(size, size, jnp.int32),
      elites=jnp.full(num_cells, size, jnp.int32),
      drawn=jnp.full(num_drawn, size, jnp.int32), num_outside=one.num_outside,
      tessellation=one.tessellation)

  return Container(
    tessellation, init, _add, _show, _NAME,
    again=Again(num_drawn, _draw, _tell), metrics=_metrics)


@jax.jit
def _show(archive: DeepArchive) -> Repertoire:
  genotypes, extras = jax.tree.map(
    lambda x: _take(x, archive.elites, 0), (archive.genotypes, archive.extras))
  return Repertoire(
    genotypes, _take(archive.fitness, archive.elites, -jnp.inf),
    _take(archive.descriptors, archive.elites, 0), archive.num_outside,
    archive.tessellation, extras, container=_NAME)


def _metrics(archive: DeepArchive) -> Metrics:
  """Returns the mean number of evaluations of the elites; NaN of none."""
  counts = _take(archive.num_evaluations, archive.elites, 0)
  num_elites = jnp.sum(archive.elites < archive.fitness.shape[0])
  mean = jnp.where(num_elites > 0, jnp.sum(counts) / num_elites, jnp.nan)
  return {"evaluations_per_elite": mean}


def _draw(archive: DeepArchive, key: Key) -> tuple[Tree, DeepArchive]:
  """Draws without replacement, in proportion to exp(-rank): Gumbel top-k."""
  size, num_drawn = archive.fitness.shape[0], archive.drawn.shape[0]
  noise = jax.random.gumbel(key, (size,))
  is_there = archive.num_evaluations > 0
  scores = jnp.where(is_there, noise - archive.ranks, -jnp.inf)
  best, places = jax.lax.top_k(scores, min(num_drawn, size))
  places = jnp.where(best > -jnp.inf, places, size).astype(jnp.int32)
  places = jnp.full(num_drawn, size, jnp.int32).at[: places.size].set(places)
  genotypes = jax.tree.map(
    lambda x: x.at[places].get(mode="clip"), archive.genotypes)
  return genotypes, archive._replace(drawn=places)


def _tell(
  archive: DeepArchive, fitness: Array, descriptors: Array
) -> DeepArchive:
  """Moves the means of drawn elites towards what was seen of them now."""
  counts = _take(archive.num_evaluations, archive.drawn, 0) + 1

  def moved(means: Array, seen: Array) -> Array:
    mean = _take(means, archive.drawn, 0)
    weights = counts.reshape(-1, *[1] * (seen.ndim - 1))
    mean += (seen - mean) / weights
    mean = candidates.canonical_in_repertoire(mean)
    return means.at[archive.drawn].set(mean, mode="drop")

  times = archive.num_evaluations.at[archive.drawn].set(counts, mode="drop")
  return archive._replace(
    fitness=moved(archive.fitness, fitness),
    descriptors=moved(archive.descriptors, descriptors),
    extras=archive.extras | {_NUM: times},
    drawn=jnp.full_like(archive.drawn, archive.fitness.shape[0]))


def _add(archive: DeepArchive, evaluated: Evaluated) -> DeepArchive:
  """Keeps the fittest of each cell, new or old."""
  once = jnp.ones(evaluated.fitness.shape[:1], jnp.int32)
  new = _show(archive).candidates(
    *evaluated._replace(extra={_NUM: once} | evaluated.extra))
  num_places, num_cells = archive.fitness.shape[0], archive.elites.shape[0]
  # All together, those that are known first.
  old, added = slice(num_places), slice(num_places, None)
  fitness = jnp.concatenate([archive.fitness, new.fitness])
  cells, order = _order_in_cells(archive, new, fitness)
  # How many of its cell come before each individual.
  in_order = jnp.arange(order.size, dtype=jnp.int32)
  is_first = jnp.diff(cells[order], prepend=-1) != 0
  ranks = candidates.scatter_candidates(
    order, in_order - jax.lax.cummax(jnp.where(is_first, in_order, 0)))
  kept = (cells < num_cells) & (ranks < num_places // num_cells)
  places = _places(kept, order, num_places)

  def write(stored: Array, values: Array) -> Array:
    return stored.at[places].set(values, mode="drop", unique_indices=True)

  def rewrite(values: Array, empty: float) -> Array:
    return write(jnp.where(kept[old], values[old], empty), values[added])

  new_ranks = rewrite(ranks, num_places)
  firsts = jnp.where(new_ranks == 0, rewrite(cells, num_cells), num_cells)
  numbers = jnp.arange(num_places, dtype=jnp.int32)
  elites = jnp.full(num_cells, num_places, jnp.int32)
  times = jnp.concatenate([archive.num_evaluations, new.extras[_NUM]])
  outside = archive.tessellation.outside(new.descriptors)
  return archive._replace(
    genotypes=jax.tree.map(write, archive.genotypes, new.genotypes),
    fitness=rewrite(fitness, -jnp.inf),
    descriptors=write(
      jnp.where(kept[old, None], archive.descriptors, 0), new.descriptors),
    extras=jax.tree.map(write, archive.extras, new.extras)
    | {_NUM: rewrite(times, 0)},
    ranks=new_ranks, elites=elites.at[firsts].set(numbers, mode="drop"),
    num_outside=candidates.count_outside(
      archive.num_outside, new.valid & outside))


def _order_in_cells(
  archive: DeepArchive, new: candidates.Candidates, fitness: Array
) -> tuple[Array, Array]:
  """Returns all cells, C for what isn't kept; and an order by cell and rank."""
  num_places, num_cells = archive.fitness.shape[0], archive.elites.shape[0]
  points = jnp.concatenate([archive.descriptors, new.descriptors])
  valid = jnp.concatenate([archive.num_evaluations > 0, new.valid])
  cells = archive.tessellation.cells_for("adding=adaptive").cell(points)
  cells = jnp.where(valid & jnp.isfinite(fitness), cells, num_cells)
  is_new = jnp.arange(fitness.size) >= num_places
  hashes = (jnp.pad(x, (num_places, 0)) for x in new.hashes)
  return cells, candidates.order_of_candidates(
    cells, -fitness, is_new, *jnp.unstack(points, axis=1), *hashes)


def _places(kept: Array, order: Array, num_places: int) -> Array:
  """Returns where new individuals go: to free places, in sorted order."""
  num_new = order.size - num_places
  turns = candidates.scatter_candidates(
    order, jnp.cumsum(kept[order] & (order >= num_places)) - 1)
  free = jnp.argsort(kept[:num_places], stable=True)
  return jnp.where(
    kept[num_places:], free.at[turns[num_places:]].get(mode="clip"),
    num_places + jnp.arange(num_new, dtype=jnp.int32))


def _take(values: Array, places: Array, empty: float) -> Array:
  """Returns the values in some places, and another beyond the last."""
  return values.at[places].get(mode="fill", fill_value=empty)
