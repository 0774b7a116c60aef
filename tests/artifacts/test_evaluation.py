"""Tests of many episodes of one agent."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import actors, artifacts, environments, skills
from tests import toy

_LEARNER = toy.linear_learner()
_STATE = {"offset": jnp.arcsin(0.2), "gain": jnp.zeros(())}
_POPULATION = jax.tree.map(lambda x: x[None], _STATE)
_WALK = environments.Environment(toy.Walk(limit=1.0), episode_length=5)
_KEY = jax.random.key(5)
_MODULE = sys.modules["qdrl_haiku.artifacts.evaluation"]


def _batch(index, size):
  """What is documented of a batch."""
  key = jax.random.fold_in(_KEY, index)[None]
  function = _WALK.descriptor.function
  return actors.evaluate(_WALK, _LEARNER, _POPULATION, key, size, function)


@pytest.fixture
def batches_of_four(monkeypatch):
  monkeypatch.setattr(_MODULE, "_BATCH", 4)


@pytest.mark.parametrize(("size", "sizes"), [(1024, [10]), (4, [4] * 3)])
def test_batches_have_keys_of_their_own(size, sizes, monkeypatch):
  monkeypatch.setattr(_MODULE, "_BATCH", size)
  found = artifacts.evaluate_agent(_WALK, _LEARNER, _STATE, _KEY, 10)
  expected = [_batch(i, size) for i, size in enumerate(sizes)]
  for name in ("returns", "lengths", "descriptors"):
    parts = [getattr(batch, name) for batch in expected]
    values = getattr(found, name)
    assert isinstance(values, np.ndarray)
    np.testing.assert_allclose(
      values, np.concatenate(parts, axis=1)[:, :10], rtol=1e-6
    )
  assert len(np.unique(found.returns)) == 10
  assert found.trajectory is None


def test_no_more_than_a_batch_runs_at_once(batches_of_four):
  sizes = set()

  def act_greedy(state, observation):
    sizes.add(observation.shape[0])
    return _LEARNER.act_greedy(state, observation)

  learner = _LEARNER._replace(act_greedy=act_greedy)
  for num_episodes in (4, 5):
    found = artifacts.evaluate_agent(
      _WALK, learner, _STATE, _KEY, num_episodes
    )
    assert found.returns.shape == (1, num_episodes)
  assert sizes == {3, 4}


def test_skills_are_dealt_on_from_batch_to_batch(batches_of_four):
  """The first of three skills goes up, the others go down."""
  env = environments.SkillEnvironment(
    environments.Environment(toy.Walk(), episode_length=5),
    skills.categorical(3),
  )
  learner = _LEARNER._replace(
    act_greedy=lambda state, observation: 2 * observation[..., 2:3] - 1
  )
  found = artifacts.evaluate_agent(env, learner, _STATE, _KEY, 10)
  np.testing.assert_array_equal(
    found.returns[0] > 0, np.arange(10) % 3 == 0
  )


def test_environments_without_descriptors_are_evaluated_too():
  env = environments.Environment(toy.Countdown(6), episode_length=4)
  found = artifacts.evaluate_agent(env, _LEARNER, _STATE, _KEY, 3)
  assert found.descriptors is None
  assert found.lengths.shape == (1, 3)
  assert "descriptor/x" not in artifacts.summarize_evaluation(found, None)


def test_the_summary_is_that_of_numpy():
  rng = np.random.default_rng(0)
  returns = rng.normal(size=(1, 40)).astype(np.float32)
  lengths = rng.integers(1, 9, size=(1, 40), dtype=np.int32)
  descriptors = rng.normal(size=(1, 40, 2)).astype(np.float32)
  summary = artifacts.summarize_evaluation(
    actors.Evaluation(returns, lengths, descriptors), _WALK.descriptor
  )
  expected = artifacts.summarize(returns[0]) | {
    "length_mean": sum(lengths[0].tolist()) / 40,
    "length_min": min(lengths[0].tolist()),
    "length_max": max(lengths[0].tolist()),
    "descriptor/x": sum(descriptors[0, :, 0].tolist()) / 40,
    "descriptor/steps": sum(descriptors[0, :, 1].tolist()) / 40,
  }
  assert list(summary) == list(expected)
  assert summary == pytest.approx(expected, rel=1e-9)
