"""Tests of which transitions SMERL rewards for being different."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, skills
from tests.learners import common
from tests.learners.test_diayn import _batches, _spy

_O, _B, _D = common.OBSERVATION_SIZE, common.BATCH_SIZE, 2
_PRIOR = skills.categorical(4)
_SIZES = {"hidden_layer_sizes": (5,), "activation": "tanh"}
_OVER = {
  "diayn": None,
  "dads": learners.dads_objective(
    _O, _PRIOR, _D, learners.DADSConfig(**_SIZES))}


@functools.cache
def _learner(over="diayn", **changes):
  config = learners.SMERLConfig(**_SIZES, **changes)
  return learners.smerl(_spy(), _O, _PRIOR, _D, config, _OVER[over])


def _batch(returns):
  batch = _batches(prior=_PRIOR)
  returns = jnp.resize(jnp.array(returns, jnp.float32), (1, _B))
  return batch._replace(extras=batch.extras | {"skill_return": returns})


def _update(learner, state, batch, **changes):
  changes = {"task_reward_weight": 0.0} | changes
  return common.update_spied(learner, state, batch, **changes)


@pytest.mark.parametrize("over", _OVER)
@pytest.mark.parametrize(("target", "margin", "shift", "near"), [
  # Their mean is 7.58 or -10.42, and a fifth below it 6.06 or -12.50.
  (None, 0.2, 0, 7.4), (None, 0.2, -18, -10.6),
  (5.0, 0.0, 0, 5.0), (-9.0, 0.125, -18, -10.0)])
def test_differing_is_rewarded_where_the_skill_does_the_task(
  over, target, margin, shift, near
):
  returns = np.float32([skills.NO_RETURN, 5.0, 7.4, 7.5, 8.0, 10.0]) + shift
  returns = np.resize(returns, _B)
  learner = _learner(over, target_return=target)
  state, batch = common.fresh(learner), _batch(returns)
  after, metrics = _update(
    learner, state, batch, return_margin_share=margin,
    diversity_reward_weight=0.5)
  objective = learners.diayn if over == "diayn" else learners.dads
  config = learners.DIAYNConfig if over == "diayn" else learners.DADSConfig
  alone = objective(_spy(), _O, _PRIOR, _D, config(**_SIZES))
  own = {
    name: getattr(state.diversity, name)
    for name in state.diversity._fields
    if name not in ("agent", "observation_statistics")}
  inside = common.fresh(alone)._replace(**own)
  expected, _ = _update(alone, inside, batch)
  is_near = returns >= near
  assert 0 < is_near.mean() < 1
  np.testing.assert_allclose(
    after.agent.transitions.reward[0],
    np.where(is_near, 0.5 * expected.agent.transitions.reward[0], 0.0),
    rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(after.best_return, 7.58 + shift, rtol=1e-6)
  np.testing.assert_allclose(metrics["share_near_target"], is_near.mean())


@pytest.mark.parametrize(("mean", "deviation"), [
  (3000, 100), (300, 20), (25, 1.5), (-300, 20)])
def test_equally_good_skills_are_rewarded_whatever_the_size_of_returns(
  mean, deviation
):
  objective = learners.smerl_objective(
    _O, _PRIOR, _D, learners.SMERLConfig(**_SIZES))
  hyperparams = _learner().hyperparams

  @jax.jit
  def learn(state, returns):
    zeros = jnp.zeros((returns.size, _O))
    steps = learners.SkillSteps(
      zeros, zeros, jnp.eye(4)[jnp.arange(returns.size) % 4], None,
      zeros[:, :_D], returns)
    state, _, metrics = objective.learn(state, hyperparams, steps)
    return state, metrics["share_near_target"]

  returns = mean + deviation * jax.random.normal(jax.random.key(0), (200, 64))
  _, shares = jax.lax.scan(learn, common.fresh(_learner()), returns)
  assert jnp.mean(shares) > 0.85


def test_share_near_the_target_is_known_where_differing_has_no_weight():
  learner = _learner(target_return=5.0)
  _, metrics = _update(
    learner, common.fresh(learner), _batch([4.0, 6.0]), return_margin_share=0.0,
    diversity_reward_weight=0.0)
  assert metrics["share_near_target"] == 0.5


def test_before_an_episode_has_ended_only_the_task_is_rewarded():
  learner = _learner()
  batch = _batch([skills.NO_RETURN])
  after, _ = _update(
    learner, common.fresh(learner), batch, task_reward_weight=1.0)
  np.testing.assert_array_equal(after.agent.transitions.reward, batch.reward)


def test_the_best_return_is_a_mean_of_episodes_and_inherited():
  learner = _learner()
  state = common.fresh(learner)
  for returns, expected in (
    ([skills.NO_RETURN], skills.NO_RETURN),
    ([3.0, 1.0], 2.0),  # Their mean at first.
    ([2.2, 1.7], 2.002),  # Then a hundredth towards those from 1.8 on.
    ([1.0, skills.NO_RETURN], 2.002),
    ([9.0, 1.0], 2.07198)):
    state, _ = _update(learner, state, _batch(returns))
    np.testing.assert_allclose(state.best_return, expected, rtol=1e-6)
  again = learner.from_genotype(learner.genotype(state))
  assert again.best_return == state.best_return
  common.assert_equal(
    again.diversity.discriminator_params, state.diversity.discriminator_params)


def test_every_hyperparameter_changes_what_is_learned():
  learner = _learner()
  batch = _batch([0.0, 9.0])
  common.assert_live(
    learner, common.fresh(learner), batch, return_margin_share=1.0)


def test_continuous_skills_and_returns_that_are_not_kept_are_refused():
  with pytest.raises(ValueError, match="smerl knows .* take skill_type=disc"):
    learners.smerl_objective(_O, skills.sphere(2), _D)
  learner = _learner()
  with pytest.raises(ValueError, match="no skill_return .*keeps_returns=True"):
    _update(learner, common.fresh(learner), _batches(prior=_PRIOR))
