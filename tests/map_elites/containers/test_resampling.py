"""Tests of individuals that are evaluated again, beside plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites

_GRID = map_elites.Grid((3, 2), (0.0, 0.0), (1.0, 1.0))
_DEPTH, _SIZE = 2, 9
_RESAMPLING = map_elites.Resampling(share=0.4, depth=_DEPTH)
_DRAWN = _RESAMPLING.num_drawn(_SIZE)
_ARCHIVE = map_elites.deep_archive(_GRID, _RESAMPLING, _SIZE)
_ADD, _SHOW, _SAMPLE, _TELL = map(jax.jit, (
  _ARCHIVE.add, _ARCHIVE.show, _ARCHIVE.again.ask, _ARCHIVE.again.tell))


def _evaluations(rng, size):
  """Fitness and descriptors; some are not finite, and some are outside."""
  fitness = rng.normal(size=size).astype(np.float32)
  fitness[rng.uniform(size=size) < 0.1] = np.nan
  descriptors = rng.uniform(-0.1, 1.1, (size, 2)).astype(np.float32)
  descriptors[rng.uniform(size=size) < 0.05] = np.inf
  return fitness, descriptors


def _cell(descriptor):
  x, y = np.clip(descriptor, 0, 1) * (3, 2)
  return 2 * min(int(x), 2) + min(int(y), 1)


class _Plain:
  """Lists of all evaluations of individuals, by their numbers."""

  def __init__(self):
    self.seen = {}

  def add(self, numbers, fitness, descriptors):
    """Evaluates individuals, the first time or again; the best stay."""
    for number, *scores in zip(numbers, fitness, descriptors, strict=True):
      self.seen.setdefault(number, []).append(scores)
    self.seen = {
      number: scores
      for number, scores in self.seen.items()
      if all(np.isfinite(x).all() for score in scores for x in score)}
    kept = {x for cell in self.cells().values() for x in cell[:_DEPTH]}
    self.seen = {x: scores for x, scores in self.seen.items() if x in kept}

  def mean(self, number):
    """Its fitness and its descriptor."""
    return [
      np.mean(np.array(x, np.float64), axis=0)
      for x in zip(*self.seen[number], strict=True)]

  def cells(self):
    """Individuals of each cell, the fittest first."""
    cells = {}
    for number in self.seen:
      fitness, descriptor = self.mean(number)
      cells.setdefault(_cell(descriptor), []).append((-fitness, number))
    return {cell: [x for _, x in sorted(of)] for cell, of in cells.items()}


def _assert_same(archive, plain):
  """All that is known of all of them."""
  cells = plain.cells()
  repertoire, archive = jax.device_get((_SHOW(archive), archive))
  places = np.flatnonzero(archive.num_evaluations)
  assert sorted(archive.genotypes[places]) == sorted(plain.seen)
  for place in places:
    number = archive.genotypes[place]
    fitness, descriptor = plain.mean(number)
    assert archive.ranks[place] == cells[_cell(descriptor)].index(number)
    assert archive.num_evaluations[place] == len(plain.seen[number])
    np.testing.assert_allclose(
      [archive.fitness[place], *archive.descriptors[place]],
      [fitness, *descriptor],
      rtol=1e-5)
  for cell in range(6):
    number = cells.get(cell, [0])[0]
    assert repertoire.genotypes[cell] == number
    assert repertoire.occupied[cell] == (number > 0)
    assert repertoire.extras["thirds"][cell] == number % 3
    if number:
      times = repertoire.extras["num_evaluations"][cell]
      assert times == len(plain.seen[number])
      scores = (
        [x.fitness[place], *x.descriptors[place]]
        for x, place in ((repertoire, cell), (archive, archive.elites[cell])))
      np.testing.assert_array_equal(*scores)


def _evaluated(*found):
  return map_elites.Evaluated(*found, {"thirds": found[0] % 3})


def _empty():
  """Nothing in an archive whose genotypes are numbers."""
  return _ARCHIVE.init(jnp.int32(0), {"thirds": jnp.int32(0)})


def test_cells_hold_what_lists_of_all_evaluations_say():
  rng = np.random.default_rng(0)
  archive = _empty()
  plain, num_moved = _Plain(), 0
  for turn in range(12):
    before = plain.cells()
    drawn, archive = _SAMPLE(archive, jax.random.key(turn))
    is_known = np.asarray(archive.drawn) < len(archive.fitness)
    # None twice, and all where there are no more.
    known = np.asarray(drawn)[is_known]
    assert len(set(known)) == len(known) == min(_DRAWN, len(plain.seen))
    again = _evaluations(rng, _DRAWN)
    numbers = np.arange(1, _SIZE + 1, dtype=np.int32) + _SIZE * turn
    fitness, descriptors = _evaluations(rng, _SIZE)
    new = _evaluated(numbers, fitness, descriptors)
    archive = _ADD(_TELL(archive, *again), new)
    plain.add(
      [*known, *numbers], [*again[0][is_known], *fitness],
      [*again[1][is_known], *descriptors])
    _assert_same(archive, plain)
    after = plain.cells()
    num_moved += sum(
      x in plain.seen and x not in after.get(cell, ())
      for cell, of in before.items()
      for x in of)
  assert num_moved > 0
  mean = _ARCHIVE.metrics(archive)["evaluations_per_elite"]
  assert float(mean) == pytest.approx(
    np.mean([len(plain.seen[of[0]]) for of in plain.cells().values()]))


def test_the_fitter_of_a_cell_are_drawn_the_more_often():
  resampling = map_elites.Resampling(share=0.1, depth=4)
  line = map_elites.Grid((1,), (0.0,), (1.0,))
  first = _evaluated(jnp.arange(4), jnp.arange(4.0), jnp.full((4, 1), 0.5))

  container = map_elites.deep_archive(line, resampling, 4)

  @jax.jit
  def draw(keys):
    empty = container.init(jnp.int32(0), {"thirds": jnp.int32(0)})
    archive = container.add(empty, first)
    return jax.vmap(lambda key: container.again.ask(archive, key)[0])(keys)

  numbers = draw(jax.random.split(jax.random.key(0), 4000))
  shares = np.bincount(np.asarray(numbers).ravel(), minlength=4) / 4000
  weights = np.exp(np.arange(4.0))  # The fittest is the last.
  np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.025)


def test_only_new_individuals_are_told_and_finders_are_remembered():
  told = []

  def emitter(first):
    """One that makes two individuals of those numbers."""
    return map_elites.Emitter(
      init=lambda key, repertoire: (),
      ask=lambda state, repertoire, key: (first + jnp.arange(2), state),
      tell=lambda state, repertoire, evaluated, key: (
        told.append(evaluated.genotypes.shape) or state),
      batch_size=2)

  both = map_elites.multi_emitter({"a": emitter(1), "b": emitter(3)})
  line = map_elites.Grid((8,), (0.0,), (8.0,))

  container = map_elites.deep_archive(line, _RESAMPLING, 2)

  def evaluate(x, key):
    # What was there is found elsewhere, and leaves its cell to a worse one.
    return -1.0 * x, jnp.array([[1.5], [2.5], [3.5], [4.5], [9.5]]), {}

  @jax.jit
  def generation(key):
    first = _evaluated(jnp.array([2]), jnp.ones(1), jnp.array([[2.5]]))
    archive, state = map_elites.init(both, container, first, key)
    archive, state = map_elites.step(
      both, container, evaluate, archive, state, key)
    return container.show(archive), both.metrics(state)

  repertoire, metrics = generation(jax.random.key(0))
  assert told == [(2,)] * 2 and container.again.batch_size == 1
  assert repertoire.genotypes.tolist() == [0, 1, 2, 3, 4, 0, 2, 0]
  assert repertoire.extras["emitter"].tolist() == [0, 1, 1, 2, 2, 0, 0, 0]
  assert metrics["a/num_elites"] == metrics["b/num_elites"] == 2
