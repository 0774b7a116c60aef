"""Tests of the ranges, against plain float64 references."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import controllers, ranges

_RANGES = (
  controllers.Uniform(-4.0, -1.0), controllers.LogUniform(1e-5, 1e-2),
  controllers.OneMinusLogUniform(0.9, 0.999))
_FACTORS = (0.8, 1.25)
_NUM_DRAWS = 4096


@functools.cache
def _draws(range_):
  keys = jax.random.split(jax.random.key(0), _NUM_DRAWS)
  return np.asarray(jax.jit(jax.vmap(range_.sample))(keys), np.float64)


def _to_scale(range_, value):
  if isinstance(range_, controllers.LogUniform):
    return math.log(value)
  if isinstance(range_, controllers.OneMinusLogUniform):
    return math.log(1.0 - value)
  return value


def _reference_perturb(range_, value, factor, up):
  """Steps, then walks back from each bound in turn until it is inside."""
  ends = _to_scale(range_, range_.low), _to_scale(range_, range_.high)
  position = _to_scale(range_, value)
  if isinstance(range_, controllers.Uniform):
    position += (1 if up else -1) * (range_.high - range_.low) / 5
  else:
    position += math.log(factor)
  while not min(ends) <= position <= max(ends):
    if position < min(ends):
      position = 2 * min(ends) - position
    else:
      position = 2 * max(ends) - position
  if isinstance(range_, controllers.LogUniform):
    return math.exp(position)
  if isinstance(range_, controllers.OneMinusLogUniform):
    return 1.0 - math.exp(position)
  return position


@pytest.mark.parametrize("range_", _RANGES, ids=str)
def test_draws_are_uniform_on_the_scale_of_the_range(range_):
  positions = [_to_scale(range_, value) for value in _draws(range_)]
  ends = sorted(_to_scale(range_, v) for v in (range_.low, range_.high))
  # The key is fixed, so that this p-value is one number: no flakes.
  test = stats.kstest(positions, stats.uniform(ends[0], ends[1] - ends[0]).cdf)
  assert test.pvalue > 1e-3
  draw = range_.sample(jax.random.key(1))
  assert draw.dtype == jnp.float32 and draw.shape == ()


@pytest.mark.parametrize("range_", [
  *_RANGES,
  # Few float32 numbers each, so that the draws reach both ends; one rounds
  # its lower bound outward to nearest, one its upper bound, one both.
  controllers.Uniform(0.7, 0.7000003), controllers.LogUniform(0.7, 0.70000038),
  controllers.Uniform(0.0999997, 0.1),
  controllers.OneMinusLogUniform(0.8999995, 0.90000001)], ids=str)
def test_float32_values_never_leave_float64_bounds(range_):
  far = np.float32([-3e38, -1.0, 0.0, 1.0, 3e38])
  values = [_draws(range_)]
  for up, factors in itertools.product([False, True], [_FACTORS, (1e-9, 1e9)]):
    for value in (far, _draws(range_)[:100]):
      values.append(range_.perturb(value, np.full(value.shape, up), factors))
  values = np.concatenate(values).astype(np.float64)
  assert np.all((range_.low <= values) & (values <= range_.high))
  assert len(set(_draws(range_))) > 1


@pytest.mark.parametrize("range_", _RANGES, ids=str)
def test_perturb_matches_walking_back_from_the_bounds(range_):
  values = np.append(_draws(range_)[:200], range_._bounds()).astype(np.float32)
  # The last pair steps over the whole range several times.
  for factors, up in itertools.product(
    [_FACTORS, (0.5, 1.1), (1e-7, 3e8)], [False, True]
  ):
    moved = range_.perturb(values, np.full(values.shape, up), factors)
    assert moved.dtype == jnp.float32
    expected = [
      _reference_perturb(range_, float(v), factors[int(up)], up) for v in values
    ]
    # float32 resolves 1 - value only to 6e-8, hence the absolute tolerance
    # there; a step of the ordinary factors is 2e-4 or more.
    atol = 1e-6 if isinstance(range_, controllers.OneMinusLogUniform) else 0
    np.testing.assert_allclose(moved, expected, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("range_", _RANGES, ids=str)
def test_steps_are_the_same_where_they_are_reflected_onto_each_other(range_):
  bounds = jnp.stack(range_._bounds())
  down = range_.perturb(bounds, jnp.zeros(2, bool), _FACTORS)
  up = range_.perturb(bounds, jnp.ones(2, bool), _FACTORS)
  assert np.all(range_.same(down, up))
  # A small step isn't.
  values = jnp.asarray(_draws(range_)[:200], jnp.float32)
  moved = range_.perturb(values, jnp.ones(200, bool), (0.99, 1.01))
  assert np.mean(range_.same(values, moved)) < 0.02  # Reflections only.
  assert np.all(range_.same(values, values))


@pytest.mark.parametrize("range_", _RANGES, ids=str)
def test_unit_positions_are_linear_on_the_scale_of_the_range(range_):
  values = _draws(range_)[:200]
  ends = [_to_scale(range_, v) for v in (range_.low, range_.high)]
  positions = [
    (_to_scale(range_, v) - min(ends)) / (max(ends) - min(ends)) for v in values
  ]
  found = range_.to_unit(jnp.asarray(values, jnp.float32))
  # float32 resolves 1 - value only to 6e-8, which is 6e-5 of 0.001.
  np.testing.assert_allclose(found, positions, atol=2e-5)
  np.testing.assert_allclose(range_.from_unit(found), values, rtol=1e-5)
  bounds = range_.from_unit(jnp.array([0.0, 1.0]))
  np.testing.assert_allclose(sorted(bounds), range_._bounds(), rtol=1e-6)


_CHOICE = controllers.Choice((32.0, 64.0, 256.0, 0.5))


def test_choices_are_drawn_with_equal_chance():
  values, counts = np.unique(_draws(_CHOICE), return_counts=True)
  np.testing.assert_array_equal(values, [0.5, 32.0, 64.0, 256.0])
  assert stats.chisquare(counts).pvalue > 1e-3


def test_choices_move_to_a_neighbour_and_back_from_the_ends():
  values = jnp.array(_CHOICE.values)
  down = _CHOICE.perturb(values, jnp.zeros(4, bool), _FACTORS)
  up = _CHOICE.perturb(values, jnp.ones(4, bool), _FACTORS)
  np.testing.assert_array_equal(down, [64.0, 32.0, 64.0, 256.0])
  np.testing.assert_array_equal(up, [64.0, 256.0, 0.5, 256.0])
  assert down.dtype == jnp.float32
  two = controllers.Choice((1.0, 2.0))
  for is_up in (False, True):
    moved = two.perturb(jnp.array([1.0, 2.0]), jnp.full(2, is_up), _FACTORS)
    np.testing.assert_array_equal(moved, [2.0, 1.0])


def test_choices_are_the_same_where_they_are_one_value():
  values = jnp.array(_CHOICE.values)
  same = _CHOICE.same(values[:, None], values[None, :])
  np.testing.assert_array_equal(same, np.eye(4, dtype=bool))
  np.testing.assert_array_equal(_CHOICE.at(_CHOICE.index(values)), values)


@pytest.mark.parametrize(("text", "range_"), [
  ("log_uniform:1e-5:1e-2", controllers.LogUniform(1e-5, 1e-2)),
  ("one_minus_log_uniform:0:0.9", controllers.OneMinusLogUniform(0.0, 0.9)),
  ("fixed:1.0", controllers.Fixed(1.0)),
  ("uniform:-4:-1", controllers.Uniform(-4.0, -1.0)),
  ("choice:1:0.5:8", controllers.Choice((1.0, 0.5, 8.0)))])
def test_ranges_are_read_from_text(text, range_):
  assert ranges.parse_range(f"tau:{text}") == ("tau", range_)
