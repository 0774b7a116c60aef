"""Tests of the baselines: successive halving and random search."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers

_SPACE = {"x": controllers.Uniform(0.0, 1.0)}


@functools.cache
def _controller(**settings):
  config = controllers.SuccessiveHalvingConfig(**settings)
  return controllers.successive_halving(config, _SPACE)


@pytest.mark.parametrize("settings, counts", [
  # By decision, how many configurations are left of nine.
  ({"first_rung": 2}, [9, 4, 4, 2, 2, 2, 2, 1, 1]),
  ({"first_rung": 1, "reduction_factor": 3}, [3, 3, 1, 1, 1, 1, 1, 1, 1]),
  ({"first_rung": 3, "reduction_factor": 20}, [9, 9, 1, 1, 1, 1, 1, 1, 1])])
def test_so_many_configurations_are_left(settings, counts):
  controller = _controller(**settings)
  update = jax.jit(controller.update)
  state, drawn = controller.init(jax.random.key(0), 9)
  hyperparams, found = drawn, []
  best = int(jnp.argmax(drawn["x"]))
  for seed in range(9):
    state, decision = update(
      state, jax.random.key(seed), hyperparams["x"], hyperparams)
    hyperparams = decision.hyperparams
    found.append(len(set(hyperparams["x"].tolist())))
    assert decision.parents[best] == best
  assert found == counts
  np.testing.assert_array_equal(hyperparams["x"], drawn["x"][best])


def test_hand_worked_rung():
  controller = _controller(first_rung=1)
  state, _ = controller.init(jax.random.key(0), 6)
  # Three configurations of two members each; those of 0.1 and 0.3 have the
  # best, members 1 and 4, and a single one is kept.
  x = jnp.array([0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
  fitness = jnp.array([0.0, 7.0, 6.0, 6.0, 9.0, -9.0])
  state = jnp.int32(1)
  _, decision = controller.update(state, jax.random.key(0), fitness, {"x": x})
  np.testing.assert_array_equal(decision.parents, [4, 4, 4, 4, 4, 5])
  np.testing.assert_array_equal(decision.operator, [1, 1, 1, 1, 0, 0])
  np.testing.assert_array_equal(decision.hyperparams["x"], x[4])
  # At the first rung three are kept: there is nothing to drop.
  state = jnp.int32(0)
  _, decision = controller.update(state, jax.random.key(0), fitness, {"x": x})
  np.testing.assert_array_equal(decision.operator, 0)


def test_places_that_are_freed_are_shared_among_those_that_are_left():
  controller = _controller(first_rung=1, reduction_factor=4)
  state, hyperparams = controller.init(jax.random.key(0), 8)
  fitness = jnp.array([0.0, 1.0, 9.0, 3.0, 4.0, 8.0, 6.0, math.nan])
  state, decision = controller.update(
    state, jax.random.key(0), fitness, hyperparams)
  np.testing.assert_array_equal(decision.parents, [2, 5, 2, 2, 5, 5, 2, 5])
  # Between rungs those who diverged are replaced alone.
  _, decision = controller.update(
    state, jax.random.key(0), fitness.at[1].set(math.inf), hyperparams)
  np.testing.assert_array_equal(decision.parents, [0, 2, 2, 3, 4, 5, 6, 5])


def test_random_search_replaces_nobody_but_who_has_diverged():
  controller = controllers.make_controller(
    controllers.RandomSearchConfig(), _SPACE)
  state, hyperparams = controller.init(jax.random.key(0), 4)
  _, decision = controller.update(
    state, jax.random.key(1), jnp.arange(4.0), hyperparams)
  np.testing.assert_array_equal(decision.parents, np.arange(4))
  np.testing.assert_array_equal(decision.hyperparams["x"], hyperparams["x"])
  fitness = jnp.array([0.0, 1.0, math.nan, 3.0])
  _, decision = controller.update(
    state, jax.random.key(1), fitness, hyperparams)
  assert decision.parents[2] in (0, 1, 3)
  fresh = decision.hyperparams["x"][2]
  assert fresh not in hyperparams["x"]
