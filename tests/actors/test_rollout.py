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


def _rollout(key):
  return actors.rollout(_WALK, _LEARNER, _STATES, key, _T, _extract)


def test_a_rollout_is_what_a_plain_loop_sees():
  """Of the environment of one instance, with no batch and no wrapper."""
  found = _rollout(jax.random.key(3))
  single = toy.Walk(limit=1.0)
  lengths = set()
  for i in range(_P):
    key = jax.random.split(jax.random.fold_in(jax.random.key(3), i), 1)[0]
    state = single.reset(jax.random.split(key)[1])
    seen, rewards, actions, mask = [state.obs], [], [], [True]
    for t in range(_T):
      actions.append(_LEARNER.act_greedy(
        jax.tree.map(lambda x, i=i: x[i], _STATES), state.obs
      ))
      mask.append(mask[-1] and t < 5 and not state.done > 0)
      state = single.step(state, actions[-1])
      seen.append(state.obs)
      rewards.append(state.reward)
    lengths.add(sum(mask))
    np.testing.assert_array_equal(found.mask[i], mask)
    np.testing.assert_allclose(
      found.extracted["x"][i], np.stack(seen), rtol=1e-5
    )
    np.testing.assert_allclose(found.rewards[i], rewards, rtol=1e-5)
    np.testing.assert_allclose(found.actions[i], np.stack(actions))
  assert len(lengths) > 1
  assert max(lengths) <= 6


def test_the_episode_is_the_first_of_an_evaluation_with_the_same_key():
  found = _rollout(jax.random.key(7))
  evaluation = actors.evaluate(_WALK, _LEARNER, _STATES, jax.random.key(7), 4)
  lived = np.asarray(found.mask)[:, 1:]
  np.testing.assert_array_equal(lived.sum(1), evaluation.lengths[:, 0])
  np.testing.assert_allclose(
    np.sum(found.rewards, axis=1, where=lived), evaluation.returns[:, 0],
    rtol=1e-6,
  )


def test_skills_are_dealt_along_the_agents():
  env = environments.SkillEnvironment(_WALK, skills.categorical(_P))
  found = actors.rollout(
    env, _LEARNER, _STATES, jax.random.key(0), 2, lambda x: x.info["skill"]
  )
  for t in range(3):
    np.testing.assert_array_equal(found.extracted[:, t], np.eye(_P))
