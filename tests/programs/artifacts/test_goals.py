"""Tests of skills that are chosen to reach goals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments, learners, skills, types
from qdrl_haiku.programs import artifacts
from tests import toy

_MAZE = environments.create("point_maze", layout="open")
_CIRCLE = skills.sphere(2)
# Skills are directions in which the agent goes, as far as a step can.
_GOES = toy.linear_learner()._replace(
  init=lambda key: jnp.zeros(()),
  act_greedy=lambda state, observation, memory: types.Acted(
    observation[..., 2:]))


def _agent(objective):
  """An agent, and one whose network is the identity."""
  learner = learners.skill_learner(_GOES, 2, objective)
  state = learner.init(jax.random.key(0))
  for name in ("representation_params", "discriminator_params"):
    for layer in state.learned.get(name, ()):
      params = {layer: {"w": jnp.eye(2), "b": jnp.zeros(2)}}
      state = state.with_learned(**{name: params})
  return learner, state


@pytest.mark.parametrize("seen", ["descriptor", "observation"])
def test_metra_walks_along_its_representation_to_each_goal(seen):
  config = learners.METRAConfig((), representation_input=seen)
  objective = learners.metra_objective(2, _CIRCLE, 2, config)
  learner, state = _agent(objective)
  goals = jnp.array([[0.5, -0.5], [-0.9, 0.1], [0.0, 0.7]])
  distances = artifacts.reach_goals(
    _MAZE, learner, objective, state, jax.random.key(1), goals)
  # Steps are a tenth long, and the last ones go to and fro.
  assert distances.shape == (3,)
  assert np.all(distances < 0.11)


def test_metras_skills_towards_goals_are_directions_of_any_prior():
  objective = learners.metra_objective(
    2, skills.normal(2), 2, learners.METRAConfig(()))
  _, state = _agent(objective)
  goal = jnp.array([30, -40])
  env = artifacts.goal_environment(_MAZE, objective, state, goal)
  state = env.reset(jax.random.split(jax.random.key(0), 3))
  towards = goal - state.obs[:, :2]
  np.testing.assert_allclose(
    state.obs[:, 2:],
    towards / np.linalg.norm(towards, axis=1, keepdims=True), rtol=1e-5)


def test_diayn_takes_the_skill_that_its_discriminator_tells_at_the_goal():
  config = learners.DIAYNConfig(())
  objective = learners.diayn_objective(2, _CIRCLE, 2, config)
  _, state = _agent(objective)
  goal = jnp.array([0.3, -0.4])
  env = artifacts.goal_environment(_MAZE, objective, state, goal)
  state = env.reset(jax.random.split(jax.random.key(0), 3))
  np.testing.assert_allclose(
    state.obs[:, 2:], np.tile([0.6, -0.8], (3, 1)), rtol=1e-5)
  discrete = learners.diayn_objective(2, skills.categorical(2), 2, config)
  state = _agent(discrete)[1]
  env = artifacts.goal_environment(_MAZE, discrete, state, jnp.array([-1, 0.5]))
  state = env.reset(jax.random.split(jax.random.key(0), 3))
  np.testing.assert_array_equal(state.info["skill"], [[0, 1]] * 3)


def test_goals_that_nothing_leads_to_are_refused():
  objective = learners.metra_objective(2, _CIRCLE)
  with pytest.raises(ValueError, match="3 numbers .* observation, which has 2"):
    artifacts.goal_environment(_MAZE, objective, (), jnp.zeros(3))
  objective = learners.dads_objective(2, _CIRCLE, 2)
  with pytest.raises(ValueError, match="dads doesn't tell .* metra and smerl"):
    artifacts.goal_environment(_MAZE, objective, (), jnp.zeros(2))
