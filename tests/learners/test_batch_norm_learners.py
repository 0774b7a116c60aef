"""Tests of the learners whose critics are normalised by their batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners
from tests.learners import batch_norm_reference, common, reference

_NAMES = ("crossq", "xqc")
_EACH = pytest.mark.parametrize("name", _NAMES)
_ALL_HYPERPARAMS = [
  (name, hyperparam)
  for name in _NAMES
  for hyperparam in common.case(name).learner.hyperparams
]
# What a change of each hyperparameter reaches at once, in one update, where
# Adam's first step forgets the size of a gradient.
_REACHES = {
  "discount": "critic_optimizer_state",
  "tau": "target_critic_params",
  "policy_learning_rate": "policy_params",
  "critic_learning_rate": "critic_params",
  "reward_scaling": "critic_optimizer_state",
  "temperature_learning_rate": "log_temperature",
  "target_entropy": "temperature_optimizer_state",
}


def _noises(key, num_batches):
  """The noise of the two policy evaluations, at the next observations first."""
  size = (common.BATCH_SIZE, common.ACTION_SIZE)
  shapes = (num_batches, *size), size
  return [
    np.asarray(jax.random.normal(k, shape), np.float64)
    for k, shape in zip(jax.random.split(key), shapes, strict=True)
  ]


def _agents(name):
  return common.repeat(common.agent(common.case(name).learner),
                       common.POPULATION_SIZE)


def _update_all(name, states, hyperparams, seed=0, **changes):
  """One update of all members, on the same data but for the changes."""
  case = common.case(name)
  batches = common.repeat(
    common.batches(case.learner, seed), common.POPULATION_SIZE
  )
  keys = jnp.stack([jax.random.key(seed)] * common.POPULATION_SIZE)
  return case.update_all(
    states, hyperparams, batches._replace(**changes), keys
  )


@_EACH
def test_updates_are_those_of_the_float64_reference(name):
  case = common.case(name)
  state = common.agent(case.learner)
  expected = reference.float64(state)
  hyperparams = common.hyperparams(
    case.learner, discount=0.9, reward_scaling=2.0, target_entropy=-1.5
  )
  for i in range(2):
    key, batches = jax.random.key(i), common.batches(case.learner, seed=i)
    state, metrics = case.update(state, hyperparams, batches, key)
    expected, expected_metrics = batch_norm_reference.update(
      expected, hyperparams, batches,
      _noises(key, case.learner.batches_per_update),
    )  # fmt: skip
    common.assert_close(metrics, expected_metrics, rtol=1e-4, atol=1e-5)
  common.assert_close(state, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def variants():
  """By learner, states after one and after six updates, a member per leaf.

  The last member has no change.
  """
  found = {}
  for name in _NAMES:
    default = common.hyperparams(common.case(name).learner)
    changed = [
      default | {leaf: np.float32(value * 0.8)}
      for leaf, value in default.items()
    ]
    rows = changed + [default] * (common.POPULATION_SIZE - len(changed))
    hyperparams = jax.tree.map(lambda *x: jnp.stack(x), *rows)
    states = [_agents(name)]
    for i in range(6):
      states.append(_update_all(name, states[-1], hyperparams, seed=i)[0])
    found[name] = states[1], states[-1]
  return found


def _differs(states, i, field):
  """How far member i is from the last one, which has the defaults."""
  field = getattr(states, field)
  return common.distance(common.member(field, i), common.member(field, -1))


@pytest.mark.parametrize("name, hyperparam", _ALL_HYPERPARAMS)
def test_every_hyperparameter_is_live(variants, name, hyperparam):
  i = list(common.case(name).learner.hyperparams).index(hyperparam)
  first, last = variants[name]
  assert _differs(first, i, _REACHES[hyperparam]) > 1e-6
  # Soon both networks depend on it, and the averages on what they compute.
  for field in ("policy_params", "critic_params", "critic_state"):
    assert _differs(last, i, field) > 1e-6, field


@_EACH
def test_equal_hyperparameters_give_equal_agents(variants, name):
  for field in ("policy_params", "critic_params", "critic_state"):
    assert _differs(variants[name][1], -2, field) == 0


@_EACH
def test_what_is_not_finite_in_one_member_reaches_no_other(name):
  states = _agents(name)
  hyperparams = common.repeat(
    common.hyperparams(common.case(name).learner), common.POPULATION_SIZE
  )
  sound, _ = _update_all(name, states, hyperparams)
  batches = common.repeat(
    common.batches(common.case(name).learner), common.POPULATION_SIZE
  )
  broken, _ = _update_all(
    name, states, hyperparams,
    reward=batches.reward.at[3, 1, 2].set(jnp.nan),
  )  # fmt: skip
  for i in range(common.POPULATION_SIZE):
    actual, expected = (common.member(x, i) for x in (broken, sound))
    if i == 3:
      leaves = jax.tree.leaves(actual.critic_params)
      assert not any(np.isfinite(x).all() for x in leaves)
    else:
      common.assert_equal(actual, expected)


@_EACH
def test_only_updates_move_the_batch_statistics(name):
  case = common.case(name)
  state = common.agent(case.learner)
  seen = case.learner.observe(state, common.observations(5))
  common.assert_equal(seen.critic_state, state.critic_state)
  after, _ = case.update(
    state, common.hyperparams(case.learner), common.batches(case.learner),
    jax.random.key(0),
  )  # fmt: skip
  counts = [x["count"] for x in after.critic_state.values()]
  np.testing.assert_array_equal(counts, case.learner.batches_per_update)
  for module, values in after.critic_state.items():
    assert np.all(values["variance"] != 1), module
  # Of what comes after normalised inputs the mean may be 0.
  inputs = after.critic_state["critic/batch_norm_inputs"]
  assert np.all(inputs["mean"] != 0)


@_EACH
def test_a_genotype_has_the_batch_statistics(name):
  case = common.case(name)
  state, _ = case.update(
    common.agent(case.learner), common.hyperparams(case.learner),
    common.batches(case.learner), jax.random.key(0),
  )  # fmt: skip
  after = case.learner.from_genotype(case.learner.genotype(state))
  common.assert_equal(after.critic_state, state.critic_state)
  if name == "xqc":
    common.assert_equal(after.reward_statistics, state.reward_statistics)


@_EACH
def test_a_fixed_temperature_stays_at_the_initial_one(name):
  learner = common.case(
    name, learn_temperature=False, initial_temperature=0.3
  ).learner
  assert not learner.hyperparams.keys() & {
    "temperature_learning_rate", "target_entropy"
  }  # fmt: skip
  state = common.fresh(learner)
  assert state.temperature_optimizer_state is None
  after = jax.eval_shape(
    learner.update, state, learner.hyperparams, common.batches(learner),
    jax.random.key(0),
  )[0]  # fmt: skip
  assert jax.tree.structure(after) == jax.tree.structure(state)
  np.testing.assert_allclose(np.exp(state.log_temperature), 0.3, rtol=1e-6)


def _xqc_after(**changes):
  """An agent of XQC, of next to no entropy, after its first update."""
  case = common.case("xqc")
  state = common.agent(case.learner)._replace(
    log_temperature=jnp.float32(-40.0)
  )
  batches = common.batches(case.learner)
  factor = changes.pop("rewards_times", 1.0)
  return case.update(
    state, common.hyperparams(case.learner, **changes),
    batches._replace(reward=factor * batches.reward), jax.random.key(0),
  )  # fmt: skip


@pytest.mark.parametrize(
  "changes", [{"rewards_times": 1000.0}, {"reward_scaling": 1000.0}]
)
def test_larger_rewards_are_as_easy_to_learn_for_xqc(changes):
  plain, plain_metrics = _xqc_after()
  large, large_metrics = _xqc_after(**changes)
  common.assert_close(
    large.critic_params, plain.critic_params, rtol=1e-4, atol=1e-5
  )
  for metric in ("largest_value", "q_mean"):
    np.testing.assert_allclose(
      large_metrics[metric], 1000 * plain_metrics[metric], rtol=1e-4
    )


def test_xqcs_atoms_hold_all_returns():
  case = common.case("xqc")
  _, metrics = _xqc_after(discount=0.9)
  batch_largest = np.abs(common.batches(case.learner).reward).max(axis=1)
  np.testing.assert_allclose(
    metrics["largest_value"], 1.25 * batch_largest.mean() / (1 - 0.9),
    rtol=1e-4,
  )  # fmt: skip
  # Beyond a horizon of 1,000 steps they don't grow.
  _, metrics = _xqc_after(discount=1.0)
  assert metrics["largest_value"] == pytest.approx(
    1.25 * batch_largest.mean() * 1000, rel=1e-3
  )


@pytest.mark.parametrize(
  "make, config_class",
  [
    (learners.crossq, learners.CrossQConfig),
    (learners.xqc, learners.XQCConfig),
  ],
)
def test_wrong_settings_are_refused_by_their_names(make, config_class):
  with pytest.raises(ValueError, match="initial_temperature .* got 0.0"):
    config_class(initial_temperature=0.0)
  with pytest.raises(ValueError, match="policy_delay .* got 0"):
    config_class(policy_delay=0)
  with pytest.raises(ValueError, match="action_size"):
    make(3, 0)


def test_too_few_atoms_are_refused():
  with pytest.raises(ValueError, match="num_atoms must be at least 2"):
    learners.xqc(3, 2, learners.XQCConfig(num_atoms=1))
