"""Tests of the controller whose groups have frequencies of their own."""

import math

import jax
import numpy as np
import pytest

from qdrl_haiku import controllers

_NAN, _INF = math.nan, math.inf
_SPACE = {
  "fixed": controllers.Fixed(2.0), "rate": controllers.LogUniform(1e-4, 1.0),
  "shape": controllers.Uniform(-1.0, 1.0)}
_NUM_CASES = 400


def _ranked(members, fitness):
  """Members, the best first; non-finite ones are last; ties by index."""
  return sorted(
    members,
    key=lambda i: (-fitness[i] if math.isfinite(fitness[i]) else _INF, i))


def _loop(frequencies, number, fitness):
  """The paper's evolution step (section 4), one member after the other.

  Returns:
    By member whose weights and whose hyperparameters it has then, and what
    happens to it: "survive", "explore" or "migrated".
  """
  size = len(fitness) // len(frequencies)
  quarter = size // 4
  groups = [
    list(range(g * size, (g + 1) * size)) for g in range(len(frequencies))]
  weights = list(range(len(fitness)))
  hyperparams = list(range(len(fitness)))
  events = ["survive"] * len(fitness)
  everyone = _ranked(range(len(fitness)), fitness)
  if not math.isfinite(fitness[everyone[0]]):
    return weights, hyperparams, ["lost"] * len(fitness)
  for frequency, group in zip(frequencies, groups, strict=True):
    ranked = _ranked(group, fitness)
    quarters = [ranked[i * quarter : (i + 1) * quarter] for i in range(4)]
    for rank, member in enumerate(ranked):
      parent = quarters[0][rank % quarter]
      if not math.isfinite(fitness[parent]):
        parent = ranked[0]
      if not math.isfinite(fitness[parent]):
        parent = everyone[0]
      diverged = not math.isfinite(fitness[member])
      loses = (
        number % frequency == 0
        and member in quarters[3]
        and fitness[member] < fitness[parent])
      if diverged or loses:
        weights[member] = hyperparams[member] = parent
        events[member] = "explore"
    if number % frequency:
      continue
    migrants = [
      i for i in everyone if i not in group and math.isfinite(fitness[i])]
    for member in quarters[2]:
      if not math.isfinite(fitness[member]) or not migrants:
        continue
      if fitness[migrants[0]] > fitness[member]:
        migrant = migrants.pop(0)
        weights[member] = migrant
        theirs = frequencies[migrant // size]
        hyperparams[member] = migrant if theirs > frequency else ranked[0]
        events[member] = "migrated"
  return weights, hyperparams, events


def _fitness(random, size):
  """Numbers with ties among them, and some that are not finite."""
  fitness = random.integers(0, random.choice([3, 6, 1000]), size).astype(float)
  share = random.choice([0.0, 0.1, 0.5, 0.9])
  bad = random.uniform(size=size) < share
  fitness[bad] = random.choice([_NAN, _INF, -_INF], bad.sum())
  return fitness.astype(np.float32)


@pytest.mark.parametrize(
  ("frequencies", "size"), [((1, 3), 8), ((1, 2, 6), 24)])
def test_decisions_are_those_of_a_plain_loop(frequencies, size):
  controller = controllers.mf_pbt(
    controllers.MFPBTConfig(frequencies=frequencies), _SPACE)
  names = controller.operators
  random = np.random.default_rng(size)
  hyperparams = {
    "fixed": np.full(size, 2.0, np.float32),
    "rate": np.geomspace(2e-4, 0.5, size).astype(np.float32),
    "shape": np.linspace(-0.9, 0.9, size).astype(np.float32)}
  seen = set()
  fitnesses = np.stack([_fitness(random, size) for _ in range(_NUM_CASES)])
  numbers = random.integers(1, 13, _NUM_CASES)
  keys = jax.random.split(jax.random.key(0), _NUM_CASES)

  def decide(key, number, fitness):
    return controller.update(number - 1, key, fitness, hyperparams)

  states, decisions = jax.device_get(
    jax.jit(jax.vmap(decide))(keys, numbers.astype(np.int32), fitnesses))
  np.testing.assert_array_equal(states, numbers)
  for case in range(_NUM_CASES):
    weights, sources, events = _loop(
      frequencies, int(numbers[case]), fitnesses[case])
    seen |= set(events)
    np.testing.assert_array_equal(decisions.parents[case], weights)
    operators = [names[i] for i in decisions.operator[case]]
    for member, event in enumerate(events):
      rate = decisions.hyperparams["rate"][case, member]
      shape = decisions.hyperparams["shape"][case, member]
      source = sources[member]
      if event in ("survive", "migrated"):
        assert operators[member] == event
        assert rate == hyperparams["rate"][source]
        assert shape == hyperparams["shape"][source]
      elif event == "lost":
        assert operators[member] == "reinitialise"
      elif operators[member] == "perturb":
        factor = rate / hyperparams["rate"][source]
        step = shape - hyperparams["shape"][source]
        assert min(abs(factor - 0.8), abs(factor - 1.25)) < 1e-3 or rate > 0.6
        assert abs(abs(step) - 0.4) < 1e-3 or abs(shape) > 0.5
      else:
        # A sibling has what it would have had.
        assert operators[member] == "resample"
  assert seen == {"survive", "explore", "migrated", "lost"}
