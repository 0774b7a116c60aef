"""Tests of critics beside one another, each with rewards of its own."""

import copy
import operator

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import (
  environments,
  learners,
  map_elites,
  networks,
  training,
  types,
)
from qdrl_haiku.training.repertoires import several_critics
from tests.training import common
from tests.training.repertoires import test_teachers


def _teacher():
  setup = test_teachers.setup_of("qdpg")
  return training.teacher(
    setup.eval_env, setup.learner, setup.config, setup.qd.teaching,
    critics="novelty")


def test_what_is_novel_is_archived_and_is_the_second_critics_reward():
  # The bounds are (-10, 0) and (10, 100).
  places = jnp.array([[[[-10.0, 0.0], [10.0, 0.0], [10.0, 3.0]]]])
  told = test_teachers._told([[[7.0] * 3]], [[3]], [[0.0, 0.0]])
  transitions = told.extra["transitions"]._replace(
    extras={"next_descriptor": places})
  told = told._replace(extra=told.extra | {"transitions": transitions})
  teacher = _teacher()

  @jax.jit
  def turn():
    state = teacher.init(jax.random.key(0))
    for _ in range(2):  # When it comes again, nothing is new.
      state = teacher.remember(state, told, jnp.zeros((1, 2)))
    return teacher.train(state, jax.random.key(1))

  state, metrics = turn()
  # The third is too near to the second.
  held, num_added = state.agent.archive
  assert num_added == 2
  np.testing.assert_array_equal(held[:2], [[-1, -1], [1, -1]])
  # Of each place 0 and 4, or for the third one 0.06^2 and 4 + 0.06^2.
  assert 2 <= metrics["diversity/reward"] <= 2 + 0.0037
  assert metrics["reward"] == metrics["reward_mean"] == 7
  np.testing.assert_allclose(
    metrics["diversity/reward"], metrics["diversity/reward_mean"], rtol=1e-6)
  np.testing.assert_array_equal(state.agent.agents, [2, 2])  # Updates.


def test_half_of_the_agents_follow_each_critic():
  teacher = _teacher()
  state = teacher.init(jax.random.key(0))
  state = state._replace(
    agent=state.agent._replace(agents=jnp.array([1.0, 5.0])),
    replay=state.replay._replace(size=jnp.array(4)))
  elites = map_elites.Elite({"offset": jnp.zeros(5), "gain": jnp.ones(5)}, {})
  improved = teacher.improve(
    state, elites, jnp.full((5, 2), 9.0), jax.random.key(0))
  np.testing.assert_array_equal(
    improved.genotype["offset"], [100, 100, 100, 500, 500])
  own = teacher.policies(state, jnp.zeros((2, 2)))
  np.testing.assert_array_equal(own.genotype["offset"], [1, 5])


def test_each_critic_learns_as_one_agent_alone_would():
  learner = learners.td3(2, 1, learners.TD3Config(
    networks.NetworkConfig((4,)), policy_delay=1))
  rewards = several_critics.rewards_and_novelty(
    environments.Descriptor(("x",), (-1.0,), (1.0,)))
  pair = several_critics.several_critics(learner.share(0), rewards).learner
  x = jax.random.normal(jax.random.key(0), (1, 8, 2))
  rows = types.Transition(
    x, jnp.tanh(x[..., :1]), x[..., 0], jnp.ones((1, 8)), x + 0.1,
    {"next_descriptor": x[..., 1:]})

  @jax.jit
  def both():
    state = pair.init(jax.random.key(1))
    state = state._replace(archive=rewards.remember(
      state.archive, x[0, :2, 1:], jnp.array([True, False])))
    after, _ = pair.update(
      state, learner.hyperparams, rows, jax.random.key(2))
    novelty = (x[..., 1] - x[0, 0, 1]) ** 2
    keys = jax.random.split(jax.random.key(2))
    alone = [
      learner.update(
        jax.tree.map(operator.itemgetter(i), state.agents), learner.hyperparams,
        rows._replace(reward=(rows.reward, novelty)[i], extras={}), keys[i])[0]
      for i in range(2)]
    return after.agents, jax.tree.map(lambda *x: jnp.stack(x), *alone)

  chex.assert_trees_all_close(*both(), rtol=1e-5, atol=1e-7)


def test_each_critic_is_rewarded_by_an_objective_of_its_own():
  setup = test_teachers.setup_of("pgx")
  env = copy.copy(setup.eval_env)
  env.objectives = environments.Objectives(("far", "cheap"), (0.0, -1.0))
  teacher = training.teacher(
    env, setup.learner, setup.config, setup.qd.teaching, critics="objectives")
  told = test_teachers._told([[[7.0] * 3]], [[2]], [[0.0, 0.0]])
  objectives = jnp.array([[[[3.0, -1.0], [5.0, -1.0], [9.0, 9.0]]]])
  transitions = told.extra["transitions"]._replace(
    extras={"objectives": objectives})
  told = told._replace(extra=told.extra | {"transitions": transitions})
  state = teacher.remember(
    teacher.init(jax.random.key(0)), told, jnp.zeros((1, 2)))
  np.testing.assert_array_equal(
    state.replay.storage.extras["objectives"][:3], [[3, -1], [5, -1], [0, 0]])
  _, metrics = teacher.train(state, jax.random.key(1))
  assert 3 < metrics["far/reward"] < 5
  assert metrics["cheap/reward"] == metrics["cheap/reward_mean"] == -1
  with pytest.raises(ValueError, match="of each objective, .* none; take one"):
    training.teacher(setup.eval_env, setup.learner, critics="objectives")


def test_shares_and_bounds_of_descriptors():
  setup = test_teachers.setup_of("qdpg")
  large = setup._replace(
    config=training.TrainingConfig(replay_capacity=4000),
    map_elites=setup.qd._replace(variation_batch_size=100))
  # A third follows each critic or is its policy.
  assert common.shapes(large).emitter.targets.shape == (67, 2)
  env = test_teachers._unbounded().env
  with pytest.raises(ValueError, match="of x, steps aren't all finite; give"):
    common.shapes(setup._replace(env=env, eval_env=env))
