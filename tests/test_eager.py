"""Tests of compiling once what is called in a Python loop."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import eager
from tests import jaxprs


class _Scale:
  """Something static, such as an environment."""

  def __init__(self, factor):
    self.factor = factor

  def times(self, x):
    return self.factor * x


def _counting():
  """A function that counts how often it's traced, and the counts."""
  traces = []

  @eager.compiled_if_eager("scale", "power")
  def function(scale, x, power=1):
    traces.append(power)
    return scale.times(x) ** power

  return function, traces


def test_another_shape_object_or_number_is_another_program_and_no_call():
  function, traces = _counting()
  scale = _Scale(2.0)
  for _ in range(2):
    assert function(scale, jnp.float32(3)) == 6
    np.testing.assert_array_equal(function(scale, jnp.ones(2)), [2, 2])
    assert function(scale, jnp.float32(3), power=2) == 36
  other = _Scale(5.0)
  assert function(other, jnp.float32(3)) == 15
  assert traces == [1, 1, 2, 1]


def test_numbers_and_methods_are_told_apart_by_value():
  traces = []

  @eager.compiled_if_eager("method", "number")
  def function(method, number, x):
    """Adds a number."""
    traces.append(number)
    return method(x) + number

  scale = _Scale(2.0)
  # Each access makes another object, and so does each of these numbers.
  for _ in range(2):
    assert function(scale.times, int("1000"), jnp.float32(1)) == 1002
  assert traces == [1000]
  text = function.__name__, function.__doc__
  assert text == ("function", "Adds a number.")


def test_a_function_that_is_traced_is_as_it_is_written():
  function, traces = _counting()
  scale = _Scale(2.0)
  for _ in range(2):
    jax.jit(lambda x: function(scale, x))(jnp.float32(1))
  assert len(traces) == 2
  names = {
    e.primitive.name
    for e in jaxprs.equations(lambda x: function(scale, x), jnp.float32(1))}
  assert names == {"mul", "integer_pow"}


def test_a_mapped_function_is_compiled_once():
  function, traces = _counting()
  mapped = jax.vmap(functools.partial(function, _Scale(2.0)))
  for _ in range(2):
    np.testing.assert_array_equal(mapped(jnp.arange(3.0)), [0, 2, 4])
  assert len(traces) == 1


def test_objects_of_long_ago_are_let_go_of(monkeypatch):
  monkeypatch.setattr(eager, "_MOST", 2)
  function, _ = _counting()
  first = _Scale(0.0)
  alive = weakref.ref(first)
  function(first, jnp.float32(1))
  del first
  assert alive() is not None
  for i in range(2):
    function(_Scale(float(i)), jnp.float32(1))
  gc.collect()
  assert alive() is None
