"""Tests of ME-ES."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites
from qdrl_haiku.map_elites.emitters.me_es import centred_ranks

_KEY = jax.random.key(0)
_GRID = map_elites.Grid((8,), (0.0,), (8.0,))
_ELITE = {"policy_params": jnp.zeros(3), "steps": jnp.int32(0)}
# Elites in cells 1, 2, 3, 6, 7; `steps` says which, weights are 10 times it.
_OCCUPIED = np.int32([1, 2, 3, 6, 7])
_FITNESS = np.float32([5, 1, 4, 3, 2])


def _config(goal, num_steps=3):
  return map_elites.EvolutionStrategy(goal, num_steps, 0.1, 0.01)


def _repertoire():
  return map_elites.Repertoire.init(_ELITE, _GRID).add(
    {"policy_params": 10.0 * np.repeat(_OCCUPIED[:, None], 3, 1),
     "steps": _OCCUPIED}, _FITNESS, _OCCUPIED[:, None] + 0.5)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _generation(config, size, state, fitness, descriptors, key):
  """Returns what was asked, and the state that was told."""
  emitter = map_elites.me_es_emitter(config, size, _ELITE)
  repertoire = _repertoire()
  begun = emitter.init(_KEY, repertoire)
  state = begun if state is None else state
  asked, state = emitter.ask(state, repertoire, key)
  evaluated = map_elites.Evaluated(asked, fitness, descriptors, {})
  return asked, state, emitter.tell(state, repertoire, evaluated, key)


def _scored(size, rng):
  return jnp.float32(rng.normal(size=size)), jnp.float32(
    8 * rng.uniform(size=(size, 1)))


@pytest.mark.parametrize(("goal", "size"), [("exploit", 7), ("explore", 8)])
def test_an_update_is_that_of_the_paper(goal, size):
  fitness, descriptors = _scored(size, np.random.default_rng(0))
  asked, before, told = _generation(
    _config(goal), size, None, fitness, descriptors, _KEY)
  points = np.asarray(asked["policy_params"], np.float64)
  num_centres = 2 - size % 2
  centre = np.asarray(before.centre, np.float64)
  np.testing.assert_array_equal(points[:num_centres], [centre] * num_centres)
  steps = points[num_centres:] - centre
  np.testing.assert_allclose(steps[:3], -steps[3:], atol=1e-6)
  assert np.all(asked["steps"] == before.elite["steps"])
  scores = fitness[num_centres:]
  if goal == "explore":  # Only the first centre is known.
    scores = abs(descriptors[num_centres:, 0] - descriptors[0, 0])
  ranks = np.argsort(np.argsort(scores)) / 5 - 0.5
  gradient = 0.02 * centre - ranks @ steps / (6 * 0.1**2)
  # Adam's first step, without bias.
  expected = centre - 0.01 * gradient / (abs(gradient) + 1e-8)
  np.testing.assert_allclose(told.centre, expected, rtol=1e-6)
  np.testing.assert_allclose(told.adam.mu, 0.1 * gradient, rtol=1e-4)
  assert told.known.points[0] == descriptors[0] and told.turn == 1
  assert told.known.num_added == 1
  assert told.latest[0] == int(descriptors[0, 0])


def test_it_begins_anew_in_turns_at_a_fit_or_a_novel_elite():
  fitness = jnp.zeros(3)
  seen = {"fit": set(), "novel": set()}
  for i in range(40):
    key, state = jax.random.key(i), None
    elites = []
    for turn in range(4):
      # Centres are seen in cells 6 and 7 alone, whose elites are the worst.
      descriptors = jnp.full((3, 1), 6.5 + turn % 2)
      *_, state = _generation(
        _config("both", 2), 3, state, fitness, descriptors,
        jax.random.fold_in(key, turn))
      elites.append(int(state.elite["steps"]))
      if turn % 2:
        np.testing.assert_array_equal(state.centre, 10 * elites[-1])
        assert not np.any(state.adam.mu)
    assert elites[0] in _OCCUPIED and elites[1] == elites[2]
    seen["fit"].add(elites[1])
    seen["novel"].add(elites[3])
  # The two fittest of all, and of those seen lately; all five are novel.
  assert seen == {"fit": {1, 3, 6, 7}, "novel": set(_OCCUPIED.tolist())}


def test_one_that_is_not_finite_begins_anew():
  fitness, descriptors = jnp.full(5, jnp.nan), jnp.full((5, 1), jnp.nan)
  *_, state = _generation(
    _config("exploit"), 5, None, fitness, descriptors, _KEY)
  # Nothing is learned of samples without fitness, but for the L2 term.
  assert np.all(np.isfinite(state.centre)) and not state.known.num_added
  assert np.all(np.isfinite(state.known.points))
  broken = state._replace(centre=state.centre * np.inf)
  *_, told = _generation(
    _config("exploit"), 5, broken, fitness, descriptors, _KEY)
  np.testing.assert_array_equal(told.centre, 10 * told.elite["steps"])


def test_equal_scores_share_their_rank():
  scores = jnp.array([3.0, -jnp.inf, 7, 3, -jnp.inf])
  np.testing.assert_allclose(
    centred_ranks(scores), [0.125, -0.375, 0.5, 0.125, -0.375])
  assert not np.any(centred_ranks(jnp.full(4, -jnp.inf)))
