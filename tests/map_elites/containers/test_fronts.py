"""Tests of fronts of several objectives, in cells and without."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites
from qdrl_haiku.map_elites.containers import container as containers
from qdrl_haiku.map_elites.containers import pareto

_GRID = map_elites.Grid((2, 2), (0.0, 0.0), (1.0, 1.0))
_SIZE, _WORST, _NEW = 4, (-3.0, -3.0), 12
_PLACES = map_elites.Unstructured(16, 2, _GRID)
_CONTAINERS = {
  "mome": map_elites.mome(_GRID, _SIZE, _WORST),
  "nsga2": map_elites.nsga2(_PLACES, _WORST),
  "spea2": map_elites.spea2(_PLACES, _WORST)}
_ADD = {name: jax.jit(x.add) for name, x in _CONTAINERS.items()}
_ALL = pytest.mark.parametrize("name", list(_CONTAINERS))


def _evaluated(objectives, descriptors=None):
  objectives = np.asarray(objectives, np.float32).reshape(-1, 2)
  if descriptors is None:
    descriptors = np.full(objectives.shape, 0.25, np.float32)
  return map_elites.Evaluated(
    objectives.copy(), objectives.sum(axis=1), descriptors,
    {"objectives": objectives})


def _batch(seed):
  """Individuals near a front, so that few dominate others."""
  rng = np.random.default_rng(seed)
  angles = rng.uniform(0, np.pi / 2, _NEW)
  length = rng.uniform(0.8 + 0.02 * seed, 1 + 0.02 * seed, _NEW)
  return _evaluated(
    np.stack([np.cos(angles), np.sin(angles)], axis=1) * length[:, None],
    rng.uniform(0, 1, (_NEW, 2)).astype(np.float32))


def _empty(name, objectives=((0.0, 0.0),)):
  one = _evaluated(objectives)
  return _CONTAINERS[name].init(one.genotypes[0], {
    "objectives": one.extra["objectives"][0]})


def _contents(state, cell=None):
  """Objectives of all, or of a cell, sorted."""
  stays = np.asarray(state.occupied)
  if cell is not None:
    stays = stays & (np.asarray(_GRID.cell(state.descriptors)) == cell)
  rows = np.asarray(state.extras["objectives"])[stays]
  return rows[np.lexsort(rows.T)]


def _dominated(pool):
  return np.array([
    any(all(b >= a) and any(b > a) for b in pool) for a in pool], bool)


def _crowding(front):
  """Deb's distances, one individual after the other, in float64."""
  front = np.float64(front)
  total = np.zeros(len(front))
  for axis in front.T:
    order = np.argsort(axis)
    total[order[[0, -1]]] = np.inf
    for low, i, high in zip(order, order[1:], order[2:], strict=False):
      total[i] += (axis[high] - axis[low]) / np.ptp(axis)
  return total


def _front_of(pool, size):
  """A cell's front: none is dominated; the most crowded leave one by one."""
  pool = pool[~_dominated(pool)]
  while len(pool) > size:
    pool = np.delete(pool, np.argmin(_crowding(pool)), axis=0)
  return pool


def _ranked(pool, size):
  """NSGA-II: front after front, the last one by crowding."""
  kept, left = pool[:0], pool
  while len(kept) < size and len(left):
    lost = _dominated(left)
    front = left[~lost]
    order = np.argsort(-_crowding(front), kind="stable")
    kept = np.concatenate([kept, front[order][: size - len(kept)]])
    left = left[lost]
  return kept


def _strongest(pool, size):
  """SPEA2: strengths of those that dominate, and density of neighbours."""
  better = np.array([
    [np.all(a >= b) and np.any(a > b) for b in pool] for a in pool])
  raw = better.T @ better.sum(axis=1)
  scaled = (np.float64(pool) - pool.min(0)) / np.ptp(np.float64(pool), axis=0)
  k = round(np.sqrt(16 + _NEW))
  nearest = np.array([
    np.append(np.sort(np.linalg.norm(scaled - x, axis=1))[1:], [np.inf] * k)
    for x in scaled])[:, k - 1]
  return pool[np.argsort(raw + 1 / (nearest + 2), kind="stable")[:size]]


def test_individuals_are_compared_as_by_hand():
  points = jnp.array([[1.0, 4], [2, 2], [4, 1], [1, 2], [0, 0], [3, 1.5]])
  present = jnp.array([True] * 5 + [False])
  ranks = pareto.front_ranks(points, present)
  np.testing.assert_array_equal(ranks, [0, 0, 0, 1, 2, 6])
  distances = pareto.crowding_distances(points, ranks, present)
  # Of the second of three: (4 - 1) / 3 along both.
  np.testing.assert_allclose(distances[:5], [np.inf, 2, np.inf, 0, 0])
  equal = pareto.crowding_distances(
    jnp.ones((3, 2)), jnp.zeros(3, int), jnp.ones(3, bool))
  assert not np.any(equal)


