"""Tests of many episodes of one agent, and of their summary."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import actors, environments, skills, types
from qdrl_haiku.programs import artifacts
from qdrl_haiku.programs.artifacts import statistics
from tests import toy

_LEARNER = toy.linear_learner()
_STATE = {"offset": jnp.arcsin(0.2), "gain": jnp.zeros(())}
_WALK = environments.Environment(toy.Walk(limit=1.0), episode_length=5)
_KEY = jax.random.key(5)
_MODULE = sys.modules["qdrl_haiku.programs.artifacts.evaluation"]
_RETURNS = np.random.default_rng(0).gamma(1.0, 10.0, size=40)


def test_batches_have_keys_of_their_own_and_bounded_sizes(monkeypatch):
  monkeypatch.setattr(_MODULE, "_BATCH", 4)
  sizes = set()

  def act_greedy(state, observation, memory):
    sizes.add(observation.shape[0])
    return _LEARNER.act_greedy(state, observation, memory)

  learner = _LEARNER._replace(act_greedy=act_greedy)
  found = artifacts.evaluate_agent(_WALK, learner, _STATE, _KEY, 10)
  population = jax.tree.map(lambda x: x[None], _STATE)
  evaluate = jax.jit(
    lambda key: actors.evaluate(
      _WALK, learner, population, key, 4, _WALK.descriptor.function
    )
  )
  parts = [evaluate(jax.random.fold_in(_KEY, i)[None]) for i in range(3)]
  for name in ("returns", "lengths", "descriptors"):
    expected = np.concatenate([getattr(x, name) for x in parts], axis=1)
    values = getattr(found, name)
    assert isinstance(values, np.ndarray)
    np.testing.assert_allclose(values, expected[:, :10], rtol=1e-6)
  assert len(np.unique(found.returns)) == 10
  assert sizes == {4}


def test_skills_are_dealt_on_from_batch_to_batch(monkeypatch):
  """The first of three skills goes up, the others go down."""
  monkeypatch.setattr(_MODULE, "_BATCH", 4)
  env = environments.SkillEnvironment(
    environments.Environment(toy.Walk(), episode_length=5),
    skills.categorical(3),
  )
  learner = _LEARNER._replace(
    act_greedy=lambda state, observation, memory: types.Acted(
      2 * observation[..., 2:3] - 1)
  )
  found = artifacts.evaluate_agent(env, learner, _STATE, _KEY, 10)
  np.testing.assert_array_equal(found.returns[0] > 0, np.arange(10) % 3 == 0)


def test_the_summary_is_that_of_numpy():
  lengths = np.arange(3, 43, dtype=np.int32)
  descriptors = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
  evaluation = actors.Evaluation(
    _RETURNS[None], lengths[None], descriptors[None])
  summary = artifacts.summarize_evaluation(evaluation, _WALK.descriptor)
  iqm, low, high = map(
    float, statistics.pooled_interquartile_mean([_RETURNS]))
  x, steps = descriptors.astype(np.float64).mean(axis=0)
  assert summary == pytest.approx({
    "num_episodes": 40, "mean": np.mean(_RETURNS), "std": np.std(_RETURNS),
    "iqm": iqm, "iqm_low": low, "iqm_high": high, "length_mean": 22.5,
    "length_min": 3, "length_max": 42, "descriptor/x": x,
    "descriptor/steps": steps})
  assert all(type(x) in (int, float) for x in summary.values())
