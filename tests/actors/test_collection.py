"""Tests of collecting experience, and of calling actors outside of jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import actors, environments
from tests import compilations, jaxprs, toy

_LEARNER = toy.linear_learner()
_P, _T, _E = 3, 6, 4
# Some episodes terminate, beyond 1.5, and some are truncated, after 4 steps.
_ENV = environments.Environment(toy.Walk(limit=1.5), episode_length=4)
_STATES = {
  "offset": jnp.array([0.1, 0.4, 0.0]),
  "gain": jnp.array([0.0, 0.3, -0.2])}
_HYPERPARAMS = {"noise": jnp.array([0.5, 0.1, 0.8])}
_STEP = jax.jit(lambda *args: actors.step(_ENV, _LEARNER, *args))


@jax.jit
def _member(tree, i):
  return jax.tree.map(lambda x: x[i], tree)


def _collect(env_states, keys):
  return actors.collect(
    _ENV, _LEARNER, _STATES, _HYPERPARAMS, env_states, keys, _T)


def _env_states():
  return _ENV.reset(jax.random.split(jax.random.key(0), (_P, _E)))


def _keys(seed=1):
  return jax.random.split(jax.random.key(seed), _P)


@pytest.fixture(scope="module")
def collected():
  return jax.jit(_collect)(_env_states(), _keys())


def _assert_equal(actual, expected):
  for a, b in zip(
    jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
  ):
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
      a, b = jax.random.key_data(a), jax.random.key_data(b)
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_collect_is_a_loop_of_step_for_each_member(collected):
  env_states, transitions = collected
  for i in range(_P):
    env_state = _member(_env_states(), i)
    rows = []
    for key in jax.random.split(_keys()[i], _T):
      env_state, row = _STEP(
        _member(_STATES, i), _member(_HYPERPARAMS, i), env_state, key)
      rows.append(row)
    _assert_equal(
      _member(transitions, i), jax.tree.map(lambda *x: np.stack(x), *rows))
    _assert_equal(_member(env_states, i), env_state)


def test_all_environments_of_a_population_are_one_flat_batch():
  sines = jaxprs.named(_collect, "sin", _env_states(), _keys())
  assert [e.outvars[0].aval.shape for e in sines] == [(_P * _E,)]


def test_the_next_observation_is_the_true_one_at_an_episode_end(collected):
  transitions = collected[1]
  assert transitions.observation.shape == (_P, _T, _E, 2)
  x, steps = np.moveaxis(np.asarray(transitions.observation), -1, 0)
  next_x, next_steps = np.moveaxis(
    np.asarray(transitions.next_observation), -1, 0)
  pushed = x + np.sin(np.asarray(transitions.action)[..., 0])
  np.testing.assert_allclose(next_x, pushed, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(next_steps, steps + 1)
  assert (next_steps == 4).any()
  assert (next_x > 1.5).any()
  # Only a termination has discount 0.
  np.testing.assert_array_equal(transitions.discount, 1.0 - (next_x > 1.5))
  # Extras have the descriptors of both ends, here equal to the observations.
  extras = transitions.extras
  assert set(extras) == {"descriptor", "next_descriptor", "truncation"}
  for name in ("", "next_"):
    np.testing.assert_array_equal(
      extras[f"{name}descriptor"], getattr(transitions, f"{name}observation"))


def test_a_deterministic_step_is_greedy():
  env_state = _member(_env_states(), 0)
  # A gain of a power of two: the product is exact, alone and fused.
  state = {"offset": jnp.array(0.4), "gain": jnp.array(0.25)}
  hyperparams = _member(_HYPERPARAMS, 1)
  args = (_ENV, _LEARNER, state, hyperparams, env_state, jax.random.key(2))
  greedy = _LEARNER.act_greedy(state, env_state.obs, ()).action
  _, transition = actors.step(*args, deterministic=True)
  np.testing.assert_array_equal(transition.action, greedy)
  _, transition = actors.step(*args)
  assert np.all(transition.action != greedy)


def _act(*args):
  acted = _LEARNER.act(*args)
  # By a new function in each call, as learners draw from distributions.
  return jax.lax.map(lambda x: x, acted)


def _first_step(descriptors, mask):
  del mask
  return descriptors[0]


def _observe(state):
  return state.obs


_NEW = _LEARNER._replace(act=_act)
_CALLS = {
  "evaluate": lambda seed: actors.evaluate(
    _ENV, _NEW, _STATES, jax.random.key(seed), 2, _first_step),
  "evaluate_from": lambda seed: actors.evaluate_from_states(
    _ENV, _NEW, _STATES, _env_states()),
  "collect": lambda seed: actors.collect(
    _ENV, _NEW, _STATES, _HYPERPARAMS, _env_states(), _keys(seed), 3),
  "step": lambda seed: actors.step(
    _ENV, _NEW, _member(_STATES, 0), _member(_HYPERPARAMS, 0),
    _member(_env_states(), 0), jax.random.key(seed)),
  "rollout": lambda seed: actors.rollout(
    _ENV, _NEW, _STATES, jax.random.key(seed), 3, _observe)}


@pytest.mark.parametrize("name", list(_CALLS))
def test_a_second_call_outside_of_jit_compiles_nothing(name):
  call = _CALLS[name]
  call(0)
  assert compilations.of(call, 1) == 0
