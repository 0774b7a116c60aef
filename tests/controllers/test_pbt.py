"""Tests of the controller as a whole and of its explore step."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from qdrl_haiku import controllers
from tests.controllers import common

_NAN = math.nan
_NUM_KEYS = 2000
# By Hoeffding, the mean of n independent +-1 exceeds 5 / sqrt(n) with a
# probability of at most 2 exp(-12.5) = 7e-6.
_CORRELATION_BOUND = 5 / math.sqrt(_NUM_KEYS)
_SURVIVE, _PERTURB, _RESAMPLE = (
  common.SURVIVE, common.PERTURB, common.RESAMPLE)

_SPACE = {
  "discount": controllers.OneMinusLogUniform(0.9, 0.999),
  "learning_rate": controllers.LogUniform(1e-5, 1e-2),
  "reward_scaling": controllers.Fixed(2.0),
  "target_entropy": controllers.Uniform(-4.0, -1.0)}
_SEARCHED = ("discount", "learning_rate", "target_entropy")
# The last of eight is the parent; its values are far from every bound.
_PARENT = {
  "discount": 0.99, "learning_rate": 1e-3, "reward_scaling": 2.0,
  "target_entropy": -2.5}
_FITNESS = np.arange(8, dtype=np.float32)
_RATE = controllers.LogUniform(1e-4, 1.0)


@functools.cache
def _update_of(range_, **settings):
  config = controllers.PBTConfig(**settings)
  return common.update(controllers.pbt(config, {"x": range_}))


def _update_x(values, range_=_RATE, *, fitness=_FITNESS, seed=0, **settings):
  """The decision on eight members that have one hyperparameter."""
  x = np.asarray(values, np.float32)
  update = _update_of(range_, **settings)
  return update(jax.random.key(seed), fitness, {"x": x})


@functools.cache
def _family(explore):
  """Decisions of many keys, all children of member 7."""
  config = controllers.PBTConfig(
    explore=explore, num_parents=1, num_replaced=7)
  update = common.update(controllers.pbt(config, _SPACE))
  keys = jax.random.split(jax.random.key(0), _NUM_KEYS)
  mapped = jax.jit(jax.vmap(update, (0, None, None)))
  # Distinct values that no draw can produce, but for the parent's.
  hyperparams = {
    name: np.append(np.linspace(100.0, 200.0, 7), value).astype(np.float32)
    for name, value in _PARENT.items()}
  return jax.device_get(mapped(keys, _FITNESS, hyperparams))


def _steps(decision):
  """+1 or -1 [n, P, leaf]: which way each child was perturbed."""
  ups = []
  for name in _SEARCHED:
    values = decision.hyperparams[name]
    sign = -1 if name == "discount" else 1  # Up multiplies 1 - discount.
    ups.append(sign * np.sign(values - np.float32(_PARENT[name])))
  return np.stack(ups, axis=-1)


def test_hand_worked_case():
  x = np.array([0.3, 0.2, 0.1, 0.9, 0.8, 0.7, 0.6, 0.5], np.float32)
  fitness = np.array([4.0, 1.0, 8.0, 2.0, 3.0, 5.0, 6.0, 7.0])
  seen = set()
  for seed in range(8):
    # An eighth of eight: the worst, member 1, takes over from the best, 2.
    decision = _update_x(x, fitness=fitness, seed=seed, quantile_fraction=0.125)
    np.testing.assert_array_equal(decision.parents, [0, 2, 2, 3, 4, 5, 6, 7])
    np.testing.assert_array_equal(
      decision.operator, np.where(np.arange(8) == 1, _PERTURB, _SURVIVE))
    values = np.asarray(decision.hyperparams["x"])
    np.testing.assert_array_equal(np.delete(values, 1), np.delete(x, 1))
    seen.add(round(float(values[1]), 6))
  assert seen == {0.08, 0.125}


def test_children_of_one_parent_differ_from_it_and_from_each_other():
  decision = _family("perturb")
  family = np.stack([decision.hyperparams[x] for x in _SEARCHED], axis=-1)
  assert np.all(decision.parents == 7)
  for one in family[:200]:
    assert len({tuple(member) for member in one}) == 8


def test_perturbation_is_a_fair_coin_for_each_leaf_and_pair_of_siblings():
  decision = _family("perturb")
  steps = _steps(decision)
  # The second of a pair steps the opposite way; the first pair can't collide
  # with anyone before it.
  assert np.all(decision.operator[:, :2] == _PERTURB)
  np.testing.assert_array_equal(steps[:, 1], -steps[:, 0])
  each = steps[:, 0]
  assert np.all(np.abs(each) == 1)
  assert np.all(np.abs(each.mean(axis=0)) < _CORRELATION_BOUND)
  for first, second in ((0, 1), (0, 2), (1, 2)):
    product = each[:, first] * each[:, second]
    assert abs(product.mean()) < _CORRELATION_BOUND


def test_siblings_beyond_the_directions_are_resampled():
  decision = _update_x([9.0] * 7 + [0.01], num_parents=1, num_replaced=4)
  # One hyperparameter has two directions; the third and fourth find no new one.
  np.testing.assert_array_equal(
    decision.operator, [_PERTURB] * 2 + [_RESAMPLE] * 2 + [_SURVIVE] * 4)
  children = np.asarray(decision.hyperparams["x"])[[0, 1, 2, 3, 7]]
  assert len(set(children.tolist())) == 5


def test_child_that_a_bound_reflects_onto_its_parent_is_resampled():
  # A step up from a tenth of the range below the bound leads back to it.
  range_ = controllers.Uniform(0.0, 10.0)
  operators = set()
  for seed in range(8):
    decision = _update_x(
      [5.0] * 7 + [9.0], range_, seed=seed, num_parents=1, num_replaced=1)
    operators.add(int(decision.operator[0]))
    child = decision.hyperparams["x"][0]
    if decision.operator[0] == _PERTURB:
      np.testing.assert_allclose(child, 7.0, rtol=1e-6)
    else:
      assert abs(child - 9.0) > 1e-4
  assert operators == {_PERTURB, _RESAMPLE}


def test_a_child_is_a_copy_where_nothing_is_searched():
  decision = _update_x(
    [3.0] * 8, controllers.Fixed(3.0), num_parents=1, num_replaced=1)
  np.testing.assert_array_equal(
    decision.operator, [common.COPY] + [_SURVIVE] * 7)


def test_resampled_children_are_drawn_from_the_range_and_independent():
  children = _family("resample").hyperparams
  positions = np.log(children["learning_rate"].astype(np.float64))
  uniform = stats.uniform(math.log(1e-5), math.log(1e3))
  for child in range(2):
    assert stats.kstest(positions[:, child], uniform.cdf).pvalue > 1e-3
  centred = 2 * uniform.cdf(positions) - 1
  assert abs(np.mean(centred[:, 0] * centred[:, 1])) < _CORRELATION_BOUND
  entropy = (children["target_entropy"] + 2.5) / 1.5
  assert abs(np.mean(centred[:, 0] * entropy[:, 0])) < _CORRELATION_BOUND


def test_mixed_chooses_for_each_hyperparameter_on_its_own():
  children = _family("mixed").hyperparams
  rate = children["learning_rate"][:, 0] / 1e-3
  entropy = children["target_entropy"][:, 0]
  perturbed = [
    np.isclose(rate, 0.8, rtol=1e-5) | np.isclose(rate, 1.25, rtol=1e-5),
    np.isclose(entropy, -1.9, rtol=1e-5) | np.isclose(entropy, -3.1, rtol=1e-5)]
  counts = np.bincount(2 * perturbed[0] + perturbed[1], minlength=4)
  # Both resampled, one of them, none; 0.25 each.
  expected = np.array([1, 3, 3, 9]) / 16 * _NUM_KEYS
  assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_inherit_copies_parents_and_keeps_dtypes_and_keys():
  parents = jnp.array([2, 1, 2], jnp.int32)
  members = {
    "params": jnp.arange(6.0).reshape(3, 2).at[1, 0].set(_NAN),
    "count": jnp.arange(3, dtype=jnp.uint8),
    "done": jnp.array([True, False, False]),
    "key": jax.random.split(jax.random.key(0), 3)}
  children = jax.jit(controllers.inherit)(members, parents)
  for name in ("params", "count", "done"):
    assert children[name].dtype == members[name].dtype
    np.testing.assert_array_equal(
      children[name], np.asarray(members[name])[[2, 1, 2]])
  np.testing.assert_array_equal(
    jax.random.key_data(children["key"]),
    jax.random.key_data(members["key"])[np.array([2, 1, 2])])
