"""Tests of individuals that are evaluated again, beside plain NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites
from qdrl_haiku.environments import functions

_GRID = map_elites.Grid((3, 2), (0.0, 0.0), (1.0, 1.0))
_DEPTH, _SIZE = 2, 9
_RESAMPLING = map_elites.Resampling(share=0.4, depth=_DEPTH)
_DRAWN = _RESAMPLING.num_drawn(_SIZE)
_ADD = jax.jit(map_elites.DeepArchive.add)
_SAMPLE = jax.jit(map_elites.DeepArchive.sample)


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
      if all(np.isfinite(x).all() for score in scores for x in score)
    }
    kept = {x for cell in self.cells().values() for x in cell[:_DEPTH]}
    self.seen = {x: scores for x, scores in self.seen.items() if x in kept}

  def mean(self, number):
    """Its fitness and its descriptor."""
    return [
      np.mean(np.array(x, np.float64), axis=0)
      for x in zip(*self.seen[number], strict=True)
    ]

  def cells(self):
    """Individuals of each cell, the fittest first."""
    cells = {}
    for number in self.seen:
      fitness, descriptor = self.mean(number)
      cells.setdefault(_cell(descriptor), []).append((-fitness, number))
    return {cell: [x for _, x in sorted(of)] for cell, of in cells.items()}


def _assert_same(repertoire, archive, plain):
  """All that is known of all of them."""
  labels = np.asarray(archive.elite_labels)
  repertoire, archive = jax.device_get((repertoire, archive))
  numbers = np.asarray(archive.genotypes)
  places = np.flatnonzero(archive.num_evaluations)
  assert sorted(numbers[places]) == sorted(plain.seen)
  for place in places:
    scores = plain.seen[numbers[place]]
    fitness, descriptor = plain.mean(numbers[place])
    rank = plain.cells()[_cell(descriptor)].index(numbers[place])
    assert archive.ranks[place] == rank
    assert archive.num_evaluations[place] == len(scores)
    assert archive.labels[place] == numbers[place] % 3
    np.testing.assert_allclose(archive.fitness[place], fitness, rtol=1e-5)
    np.testing.assert_allclose(
      archive.descriptors[place], descriptor, rtol=1e-5
    )
  firsts = {cell: of[0] for cell, of in plain.cells().items()}
  occupied = np.flatnonzero(repertoire.occupied)
  assert sorted(firsts) == occupied.tolist()
  for cell, number in firsts.items():
    assert repertoire.genotypes[cell] == number
    assert labels[cell] == number % 3
    fitness, descriptor = plain.mean(number)
    np.testing.assert_allclose(repertoire.fitness[cell], fitness, rtol=1e-5)
    np.testing.assert_allclose(
      repertoire.descriptors[cell], descriptor, rtol=1e-5
    )
  empty = np.setdiff1d(np.arange(6), occupied)
  assert np.all(np.asarray(repertoire.genotypes)[empty] == 0)
  assert np.all(labels[empty] == -1)


def _evaluated(*found):
  return map_elites.Evaluated(*found, {})


def _empty():
  """Nothing in an archive whose genotypes are numbers."""
  repertoire = map_elites.Repertoire.init(jnp.int32(0), _GRID)
  nothing = _evaluated(
    jnp.arange(_SIZE), jnp.full(_SIZE, jnp.nan), jnp.zeros((_SIZE, 2))
  )
  archive = map_elites.DeepArchive.init(_RESAMPLING, _SIZE, _GRID, nothing)
  return repertoire, archive


def test_cells_hold_whom_lists_of_all_evaluations_say():
  rng = np.random.default_rng(0)
  repertoire, archive = _empty()
  plain = _Plain()
  have_moved = came_back = False
  for turn in range(12):
    before = plain.cells()
    drawn, archive = _SAMPLE(archive, jax.random.key(turn))
    is_known = np.asarray(archive.drawn) < len(archive.fitness)
    # Nobody twice, and all where there are no more.
    known = np.asarray(drawn)[is_known]
    assert len(set(known)) == len(known) == min(_DRAWN, len(plain.seen))
    again = _evaluations(rng, _DRAWN)
    numbers = np.arange(1, _SIZE + 1) + _SIZE * turn
    fitness, descriptors = _evaluations(rng, _SIZE)
    numbers = numbers.astype(np.int32)
    new = _evaluated(numbers, fitness, descriptors)
    repertoire, archive = _ADD(archive, repertoire, new, again, numbers % 3)
    plain.add(
      [*known, *numbers],
      [*again[0][is_known], *fitness],
      [*again[1][is_known], *descriptors],
    )
    _assert_same(repertoire, archive, plain)
    after = plain.cells()
    have_moved |= any(
      x in after.get(b, ()) for a, of in before.items() for x in of
      for b in range(6) if b != a
    )  # fmt: skip
    came_back |= any(
      len(of) > 1 and after.get(cell, [0])[0] == of[1]
      for cell, of in before.items()
    )
  assert have_moved and came_back
  assert float(archive.evaluations_per_elite) == pytest.approx(
    np.mean([len(plain.seen[of[0]]) for of in plain.cells().values()])
  )


def test_the_order_of_new_ones_changes_nothing():
  rng = np.random.default_rng(3)
  repertoire, archive = _empty()
  fitness = rng.choice([0.0, -0.0, 1.0], _SIZE).astype(np.float32)
  descriptors = rng.choice([0.1, 0.9], (_SIZE, 2)).astype(np.float32)
  numbers, results = np.arange(_SIZE), []
  nothing = jnp.zeros(_DRAWN), jnp.zeros((_DRAWN, 2))
  for order in (numbers, rng.permutation(numbers)):
    new = _evaluated(
      order.astype(np.int32), fitness[order], descriptors[order]
    )
    result = _ADD(archive, repertoire, new, nothing)
    leaves = jax.tree.leaves(jax.device_get(result))
    results.append([x.tobytes() for x in leaves])
  assert results[0] == results[1]


def test_an_incumbent_wins_a_tie():
  repertoire, archive = _empty()
  nothing = jnp.zeros(_DRAWN), jnp.zeros((_DRAWN, 2))
  for numbers in ([5, 4], [2, 1]):
    size = _SIZE - len(numbers)
    new = _evaluated(
      np.array([*numbers, *[0] * size], np.int32),
      np.array([1.0, 1.0, *[np.nan] * size], np.float32),
      np.full((_SIZE, 2), 0.2, np.float32),
    )
    repertoire, archive = _ADD(archive, repertoire, new, nothing)
  kept = archive.genotypes[archive.num_evaluations > 0]
  assert sorted(kept.tolist()) == [4, 5]


def test_the_fitter_of_a_cell_are_drawn_the_more_often():
  resampling = map_elites.Resampling(share=0.1, depth=4)
  line = map_elites.Grid((1,), (0.0,), (1.0,))
  first = _evaluated(jnp.arange(4), jnp.arange(4.0), jnp.full((4, 1), 0.5))
  archive = map_elites.DeepArchive.init(resampling, 4, line, first)
  keys = jax.random.split(jax.random.key(0), 4000)
  numbers = jax.vmap(lambda key: archive.sample(key)[0])(keys)
  shares = np.bincount(np.asarray(numbers).ravel(), minlength=4) / 4000
  weights = np.exp(np.arange(4.0))  # The fittest is the last.
  np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.025)


_TOY_GRID = map_elites.Grid((8, 8), (0.0, 0.0), (1.0, 1.0))
_TOY_SIZE, _TOY_GENERATIONS = 32, 150


def _of_arms(points):
  return jax.vmap(functions.arm_scores)(jnp.clip(points, 0, 1))


def _noisy(points, key):
  """The arm's fitness and descriptors, both with noise."""
  fitness, descriptors = _of_arms(points)
  fitness_key, descriptor_key = jax.random.split(key)
  return (
    fitness + 0.2 * jax.random.normal(fitness_key, fitness.shape),
    jnp.clip(
      descriptors
      + 0.02 * jax.random.normal(descriptor_key, descriptors.shape),
      0,
      1,
    ),
    {},
  )


