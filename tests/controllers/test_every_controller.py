"""Tests of what holds for every controller of this package."""

import functools
import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies

from qdrl_haiku import controllers
from tests import compilations, jaxprs

_NAN, _INF = math.nan, math.inf
_SIZE = 8
_SPACE = {
  "discount": controllers.OneMinusLogUniform(0.9, 0.999),
  "kind": controllers.Choice((1.0, 2.0, 5.0)),
  "learning_rate": controllers.LogUniform(1e-5, 1e-2),
  "reward_scaling": controllers.Fixed(2.0),
  "target_entropy": controllers.Uniform(-4.0, -1.0)}
_INTERVALS = ("discount", "learning_rate", "target_entropy")
MAKE = {
  "mf_pbt": lambda space: controllers.mf_pbt(
    controllers.MFPBTConfig(frequencies=(1, 2)), space),
  "pb2": lambda space: controllers.pb2(
    controllers.PB2Config(window=16),
    {name: x for name, x in space.items() if name != "kind"}),
  "pbt": lambda space: controllers.pbt(controllers.PBTConfig(), space),
  "random_search": functools.partial(
    controllers.make_controller, controllers.RandomSearchConfig()),
  "successive_halving": lambda space: controllers.successive_halving(
    controllers.SuccessiveHalvingConfig(), space)}
_each = pytest.mark.parametrize("name", MAKE)


@functools.cache
def controller(name):
  return MAKE[name](_SPACE)


@functools.cache
def _update(name):
  return jax.jit(controller(name).update)


def _init(name, seed=0):
  return controller(name).init(jax.random.key(seed), _SIZE)


def _fitness(seed):
  return jax.random.normal(jax.random.key(seed), (_SIZE,))


@functools.cache
def _later(name, num_decisions):
  """A state, and hyperparameters, after some decisions."""
  state, hyperparams = _init(name)
  for seed in range(num_decisions):
    state, decision = _update(name)(
      state, jax.random.key(seed), _fitness(seed), hyperparams)
    hyperparams = decision.hyperparams
  return state, hyperparams


def _assert_inside(hyperparams):
  for name in _INTERVALS:
    values = np.asarray(hyperparams[name], np.float64)
    assert np.all(values >= _SPACE[name].low), name
    assert np.all(values <= _SPACE[name].high), name
  assert np.all(np.isin(hyperparams.get("kind", 1.0), [1.0, 2.0, 5.0]))
  np.testing.assert_array_equal(hyperparams["reward_scaling"], 2.0)


@_each
def test_a_second_decision_compiles_nothing(name):
  state, hyperparams = _later(name, 1)
  args = (state, jax.random.key(1), _fitness(1), hyperparams)
  assert compilations.of(_update(name), *args) == 0


@_each
def test_a_member_begins_with_what_no_population_size_changes(name):
  init = controller(name).init
  _, small = init(jax.random.key(3), _SIZE)
  _, large = init(jax.random.key(3), 2 * _SIZE)
  _assert_inside(large)
  for leaf, other in zip(
    jax.tree.leaves(small), jax.tree.leaves(large), strict=True
  ):
    np.testing.assert_array_equal(leaf, other[:_SIZE])


@_each
@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
  fitness=strategies.lists(
    strategies.floats(-10, 10, width=32)
    | strategies.sampled_from([_NAN, _INF, -_INF, 1.0]),
    min_size=_SIZE, max_size=_SIZE),
  seed=strategies.integers(0, 2**31 - 1),
  num_decisions=strategies.integers(0, 3))
def test_survivors_keep_every_bit_and_parents_are_finite_and_fitter(
  name, fitness, seed, num_decisions
):
  state, hyperparams = jax.device_get(_later(name, num_decisions))
  values = np.asarray(fitness, np.float32)
  finite = np.isfinite(values)
  after, decision = jax.device_get(
    _update(name)(state, jax.random.key(seed), values, hyperparams))
  operators = np.array(controller(name).operators)[decision.operator]
  survivors = operators == "survive"
  assert np.all(finite[survivors])
  for key, leaf in decision.hyperparams.items():
    np.testing.assert_array_equal(
      leaf[survivors].view(np.int32),
      np.asarray(hyperparams[key])[survivors].view(np.int32))
  np.testing.assert_array_equal(
    decision.parents[survivors], np.flatnonzero(survivors))
  _assert_inside(decision.hyperparams)
  if finite.any():
    parents = values[decision.parents]
    assert np.all(np.isfinite(parents))
    for child in np.flatnonzero(~survivors & finite):
      # With successive halving, of another configuration.
      assert parents[child] > values[child] or name == "successive_halving"
    assert "reinitialise" not in operators
  else:
    np.testing.assert_array_equal(decision.parents, np.arange(_SIZE))
    assert set(operators) == {"reinitialise"}
    assert len(set(decision.hyperparams["learning_rate"])) == _SIZE


@_each
def test_no_two_draws_are_from_one_key(name):
  state, hyperparams = jax.eval_shape(lambda: _init(name))
  fitness = jax.ShapeDtypeStruct((_SIZE,), jnp.float32)
  key = jax.random.key(0)
  assert not jaxprs.reused_keys(
    controller(name).update, state, key, fitness, hyperparams)
  assert not jaxprs.reused_keys(lambda key: controller(name).init(key, 8), key)


@pytest.mark.parametrize("name", [
  # Whose model has no axis then.
  x if x == "pb2" else pytest.param(x, marks=pytest.mark.slow) for x in MAKE])
def test_where_all_is_fixed_nothing_changes(name):
  controller = MAKE[name]({"x": controllers.Fixed(3.0)})
  state, hyperparams = controller.init(jax.random.key(0), _SIZE)
  update = jax.jit(controller.update)
  for seed in range(2):
    state, decision = update(
      state, jax.random.key(seed), _fitness(seed), hyperparams)
    np.testing.assert_array_equal(decision.hyperparams["x"], 3.0)
