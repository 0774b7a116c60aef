"""Tests of rollouts."""

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import actors, environments, skills
from tests import toy

_LEARNER = toy.linear_learner()
_P, _T = 3, 7
# Offsets whose sine is 0.5, 0.2 and 0.1: pushes of that size.
_STATES = {
  "offset": jnp.arcsin(jnp.array([0.5, 0.2, 0.1])), "gain": jnp.zeros(3)
}
_WALK = environments.Environment(toy.Walk(limit=1.0), episode_length=5)


def _extract(state):
  assert state.obs.shape[0] == _P
  return {"x": state.obs}


def test_the_episode_is_the_first_of_an_evaluation_with_the_same_key():
  key = jax.random.key(3)
  found = actors.rollout(_WALK, _LEARNER, _STATES, key, _T, _extract)
  evaluation = actors.evaluate(
    _WALK, _LEARNER, _STATES, key, 4, keep_transitions=True
  )
  lengths = evaluation.lengths[:, 0]
  np.testing.assert_array_equal(
    found.mask, np.arange(_T + 1) <= lengths[:, None]
  )
  assert len({*lengths.tolist()}) > 1
  for i, length in enumerate(lengths):
    extracted, rewards = found.extracted["x"][i], found.rewards[i]
    happened = jax.tree.map(
      lambda x, i=i, n=length: x[i, 0, :n], evaluation.transitions
    )
    for actual, expected in (
      (extracted[:length], happened.observation),
      (extracted[1 : length + 1], happened.next_observation),
      (rewards[:length], happened.reward),
    ):
      np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_skills_are_dealt_along_the_agents():
  env = environments.SkillEnvironment(_WALK, skills.categorical(_P))
  found = actors.rollout(
    env, _LEARNER, _STATES, jax.random.key(0), 2, lambda x: x.info["skill"]
  )
  for t in range(3):
    np.testing.assert_array_equal(found.extracted[:, t], np.eye(_P))
