"""A container without cells, whose elites keep a distance from each other.

Cully and Demiris (2018), "Quality and diversity optimization: a unifying
modular framework", arXiv:1708.09251. The distance changes so that there are
about as many elites as wanted: the container size control of Grillotti and
Cully (2022), "Unsupervised behaviour discovery with quality-diversity
optimisation", arXiv:2106.05648. So no bounds of descriptors are needed.

Newcomers come one after the other, the fittest first, so that the order of a
batch never matters; of equally fit ones that with the least descriptor.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import trees
from qdrl_haiku.map_elites.candidates import Candidates
from qdrl_haiku.map_elites.containers.container import Container
from qdrl_haiku.map_elites.emitters.emitter import Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.tessellation import Tessellation
from qdrl_haiku.types import Array, Tree

_NAME = "threshold_archive"
# Of the places, so that there is room for what is far from all elites.
_SHARE = 0.9
# How fast l shrinks, since there may be few elites as few were tried yet.
_GAIN = 0.1
# Rows of distances at once.
_ROWS = 128


class ThresholdArchive(NamedTuple):
  """Holds elites, and how far apart they are."""

  repertoire: Repertoire
  threshold: Array  # l, float32 []; 0 until two descriptors differ.


def threshold_archive(tessellation: Tessellation) -> Container:
  """Keeps elites that are farther than l from each other.

  A newcomer that is farther than l from all elites takes a free place, if there
  is one. A nearer one replaces the nearest elite, if it's fitter and farther
  than l from all others. Then l grows by the share by which there are more
  elites than 9/10 of the places, and elites leave that are within l of a fitter
  one; or l shrinks by a tenth of the share by which there are fewer.

  The first l is half the distance from one of the first individuals to the
  next, or, where these are too many, half of what it would be for so many. So
  it's estimated anew where elites are placed anew.

  Args:
    tessellation: `Unstructured`, of C places.
  """
  tessellation = tessellation.places_for("container=threshold")
  target = _SHARE * tessellation.num_cells

  def init(genotype: Tree, extras: Mapping[str, Tree]) -> ThresholdArchive:
    return ThresholdArchive(
      Repertoire.init(genotype, tessellation, extras, _NAME), jnp.float32(0))

  def add(state: ThresholdArchive, evaluated: Evaluated) -> ThresholdArchive:
    known = state.repertoire
    if not jnp.size(evaluated.fitness):
      return state
    new = known.candidates(*evaluated)
    threshold = jax.lax.cond(
      state.threshold > 0, lambda: state.threshold, lambda: _half_spacing(
        jnp.concatenate([known.descriptors, new.descriptors]),
        jnp.concatenate([known.occupied, new.valid]), target))
    known = known.put(
      lambda known, new: _places(
        known.descriptors, known.fitness, new, threshold), *evaluated)
    excess = jnp.sum(known.occupied) * (1 / target) - 1
    threshold *= 1 + jnp.where(excess > 0, excess, _GAIN * excess)
    known = jax.lax.cond(
      excess > 0, lambda: _thinned(known, threshold), lambda: known)
    return ThresholdArchive(known, threshold)

  return Container(
    tessellation, init, add, show=lambda state: state.repertoire, name=_NAME,
    metrics=lambda state: {"threshold": state.threshold})


def _half_spacing(points: Array, exists: Array, target: float) -> Array:
  """Returns half the distance of neighbours, were there at most so many."""
  numbers = jnp.arange(exists.size)

  def nearest(i: Array) -> Array:
    others = exists & (numbers != i)
    return jnp.min(jnp.where(others, _squares(points, points[i]), jnp.inf))

  squares = jax.lax.map(nearest, numbers, batch_size=_ROWS)
  num = jnp.sum(exists)
  ordered = jnp.sort(jnp.where(exists, squares, jnp.inf))
  median = jnp.sqrt(ordered[jnp.maximum(num - 1, 0) // 2])
  # In D dimensions n times as many are nearer by the D-th root of n.
  spacing = median * jnp.maximum(num * (1 / target), 1) ** (
    1 / points.shape[1])
  return jnp.where(jnp.isfinite(spacing), 0.5 * spacing, 0)


def _places(
  points: Array, fitness: Array, new: Candidates, threshold: Array
) -> Array:
  """Decides where newcomers are written, as a `PlacesFn` of elites [C]."""
  num_places, numbers = fitness.size, jnp.arange(new.fitness.size)
  order, limit = new.best_first(), threshold**2

  def add(turn: Array, known: tuple[Array, ...]) -> tuple[Array, ...]:
    points, fitness, places = known
    i = order[turn]
    squares = jnp.where(
      fitness > -jnp.inf, _squares(points, new.descriptors[i]), jnp.inf)
    nearest, free = jnp.argmin(squares), jnp.argmin(fitness)
    is_near = squares[nearest] <= limit
    replaces = (new.fitness[i] > fitness[nearest]) & (
      jnp.min(squares.at[nearest].set(jnp.inf)) > limit)
    is_kept = jnp.where(is_near, replaces, fitness[free] == -jnp.inf)
    place = jnp.where(
      is_kept, jnp.where(is_near, nearest, free), num_places + i)
    return (
      points.at[place].set(new.descriptors[i], mode="drop"),
      fitness.at[place].set(new.fitness[i], mode="drop"),
      places.at[i].set(place))

  *_, places = jax.lax.fori_loop(
    0, jnp.sum(new.valid), add, (points, fitness, num_places + numbers))
  return places.astype(jnp.int32)


def _thinned(known: Repertoire, threshold: Array) -> Repertoire:
  """Leaves out elites that are within l of a fitter one that stays."""
  zeros = jnp.zeros_like(known.fitness, jnp.uint32)
  everyone = Candidates(
    (), known.fitness, known.descriptors, {}, known.occupied, (zeros, zeros))
  empty = Repertoire.init((), known.tessellation)
  stays = _places(
    empty.descriptors, empty.fitness, everyone, threshold) < zeros.size
  parts = known.genotypes, known.descriptors, known.extras
  genotypes, descriptors, extras = trees.choose_rows(
    stays, parts, jax.tree.map(jnp.zeros_like, parts))
  return dataclasses.replace(
    known, genotypes=genotypes, descriptors=descriptors, extras=extras,
    fitness=jnp.where(stays, known.fitness, -jnp.inf))


def _squares(points: Array, point: Array) -> Array:
  """Returns the squares of the distances of points [N, D] from one, [N]."""
  axes = jnp.unstack(points, axis=1)
  return sum((axis - x) ** 2 for axis, x in zip(axes, point, strict=True))
