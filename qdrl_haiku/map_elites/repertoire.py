"""The repertoire: the best individual found in each cell of descriptor space.

Mouret and Clune (2015), "Illuminating search spaces by mapping elites",
arXiv:1504.04909.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import trees
from qdrl_haiku.map_elites import candidates, storage
from qdrl_haiku.map_elites.candidates import Candidates
from qdrl_haiku.map_elites.tessellation import Tessellation, Unstructured
from qdrl_haiku.types import Array, Key, Record, Tree

PlacesFn = Callable[["Repertoire", Candidates], Array]
"""Decides where the B individuals of a batch are written: int32 [B], no two
alike; C or more for those that aren't kept."""
CELLS = "cells"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Repertoire:
  """Holds the fittest of each of C cells, or what another `Container` shows.

  A pytree.
  """

  genotypes: Tree  # A tree of arrays [C, ...]; zeros where a cell is empty.
  fitness: Array  # float32 [C], -inf where a cell is empty.
  descriptors: Array  # float32 [C, D]; zeros where a cell is empty.
  # int32 [], how many descriptors were outside the bounds so far and counted
  # into the cell at the border; 2^31 - 1 where there were more.
  num_outside: Array
  tessellation: Tessellation  # Which cell a descriptor belongs to, if any.
  # What else is kept of each elite, by name, leaves [C, ...].
  extras: dict[str, Tree] = dataclasses.field(default_factory=dict)
  # float32 [C], how often each elite is drawn, in proportion; None for all
  # equally often.
  weights: Array | None = None
  # The name of the container that shows it.
  container: str = dataclasses.field(default="", metadata={"static": True})

  def __init_subclass__(cls) -> None:
    """Says what became of subclasses, which were containers once."""
    raise ValueError(
      f"{cls.__name__} can't be a subclass of Repertoire; make its "
      "`places` a function for map_elites.one_per_place, or make a Container.")

  @classmethod
  def init(
    cls, genotype: Tree, tessellation: Tessellation,
    extras: Mapping[str, Tree] | None = None, container: str = CELLS,
  ) -> "Repertoire":
    """Makes an empty repertoire.

    Args:
      genotype: an example of one genotype, or its shapes and dtypes: any tree
        of booleans, integers and floats.
      tessellation: of C cells; copied, so that the repertoire can be donated.
      extras: by name, examples of what is kept beside each elite.
      container: the name of the container that shows it.
    """
    num_cells = tessellation.num_cells
    genotypes, kept = jax.tree.map(
      lambda x: jnp.zeros((num_cells, *x.shape), x.dtype),
      jax.eval_shape(lambda x: x, (genotype, dict(extras or {}))))
    return cls(
      genotypes=genotypes, fitness=jnp.full(num_cells, -jnp.inf, jnp.float32),
      descriptors=jnp.zeros(
        (num_cells, tessellation.num_dimensions), jnp.float32),
      num_outside=jnp.zeros((), jnp.int32),
      tessellation=jax.tree.map(jnp.copy, tessellation), extras=kept,
      container=container)

  @property
  def occupied(self) -> Array:
    """Mask of the cells that hold an individual, bool [C]."""
    return self.fitness > -jnp.inf

  @property
  def has_cells(self) -> bool:
    """Whether a descriptor alone says which cell an individual belongs to."""
    return not isinstance(self.tessellation, Unstructured)

  @property
  def bounds(self) -> tuple[np.ndarray, np.ndarray]:
    """The descriptors' bounds, or the elites' extent, [D]; outside of jit."""
    cells = self.tessellation
    grid = cells.grid if isinstance(cells, Unstructured) else cells
    if grid is not None:
      return np.array(grid.lower), np.array(grid.upper)
    elites = np.asarray(self.descriptors, np.float64)
    return storage.stored_repertoire_extent(elites[np.asarray(self.occupied)])

  @property
  def centroids(self) -> Array:
    """The middles of the cells, [C, D]; without cells, the descriptors."""
    cells = self.tessellation
    return (
      self.descriptors if isinstance(cells, Unstructured) else cells.centroids)

  def in_cells(self) -> "Repertoire":
    """Returns the repertoire in the cells by which scores are measured."""
    cells = self.tessellation
    if not isinstance(cells, Unstructured) or cells.grid is None:
      return self
    places = jnp.arange(self.fitness.shape[0])
    return Repertoire.init(places[0], cells.grid).add(
      places, self.fitness, self.descriptors)

  def shapes(self, n: int) -> Tree:
    """Returns the shapes and dtypes of n genotypes, leaves [n, ...]."""
    return trees.row_shapes(self.genotypes, n)

  def add(
    self, genotypes: Tree, fitness: Array, descriptors: Array,
    extras: Mapping[str, Tree] | None = None,
  ) -> "Repertoire":
    """Puts each individual in its cell where it is fitter than what is there.

    The result depends on what is in the batch, not on its order: of equally fit
    individuals in one cell the incumbent wins, then the one with the
    lexicographically least descriptor, then the one with the least hash of its
    genotype. The work is in proportion to B, if the repertoire is donated.

    Args:
      genotypes: a tree of arrays [B, ...], of the dtypes of the repertoire's.
      fitness: [B], floats, kept in float32.
      descriptors: [B, D], floats, kept in float32.
      extras: by name, leaves [B, ...], what the repertoire keeps beside them.

    Raises:
      ValueError: if a shape, a dtype or the tree differs from the repertoire's,
        or if another container shows it.
    """
    if self.container != CELLS or not self.has_cells:
      raise ValueError(
        "the repertoire shows what the container "
        f"{self.container or 'that made it'} holds; add to that one, by its "
        "own `add`.")
    return self.put(best_of_cells, genotypes, fitness, descriptors, extras)

  def put(
    self, places: PlacesFn, genotypes: Tree, fitness: Array, descriptors: Array,
    extras: Mapping[str, Tree] | None = None,
  ) -> "Repertoire":
    """Writes individuals where a function says, as a container may.

    An individual with a NaN or an infinity anywhere is ignored. Zeros of
    fitness and descriptors lose their sign. But for `places`, the `PlacesFn`,
    args and errors are those of `Repertoire.add`.
    """
    if not jnp.size(fitness):
      return self
    new = self.candidates(genotypes, fitness, descriptors, extras)
    size, num_cells = new.fitness.size, self.fitness.shape[0]
    found = jnp.where(
      new.valid, places(self, new), num_cells + jnp.arange(size))

    def write(stored: Array, values: Array) -> Array:
      return stored.at[found].set(values, mode="drop", unique_indices=True)

    outside = new.valid & self.tessellation.outside(new.descriptors)
    return dataclasses.replace(
      self, genotypes=jax.tree.map(write, self.genotypes, new.genotypes),
      fitness=write(self.fitness, new.fitness),
      descriptors=write(self.descriptors, new.descriptors),
      num_outside=candidates.count_outside(self.num_outside, outside),
      extras=jax.tree.map(write, self.extras, new.extras))

  def candidates(
    self, genotypes: Tree, fitness: Array, descriptors: Array,
    extras: Mapping[str, Tree] | None = None,
  ) -> Candidates:
    """Returns a batch as it's stored; args are those of `Repertoire.add`."""
    genotypes, fitness, descriptors = jax.tree.map(
      jnp.asarray, (genotypes, fitness, descriptors))
    fitness, descriptors = map(
      candidates.canonical_in_repertoire, (fitness, descriptors))
    num_dimensions = self.descriptors.shape[1]
    # Fitness of another rank is what is told, rather than what it's beside.
    size = (*(fitness if fitness.ndim == 1 else descriptors).shape, 0)[0]
    numbers = jax.ShapeDtypeStruct((size,), jnp.float32)
    points = jax.ShapeDtypeStruct((size, num_dimensions), jnp.float32)
    like = trees.row_shapes(self.extras, size)
    names = ("genotypes", "fitness", "descriptors", "extras")
    found = genotypes, fitness, descriptors, dict(extras or {})
    if difference := trees.tree_difference(
      dict(zip(names, found, strict=True)),
      dict(zip(names, (self.shapes(size), numbers, points, like), strict=True)),
    ):
      raise ValueError(
        f"{difference}; give genotypes [B, ...] like the repertoire's, which is"
        " made of an example without the axis B, fitness [B] and descriptors"
        f" [B, {num_dimensions}].")
    return Candidates(
      *found, trees.all_finite_leaves(found),
      candidates.hash_for_repertoire(jax.tree.leaves(genotypes)))

  def sample_cells(self, key: Key, n: int) -> Array:
    """Draws n occupied cells by their weights, with replacement.

    Returns int32 [n]; all 0 if every cell is empty.
    """
    counts = jnp.cumsum(self.occupied, dtype=jnp.int32)
    if self.weights is None:
      ranks = jax.random.randint(key, (n,), 0, jnp.maximum(counts[-1], 1))
    else:
      sums = jnp.cumsum(jnp.where(self.occupied, self.weights, 0))
      drawn = jnp.searchsorted(
        sums, sums[-1] * jax.random.uniform(key, (n,)), side="right")
      ranks = counts.at[drawn].get(mode="clip") - 1
    cells = jnp.searchsorted(counts, ranks, side="right").astype(jnp.int32)
    return jnp.where(counts[-1] > 0, cells, 0)

  def sample(self, key: Key, n: int) -> Tree:
    """Draws n genotypes of occupied cells by their weights, with replacement.

    Args:
      key: consumed; `sample_cells` with the same key tells their cells.
      n: how many, >= 0; a Python integer.

    Returns:
      A tree of arrays [n, ...]; zeros if every cell is empty.
    """
    cells = self.sample_cells(key, n)
    return jax.tree.map(
      lambda x: x.at[cells].get(mode="promise_in_bounds"), self.genotypes)

  def save(
    self, path: str | os.PathLike[str], config: Record | None = None
  ) -> None:
    """Writes the repertoire to one file, whole or not at all.

    Args:
      path: of the file, `<name>.npz`; see `storage` for what is in it.
      config: plain values to be kept with it;
        `storage.read_stored_repertoire_config` returns them.
    """
    fields = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
    storage.store_repertoire(fields, path, config)

  @classmethod
  def load(
    cls, path: str | os.PathLike[str], like: Tree = None,
    container: str | None = None,
  ) -> "Repertoire":
    """Reads a repertoire that `save` wrote, with the name of its container.

    Args:
      path: of the file.
      like: an example of one genotype, or its shapes and dtypes. Without it
        named tuples that aren't this package's become dicts.
      container: the name of the only container whose repertoire will do; None
        for any.

    Raises:
      ValueError: if the file is damaged, no repertoire, not like `like`, or of
        another container.
    """
    return cls(**storage.load_stored_repertoire(path, like, container))


def best_of_cells(repertoire: Repertoire, new: Candidates) -> Array:
  """Chooses the fittest of each cell: a `PlacesFn`."""
  cells = repertoire.tessellation.cells_for("container=cells")
  num_cells = repertoire.fitness.shape[0]
  found = jnp.where(new.valid, cells.cell(new.descriptors), num_cells)
  axes = jnp.unstack(new.descriptors, axis=1)
  keys = (found, -new.fitness, *axes, *new.hashes)
  numbers = jnp.arange(found.size)
  *sorted_keys, order = jax.lax.sort((*keys, numbers), num_keys=len(keys))
  best = candidates.scatter_candidates(
    order, jnp.diff(sorted_keys[0], prepend=-1) != 0)
  incumbents = repertoire.fitness.at[found].get(mode="fill", fill_value=jnp.inf)
  is_kept = best & (new.fitness > incumbents)
  return jnp.where(is_kept, found, num_cells + numbers)
