"""Tests of agents that remember."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import actors, environments, learners, specs
from qdrl_haiku.learners import registry
from tests import configs
from tests.learners import common

_E, _T, _KEY = 3, 12, jax.random.key(0)
_FACTORIES = {
  "sac": (learners.sac, learners.SACConfig),
  "td3": (learners.td3, learners.TD3Config),
  "crossq": (learners.crossq, learners.CrossQConfig),
  "xqc": (learners.xqc, learners.XQCConfig),
  "ppo": (learners.ppo, learners.PPOConfig)}
_EACH = pytest.mark.parametrize("name", [
  "sac", *(
    pytest.param(x, marks=pytest.mark.slow)
    for x in ("td3", "crossq", "xqc", "ppo"))])


class _Recall:
  """Shows a cue at the beginning of an episode, and rewards it at the end."""

  observation_size, action_size = 2, 1

  def reset(self, key):
    cue = jax.random.rademacher(key, (), jnp.float32)
    return environments.State(
      (cue, 0), jnp.array([cue, 1.0]), jnp.zeros(()), jnp.zeros(()))

  def step(self, state, action):
    cue, t = state.pipeline_state
    reward, done = (t == 3) * cue * action[0], jnp.float32(t == 3)
    seen = jnp.array([0, t == 2], jnp.float32)
    return environments.State((cue, t + 1), seen, reward, done)


_ENV = environments.Environment(_Recall(), episode_length=7)


def _made(name, memory, size=2, **config):
  factory, kind = _FACTORIES[name]
  defaults = {"hidden_layer_sizes": (8,), "activation": "tanh"}
  if name == "ppo":
    defaults["num_minibatches"] = 3
  return factory(
    size, 1, configs.make(kind, memory=memory, **(defaults | config)))


def _collected(learner):
  """A new agent, and what it does: [T, E]."""
  state = jax.jit(learner.init)(_KEY)
  members = jax.tree.map(
    lambda x: jnp.asarray(x)[None], (state, learner.hyperparams))
  env_states = jax.jit(_ENV.reset)(jax.random.split(_KEY, _E)[None])
  # The first episodes of two of them are truncated.
  ages = {"steps": jnp.array([[0, 4, 5]])}
  env_states = env_states.replace(info=env_states.info | ages)
  rollout = actors.collect(
    _ENV, learner, *members, env_states, _KEY[None], _T)[1]
  return state, jax.tree.map(lambda x: x[0], rollout)


@_EACH
def test_a_window_is_of_the_last_observations_of_an_episode(name):
  remembers, plain = _made(name, "window:3"), _made(name, "none", 6)
  state, rollout = _collected(remembers)
  stacked, beyond = np.zeros((2, _T, _E, 3, 2), np.float32)
  ends = (rollout.discount == 0) | (rollout.extras["truncation"] == 1)
  for e in range(_E):
    seen = []
    for t in range(_T):
      seen.append(rollout.observation[t, e])
      for x, last in ((stacked, seen), (beyond, [
        *seen, rollout.next_observation[t, e]])):
        last = last[-3:]
        x[t, e, 3 - len(last):] = last
      seen = [] if ends[t, e] else seen
  assert (rollout.discount == 0).any() and (rollout.discount[ends] == 1).any()

  def batches(rollout):
    if name == "ppo":
      return rollout
    n = remembers.batches_per_update
    return jax.tree.map(
      lambda x: x.reshape(n, -1, *x.shape[2:]), rollout)

  own = batches(rollout._replace(
    observation=stacked.reshape(_T, _E, 6),
    next_observation=beyond.reshape(_T, _E, 6)))
  args = state, remembers.hyperparams
  found = remembers.update(*args, batches(rollout), _KEY)
  common.assert_equal(found, plain.update(*args, own, _KEY))
  # Statistics are of single observations, and alike in all places.
  after = remembers.observe(state, rollout.observation).observation_statistics
  np.testing.assert_allclose(
    after.mean.reshape(3, 2), [np.mean(rollout.observation, (0, 1))] * 3,
    rtol=1e-5)
  assert after.num_observations == _T * _E


@pytest.mark.parametrize("name", registry.BASES)
def test_every_learner_heeds_its_memory(name):
  config = dataclasses.replace(registry.BASES[name], memory="window:3")
  action = specs.Discrete(2) if name in ("dqn", "pqn") else 1
  learner = learners.make_learner(config, 2, action)
  assert learner.memory().shape == (4,) and "window" in learner.stores


def test_a_window_is_of_each_array_of_a_tree():
  observed = {
    "x": specs.Array(()), "seen": specs.Array((4, 4, 1), "uint8", 0, 255)}
  learner = _made("sac", "window:3", observed)
  learners.check(learner, observed, 1)
  memory = learner.memory()
  assert memory["x"].shape == (2,) and memory["seen"].dtype == np.uint8
  now = specs.zeros(observed)
  now = {"x": now["x"] + 5, "seen": now["seen"] + 7}
  memory = learner.act_greedy(
    jax.jit(learner.init)(_KEY), now, memory).memory
  np.testing.assert_array_equal(memory["x"], [0, 5])
  np.testing.assert_array_equal(memory["seen"][0, 0], [0, 7])


@pytest.mark.parametrize(("name", "memory", "message"), [
  ("sac", "window:1", "memory='window:1' .* of a window 2 or more"),
  ("ppo", "elephant", "give none, window:K"),
  ("crossq", "gru:8", "memory='gru:8' is unknown to this learner")])
def test_a_memory_that_is_none_is_refused(name, memory, message):
  with pytest.raises(ValueError, match=message) as error:
    _made(name, memory)
  assert "\n" not in str(error.value)
