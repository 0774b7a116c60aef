"""The repertoire: the best individual found in each cell of descriptor space.

Mouret and Clune (2015), "Illuminating search spaces by mapping elites",
arXiv:1504.04909.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import checks, trees
from qdrl_haiku.map_elites import storage
from qdrl_haiku.map_elites.tessellation import Tessellation
from qdrl_haiku.types import Array, Key, Tree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Repertoire:
  """Holds the fittest individual of each cell; `init` makes an empty one.

  A pytree. A user's own container is a subclass that overrides `places`, of
  `DominatedNovelty` if it has no cells; the `repertoire_type` of its
  tessellation names it.

  Attributes:
    genotypes: a tree of arrays [C, ...]; zeros where a cell is empty.
    fitness: float32 [C], -inf where a cell is empty.
    descriptors: float32 [C, D]; zeros where a cell is empty.
    num_outside: int32 [], how many descriptors were outside the bounds so far
      and counted into the cell at the border; 2^31 - 1 where there were more.
    tessellation: which cell a descriptor belongs to.
  """

  genotypes: Tree
  fitness: Array
  descriptors: Array
  num_outside: Array
  tessellation: Any  # A `Tessellation`.

  has_cells: ClassVar[bool] = True
  """Whether a descriptor alone says which cell an individual belongs to."""

  def __init_subclass__(cls) -> None:
    """Makes subclasses pytrees."""
    jax.tree_util.register_dataclass(cls)

  @classmethod
  def init(cls, genotype: Tree, tessellation: Tessellation) -> "Repertoire":
    """Makes an empty repertoire.

    Args:
      genotype: an example of one genotype, or its shapes and dtypes: any tree
        of booleans, integers and floats.
      tessellation: of C cells, which says of what kind the repertoire is;
        copied, so that donating the repertoire leaves the caller's own intact.

    Raises:
      ValueError: if repertoires of this tessellation are of another class.
    """
    cls._check_kind(tessellation)
    genotype = jax.eval_shape(lambda x: x, genotype)
    num_cells = tessellation.num_cells
    return tessellation.repertoire_type(
      genotypes=jax.tree.map(
        lambda x: jnp.zeros((num_cells, *x.shape), x.dtype), genotype),
      fitness=jnp.full(num_cells, -jnp.inf, jnp.float32),
      descriptors=jnp.zeros(
        (num_cells, tessellation.num_dimensions), jnp.float32),
      num_outside=jnp.zeros((), jnp.int32),
      tessellation=jax.tree.map(jnp.copy, tessellation))

  @property
  def occupied(self) -> Array:
    """Mask of the cells that hold an individual, bool [C]."""
    return self.fitness > -jnp.inf

  @property
  def bounds(self) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest descriptor, [D] each, outside of jit."""
    return np.array(self.tessellation.lower), np.array(self.tessellation.upper)

  @property
  def centroids(self) -> Array:
    """The middles of the cells, [C, D]; without cells, the descriptors."""
    return self.tessellation.centroids

  def in_cells(self) -> "Repertoire":
    """Returns the repertoire by whose cells QD score and coverage are told."""
    return self

  def shapes(self, n: int) -> Tree:
    """Returns the shapes and dtypes of n genotypes, leaves [n, ...]."""
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype), self.genotypes
    )

  def add(self, genotypes: Tree, fitness: Array, descriptors: Array) -> Self:
    """Puts each individual in its cell where it is fitter than what is there.

    The result depends on what is in the batch, not on its order: of equally fit
    individuals in one cell the incumbent wins, then the one with the
    lexicographically least descriptor, then the one with the least hash of its
    genotype. An individual with a NaN or an infinity anywhere is ignored.
    Zeros of fitness and descriptors lose their sign. The work is in proportion
    to B, if the repertoire is donated.

    Args:
      genotypes: a tree of arrays [B, ...], of the dtypes of the repertoire's.
      fitness: [B], floats, kept in float32.
      descriptors: [B, D], floats, kept in float32.

    Raises:
      ValueError: if a shape, a dtype or the tree differs from the repertoire's.
    """
    genotypes, fitness, descriptors = jax.tree.map(
      jnp.asarray, (genotypes, fitness, descriptors))
    fitness = canonical_in_repertoire(fitness)
    descriptors = canonical_in_repertoire(descriptors)
    num_dimensions = self.descriptors.shape[1]
    # Fitness of another rank is what is told, rather than what it's beside.
    size = (*(fitness if fitness.ndim == 1 else descriptors).shape, 0)[0]
    if difference := trees.tree_difference(
      {"genotypes": genotypes, "fitness": fitness, "descriptors": descriptors},
      {
        "genotypes": self.shapes(size),
        "fitness": jax.ShapeDtypeStruct((size,), jnp.float32),
        "descriptors": jax.ShapeDtypeStruct(
          (size, num_dimensions), jnp.float32)},
    ):
      raise ValueError(
        f"{difference}; give genotypes [B, ...] like the repertoire's, which is"
        " made of an example without the axis B, fitness [B] and descriptors"
        f" [B, {num_dimensions}].")
    if not fitness.size:
      return self
    valid = trees.all_finite_leaves((genotypes, fitness, descriptors))
    places = self.places(
      valid, fitness, descriptors,
      hash_for_repertoire(jax.tree.leaves(genotypes)))

    def write(stored: Array, new: Array) -> Array:
      return stored.at[places].set(new, mode="drop", unique_indices=True)

    outside = valid & self.tessellation.outside(descriptors)
    return dataclasses.replace(
      self, genotypes=jax.tree.map(write, self.genotypes, genotypes),
      fitness=write(self.fitness, fitness),
      descriptors=write(self.descriptors, descriptors),
      num_outside=self.count_outside(outside))

  def places(
    self, valid: Array, fitness: Array, descriptors: Array,
    hashes: Sequence[Array],
  ) -> Array:
    """Decides where each individual of a batch is written.

    Args:
      valid: bool [B], whether all of an individual is finite.
      fitness: float32 [B], with one sign of zero.
      descriptors: float32 [B, D], likewise.
      hashes: uint32 [B] each, of the genotypes, that break ties.

    Returns:
      int32 [B], no two alike; C or more for those that aren't kept.
    """
    num_cells, batch_size = self.fitness.shape[0], fitness.shape[0]
    found = jnp.where(valid, self.cells_of(descriptors), num_cells)
    keys = (found, -fitness, *jnp.unstack(descriptors, axis=1), *hashes)
    *sorted_keys, order = jax.lax.sort(
      (*keys, jnp.arange(batch_size)), num_keys=len(keys))
    best = jnp.diff(sorted_keys[0], prepend=-1) != 0
    best = jnp.zeros(batch_size, bool).at[order].set(best, unique_indices=True)
    incumbents = self.fitness.at[found].get(mode="fill", fill_value=jnp.inf)
    return jnp.where(
      best & (fitness > incumbents), found, num_cells + jnp.arange(batch_size))

  def count_outside(self, outside: Array) -> Array:
    """Returns `num_outside` and the number of `outside`, at most 2^31 - 1."""
    more = jnp.sum(outside, dtype=jnp.int32)
    return jnp.minimum(self.num_outside, checks.LARGEST - more) + more

  def find(self, fitness: Array, descriptors: Array) -> Array:
    """Returns the cells whose elites have these scores, int32 [B]; else C."""
    fitness = canonical_in_repertoire(fitness)
    descriptors = canonical_in_repertoire(descriptors)
    cells = self.cells_of(descriptors)
    is_there = self.fitness.at[cells].get(mode="clip") == fitness
    is_there &= jnp.all(
      self.descriptors.at[cells].get(mode="clip") == descriptors, axis=1)
    return jnp.where(is_there, cells, self.fitness.shape[0])

  def cells_of(self, descriptors: Array) -> Array:
    """Returns the cells in which elites with these descriptors are, if any."""
    return self.tessellation.cell(descriptors)

  def sample_cells(self, key: Key, n: int) -> Array:
    """Draws n occupied cells, uniformly and with replacement.

    Returns int32 [n]; all 0 if every cell is empty.
    """
    counts = jnp.cumsum(self.occupied, dtype=jnp.int32)
    ranks = jax.random.randint(key, (n,), 0, jnp.maximum(counts[-1], 1))
    cells = jnp.searchsorted(counts, ranks, side="right").astype(jnp.int32)
    return jnp.where(counts[-1] > 0, cells, 0)

  def sample(self, key: Key, n: int) -> Tree:
    """Draws n genotypes of occupied cells, uniformly and with replacement.

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
    self, path: str | os.PathLike[str], config: dict[str, Any] | None = None
  ) -> None:
    """Writes the repertoire to one file, whole or not at all.

    Args:
      path: of the file, `<name>.npz`; see `storage` for what is in it.
      config: plain values to be kept with it;
        `storage.read_stored_repertoire_config` returns them.

    Raises:
      ValueError: if its tessellation is that of another class, as which it
        would be read.
    """
    self._check_kind(self.tessellation, exactly=True)
    fields = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
    storage.store_repertoire(fields, path, config)

  @classmethod
  def load(
    cls, path: str | os.PathLike[str], like: Tree = None,
    tessellation: Tessellation | None = None,
  ) -> "Repertoire":
    """Reads a repertoire that `save` wrote.

    Args:
      path: of the file.
      like: an example of one genotype, or its shapes and dtypes. Without it
        named tuples that aren't this package's become dicts.
      tessellation: the one that was saved, which says of what class the
        repertoire is. None is enough for this package's own.

    Raises:
      ValueError: if the file is damaged, no repertoire, not like `like`, of
        another tessellation, or of another class.
    """
    fields = storage.load_stored_repertoire(path, like, tessellation)
    cls._check_kind(fields["tessellation"])
    return fields["tessellation"].repertoire_type(**fields)

  @classmethod
  def _check_kind(
    cls, tessellation: Tessellation, exactly: bool = False
  ) -> None:
    """Refuses a tessellation whose repertoires are of another class."""
    made = tessellation.repertoire_type
    if not issubclass(made, cls) or (exactly and made is not cls):
      raise ValueError(
        f"the repertoire of a {type(tessellation).__name__} is a"
        f" {made.__name__}, no {cls.__name__}; give a tessellation whose"
        f" repertoire_type is {cls.__name__}.")


def canonical_in_repertoire(x: Array) -> Array:
  """Returns float32 without negative zeros, so that equals have equal bits."""
  x = x.astype(jnp.float32)
  return jnp.where(x == 0, 0, x)


def hash_for_repertoire(leaves: Sequence[Array]) -> tuple[Array, Array]:
  """Returns two 32-bit hashes of each individual of a batch, uint32 [B]."""
  first = second = jnp.zeros(leaves[0].shape[0], jnp.uint32)
  start = 0
  for leaf in leaves:
    words = _words(leaf.reshape(leaf.shape[0], -1))
    positions = start + jnp.arange(words.shape[1], dtype=jnp.uint32)
    start += words.shape[1]
    first += jnp.sum(_mix(words ^ _mix(2 * positions)), 1, jnp.uint32)
    second += jnp.sum(_mix(words ^ _mix(2 * positions + 1)), 1, jnp.uint32)
  return first, second


def _words(rows: Array) -> Array:
  """Returns the bits of [B, N] as uint32 [B, N], or [B, 2 N] of 64 bits."""
  if rows.dtype == bool:
    return rows.astype(jnp.uint32)
  bits = min(8 * rows.dtype.itemsize, 32)
  words = jax.lax.bitcast_convert_type(rows, jnp.dtype(f"uint{bits}"))
  return words.reshape(rows.shape[0], -1).astype(jnp.uint32)


def _mix(x: Array) -> Array:
  """MurmurHash3's finaliser: each bit of x changes half of the result's."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)
