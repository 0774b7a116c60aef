"""Tests that many agents learn from the critics of one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners
from tests import configs
from tests.learners import common, reference

_OBSERVATION, _ACTION, _CONTEXT = 3, 2, 2
_STEPS, _BATCH, _RATE = 3, 4, 0.01


_CONTEXT_VALUE = jnp.array([0.5, -1.0])


def _learner(**settings):
  sizes = {
    "policy_hidden_layer_sizes": (5,),
    "critic_hidden_layer_sizes": (6,),
    "activation": "tanh",
    "policy_final_init": "fan_in",
    "normalize_observations": False,
  }
  config = configs.make(learners.TD3Config, **(sizes | settings))
  return learners.td3(_OBSERVATION, _ACTION, config)


def _improved(params, critic, observations, context):
  """The same steps in float64: -Q's gradient by hand, and Adam."""
  x = [params[name][leaf] for name, leaf in _NAMES]
  moments = [(np.zeros_like(p), np.zeros_like(p)) for p in x]
  (v1, c1), (v2, _) = [
    (critic[name]["w"][0], critic[name]["b"][0]) for name in _CRITIC
  ]
  for t, batch in enumerate(observations, 1):
    w1, b1, w2, b2 = x
    hidden = np.tanh(batch @ w1 + b1)
    action = np.tanh(hidden @ w2 + b2)
    judged = np.concatenate(
      [batch, np.tile(context, (len(batch), 1)), action], axis=1
    )
    above = np.tanh(judged @ v1 + c1)
    by_action = ((1 - above**2) * v2[:, 0]) @ v1[-_ACTION:].T / len(batch)
    by_output = -by_action * (1 - action**2)
    by_hidden = by_output @ w2.T * (1 - hidden**2)
    gradients = [
      batch.T @ by_hidden, by_hidden.sum(0),
      hidden.T @ by_output, by_output.sum(0),
    ]  # fmt: skip
    for i, g in enumerate(gradients):
      m = 0.9 * moments[i][0] + 0.1 * g
      v = 0.999 * moments[i][1] + 0.001 * g**2
      moments[i] = (m, v)
      step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
      x[i] = x[i] - _RATE * step
  return x


_NAMES = [
  ("policy/linear_0", "w"), ("policy/linear_0", "b"),
  ("policy/output", "w"), ("policy/output", "b"),
]  # fmt: skip
_CRITIC = ("critic/linear_0", "critic/output")


@pytest.mark.parametrize(
  ("size", "own_critics"), [(0, False), (_CONTEXT, True)]
)
def test_policies_climb_the_first_critic_as_in_float64(size, own_critics):
  learner = _learner(own_critics=own_critics)
  shared = learner.share(size)
  observations = jax.random.normal(
    jax.random.key(3), (_STEPS, _BATCH, _OBSERVATION)
  )
  context = _CONTEXT_VALUE[:size]

  @jax.jit
  def improved(key):
    state = shared.learner.init(key)
    genotype = learner.genotype(learner.init(jax.random.fold_in(key, 1)))
    after = shared.improve(state, genotype, observations, context, _RATE)
    return state, genotype, after, shared.genotype_at(state, context)

  state, genotype, after, at_context = improved(jax.random.key(1))
  expected = _improved(*reference.float64(
    (genotype.policy_params, state.critic_params, observations, context)
  ))  # fmt: skip
  for (name, leaf), value in zip(_NAMES, expected, strict=True):
    actual = after.policy_params[name][leaf]
    np.testing.assert_allclose(actual, value, rtol=1e-4, atol=1e-5)
    moved = np.abs(actual - genotype.policy_params[name][leaf])
    assert np.max(moved) > _RATE
  # The critics go with those that they have improved.
  common.assert_close(after.critic_params, at_context.critic_params)
  assert (after.critic_params is not None) == own_critics


@pytest.mark.parametrize(
  "settings",
  [
    {"policy_hidden_layer_sizes": ()},
    {"policy_hidden_layer_sizes": (5, 4), "normalize_observations": True},
    {"residual": True},
  ],
  ids=str,
)
def test_an_agent_of_a_context_acts_as_the_one_does_there(settings):
  learner = _learner(**settings)
  shared = learner.share(_CONTEXT)
  observation = jax.random.normal(jax.random.key(4), (7, _OBSERVATION))
  whole = jnp.concatenate(
    [observation, jnp.tile(_CONTEXT_VALUE, (7, 1))], axis=1
  )
  # The one agent has seen these, if it counts them.
  seen = 2 + 3 * jax.random.normal(
    jax.random.key(9), (20, _OBSERVATION + _CONTEXT)
  )

  @jax.jit
  def acted(key):
    state = shared.learner.observe(shared.learner.init(key), seen)
    own = learner.from_genotype(shared.genotype_at(state, _CONTEXT_VALUE))
    fresh = learner.init(key)
    assert jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, fresh)
    return (
      learner.act_greedy(own, observation),
      shared.learner.act_greedy(state, whole),
    )

  actual, expected = acted(jax.random.key(0))
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_an_agent_without_critics_acts_and_can_not_be_trained():
  learner, key = _learner(own_critics=False), jax.random.key(0)
  state = jax.eval_shape(learner.init, key)
  assert state.critic_params is None and state.target_critic_params is None
  actions = [
    jax.jit(lambda key, x=x: x.act_greedy(x.init(key), jnp.ones(_OBSERVATION)))(
      key
    )
    for x in (learner, _learner())
  ]
  np.testing.assert_array_equal(*actions)
  with pytest.raises(ValueError, match="own_critics=False leaves nothing"):
    learner.update(
      state, learner.hyperparams, common.batches(learner), key
    )