@jax.jit
def _resampled_without_noise(key):
  """The archive after a generation."""
  emitter = map_elites.genetic_emitter(lambda key, x1, x2: (x1 + x2) / 2, 6)
  first = jax.random.uniform(key, (6, 8))
  evaluated = _evaluated(first, *_of_arms(first))
  repertoire, state = map_elites.init(emitter, _TOY_GRID, evaluated, key)
  archive = map_elites.DeepArchive.init(_RESAMPLING, 6, _TOY_GRID, evaluated)
  return map_elites.resampled_step(
    emitter,
    lambda points, key: (*_of_arms(points), {}),
    repertoire,
    archive,
    state,
    key,
  )[1]


def test_who_is_evaluated_again_without_noise_stays_as_it_was():
  archive = _resampled_without_noise(jax.random.key(0))
  counts = np.asarray(archive.num_evaluations)
  assert np.sum(counts == 2) == _RESAMPLING.num_drawn(6)
  found = archive.fitness, archive.descriptors
  for mean, score in zip(found, _of_arms(archive.genotypes), strict=True):
    np.testing.assert_allclose(mean[counts > 0], score[counts > 0], rtol=1e-5)


@functools.partial(jax.jit, static_argnums=1)
def _corrected_qd_score(seed, resampling):
  """After as many evaluations with or without resampling, without noise."""
  key, *keys = jax.random.split(jax.random.key(seed), _TOY_GENERATIONS + 1)
  vary = functools.partial(
    map_elites.iso_line, iso_sigma=0.05, line_sigma=0.1
  )
  size = _TOY_SIZE
  if resampling is not None:
    size = round(_TOY_SIZE * (1 - resampling.share))
    assert size + resampling.num_drawn(size) == _TOY_SIZE
  emitter = map_elites.genetic_emitter(vary, size)
  first = jax.random.uniform(key, (_TOY_SIZE, 8))
  evaluated = map_elites.Evaluated(first, *_noisy(first, key))
  repertoire, state = map_elites.init(emitter, _TOY_GRID, evaluated, key)
  if resampling is None:
    generation = functools.partial(map_elites.step, emitter, _noisy)
    carry = (repertoire, state)
  else:
    generation = functools.partial(map_elites.resampled_step, emitter, _noisy)
    archive = map_elites.DeepArchive.init(
      resampling, size, _TOY_GRID, evaluated
    )
    carry = (repertoire, archive, state)
  (repertoire, *_), _ = jax.lax.scan(
    lambda carry, key: (generation(*carry, key), None), carry, jnp.stack(keys)
  )
  fitness, descriptors = _of_arms(repertoire.genotypes)
  fitness = jnp.where(repertoire.occupied, fitness, jnp.nan)
  empty = map_elites.Repertoire.init(jnp.int32(0), _TOY_GRID)
  corrected = empty.add(
    jnp.arange(_TOY_GRID.num_cells, dtype=jnp.int32), fitness, descriptors
  )
  return map_elites.qd_score(corrected, 0.5)


@pytest.mark.slow
def test_with_noise_more_is_left_of_agents_that_were_evaluated_again():
  seeds = range(6)
  once, again = (
    [float(_corrected_qd_score(seed, how)) for seed in seeds]
    for how in (None, map_elites.Resampling())
  )
  assert np.mean(again) > 1.02 * np.mean(once)
  better = [b > a for a, b in zip(once, again, strict=True)]
  assert sum(better) >= 5, (once, again)


@pytest.mark.parametrize(
  "settings", [{"share": 0.0}, {"share": 1.0}, {"depth": 0}]
)
def test_settings_out_of_range_are_refused(settings):
  (name,) = settings
  with pytest.raises(ValueError, match=f"{name} must be .* got"):
    map_elites.Resampling(**settings)