def test_hypervolumes_are_areas():
  points = jnp.array([[1.0, 3], [2, 2], [3, 1], [9, -1], [1, 1], [5, 5]])
  groups = jnp.array([1, 1, 1, 1, 1, 0])
  present = jnp.array([True] * 5 + [False])
  found = pareto.hypervolumes(points, groups, present, (0.0, 0.0), 3)
  np.testing.assert_array_equal(found, [0, 6, 0])
  rng = np.random.default_rng(0)
  points, reference = rng.uniform(-1, 1, (30, 2)), np.array([-0.5, -0.2])
  cells = np.stack(np.meshgrid(*[(np.arange(2000) + 0.5) / 1000 - 1] * 2), -1)
  inside = np.any([np.all(cells < x, axis=2) for x in points], axis=0)
  area = np.mean(inside & np.all(cells > reference, axis=2)) * 4
  found = pareto.hypervolumes(
    jnp.asarray(points, jnp.float32), jnp.zeros(30, int), jnp.ones(30, bool),
    reference, 1)
  np.testing.assert_allclose(found, [area], rtol=2e-3)


def test_fronts_are_those_of_a_loop_over_cells():
  state = _empty("mome")
  pools, seen = {cell: np.zeros((0, 2), np.float32) for cell in range(4)}, 0
  for seed in range(12):
    new = _batch(seed)
    state = _ADD["mome"](state, new)
    cells = np.asarray(_GRID.cell(new.descriptors))
    for cell in range(4):
      pool = np.concatenate(
        [pools[cell], new.extra["objectives"][cells == cell]])
      seen += len(pool) > _SIZE
      pools[cell] = _front_of(pool, _SIZE)
      expected = pools[cell][np.lexsort(pools[cell].T)]
      np.testing.assert_array_equal(_contents(state, cell), expected)
    np.testing.assert_array_equal(
      state.genotypes[state.occupied],
      state.extras["objectives"][state.occupied])
    assert not np.any(state.descriptors[~state.occupied])
    places = np.flatnonzero(state.occupied)
    np.testing.assert_array_equal(
      _GRID.cell(state.descriptors[places]), places // _SIZE)
  assert seen > 10


@pytest.mark.parametrize(
  ("name", "survivors"), [("nsga2", _ranked), ("spea2", _strongest)])
def test_populations_are_those_of_a_loop(name, survivors):
  state, pool = _empty(name), np.zeros((0, 2), np.float32)
  for seed in range(8):
    new = _batch(seed)
    state = _ADD[name](state, new)
    pool = survivors(np.concatenate([pool, new.extra["objectives"]]), 16)
    np.testing.assert_array_equal(_contents(state), pool[np.lexsort(pool.T)])
    np.testing.assert_array_equal(
      state.genotypes[state.occupied],
      state.extras["objectives"][state.occupied])


@_ALL
def test_an_incumbent_wins_a_tie(name):
  batch = _evaluated(np.ones((_NEW, 2)))
  first = _ADD[name](_empty(name), batch)
  assert np.sum(first.occupied) == (1 if name == "mome" else _NEW)
  full = _ADD[name](first, batch)
  again = _ADD[name](full, batch._replace(genotypes=batch.genotypes + 1))
  jax.tree.map(np.testing.assert_array_equal, again, full)


@_ALL
def test_scores_are_of_cells_and_of_all(name):
  batch = _evaluated(
    [[0.0, 1], [1, 0], [2, 2]],
    np.array([[0.2, 0.2], [0.2, 0.2], [0.8, 0.8]], np.float32))
  state = _ADD[name](_empty(name), batch)
  found = _CONTAINERS[name].metrics(state)
  assert {x: float(y) for x, y in found.items()} == {
    "moqd_score": 15 + 25, "global_hypervolume": 25}
  shown = map_elites.metrics(_CONTAINERS[name].show(state), 1.0)
  assert shown["qd/coverage"] == 50 and shown["qd/num_elites"] == 3
  assert shown["qd/qd_score"] == (1 + 1) + (4 + 1)


def test_a_cell_is_drawn_as_often_as_another():
  objectives = [[0.0, 3], [1, 2], [2, 1], [5, 5]]
  descriptors = np.array([[0.2, 0.2]] * 3 + [[0.8, 0.8]], np.float32)
  state = _ADD["mome"](_empty("mome"), _evaluated(objectives, descriptors))
  drawn = _CONTAINERS["mome"].show(state).sample(jax.random.key(0), 4000)
  shares = [np.mean(np.all(drawn == x, axis=1)) for x in np.array(objectives)]
  np.testing.assert_allclose(shares, [1 / 6, 1 / 6, 1 / 6, 1 / 2], atol=0.03)


def test_fronts_in_voronoi_cells_are_read_as_they_were_written(tmp_path):
  cells = map_elites.cvt(jax.random.key(0), 5, (0.0, 0.0), (1.0, 1.0))
  container = map_elites.mome(cells, _SIZE, _WORST)
  state = containers.fill_container(container, _batch(0), {})
  state.save(tmp_path / "a.npz")
  found = map_elites.Repertoire.load(tmp_path / "a.npz", container="mome")
  jax.tree.map(np.testing.assert_array_equal, found, state)
  np.testing.assert_array_equal(
    found.in_cells().fitness, state.in_cells().fitness)


def test_other_numbers_of_objectives_are_refused():
  with pytest.raises(ValueError, match="two objectives, and there are 3, "):
    _CONTAINERS["mome"].init(jnp.zeros(2), {"objectives": jnp.zeros(3)})
