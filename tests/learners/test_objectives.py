"""Tests of what rewards skills: the rewards, and what is learned from steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from qdrl_haiku import learners, skills
from qdrl_haiku.learners import statistics
from tests.learners import common, reference, skilled

_O, _B = common.OBSERVATION_SIZE, common.BATCH_SIZE
_K, _D = skilled.K, skilled.D
_PRIORS = {"sphere": skilled.CIRCLE, "discrete": skilled.CATEGORICAL}
_BY_PRIOR = pytest.mark.parametrize("kind", _PRIORS)
_SEEN = pytest.mark.parametrize("seen", ["descriptor", "observation"])
_OTHERS, _M = 5, 3


def _log_q_categorical(parameters, skill):
  return np.sum(special.log_softmax(parameters, axis=-1) * skill, axis=-1)


def _log_q_circle(parameters, skill):
  angle = np.arctan2(skill[..., 1], skill[..., 0])
  mean = np.arctan2(parameters[..., 1], parameters[..., 0])
  concentration = np.linalg.norm(parameters, axis=-1)
  return stats.vonmises.logpdf(angle - mean, concentration)


def _skill(batches):
  return np.asarray(batches.observation[..., _O:], np.float64)


@pytest.mark.parametrize(("prior", "log_q", "log_prior", "changes"), [
  (skilled.CATEGORICAL, _log_q_categorical, 0.0, {"subtract_log_prior": False}),
  (skilled.CIRCLE, _log_q_circle, -np.log(2 * np.pi), {}),
], ids=["categorical", "circle"])
def test_diayn_rewards_next_states(prior, log_q, log_prior, changes):
  learner = skilled.learner(prior=prior, **changes)
  state, batches = skilled.agent(learner), skilled.batches(prior=prior)
  after, metrics = skilled.update(
    learner, state, batches, task_reward_weight=0.5)
  parameters = skilled.network(
    state, "discriminator_params", batches.extras["next_descriptor"])
  expected = log_q(parameters, _skill(batches)) - log_prior
  assert np.ptp(expected) > 1.0
  np.testing.assert_allclose(
    metrics["intrinsic_reward"], expected.mean(), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(
    after.agent.transitions.reward, expected + 0.5 * batches.reward,
    rtol=1e-5, atol=1e-5)


@_SEEN
def test_each_batch_is_rewarded_and_then_a_step_of_adam(seen):
  sees_descriptor = seen == "descriptor"
  # One of observations needs no descriptor.
  learner = skilled.learner(
    num_batches=2, descriptor_size=_D if sees_descriptor else None,
    discriminator_input=seen)
  state = skilled.agent(learner)
  params, moments = (
    reference.float64(x["discriminator_params"])
    for x in (state.learned, state.optimizers))
  for seed in range(2):
    batches = skilled.batches(2, seed=seed)
    inputs = np.asarray(batches.extras["next_descriptor"], np.float64)
    if not sees_descriptor:
      inputs = skilled.normalized(state, batches.next_observation)[..., :_O]
      batches = batches._replace(extras={})
    skill, steps = _skill(batches), []
    state, metrics = skilled.update(
      learner, state, batches, discriminator_learning_rate=0.05)
    for n in range(2):
      def log_q(params, n=n, inputs=inputs, skill=skill):
        return _log_q_categorical(reference.mlp(params, inputs[n]), skill[n])

      # Of the discriminator before this batch.
      np.testing.assert_allclose(
        state.agent.transitions.reward[n], log_q(params) + np.log(_K),
        rtol=1e-4, atol=1e-5)
      params, moments, *step = reference.descend(
        lambda params, log_q=log_q: -np.mean(log_q(params)), params, moments,
        np.float32(0.05))
      steps.append(step)
    names = "discriminator_loss", "gradient_norm/discriminator"
    np.testing.assert_allclose(
      [metrics[x] for x in names], np.mean(steps, axis=0), rtol=1e-4)
  common.assert_close(state.learned["discriminator_params"], params, 1e-4, 1e-5)
  common.assert_close(
    state.optimizers["discriminator_params"], moments, 1e-4, 1e-6)


@_BY_PRIOR
def test_metra_rewards_moving_along_the_skill(kind):
  prior = _PRIORS[kind]
  learner = skilled.learner("metra", prior)
  state, batches = common.fresh(learner), skilled.batches(prior=prior)
  state = learner.observe(state, batches.observation)
  after, metrics = skilled.update(
    learner, state, batches, task_reward_weight=0.5)
  skill = _skill(batches)
  if kind == "discrete":
    skill = (4 * skill - 1) / 3
  before, later = (
    skilled.network(
      state, "representation_params", skilled.normalized(state, x)[..., :_O])
    for x in (batches.observation, batches.next_observation))
  intrinsic = np.sum((later - before) * skill, axis=-1)
  np.testing.assert_allclose(
    after.agent.transitions.reward,
    intrinsic + 0.5 * np.asarray(batches.reward), rtol=1e-4, atol=1e-5)
  room = np.minimum(1e-3, 1 - np.sum((later - before) ** 2, axis=-1)).mean()
  np.testing.assert_allclose(metrics["constraint_slack"], room, atol=1e-5)
  # The first step of Adam has the length of its learning rate.
  rate = learner.hyperparams["multiplier_learning_rate"]
  moved = after.learned["log_multiplier"] - state.learned["log_multiplier"]
  np.testing.assert_allclose(moved, -np.sign(room) * rate, rtol=1e-3)


def test_metra_learns_to_move_along_skills_but_not_too_far():
  learner = skilled.learner("metra", skilled.CIRCLE)
  batch = skilled.batches(prior=skilled.CIRCLE)
  state = learner.observe(common.fresh(learner), batch.observation)
  # The next state says the skill.
  batch = batch._replace(
    next_observation=batch.next_observation.at[..., :2].set(
      3 * batch.observation[..., _O:]))
  for _ in range(400):
    state, metrics = skilled.update(
      learner, state, batch, representation_learning_rate=1e-2,
      multiplier_learning_rate=1e-2)
  assert 0.5 < metrics["intrinsic_reward"] <= 1.01
  assert 0 <= metrics["constraint_slack"] < 1.001e-3


def _dads_log_prob(state, batch, skill, changed):
  """The log-density of what changed, normalised, [B], in float64."""
  observation = skilled.normalized(state, batch.observation[0])[:, :_O]
  outputs = skilled.network(
    state, "dynamics_params", np.concatenate([observation, skill], axis=-1))
  locations = outputs[:, _M:].reshape(len(outputs), _M, -1)
  squares = np.sum((changed[:, None] - locations) ** 2, axis=-1)
  log_probs = special.log_softmax(outputs[:, :_M], axis=-1) - squares / 2
  size = changed.shape[-1]
  return special.logsumexp(log_probs, axis=-1) - size / 2 * np.log(2 * np.pi)


@_SEEN
@_BY_PRIOR
def test_dads_compares_a_skills_density_with_those_of_others(kind, seen):
  prior = _PRIORS[kind]
  learner = skilled.learner(
    "dads", prior, dynamics_input=seen, num_components=_M,
    num_other_skills=_OTHERS)
  state, batch = skilled.agent(learner), skilled.batches(prior=prior)
  after, metrics = skilled.update(learner, state, batch, task_reward_weight=0.5)
  if seen == "descriptor":
    pair = batch.extras["descriptor"], batch.extras["next_descriptor"]
  else:
    pair = batch.observation[..., :_O], batch.next_observation[..., :_O]
  before, later = (np.asarray(x[0], np.float64) for x in pair)
  difference = later - before
  changed = (difference - difference.mean(0)) / difference.std(0)
  skill = _skill(batch)[0]
  own = _dads_log_prob(state, batch, skill, changed)
  if kind == "discrete":
    others = [np.broadcast_to(z, skill.shape) for z in np.eye(_K)]
  else:
    others = [np.roll(skill, i + 1, axis=0) for i in range(_OTHERS)]
  of_others = [_dads_log_prob(state, batch, z, changed) for z in others]
  rewards = own - special.logsumexp(of_others, axis=0) + np.log(len(others))
  np.testing.assert_allclose(
    after.agent.transitions.reward[0], rewards + 0.5 * batch.reward[0],
    rtol=1e-3, atol=1e-4)
  np.testing.assert_allclose(metrics["dynamics_loss"], -own.mean(), rtol=1e-4)
  common.assert_close(
    after.learned["difference_statistics"],
    statistics.update_statistics(
      state.learned["difference_statistics"], jnp.float32(difference)))


def test_dads_learns_where_skills_lead():
  learner = skilled.learner("dads", skilled.CIRCLE)
  state, batch = common.fresh(learner), skilled.batches(prior=skilled.CIRCLE)
  ends = batch.extras["descriptor"] + 3 * batch.observation[..., _O:]
  batch = batch._replace(extras=batch.extras | {"next_descriptor": ends})
  for _ in range(300):
    state, metrics = skilled.update(
      learner, state, batch, dynamics_learning_rate=0.02)
  assert metrics["intrinsic_reward"] > 0.5


def _with_returns(returns):
  batch = skilled.batches()
  returns = jnp.resize(jnp.array(returns, jnp.float32), (1, _B))
  return batch._replace(extras=batch.extras | {"skill_return": returns})


def _update_smerl(learner, state, returns, **changes):
  changes = {"task_reward_weight": 0.0} | changes
  return skilled.update(learner, state, _with_returns(returns), **changes)


@pytest.mark.parametrize("over", ["diayn", "dads"])
@pytest.mark.parametrize(("target", "margin", "shift", "near"), [
  # Their mean is 7.58 or -10.42, and a fifth below it 6.06 or -12.50.
  (None, 0.2, 0, 7.4), (None, 0.2, -18, -10.6),
  (5.0, 0.0, 0, 5.0), (-9.0, 0.125, -18, -10.0)])
def test_smerl_rewards_differing_where_the_skill_does_the_task(
  over, target, margin, shift, near
):
  returns = np.float32([skills.NO_RETURN, 5.0, 7.4, 7.5, 8.0, 10.0]) + shift
  returns = np.resize(returns, _B)
  config = learners.SMERLConfig(**skilled.SHAPE, target_return=target)
  diversity = None
  if over == "dads":
    diversity = learners.dads_objective(
      _O, skilled.CATEGORICAL, _D, learners.DADSConfig(**skilled.SHAPE))
  learner = learners.smerl(
    skilled.spy(), _O, skilled.CATEGORICAL, _D, config, diversity)
  state = common.fresh(learner)
  after, metrics = _update_smerl(
    learner, state, returns, return_margin_share=margin,
    diversity_reward_weight=0.5)
  alone = skilled.learner(over)
  learned = {x: y for x, y in state.learned.items() if x != "best_return"}
  expected, _ = _update_smerl(
    alone, state._replace(learned=learned), returns)
  is_near = returns >= near
  assert 0 < is_near.mean() < 1
  np.testing.assert_allclose(
    after.agent.transitions.reward[0],
    np.where(is_near, 0.5 * expected.agent.transitions.reward[0], 0.0),
    rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(
    after.learned["best_return"], 7.58 + shift, rtol=1e-6)
  np.testing.assert_allclose(metrics["share_near_target"], is_near.mean())


@pytest.mark.parametrize(("mean", "deviation"), [
  (3000, 100), (300, 20), (25, 1.5), (-300, 20)])
def test_smerl_rewards_equally_good_skills_whatever_the_size_of_returns(
  mean, deviation
):
  learner = skilled.learner("smerl")
  objective = learners.smerl_objective(
    _O, skilled.CATEGORICAL, _D, learners.SMERLConfig(**skilled.SHAPE))

  @jax.jit
  def learn(state, returns):
    zeros = jnp.zeros((returns.size, _O))
    steps = learners.SkillSteps(
      zeros, zeros, jnp.eye(_K)[jnp.arange(returns.size) % _K], None,
      zeros[:, :_D], returns)
    state, _, metrics = objective.learn(state, learner.hyperparams, steps)
    return state, metrics["share_near_target"]

  returns = mean + deviation * jax.random.normal(jax.random.key(0), (200, 64))
  _, shares = jax.lax.scan(learn, common.fresh(learner), returns)
  assert jnp.mean(shares) > 0.85


def test_smerl_tells_the_share_near_the_target_though_it_has_no_weight():
  learner = skilled.learner("smerl", target_return=5.0)
  _, metrics = _update_smerl(
    learner, common.fresh(learner), [4.0, 6.0], return_margin_share=0.0,
    diversity_reward_weight=0.0)
  assert metrics["share_near_target"] == 0.5


def test_smerls_best_return_is_a_mean_of_episodes():
  learner = skilled.learner("smerl")
  state = common.fresh(learner)
  for returns, expected in (
    ([skills.NO_RETURN], skills.NO_RETURN),
    ([3.0, 1.0], 2.0),  # Their mean at first.
    ([2.2, 1.7], 2.002),  # Then a hundredth towards those from 1.8 on.
    ([1.0, skills.NO_RETURN], 2.002),
    ([9.0, 1.0], 2.07198)):
    state, _ = _update_smerl(learner, state, returns, task_reward_weight=1.0)
    if expected == skills.NO_RETURN:  # Only the task is rewarded.
      np.testing.assert_array_equal(
        state.agent.transitions.reward, skilled.batches().reward)
    np.testing.assert_allclose(
      state.learned["best_return"], expected, rtol=1e-6)
