"""Tests of archives of descriptors, and of how far from them others are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites


def _added_one_by_one(points, rounds):
  """A plain loop."""
  held = []
  for valid in rounds:
    for point in points[valid]:
      if all(np.linalg.norm(point - x) > 0.25 for x in held):
        held.append(point)
  return np.array(held)


@pytest.mark.parametrize("capacity", [8, 200])
def test_an_archive_holds_what_was_far_from_all_before(capacity):
  rng = np.random.default_rng(0)
  points = rng.uniform(-1, 1, (300, 2)).astype(np.float32)
  points[5], points[6] = points[4], np.nan
  is_finite = np.isfinite(points[:, 0])
  rounds = is_finite & (np.arange(300) < 100), is_finite
  archive = map_elites.NoveltyArchive(jnp.zeros((capacity, 2)), jnp.int32(0))
  for valid in rounds:
    before = archive.num_added
    archive = jax.jit(map_elites.add_novel)(archive, points, valid, 0.25)
    assert archive.num_added - before <= capacity
  assert np.isfinite(archive.points).all()
  if capacity == 8:  # The oldest make room, and no round adds more than 8.
    assert archive.num_added == 16
    return
  expected = _added_one_by_one(points, rounds)
  assert archive.num_added == len(expected) > 20
  np.testing.assert_array_equal(archive.points[: len(expected)], expected)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("size", [0, 3, 50])
def test_novelty_is_the_mean_power_of_the_nearest_distances(size, power):
  rng = np.random.default_rng(1)
  held, points = rng.normal(size=(size, 3)), rng.normal(size=(2000, 3))
  archive = map_elites.NoveltyArchive(
    jnp.zeros((64, 3)).at[:size].set(held), jnp.int32(size))
  squares = np.sort(((points[:, None] - held) ** 2).sum(-1), axis=1)[:, :5]
  powers = squares if power == 2 else np.sqrt(squares)
  expected = powers.mean(1) if size else np.zeros(2000)
  found = jax.jit(map_elites.novelty, static_argnums=(2, 3))(
    archive, jnp.float32(points), 5, power)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
