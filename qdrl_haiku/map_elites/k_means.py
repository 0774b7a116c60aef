"""K-means in the unit cube, in as little memory as its samples take."""

import functools

import jax
import jax.numpy as jnp

from qdrl_haiku.types import Array, Key

_SAMPLES_PER_CELL = 20
_MIN_SAMPLES = 20_000
_MIN_ITERATIONS, _MAX_ITERATIONS = 5, 30
_MAX_DISTANCES = 2 * 10**10


@functools.partial(jax.jit, static_argnums=(1, 2))
def k_means_centroids(key: Key, num_cells: int, num_dimensions: int) -> Array:
  """Returns centroids [C, D] of uniform samples, by Lloyd's algorithm.

  The samples, drawn by `key`, are in [0, 1]^D; `num_cells` is C, and
  `num_dimensions` is D.
  """
  num_samples = max(_SAMPLES_PER_CELL * num_cells, _MIN_SAMPLES)
  # Integers, because sums of floats depend on the order of addition, which
  # differs from run to run on a GPU. Sums of 16 bits fit into 32 as long as a
  # cell has at most 2^16 samples: the fewest cells share `_MIN_SAMPLES`, and
  # many have about `_SAMPLES_PER_CELL` each.
  bits = jax.random.bits(key, (num_samples, num_dimensions), jnp.uint16)
  bits = bits.astype(jnp.uint32)
  samples = _position(bits)

  def step(_: int, current: Array) -> Array:
    cells = k_means_nearest(samples, current)
    counts = jnp.zeros((num_cells, 1), jnp.uint32).at[cells].add(1)
    sums = jnp.zeros(current.shape, jnp.uint32).at[cells].add(bits)
    means = _position(sums / jnp.maximum(counts, 1))
    return jnp.where(counts > 0, means, current)

  num_iterations = max(
    _MIN_ITERATIONS,
    min(_MAX_ITERATIONS, _MAX_DISTANCES // (num_samples * num_cells)))
  return jax.lax.fori_loop(0, num_iterations, step, samples[:num_cells])


def _position(bits: Array) -> Array:
  """Maps the numbers of 2^16 equal intervals of (0, 1) to their middles."""
  return (bits.astype(jnp.float32) + 0.5) / 2**16


def k_means_nearest(points: Array, centroids: Array) -> Array:
  """Returns the number of the centroid nearest to each point."""
  # One centroid after the other: no array is larger than the arguments, and a
  # point's result doesn't depend on the others, as in a matrix product.
  columns = jnp.unstack(points, axis=1)

  def visit(
    best: tuple[Array, Array], visited: tuple[Array, Array]
  ) -> tuple[tuple[Array, Array], None]:
    least, index = best
    i, centroid = visited
    differences = [
      x - y for x, y in zip(columns, jnp.unstack(centroid), strict=True)]
    distance = sum(map(jnp.square, differences))
    index = jnp.where(distance < least, i, index)
    return (jnp.minimum(distance, least), index), None

  num_points = points.shape[0]
  # One visit ahead of the loop: inside `jax.shard_map` its carry has to be
  # known from the start to differ between devices.
  first, _ = visit(
    (jnp.full(num_points, jnp.inf), jnp.zeros(num_points, jnp.int32)),
    (jnp.zeros((), jnp.int32), centroids[0]))
  (_, index), _ = jax.lax.scan(
    visit, first,
    (jnp.arange(1, centroids.shape[0], dtype=jnp.int32), centroids[1:]),
    # A short loop body costs more to start than to run.
    unroll=16)
  return index
