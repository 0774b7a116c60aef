"""Tests of what a learner is given, and keeps, when it is wrapped in skills."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, skills, specs
from qdrl_haiku.learners import statistics
from tests import configs, jaxprs
from tests.learners import common, skilled

_O, _K, _D = common.OBSERVATION_SIZE, skilled.K, skilled.D
_EACH = pytest.mark.parametrize("name", ["diayn", "dads", "metra", "smerl"])


def test_everything_sees_the_same_normalised_observation_and_the_skill():
  prior = skills.normal(2)
  learner = skilled.learner(prior=prior)
  state, batches = skilled.agent(learner), skilled.batches(prior=prior)
  # Beyond where normalised observations are clipped.
  batches = batches._replace(
    observation=batches.observation.at[..., _O:].multiply(50.0))
  expected = skilled.normalized(state, batches.observation)
  assert np.abs(expected).max() > 10
  after, _ = skilled.update(learner, state, batches)

  @jax.jit
  def calls(observation):
    key = jax.random.key(0)
    acted = learner.act(state, {"gain": 3.0}, observation, (), key).action
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
    skilled.normalized(state, batches.next_observation), rtol=1e-5, atol=1e-5)
  # Statistics, of which skills are no part, are moved by `observe` alone.
  common.assert_close(
    observed.observation_statistics,
    statistics.update_statistics(
      state.observation_statistics, batches.observation[..., :_O]))
  common.assert_equal(
    after.observation_statistics, state.observation_statistics)


def test_the_base_learner_gets_its_own_and_all_else_as_it_is():
  learner = skilled.learner(normalize_observations=False)
  state, batches = common.fresh(learner), skilled.batches()
  assert state.observation_statistics is None
  after, metrics = skilled.update(learner, state, batches)
  common.assert_equal(
    after.agent.transitions._replace(reward=0), batches._replace(reward=0))
  assert after.agent.hyperparams == {"gain": 3.0}
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
  base = skilled.spy()._replace(
    hyperparams=hyperparams,
    act=lambda state, hyperparams, observation, memory, key: hyperparams,
    declared={name: speed})
  learner = learners.diayn(base, _O, skilled.CATEGORICAL, _D)
  assert learner.declared[f"base/{name}"] is speed
  assert learner.hyperparams == {
    "base": hyperparams, "discriminator_learning_rate": 1e-3,
    "task_reward_weight": 0.0}
  changed = jax.tree.map(np.float32, learner.hyperparams)
  state, batches = common.fresh(learner), skilled.batches()
  after, _ = jax.eval_shape(
    learner.update, state, changed, batches, jax.random.key(3))
  structure = jax.tree.structure(hyperparams)
  assert jax.tree.structure(after.agent.hyperparams) == structure
  assert hyperparams == learner.act(
    state, changed, batches.observation, (), jax.random.key(0))


@_EACH
def test_every_hyperparameter_changes_what_is_learned(name):
  learner = skilled.learner(name)
  state, batches = common.fresh(learner), skilled.batches()
  before, _ = skilled.update(learner, state, batches)
  for key in learner.hyperparams:
    # A margin of 1 lets SMERL reward all skills.
    value = 1.0 if key == "return_margin_share" else 0.3
    after, _ = skilled.update(learner, state, batches, **{key: value})
    same = jax.tree.map(lambda x, y: bool(jnp.array_equal(x, y)), before, after)
    assert not all(jax.tree.leaves(same)), key


@_EACH
def test_a_genotype_keeps_what_is_learned_and_no_optimizer(name):
  learner = skilled.learner(name)
  state, _ = skilled.update(learner, skilled.agent(learner), skilled.batches())
  assert all(x.count == 1 for x in state.optimizers.values())
  genotype = learner.genotype(state)
  kept = "stored", state.agent.weight, state.learned
  assert len(jax.tree.leaves(genotype)) == len(
    jax.tree.leaves((kept, state.observation_statistics)))
  # As the spy's `from_genotype` makes it.
  common.assert_equal(
    learner.from_genotype(genotype),
    state._replace(
      agent=skilled.Seen(state.agent.weight + 1.0),
      optimizers=common.fresh(learner).optimizers))


@_EACH
def test_of_a_dict_the_same_is_learned_as_of_its_vector(name):
  whole = specs.Extended(
    {"a": specs.Array((1,)), "privileged": specs.Array((_O - 1,))}, "skill", _K)

  def split(vector):
    return {
      "a": vector[..., :1], "privileged": vector[..., 1:_O],
      "skill": vector[..., _O:]}

  batches = skilled.batches()
  of_dicts = batches._replace(
    observation=split(batches.observation),
    next_observation=split(batches.next_observation))
  found = []
  for size, given in ((_O, batches), (whole.base, of_dicts)):
    learner = skilled.make(name, size)
    state = learner.observe(common.fresh(learner), given.observation)
    after, metrics = skilled.update(learner, state, given)
    seen = after.agent.transitions
    found.append((
      after.learned, after.optimizers, metrics, seen.reward,
      specs.as_vector(seen.next_observation, whole.spec)
      if size is whole.base else seen.next_observation))
  common.assert_close(*found)


def test_over_td3_it_is_a_learner_as_others_are():
  base = learners.td3(
    _O + _K, common.ACTION_SIZE,
    configs.sized(learners.TD3Config, (4,), (5,), normalize_observations=False))
  learner = learners.diayn(base, _O, skilled.CATEGORICAL, _D)
  descriptor = jax.ShapeDtypeStruct((_D,), jnp.float32)
  learners.check(
    learner, _O + _K, common.ACTION_SIZE, {"next_descriptor": descriptor})
  update = jax.jit(learner.update)
  args = (
    common.fresh(learner), common.hyperparams(learner),
    skilled.batches(learner.batches_per_update), jax.random.key(0))
  assert not jaxprs.named(update, "cond", *args)
  assert not jaxprs.waiting_loops(update, *args)
  assert not jaxprs.reused_keys(update, *args)
  assert not jaxprs.reused_keys(learner.init, jax.random.key(0))
  leaves = jax.tree.leaves(args[0])
  assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


@pytest.mark.parametrize(("name", "changes", "message"), [
  # Such as those of a replay buffer that doesn't store them.
  ("diayn", {"extras": {}}, "next_descriptor"),
  ("smerl", {"extras": {}}, "no skill_return .*keeps_returns=True"),
  ("dads", {}, "has only one step; take batch_size")])
def test_batches_that_lack_something_are_refused(name, changes, message):
  prior = skilled.CIRCLE if name == "dads" else skilled.CATEGORICAL
  learner = skilled.learner(name, prior)
  batch = jax.tree.map(lambda x: x[:, :1], skilled.batches(prior=prior))
  with pytest.raises(ValueError, match=message):
    skilled.update(learner, common.fresh(learner), batch._replace(**changes))
