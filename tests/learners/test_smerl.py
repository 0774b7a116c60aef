"""Tests of which transitions SMERL rewards for being different."""

import functools

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
@pytest.mark.parametrize(("target", "margin", "near"), [
  (None, 2.5, [7.5, 10.0]), (5.0, 0.0, [5.0, 7.5, 10.0])])
def test_differing_is_rewarded_where_the_skill_does_the_task(
  over, target, margin, near
):
  returns = np.resize([skills.NO_RETURN, 5.0, 7.4, 7.5, 10.0], _B)
  learner = _learner(over, target_return=target)
  state, batch = common.fresh(learner), _batch(returns)
  after, metrics = _update(
    learner, state, batch, return_margin=margin, diversity_reward_weight=0.5)
  objective = learners.diayn if over == "diayn" else learners.dads
  config = learners.DIAYNConfig if over == "diayn" else learners.DADSConfig
  alone = objective(_spy(), _O, _PRIOR, _D, config(**_SIZES))
  own = {
    name: getattr(state.diversity, name)
    for name in state.diversity._fields
    if name not in ("agent", "observation_statistics")}
  inside = common.fresh(alone)._replace(**own)
  expected, _ = _update(alone, inside, batch)
  is_near = returns >= min(near)
  assert 0 < is_near.mean() < 1
  np.testing.assert_allclose(
    after.agent.transitions.reward[0],
    np.where(is_near, 0.5 * expected.agent.transitions.reward[0], 0.0),
    rtol=1e-5, atol=1e-6)
  assert after.best_return == 10.0
  np.testing.assert_allclose(metrics["share_near_target"], is_near.mean())


def test_share_near_the_target_is_known_where_differing_has_no_weight():
  learner = _learner(target_return=5.0)
  _, metrics = _update(
    learner, common.fresh(learner), _batch([4.0, 6.0]), return_margin=0.0,
    diversity_reward_weight=0.0)
  assert metrics["share_near_target"] == 0.5


def test_before_an_episode_has_ended_only_the_task_is_rewarded():
  learner = _learner()
  batch = _batch([skills.NO_RETURN])
  after, _ = _update(
    learner, common.fresh(learner), batch, task_reward_weight=1.0)
  np.testing.assert_array_equal(after.agent.transitions.reward, batch.reward)


def test_the_best_return_is_remembered_and_inherited():
  learner = _learner()
  state, _ = _update(learner, common.fresh(learner), _batch([3.0, 1.0]))
  state, _ = _update(learner, state, _batch([2.0]))
  assert state.best_return == 3.0
  again = learner.from_genotype(learner.genotype(state))
  assert again.best_return == 3.0
  common.assert_equal(
    again.diversity.discriminator_params, state.diversity.discriminator_params)


def test_every_hyperparameter_changes_what_is_learned():
  learner = _learner()
  batch = _batch([0.0, 9.0])
  common.assert_live(learner, common.fresh(learner), batch, return_margin=10.0)


def test_continuous_skills_and_returns_that_are_not_kept_are_refused():
  with pytest.raises(ValueError, match="smerl knows .* take skill_type=disc"):
    learners.smerl_objective(_O, skills.sphere(2), _D)
  learner = _learner()
  with pytest.raises(ValueError, match="no skill_return .*keeps_returns=True"):
    _update(learner, common.fresh(learner), _batches(prior=_PRIOR))
