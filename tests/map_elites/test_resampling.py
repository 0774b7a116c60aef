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
_CONTEST = jax.jit(map_elites.update_contenders)
_DRAW = jax.jit(map_elites.sample_contenders)


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


def _assert_same(repertoire, contenders, plain):
  """All that is known of all of them."""
  labels = np.asarray(contenders.elite_labels)
  repertoire, contenders = jax.device_get((repertoire, contenders))
  numbers = np.asarray(contenders.genotypes)
  places = np.flatnonzero(contenders.num_evaluations)
  assert sorted(numbers[places]) == sorted(plain.seen)
  for place in places:
    scores = plain.seen[numbers[place]]
    fitness, descriptor = plain.mean(numbers[place])
    rank = plain.cells()[_cell(descriptor)].index(numbers[place])
    assert contenders.ranks[place] == rank
    assert contenders.num_evaluations[place] == len(scores)
    assert contenders.labels[place] == numbers[place] % 3
    np.testing.assert_allclose(contenders.fitness[place], fitness, rtol=1e-5)
    np.testing.assert_allclose(
      contenders.descriptors[place], descriptor, rtol=1e-5
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


def _empty():
  """No contenders, whose genotypes are numbers."""
  repertoire = map_elites.Repertoire.init(jnp.int32(0), _GRID)
  nobody = jnp.full(_SIZE, jnp.nan)
  contenders = map_elites.first_contenders(
    _RESAMPLING, _SIZE, _GRID, jnp.arange(_SIZE), nobody, jnp.zeros((_SIZE, 2))
  )
  return repertoire, contenders


def test_cells_hold_whom_lists_of_all_evaluations_say():
  rng = np.random.default_rng(0)
  repertoire, contenders = _empty()
  plain = _Plain()
  have_moved = came_back = False
  for turn in range(12):
    before = plain.cells()
    drawn, contenders = _DRAW(contenders, jax.random.key(turn))
    is_known = np.asarray(contenders.drawn) < len(contenders.fitness)
    # Nobody twice, and all where there are no more.
    known = np.asarray(drawn)[is_known]
    assert len(set(known)) == len(known) == min(_DRAWN, len(plain.seen))
    again = _evaluations(rng, _DRAWN)
    numbers = np.arange(1, _SIZE + 1) + _SIZE * turn
    fitness, descriptors = _evaluations(rng, _SIZE)
    repertoire, contenders = _CONTEST(
      repertoire, contenders, again, numbers.astype(np.int32), fitness,
      descriptors, (numbers % 3).astype(np.int32),
    )  # fmt: skip
    plain.add(
      [*known, *numbers],
      [*again[0][is_known], *fitness],
      [*again[1][is_known], *descriptors],
    )
    _assert_same(repertoire, contenders, plain)
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
  assert float(map_elites.evaluations_per_elite(contenders)) == pytest.approx(
    np.mean([len(plain.seen[of[0]]) for of in plain.cells().values()])
  )


def test_the_order_of_new_ones_changes_nothing():
  rng = np.random.default_rng(3)
  repertoire, contenders = _empty()
  fitness = rng.choice([0.0, -0.0, 1.0], _SIZE).astype(np.float32)
  descriptors = rng.choice([0.1, 0.9], (_SIZE, 2)).astype(np.float32)
  numbers, results = np.arange(_SIZE), []
  nothing = jnp.zeros(_DRAWN), jnp.zeros((_DRAWN, 2))
  for order in (numbers, rng.permutation(numbers)):
    result = _CONTEST(
      repertoire, contenders, nothing, order.astype(np.int32), fitness[order],
      descriptors[order],
    )  # fmt: skip
    leaves = jax.tree.leaves(jax.device_get(result))
    results.append([x.tobytes() for x in leaves])
  assert results[0] == results[1]


def test_an_incumbent_wins_a_tie():
  repertoire, contenders = _empty()
  nothing = jnp.zeros(_DRAWN), jnp.zeros((_DRAWN, 2))
  for numbers in ([5, 4], [2, 1]):
    size = _SIZE - len(numbers)
    repertoire, contenders = _CONTEST(
      repertoire, contenders, nothing,
      np.array([*numbers, *[0] * size], np.int32),
      np.array([1.0, 1.0, *[np.nan] * size], np.float32),
      np.full((_SIZE, 2), 0.2, np.float32),
    )  # fmt: skip
  kept = contenders.genotypes[contenders.num_evaluations > 0]
  assert sorted(kept.tolist()) == [4, 5]


def test_the_fitter_of_a_cell_are_drawn_the_more_often():
  resampling = map_elites.Resampling(share=0.1, depth=4)
  line = map_elites.Grid((1,), (0.0,), (1.0,))
  contenders = map_elites.first_contenders(
    resampling, 4, line, jnp.arange(4), jnp.arange(4.0), jnp.full((4, 1), 0.5)
  )
  keys = jax.random.split(jax.random.key(0), 4000)
  numbers = jax.vmap(
    lambda key: map_elites.sample_contenders(contenders, key)[0]
  )(keys)
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
  """The contenders after a generation."""
  emitter = map_elites.genetic_emitter(lambda key, x1, x2: (x1 + x2) / 2, 6)
  first = jax.random.uniform(key, (6, 8))
  scores = _of_arms(first)
  repertoire, state = map_elites.init(emitter, _TOY_GRID, first, *scores, key)
  contenders = map_elites.first_contenders(
    _RESAMPLING, 6, _TOY_GRID, first, *scores
  )
  return map_elites.resampled_generation(
    emitter,
    lambda points, key: (*_of_arms(points), {}),
    repertoire,
    contenders,
    state,
    key,
  )[1]


def test_who_is_evaluated_again_without_noise_stays_as_it_was():
  contenders = _resampled_without_noise(jax.random.key(0))
  counts = np.asarray(contenders.num_evaluations)
  assert np.sum(counts == 2) == _RESAMPLING.num_drawn(6)
  found = contenders.fitness, contenders.descriptors
  for mean, score in zip(found, _of_arms(contenders.genotypes), strict=True):
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
  scores = _noisy(first, key)[:2]
  repertoire, state = map_elites.init(emitter, _TOY_GRID, first, *scores, key)
  if resampling is None:
    generation = functools.partial(map_elites.step, emitter, _noisy)
    carry = (repertoire, state)
  else:
    generation = functools.partial(
      map_elites.resampled_generation, emitter, _noisy
    )
    contenders = map_elites.first_contenders(
      resampling, size, _TOY_GRID, first, *scores
    )
    carry = (repertoire, contenders, state)
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
