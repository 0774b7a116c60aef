"""Tests of what all learners do, and of what is said of one that isn't one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, skills, types
from qdrl_haiku.learners import statistics
from tests import compilations, jaxprs, toy
from tests.learners import common

_EACH = pytest.mark.parametrize("name", common.NAMES)


def _arguments(learner, seed=0):
  return (
    common.agent(learner, seed), common.hyperparams(learner),
    common.batches(learner, seed), jax.random.key(seed))


@pytest.mark.parametrize("name", common.WITH_MEMORY)
def test_an_update_of_a_population_is_that_of_each_member(name):
  learner, members = common.learner(name), range(5)
  # Not their first update, so that moments and counts matter.
  states = common.stack([
    learner.update(*_arguments(learner, i))[0] for i in members])
  rng = np.random.default_rng(0)
  hyperparams = {
    name: np.float32(value * rng.uniform(0.5, 1.0, len(members)))
    for name, value in common.hyperparams(learner).items()}
  batches = common.stack([
    common.batches(learner, seed=50 + i) for i in members])
  keys = jax.random.split(jax.random.key(1), len(members))
  args = states, hyperparams, batches, keys
  # In float64, since float32 rounds batch normalisation's sums too much to tell
  # a small leak between members from it.
  with jax.enable_x64(True):
    args = common.in_float64(args)
    together = jax.jit(jax.vmap(learner.update))(*args)
    for i in members:
      alone = learner.update(*common.member(args, i))
      common.assert_close(common.member(together, i), alone, 1e-9, 1e-9)


@pytest.mark.parametrize("name", common.NAMES + common.RECURRENT)
def test_an_update_has_no_conditional_and_no_two_draws_are_from_one_key(name):
  learner = common.learner(name)
  args = _arguments(learner)
  assert not jaxprs.named(learner.update, "cond", *args)
  assert not jaxprs.waiting_loops(learner.update, *args)
  assert not jaxprs.reused_keys(learner.update, *args)
  assert not jaxprs.reused_keys(learner.init, jax.random.key(0))
  # The type of every leaf is kept, also where hyperparameters are weak floats.
  key = jax.random.key(0)
  before = jax.eval_shape(learner.init, key)
  expected = jax.tree.map(str, before)
  args = before, learner.hyperparams, *args[2:]
  after, metrics = jax.eval_shape(learner.update, *args)
  assert jax.tree.map(str, after) == expected
  assert not any(x.weak_type for x in jax.tree.leaves((before, after)))
  # Also in a program that computes something else in float64.
  with jax.enable_x64(True):
    assert jax.tree.map(str, jax.eval_shape(learner.init, key)) == expected
    found = jax.eval_shape(learner.update, *args)
  assert jax.tree.map(str, found) == jax.tree.map(str, (after, metrics))


@_EACH
def test_new_agents_differ_and_no_two_leaves_share_a_buffer(name):
  learner = common.learner(name)
  first, second = (common.fresh(learner, seed=i) for i in range(2))
  names = (x for x in first._fields if x.endswith("_params"))
  for network in names:
    assert common.distance(getattr(first, network), getattr(second, network))
  for from_genotype in (learner.from_genotype, jax.jit(learner.from_genotype)):
    again = from_genotype(learner.genotype(first))
    for tree in (first, again):
      leaves = jax.tree.leaves(tree)
      assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


@_EACH
def test_a_genotype_has_all_but_targets_and_moments_which_are_fresh_again(name):
  learner = common.learner(name)
  before = learner.update(*_arguments(learner))[0]
  genotype = learner.genotype(before)
  after = learner.from_genotype(genotype)
  fresh = common.fresh(learner)
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
  learner = common.learner(
    "sac", learn_temperature=False, initial_temperature=0.3)
  learned = common.learner("sac").hyperparams.keys()
  assert learned - learner.hyperparams.keys() == {
    "temperature_learning_rate", "target_entropy"}
  init = learner.init
  temperature = jax.jit(lambda key: init(key).log_temperature)
  np.testing.assert_allclose(
    np.exp(temperature(jax.random.key(0))), 0.3, rtol=1e-6)
  state = jax.eval_shape(init, jax.random.key(0))
  assert state.temperature_optimizer_state is None
  _, metrics = jax.eval_shape(
    learner.update, state, learner.hyperparams,
    common.batches(learner), jax.random.key(0))
  assert "temperature_loss" not in metrics


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_actions_are_in_the_box_for_any_leading_axes(name):
  learner = common.learner(name)
  state = common.agent(learner)
  # Large outputs, so that the border is reached.
  state = state._replace(
    policy_params=jax.tree.map(lambda x: 20 * x, state.policy_params))
  changes = {} if name == "sac" else {"exploration_noise": 3.0}
  hyperparams = common.hyperparams(learner, **changes)
  observation = common.observations(2, 3)
  for action in (
    learner.act(
      state, hyperparams, observation, (), jax.random.key(0)).action,
    learner.act_greedy(state, observation, ()).action,
  ):
    assert action.shape == (2, 3, common.ACTION_SIZE)
    assert 0.9 < np.abs(action).max() <= 1


def test_observe_changes_the_statistics_and_nothing_else():
  learner = common.learner("sac")
  state = common.agent(learner)
  new = common.observations(2, 7, seed=9)
  expected = statistics.update_statistics(state.observation_statistics, new)
  assert expected.num_observations == 50 + 14
  common.assert_equal(
    learner.observe(state, new), state._replace(observation_statistics=expected)
  )
  plain = common.learner("sac", normalize_observations=False)
  state = jax.eval_shape(plain.init, jax.random.key(0))
  assert state.observation_statistics is None
  assert plain.observe(state, new) is state


@pytest.mark.parametrize("name", common.SAC_FIRST)
def test_calls_outside_of_jit_are_compiled(name):
  learner = common.learner(name)
  state, hyperparams, batches, key = _arguments(learner)
  for function, seen in (
    (learner.update, (batches, key)),
    (learner.act, (common.observations(4), (), key)),
  ):
    alone = function.__wrapped__  # As it is without the jit of `common`.
    alone(state, hyperparams, *seen)
    assert compilations.of(alone, state, hyperparams, *seen) == 0


_SIZES = common.OBSERVATION_SIZE, 1
_LEARNER = toy.linear_learner()
_ACTIONS = jnp.zeros((3, 1))


def test_a_check_of_a_learner_compiles_nothing():
  assert compilations.of(lambda: learners.check(_LEARNER, *_SIZES)) == 0


@pytest.mark.parametrize("name", ["discrete_ppo", "discrete_sac", "dqn", "pqn"])
def test_discrete_learners_are_as_described_with_memories_and_skills(name):
  for memory in ("",) if name in ("dqn", "pqn") else ("", " gru"):
    learners.check(
      common.learner(name + memory), common.OBSERVATION_SIZE,
      common.DISCRETE, rollout_shape=(6, 6))
  prior = skills.categorical(2)
  base = getattr(learners, name.removeprefix("discrete_"))(
    common.OBSERVATION_SIZE + prior.size, common.DISCRETE)
  learner = learners.diayn(base, common.OBSERVATION_SIZE, prior, config=(
    learners.DIAYNConfig(discriminator_input="observation")))
  learners.check(
    learner, common.OBSERVATION_SIZE + prior.size, common.DISCRETE)


def _updating(found):
  """The change of an update to one that returns `found(state)`."""
  return {"update": lambda state, *_: found(state)}


@pytest.mark.parametrize(("changes", "message"), [
  ({"hyperparams": {}}, "hyperparams={} have no number; give one, such as"),
  ({"hyperparams": {"a": {"b": "x"}}}, "a/b='x'; give a Python float"),
  ({"learns_from": "memory"}, "learns_from='memory' is unknown; give 'rep"),
  ({"init": lambda key: ()}, "has no array"),
  ({"act_greedy": lambda state, observation: observation},
   "a function that doesn't take 3 arguments; act is (state, hyperparams, ob"),
  ({"memory": jnp.zeros(2)},
   "memory is a ArrayImpl that doesn't take 0 arguments; see learners.Learn"),
  ({"genotype": lambda: ()}, "a function that doesn't take 1 arguments; see"),
  ({"stores": "before"}, "stores='before' is no tuple; give ('before',)."),
  (_updating(lambda state: state["gain"].T @ jnp.zeros(2)),
   "the learner's update fails: "),
  ({"memory": lambda: jnp.zeros(2), "act": lambda *_: types.Acted(_ACTIONS)},
   "memory that the learner's act returns differs from what its memory return"),
  ({"act_greedy": lambda state, *_: types.Acted(state["gain"])},
   "makes an array () of observations an array (3, 3); return actions float32"),
  ({"observe": lambda state, observation: state | {"gain": observation}},
   "observe returns differs from that of init: gain is float32(3, 3), not fl"),
  (_updating(lambda state: state), "update returns a dict; return a pair"),
  (_updating(lambda state: (state, {"loss": jnp.ones(2)})),
   "the metric 'loss' with an array (2,); give one number")])
def test_what_is_wrong_is_said_with_the_fix(changes, message):
  with pytest.raises(ValueError) as caught:
    learners.check(_LEARNER._replace(**changes), *_SIZES)
  assert message in str(caught.value)


@_EACH
def test_an_update_from_numpys_arrays_can_be_part_of_a_program(name):
  learner = common.learner(name)
  state, hyperparams, batches, key = _arguments(learner)
  batches = jax.device_get(batches)
  found, _ = jax.eval_shape(
    # Not the jitted one, whose arguments would be jax's arrays.
    lambda x: learner.update.__wrapped__(x, hyperparams, batches, key), state)
  assert found == jax.eval_shape(lambda: state)


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_extras_of_a_rollout_may_be_trees():
  learner = common.learner("ppo")
  state, hyperparams, rollout, key = _arguments(learner)
  extras = rollout.extras | {"of_mine": {"x": rollout.reward}}
  found, _ = jax.eval_shape(
    learner.update, state, hyperparams, rollout._replace(extras=extras), key)
  assert found == jax.eval_shape(lambda: state)


_FLAT = {"transitions": common.transitions(64)}
_COLUMN = common.transitions(1, 64)
_COLUMN = _COLUMN._replace(discount=_COLUMN.discount[..., None])
_BROADCAST = common.batches(common.learner("ppo"))
_BROADCAST = _BROADCAST._replace(reward=_BROADCAST.reward[:1])


@pytest.mark.parametrize(("name", "changes", "message"), [
  ("sac", _FLAT, "says; add the axis: jax.tree.map(lambda x: x[None], trans"),
  ("td3", _FLAT, "says; sample 2 of them, with the shape (2, B)."),
  ("td3", {"hyperparams": {}}, "hyperparams lack critic_learning_rate,"),
  ("sac", {"transitions": _COLUMN}, "their discounts (1, 64, 1), but an"),
  ("ppo", {"transitions": common.transitions(4, 6)}, "extras, truncation (T, "),
  ("ppo", {"transitions": _BROADCAST}, "'reward': (1, ")])
def test_what_an_update_can_not_learn_from_is_refused(name, changes, message):
  learner = common.learner(name)
  given = {
    "hyperparams": learner.hyperparams, "transitions": common.batches(learner),
    "key": jax.random.key(0)}
  with pytest.raises(ValueError) as caught:
    jax.eval_shape(
      functools.partial(learner.update, common.fresh(learner)),
      **given | changes)
  assert message in str(caught.value)
