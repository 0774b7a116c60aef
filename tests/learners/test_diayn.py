"""Tests of what DIAYN does to transitions, before its base learner learns."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from qdrl_haiku import learners, skills, types
from qdrl_haiku.learners import statistics
from tests import configs, jaxprs
from tests.learners import common, reference

_O, _B, _K, _D = common.OBSERVATION_SIZE, common.BATCH_SIZE, 4, 2
_PRIOR = skills.categorical(_K)
_HYPERPARAMS = jax.tree.map(
  np.float32,
  {"gain": 3.0, "discriminator_learning_rate": 0.05, "task_reward_weight": 0.0})


class _Seen(NamedTuple):
  """The state of a learner that keeps what it was given."""

  weight: Any
  transitions: Any = None
  hyperparams: Any = None
  key: Any = None
  observation: Any = None


def _spy(batches_per_update=1):
  """A base learner that learns nothing and acts as it sees."""
  return learners.Learner(
    init=lambda key: _Seen(jax.random.normal(key)),
    update=lambda state, hyperparams, transitions, key: (
      _Seen(state.weight, transitions, hyperparams, key),
      {"spied": jnp.float32(7.0)}),
    act=lambda state, hyperparams, observation, memory, key: types.Acted(
      hyperparams["gain"] * observation),
    act_greedy=lambda state, observation, memory: types.Acted(observation),
    observe=lambda state, observation: state._replace(observation=observation),
    hyperparams={"gain": 1.0}, batches_per_update=batches_per_update,
    genotype=lambda state: ("stored", state.weight),
    from_genotype=lambda genotype: _Seen(genotype[1] + 1.0))


def _config(**changes):
  """Smooth and small."""
  defaults = {
    "hidden_layer_sizes": (5,), "activation": "tanh",
    "normalize_observations": True}
  return learners.DIAYNConfig(**(defaults | changes))


@functools.cache
def _spied(prior=_PRIOR, num_batches=1, descriptor_size=_D, **changes):
  """DIAYN over a spy, one of each kind so as to compile once."""
  return learners.diayn(
    _spy(num_batches), _O, prior, descriptor_size, _config(**changes))


def _agent(learner, seed=0):
  """An agent with statistics, and networks far from how they begin."""
  state, rng = common.fresh(learner, seed), np.random.default_rng(seed)
  params = jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype),
    state.discriminator_params)
  state = state._replace(discriminator_params=params)
  seen = common.observations(50, seed=500 + seed)
  return jax.jit(statistics.observe_statistics)(state, seen)


def _batches(num_batches=1, prior=_PRIOR, seed=0):
  """Transitions [N, B] with skills and descriptors."""
  transitions = common.transitions(num_batches, _B, seed=seed)
  keys = jax.random.split(jax.random.key(seed), (num_batches, _B))
  skill = jax.jit(jax.vmap(jax.vmap(prior.sample)))(keys)
  rng = np.random.default_rng(600 + seed)
  descriptor, next_descriptor = jnp.asarray(
    rng.normal(size=(2, num_batches, _B, _D)), jnp.float32)
  return transitions._replace(
    observation=jnp.concatenate([transitions.observation, skill], axis=-1),
    next_observation=jnp.concatenate(
      [transitions.next_observation, skill], axis=-1),
    extras={"descriptor": descriptor, "next_descriptor": next_descriptor})


def _update(learner, state, transitions, **changes):
  return jax.jit(learner.update)(
    state, _HYPERPARAMS | changes, transitions, jax.random.key(3))


def _normalized(state, observation):
  """Observations of which all but the skill is normalised, in float64."""
  observation = np.asarray(observation, np.float64)
  numbers = reference.normalize(
    reference.float64(state.observation_statistics), observation[..., :_O])
  return np.concatenate([numbers, observation[..., _O:]], axis=-1)


def _log_q_categorical(parameters, skill):
  return np.sum(special.log_softmax(parameters, axis=-1) * skill, axis=-1)


def _log_q_circle(parameters, skill):
  angle = np.arctan2(skill[..., 1], skill[..., 0])
  mean = np.arctan2(parameters[..., 1], parameters[..., 0])
  concentration = np.linalg.norm(parameters, axis=-1)
  return stats.vonmises.logpdf(angle - mean, concentration)


@pytest.mark.parametrize(("prior", "log_q", "log_prior", "changes"), [
  (_PRIOR, _log_q_categorical, lambda z: 0.0, {"subtract_log_prior": False},),
  (skills.sphere(2), _log_q_circle, lambda z: -np.log(2 * np.pi), {}),
], ids=["categorical", "circle"])
def test_rewards_are_of_the_next_states(prior, log_q, log_prior, changes):
  learner = _spied(prior, **changes)
  state, batches = _agent(learner), _batches(prior=prior)
  after, metrics = _update(
    learner, state, batches, task_reward_weight=np.float32(0.5))
  parameters = reference.mlp(
    reference.float64(state.discriminator_params),
    np.asarray(batches.extras["next_descriptor"], np.float64))
  skill = np.asarray(batches.observation, np.float64)[..., _O:]
  expected = log_q(parameters, skill) - log_prior(skill)
  assert np.ptp(expected) > 1.0
  np.testing.assert_allclose(
    metrics["intrinsic_reward"], expected.mean(), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(
    after.agent.transitions.reward, expected + 0.5 * batches.reward,
    rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seen", ["descriptor", "observation"])
def test_each_batch_is_relabelled_and_then_a_step_of_adam(seen):
  sees_descriptor = seen == "descriptor"
  # One of observations needs no descriptor.
  learner = _spied(
    num_batches=2, descriptor_size=_D if sees_descriptor else None,
    discriminator_input=seen)
  state = _agent(learner)
  expected = reference.float64(state)
  params = expected.discriminator_params
  moments = expected.discriminator_optimizer_state
  for seed in range(2):
    batches = _batches(2, seed=seed)
    inputs = np.asarray(batches.extras["next_descriptor"], np.float64)
    if not sees_descriptor:
      inputs = _normalized(state, batches.next_observation)[..., :_O]
      batches = batches._replace(extras={})
    skill = np.asarray(batches.observation, np.float64)[..., _O:]
    steps = []
    state, metrics = _update(learner, state, batches)
    for n in range(2):
      def log_q(params, n=n, inputs=inputs, skill=skill):
        return _log_q_categorical(reference.mlp(params, inputs[n]), skill[n])

      # Of the discriminator before this batch.
      np.testing.assert_allclose(
        state.agent.transitions.reward[n], log_q(params) + np.log(_K),
        rtol=1e-4, atol=1e-5)
      params, moments, *step = reference.descend(
        lambda params, log_q=log_q: -np.mean(log_q(params)), params, moments,
        _HYPERPARAMS["discriminator_learning_rate"])
      steps.append(step)
    names = "discriminator_loss", "gradient_norm/discriminator"
    np.testing.assert_allclose(
      [metrics[x] for x in names], np.mean(steps, axis=0), rtol=1e-4)
  common.assert_close(state.discriminator_params, params, 1e-4, 1e-5)
  common.assert_close(state.discriminator_optimizer_state, moments, 1e-4, 1e-6)


def test_everything_sees_the_same_normalised_observation_and_the_skill():
  prior = skills.normal(2)
  learner = _spied(prior)
  state, batches = _agent(learner), _batches(prior=prior)
  # Beyond where normalised observations are clipped.
  batches = batches._replace(
    observation=batches.observation.at[..., _O:].multiply(50.0))
  expected = _normalized(state, batches.observation)
  assert np.abs(expected).max() > 10
  after, _ = _update(learner, state, batches)

  @jax.jit
  def calls(observation):
    key = jax.random.key(0)
    acted = learner.act(state, _HYPERPARAMS, observation, (), key).action
    greedy = learner.act_greedy(state, observation, ()).action
    return acted / 3.0, greedy, learner.observe(state, observation)

  acted, greedy, observed = calls(batches.observation)
  seen = {
    "update": after.agent.transitions.observation, "greedy": greedy,
    "act": acted, "observe": observed.agent.observation}
  for name, observation in seen.items():
    np.testing.assert_allclose(
      observation, expected, rtol=1e-5, atol=1e-5, err_msg=name)
  np.testing.assert_allclose(
    after.agent.transitions.next_observation,
    _normalized(state, batches.next_observation), rtol=1e-5, atol=1e-5)
  # Statistics, of which skills are no part, are moved by `observe` alone.
  common.assert_close(
    observed.observation_statistics,
    statistics.update_statistics(
      state.observation_statistics, batches.observation[..., :_O]))
  common.assert_equal(
    after.observation_statistics, state.observation_statistics)


def test_the_base_learner_gets_its_own_and_all_else_as_it_is():
  learner = _spied(normalize_observations=False)
  state, batches = _agent(learner), _batches()
  assert state.observation_statistics is None
  after, metrics = _update(learner, state, batches)
  common.assert_equal(
    after.agent.transitions._replace(reward=0), batches._replace(reward=0))
  assert after.agent.hyperparams == {"gain": _HYPERPARAMS["gain"]}
  assert after.agent.key == jax.random.key(3)
  assert metrics["spied"] == 7.0
  common.assert_equal(
    learner.act_greedy(state, batches.observation, ()).action,
    batches.observation)
  assert learner.observe(state, batches.observation)[1:] == state[1:]


class _Gains(NamedTuple):
  gain: float
  more: tuple[float, ...]


@pytest.mark.parametrize(("hyperparams", "name"), [
  (_Gains(3.0, (4.0, 5.0)), "gain"),
  ({"task_reward_weight": 3.0}, "task_reward_weight"),
], ids=["tuple", "same name"])
def test_other_trees_of_the_base_are_an_entry_of_ours(hyperparams, name):
  speed = learners.Hyperparameter(0.1, "how fast")
  base = _spy()._replace(
    hyperparams=hyperparams,
    act=lambda state, hyperparams, observation, memory, key: hyperparams,
    declared={name: speed})
  learner = learners.diayn(base, _O, _PRIOR, _D, _config())
  assert learner.declared[f"base/{name}"] is speed
  assert learner.hyperparams == {
    "base": hyperparams, "discriminator_learning_rate": 1e-3,
    "task_reward_weight": 0.0}
  changed = jax.tree.map(np.float32, learner.hyperparams)
  state, batches = common.fresh(learner), _batches()
  after, _ = jax.eval_shape(
    learner.update, state, changed, batches, jax.random.key(3))
  structure = jax.tree.structure(hyperparams)
  assert jax.tree.structure(after.agent.hyperparams) == structure
  assert hyperparams == learner.act(
    state, changed, batches.observation, (), jax.random.key(0))


def test_a_genotype_is_the_base_learners_and_has_no_optimizer():
  learner = _spied()
  state, _ = _update(learner, _agent(learner), _batches())
  assert state.discriminator_optimizer_state.count == 1
  genotype = learner.genotype(state)
  assert len(jax.tree.leaves(genotype)) == len(
    jax.tree.leaves(
      ("stored", 0.0, state.discriminator_params, state.observation_statistics))
  )
  after = learner.from_genotype(genotype)
  # As the spy's `from_genotype` makes it.
  common.assert_equal(
    after,
    state._replace(
      agent=_Seen(state.agent.weight + 1.0),
      discriminator_optimizer_state=common.fresh(
        learner).discriminator_optimizer_state))


def test_over_td3_it_is_a_learner_as_others_are():
  base = learners.td3(
    _O + _K, common.ACTION_SIZE,
    configs.sized(learners.TD3Config, (4,), (5,), normalize_observations=False))
  learner = learners.diayn(base, _O, _PRIOR, _D, _config())
  descriptor = jax.ShapeDtypeStruct((_D,), jnp.float32)
  learners.check(
    learner, _O + _K, common.ACTION_SIZE, {"next_descriptor": descriptor})
  update = jax.jit(learner.update)
  args = (
    common.fresh(learner), common.hyperparams(learner),
    _batches(learner.batches_per_update), jax.random.key(0))
  assert not jaxprs.named(update, "cond", *args)
  assert not jaxprs.waiting_loops(update, *args)
  assert not jaxprs.reused_keys(update, *args)
  assert not jaxprs.reused_keys(learner.init, jax.random.key(0))
  leaves = jax.tree.leaves(args[0])
  assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


def test_what_has_no_descriptor_is_refused():
  with pytest.raises(
    ValueError, match="discriminator_input=descriptor, .* no .*descriptor; take"
  ):
    learners.diayn_objective(_O, _PRIOR)
  learner = _spied()
  # Such as those of a replay buffer that doesn't store them.
  with pytest.raises(ValueError, match="next_descriptor"):
    _update(learner, _agent(learner), _batches()._replace(extras={}))
