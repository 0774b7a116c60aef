"""Tests that many agents learn from the critics of one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qdrl_haiku import learners, networks, specs
from tests import configs
from tests.learners import common, reference

_OBSERVATION, _ACTION, _CONTEXT = 3, 2, 2
_STEPS, _BATCH, _RATE = 3, 4, 0.01


_CONTEXT_VALUE = jnp.array([0.5, -1.0])


# What follows the context in the order of names, and what critics alone see.
_PARTS = {
  "a": specs.Array((2,)), "pixels": specs.Array((2, 2, 1), "uint8"),
  "privileged": specs.Array((1,))}


def _learner(observed=_OBSERVATION, **settings):
  sizes = {
    "policy_hidden_layer_sizes": (5,), "critic_hidden_layer_sizes": (6,),
    "activation": "tanh", "policy_final_init": "fan_in",
    "normalize_observations": False}
  config = configs.make(learners.TD3Config, **(sizes | settings))
  return learners.td3(observed, _ACTION, config)


def _observations(spec, seed, size):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(2 + 3 * rng.normal(size=(size, *x.shape))).astype(
      x.dtype), spec)


def _improved(params, critic, observations, context):
  """The same steps in float64, up the first critic."""
  first = jax.tree.map(lambda x: x[0], critic)
  moments = reference.float64(optax.scale_by_adam().init(params))
  for batch in observations:

    def loss(params, batch=batch):
      action = np.tanh(reference.mlp(params, batch))
      target = np.tile(context, (len(batch), 1))
      judged = np.concatenate([batch, target, action], axis=1)
      return -np.mean(reference.mlp(first, judged))

    params, moments, *_ = reference.descend(loss, params, moments, _RATE)
  return params


@pytest.mark.parametrize(
  ("size", "own_critics"), [(0, False), (_CONTEXT, True)])
def test_policies_climb_the_first_critic_as_in_float64(size, own_critics):
  learner = _learner(own_critics=own_critics)
  shared = learner.share(size)
  observations = jax.random.normal(
    jax.random.key(3), (_STEPS, _BATCH, _OBSERVATION))
  context = _CONTEXT_VALUE[:size]

  @jax.jit
  def improved(key):
    state = shared.learner.init(key)
    genotype = learner.genotype(learner.init(jax.random.fold_in(key, 1)))
    after = shared.improve(state, genotype, observations, context, _RATE)
    return state, genotype, after, shared.genotype_at(state, context)

  state, genotype, after, at_context = improved(jax.random.key(1))
  expected = _improved(*reference.float64(
    (genotype.policy_params, state.critic_params, observations, context)))
  common.assert_close(after.policy_params, expected, 1e-4, 1e-5)
  assert common.distance(after.policy_params, genotype.policy_params) > _RATE
  # The critics go with those that they have improved.
  common.assert_close(after.critic_params, at_context.critic_params)
  assert (after.critic_params is not None) == own_critics


@pytest.mark.parametrize(("observed", "settings"), [
  (specs.Array((_OBSERVATION,)), {
    "policy_hidden_layer_sizes": (5, 4), "normalize_observations": True}),
  (specs.Array((_OBSERVATION,)), {"residual": True}),
  (_PARTS, {"normalize_observations": True}),
  (_PARTS["pixels"], {"normalize_observations": True})], ids=str)
def test_an_agent_of_a_context_acts_as_the_one_does_there(observed, settings):
  learner = _learner(observed, **settings)
  shared = learner.share(_CONTEXT)
  extended = specs.Extended(observed, "context", _CONTEXT)
  observation = _observations(observed, 4, 7)
  whole = extended.join(observation, jnp.tile(_CONTEXT_VALUE, (7, 1)))
  # The one agent has seen these, if it counts them.
  seen = _observations(extended.spec, 9, 20)

  @jax.jit
  def acted(key):
    state = shared.learner.observe(shared.learner.init(key), seen)
    own = learner.from_genotype(shared.genotype_at(state, _CONTEXT_VALUE))
    fresh = learner.init(key)
    assert jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, fresh)
    return (
      learner.act_greedy(own, observation, ()).action,
      shared.learner.act_greedy(state, whole, ()).action)

  actual, expected = acted(jax.random.key(0))
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_an_agent_of_a_context_is_judged_and_improved_as_the_one_is_there():
  """Without normalisation, of which each agent has its own."""
  learner = _learner(_PARTS)
  shared = learner.share(_CONTEXT)
  extended = specs.Extended(_PARTS, "context", _CONTEXT)
  config = networks.NetworkConfig((5,), None, (6,), "tanh")
  policy, critic = networks.make_td3_networks(_PARTS, _ACTION, config)
  judge = networks.make_td3_networks(extended.spec, _ACTION, config).critic
  observation = _observations(_PARTS, 4, 7)
  whole = extended.join(observation, jnp.tile(_CONTEXT_VALUE, (7, 1)))
  batches = jax.tree.map(lambda x: jnp.stack([x] * 9), observation)

  @jax.jit
  def judged(key):
    state = shared.learner.init(key)
    before = shared.genotype_at(state, _CONTEXT_VALUE)
    after = shared.improve(state, before, batches, _CONTEXT_VALUE, _RATE)
    action, improved = (
      jnp.tanh(policy.apply(x.policy_params, observation))
      for x in (before, after))
    return (
      critic.apply(before.critic_params, observation, action),
      judge.apply(state.critic_params, whole, action),
      judge.apply(state.critic_params, whole, improved))

  own, there, improved = judged(jax.random.key(0))
  np.testing.assert_allclose(own, there, rtol=1e-5, atol=1e-6)
  assert improved[:, 0].mean() > there[:, 0].mean() + 0.01


def test_an_agent_without_critics_acts_and_can_not_be_trained():
  learner, key = _learner(own_critics=False), jax.random.key(0)
  state = jax.eval_shape(learner.init, key)
  assert state.critic_params is None and state.target_critic_params is None
  actions = [
    jax.jit(lambda key, x=x: x.act_greedy(
      x.init(key), jnp.ones(_OBSERVATION), ()).action)(key)
    for x in (learner, _learner())]
  np.testing.assert_array_equal(*actions)
  with pytest.raises(ValueError, match="own_critics=False leaves nothing"):
    learner.update(state, learner.hyperparams, common.batches(learner), key)
