"""Tests of what learners declare of their hyperparameters."""

import jax
import numpy as np
import pytest

from qdrl_haiku import learners, ranges, skills
from qdrl_haiku.learners import hyperparameters
from tests.learners import common

_SAC = learners.sac(3, 2)
_LEARNERS = {
  "sac": _SAC,
  "td3": learners.td3(3, 2),
  "crossq": learners.crossq(3, 2),
  "xqc": learners.xqc(3, 2),
  "ppo": learners.ppo(3, 2),
  "dqn": learners.dqn(3, common.DISCRETE),
  "pqn": learners.pqn(3, common.DISCRETE),
  "diayn": learners.diayn(
    _SAC, 1, skills.categorical(2),
    config=learners.DIAYNConfig(discriminator_input="observation"))}


@pytest.mark.parametrize("name", _LEARNERS)
def test_a_learner_declares_each_of_its_hyperparameters(name):
  learner = _LEARNERS[name]
  assert learner.hyperparams.keys() == learner.declared.keys()
  for key, value in learner.hyperparams.items():
    assert learner.declared[key] == learners.DECLARATIONS[key][name]
    # Half of the actions' size, of which high entropies are the target.
    default = -1.0 if key == "target_entropy" else learner.declared[key].default
    assert value == default


@pytest.mark.parametrize("name", learners.DECLARATIONS)
def test_what_is_declared_makes_sense(name):
  found = [*learners.DECLARATIONS[name].values()]
  # Flags are checked before it's known whose they are.
  assert len({(x.low, x.high, x.excludes_low) for x in found}) == 1
  for declared in found:
    assert declared.help and not declared.help.endswith(".")
    if declared.default is not None:
      assert declared.low <= declared.default <= declared.high
    if declared.search is not None:
      low, high = ranges.bounds(declared.search)
      assert declared.low <= low < high <= declared.high


def test_a_range_as_text_is_refused():
  with pytest.raises(ValueError, match="until 0.4 .*; give .*LogUniform"):
    learners.Hyperparameter(0.1, "how fast", search="log_uniform:0.01:1")


@pytest.mark.parametrize(("config", "steps", "discount", "low", "high"), [
  (learners.SACConfig(), 1000, 0.995, 0.992, 0.997),
  (learners.SACConfig(), 200, 0.975, 0.96, 0.985),
  (learners.SACConfig(), 5, 0.95, 0.92, 0.97),
  # It has a shorter horizon in long episodes.
  (learners.CrossQConfig(), 1000, 0.99, 0.984, 0.994),
  (learners.CrossQConfig(), 200, 0.975, 0.96, 0.985)])
def test_default_discounts_go_by_episodes(config, steps, discount, low, high):
  learner = learners.make_learner(config, 3, 2, steps)
  assert learner.hyperparams["discount"] == pytest.approx(discount)
  search = learner.declared["discount"].search
  assert search == ranges.OneMinusLogUniform(low, high)


@pytest.mark.parametrize("name", common.NAMES)
def test_every_hyperparameter_is_live(name):
  learner, key = common.learner(name), jax.random.key(0)
  batches, default = common.batches(learner), common.hyperparams(learner)
  # After an update, of which learners count some.
  state, _ = learner.update(common.agent(learner), default, batches, key)
  observation = common.observations(500)

  def made(hyperparams):
    acted = learner.act(state, hyperparams, observation, (), key)
    return learner.update(state, hyperparams, batches, key)[0], acted.action

  expected = made(default)
  for leaf, value in default.items():
    # Rounding alone changes less.
    found = made(default | {leaf: np.float32(0.5 * value)})
    assert common.distance(found, expected) > 5e-6, leaf


@pytest.mark.parametrize(("discount", "num_updates", "expected"), [
  (0.99, 0, 0.95), (0.99, 25, 1 - (0.05 * 0.01) ** 0.5), (0.99, 50, 0.99),
  (0.99, 80, 0.99), (0.9, 10, 0.9)])
def test_a_discount_grows_with_critic_steps(discount, num_updates, expected):
  given = learners.td3(3, 2)  # Of two critic steps in an update.
  state = given.init(jax.random.key(0))
  adam = state.policy_optimizer_state._replace(count=np.int32(num_updates))
  seen = given._replace(
    update=lambda state, hyperparams, *_: (
      state, {"q": hyperparams["discount"]}))
  learner = hyperparameters.with_growing_discount(seen, 100)
  _, metrics = learner.update(
    state._replace(policy_optimizer_state=adam),
    given.hyperparams | {"discount": discount}, None, None)
  np.testing.assert_allclose(metrics["q"], expected, rtol=1e-6)
  assert metrics["discount"] == metrics["q"]
  assert not learner.supports_n_step


def test_the_setting_makes_a_discount_grow():
  learner = learners.dqn(
    3, common.DISCRETE, learners.DQNConfig(discount_growth=10))
  assert not learner.supports_n_step
