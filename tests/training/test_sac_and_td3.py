"""Tests of a generation of SAC and of TD3 agents."""

import functools

import jax
import numpy as np
import pytest

from qdrl_haiku import environments, learners, training
from tests import configs
from tests.training import common

_SIZES = {
  "policy_hidden_layer_sizes": (8, 8), "critic_hidden_layer_sizes": (8, 8)
}
_KEY = jax.random.key(1)


def _learner(name, env):
  config = {"sac": learners.SACConfig, "td3": learners.TD3Config}[name]
  config = configs.make(config, normalize_observations=True, **_SIZES)
  make = getattr(learners, name)
  return make(env.observation_size, env.action_size, config)


@pytest.fixture(
  scope="module", params=["td3", pytest.param("sac", marks=pytest.mark.slow)]
)
def trained(request):
  """Two generations of two agents, the first of which warms up."""
  env = environments.create("point_maze", episode_length=20)
  setup = training.Setup(
    env=env,
    eval_env=env,
    learner=_learner(request.param, env),
    controller=None,
    config=training.TrainingConfig(
      population_size=2,
      num_envs=8,
      perturbation_interval=128,
      batch_size=8,
      grad_updates_per_step=0.5,
      replay_capacity=256,
      min_replay_size=128,
      num_eval_episodes=2,
    ),
  )
  population = jax.jit(functools.partial(training.init, setup))(_KEY)
  train = jax.jit(
    functools.partial(training.step, setup), donate_argnums=0
  )
  done = []
  for _ in range(2):
    # Copied to the host, for the population is donated.
    population, report = train(population, _KEY)
    done.append((jax.tree.map(np.asarray, population.members.learner), report))
  return done, population


def test_critic_steps_are_counted(trained):
  done, _ = trained
  # Learning begins in the last of 16 iterations, with 0.5 * 8 critic steps.
  assert np.asarray(done[0][1].num_updates).tolist() == [4, 4]
  assert np.asarray(done[1][1].num_updates).tolist() == [64, 64]
  adam = done[1][0].critic_optimizer_state
  assert np.asarray(adam.count).tolist() == [68, 68]


def test_statistics_count_what_was_collected_and_not_what_was_evaluated(
  trained,
):
  counts = [
    learner.observation_statistics.num_observations
    for learner, _ in trained[0]
  ]
  np.testing.assert_array_equal(counts, [[128, 128], [256, 256]])


def test_observation_diagnostics_are_those_of_the_generation(trained):
  stored = np.asarray(
    trained[1].members.replay.storage.observation, np.float64
  )
  second = stored[:, 128:]  # The capacity is two generations.
  report = trained[0][1][1]
  np.testing.assert_allclose(
    report.metrics["observation_mean"], second.mean(axis=(1, 2)), rtol=1e-4
  )
  np.testing.assert_allclose(
    report.metrics["observation_std"], second.std(axis=(1, 2)), rtol=1e-4
  )


def test_all_of_an_agent_has_learned(trained):
  before, after = (common.leaves(learner) for learner, _ in trained[0])
  for name, x in after.items():
    if "params" in name:
      assert not np.array_equal(x, before[name]), name
