"""Tests of what all learners do: update, act, observe, be stored."""

import jax
import numpy as np
import pytest

from qdrl_haiku.learners import statistics
from tests import jaxprs
from tests.learners import common

_EACH = pytest.mark.parametrize("name", common.NAMES)


def _arguments(case, seed=0):
  return (
    common.agent(case.learner, seed), common.hyperparams(case.learner),
    common.batches(case.learner, seed), jax.random.key(seed),
  )  # fmt: skip


@pytest.mark.parametrize("name", common.SAC_FIRST)
def test_an_update_of_a_population_is_that_of_each_member(name):
  case, members = common.case(name), range(5)
  # Not their first update, so that moments and counts matter.
  states = common.stack([
    case.update(*_arguments(case, i))[0] for i in members
  ])
  rng = np.random.default_rng(0)
  hyperparams = {
    name: np.float32(value * rng.uniform(0.5, 1.0, len(members)))
    for name, value in common.hyperparams(case.learner).items()
  }
  batches = common.stack([
    common.batches(case.learner, seed=50 + i) for i in members
  ])
  keys = jax.random.split(jax.random.key(1), len(members))
  args = states, hyperparams, batches, keys
  together = jax.jit(jax.vmap(case.learner.update))(*args)
  for i in members:
    alone = case.update(*common.member(args, i))
    # Sums over a batch and its target's, through statistics, round more.
    atol = 1e-5 if name == "crossq" else 1e-6
    common.assert_close(common.member(together, i), alone, 1e-5, atol)


@pytest.mark.parametrize("name", ["td3", "xqc"])
def test_an_update_keeps_the_type_of_every_leaf(name):
  case = common.case(name)
  state = common.fresh(case.learner)
  # Python floats as hyperparameters: weak types that must not get in.
  after, _ = jax.eval_shape(
    case.learner.update, state, case.learner.hyperparams,
    common.batches(case.learner), jax.random.key(0),
  )  # fmt: skip

  def kinds(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)

  before = jax.tree.map(jax.typeof, state)
  assert kinds(after) == kinds(before)
  assert not any(x.weak_type for x in jax.tree.leaves(before))


@_EACH
def test_an_update_has_no_conditional_and_no_two_draws_are_from_one_key(name):
  case = common.case(name)
  args = _arguments(case)
  products = jaxprs.named(case.update, "dot_general", *args)
  assert not jaxprs.named(case.update, "cond", *args)
  assert not jaxprs.waiting_loops(case.update, *args)
  assert not jaxprs.reused_keys(case.update, *args)
  assert not jaxprs.reused_keys(case.learner.init, jax.random.key(0))
  if name == "sac":
    # The policy is evaluated twice: for the target, and for the temperature's
    # and the policy's own step together.
    shapes = [[v.aval.shape for v in e.invars] for e in products]
    size = common.OBSERVATION_SIZE
    assert shapes.count([(common.BATCH_SIZE, size), (size, 4)]) == 2


@_EACH
def test_new_agents_differ_and_no_two_leaves_share_a_buffer(name):
  learner = common.case(name).learner
  first, second = (common.fresh(learner, seed=i) for i in range(2))
  for network in ("policy_params", "critic_params"):
    assert common.distance(getattr(first, network), getattr(second, network))
  for from_genotype in (learner.from_genotype, jax.jit(learner.from_genotype)):
    again = from_genotype(learner.genotype(first))
    for tree in (first, again):
      leaves = jax.tree.leaves(tree)
      assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


@_EACH
def test_a_genotype_has_all_but_targets_and_moments_which_are_fresh_again(name):
  case = common.case(name)
  before = case.update(*_arguments(case))[0]
  genotype = case.learner.genotype(before)
  after = case.learner.from_genotype(genotype)
  fresh = common.fresh(case.learner)
  kept = []
  for field, value in after._asdict().items():
    old = expected = getattr(before, field)
    if field.startswith("target_"):
      expected = getattr(before, field.removeprefix("target_"))
      assert common.distance(old, expected)
    elif field.endswith("optimizer_state"):
      expected = getattr(fresh, field)
      assert old.count > 0
    else:
      kept += jax.tree.leaves(old)
    common.assert_equal(value, expected)
  assert len(jax.tree.leaves(genotype)) == len(kept)


def test_a_fixed_temperature_is_not_learned_and_has_no_hyperparameters():
  case = common.case("sac", learn_temperature=False, initial_temperature=0.3)
  learned = common.case("sac").learner.hyperparams.keys()
  assert learned - case.learner.hyperparams.keys() == {
    "temperature_learning_rate", "target_entropy"
  }  # fmt: skip
  init = case.learner.init
  temperature = jax.jit(lambda key: init(key).log_temperature)
  np.testing.assert_allclose(
    np.exp(temperature(jax.random.key(0))), 0.3, rtol=1e-6
  )
  state = jax.eval_shape(init, jax.random.key(0))
  assert state.temperature_optimizer_state is None
  _, metrics = jax.eval_shape(
    case.update, state, case.learner.hyperparams,
    common.batches(case.learner), jax.random.key(0),
  )  # fmt: skip
  assert "temperature_loss" not in metrics


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_actions_are_in_the_box_for_any_leading_axes(name):
  case = common.case(name)
  state = common.agent(case.learner)
  # Large outputs, so that the border is reached.
  state = state._replace(
    policy_params=jax.tree.map(lambda x: 20 * x, state.policy_params)
  )
  changes = {} if name == "sac" else {"exploration_noise": 3.0}
  hyperparams = common.hyperparams(case.learner, **changes)
  observation = common.observations(2, 3)
  for action in (
    case.act(state, hyperparams, observation, jax.random.key(0)),
    case.act_greedy(state, observation),
  ):
    assert action.shape == (2, 3, common.ACTION_SIZE)
    assert 0.9 < np.abs(action).max() <= 1


def test_observe_changes_the_statistics_and_nothing_else():
  learner = common.case("sac").learner
  state = common.agent(learner)
  new = common.observations(2, 7, seed=9)
  expected = statistics.update(state.observation_statistics, new)
  assert expected.num_observations == 50 + 14
  common.assert_equal(
    learner.observe(state, new),
    state._replace(observation_statistics=expected),
  )
  plain = common.case("sac", normalize_observations=False).learner
  state = jax.eval_shape(plain.init, jax.random.key(0))
  assert state.observation_statistics is None
  assert plain.observe(state, new) is state


@_EACH
def test_calls_outside_of_jit_are_compiled(name):
  learner = common.case(name).learner
  for function in (learner.update, learner.act):
    assert hasattr(function, "__wrapped__")
