"""Tests of random shifts of images."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import specs, types
from qdrl_haiku.training import shifts
from tests.training import common
from tests.trials import test_pixels

_SPEC = {"image": specs.Array((5, 4, 2), "uint8"), "speed": specs.Array((3,))}


def test_images_are_padded_by_their_borders_and_cropped():
  rng = np.random.default_rng(0)
  seen = {
    "image": rng.integers(256, size=(2, 300, 5, 4, 2)).astype(np.uint8),
    "speed": rng.normal(size=(2, 300, 3)).astype(np.float32)}
  number = jnp.zeros((2, 300))
  batch = types.Transition(seen, number, number, number, seen, {})
  shifted = shifts.shift_images(_SPEC, 2, batch, jax.random.key(0))
  padding = ((0, 0), (0, 0), (2, 2), (2, 2), (0, 0))
  padded = np.pad(seen["image"], padding, mode="edge")
  crops = [
    padded[:, :, i : i + 5, j : j + 4]
    for i, j in itertools.product(range(5), range(5))]
  found = []
  for after in (shifted.observation, shifted.next_observation):
    np.testing.assert_array_equal(after["speed"], seen["speed"])
    same = [(x == after["image"]).all(axis=(2, 3, 4)) for x in crops]
    assert (np.sum(same, axis=0) == 1).all()
    counts = np.sum(same, axis=(1, 2))
    assert counts.min() > 8 and counts.max() < 45  # Of 24 on average.
    found.append(same)
  assert not np.array_equal(*found)


@pytest.mark.parametrize(("env", "learns_from"), [
  (common.Drift, "replay"), (test_pixels.Light, "rollout")])
def test_shifts_without_images_from_replay_are_refused(env, learns_from):
  learner = common.quadratic_learner()._replace(learns_from=learns_from)
  setup = common.setup(learner=learner, env=env, random_shift=4)
  with pytest.raises(ValueError, match="random_shift=4 has no effect: .* at 0"):
    common.shapes(setup)
