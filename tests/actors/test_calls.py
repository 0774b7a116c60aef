"""Tests of calling actors outside of jit, and of what they refuse."""

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import actors, environments
from tests import compilations, toy

_TOY = toy.linear_learner()


def _act(state, hyperparams, observation, key):
  action = _TOY.act(state, hyperparams, observation, key)
  # By a new function in each call, as learners draw from distributions.
  return jax.lax.map(lambda x: x, action)


_LEARNER = _TOY._replace(act=_act)
_P, _E = 3, 2
_ENV = environments.Environment(toy.Walk(limit=1.5), episode_length=4)
_BLIND = environments.Environment(toy.Countdown(3), episode_length=4)
_STATES = {
  "offset": jnp.array([0.1, 0.4, 0.0]),
  "gain": jnp.array([0.0, 0.3, -0.2]),
}
_HYPERPARAMS = {"noise": jnp.array([0.5, 0.1, 0.8])}


def _first(tree):
  return jax.tree.map(lambda x: x[0], tree)


def _env_states():
  return _ENV.reset(jax.random.split(jax.random.key(0), (_P, _E)))


def _keys(seed=1):
  return jax.random.split(jax.random.key(seed), _P)


def _first_step(descriptors, mask):
  del mask
  return descriptors[0]


def _observation(state):
  return state.obs


_CALLS = {
  "evaluate": lambda seed: actors.evaluate(
    _ENV, _LEARNER, _STATES, jax.random.key(seed), 2, _first_step
  ),
  "evaluate_from": lambda seed: actors.evaluate_from_states(
    _ENV, _LEARNER, _STATES, _env_states()
  ),
  "collect": lambda seed: actors.collect(
    _ENV, _LEARNER, _STATES, _HYPERPARAMS, _env_states(), _keys(seed), 3
  ),
  "step": lambda seed: actors.step(
    _ENV, _LEARNER, _first(_STATES), _first(_HYPERPARAMS),
    _first(_env_states()), jax.random.key(seed),
  ),
  "rollout": lambda seed: actors.rollout(
    _ENV, _LEARNER, _STATES, jax.random.key(seed), 3, _observation
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(_CALLS))
def test_a_second_call_outside_of_jit_compiles_nothing(name):
  call = _CALLS[name]
  call(0)
  assert compilations.of(call, 1) == 0
