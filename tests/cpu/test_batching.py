"""A function of one instance becomes one of a batch, as one kernel on CPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.cpu import batching
from tests import jaxprs, kernels

_X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
_SPEC = jax.ShapeDtypeStruct((3,), jnp.float32)


def _compiled(function, x):
  batched = batching.of_batch(
    function, jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
  )
  return jax.jit(batched).lower(x).compile()


def _physics(x):
  """Some of everything that robots do."""
  x = jax.lax.fori_loop(0, 3, lambda i, x: x.at[i].add(jnp.sin(x @ x)), x)
  return jnp.where(x[0] > 0, x, jnp.cross(x, x[::-1])), jnp.argmax(x)


def test_it_computes_what_the_function_does():
  batched = batching.of_batch(_physics, _SPEC)
  for actual, expected in zip(
    jax.jit(batched)(_X), jax.vmap(_physics)(_X), strict=True
  ):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPUs")
def test_on_a_cpu_it_is_one_kernel():
  assert kernels.num_marked(_compiled(_physics, _X))


def test_a_large_batch_stays_many_kernels_which_threads_share():
  assert not kernels.num_marked(_compiled(_physics, np.tile(_X, (200, 1))))


def test_elsewhere_than_on_cpus_nothing_is_rewritten(monkeypatch):
  expected = jax.vmap(_physics)(_X)
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  batched = batching.of_batch(_physics, _SPEC)
  names = [e.primitive.name for e in jaxprs.equations(batched, _X)]
  assert "dot_general" in names
  assert "scatter-add" in names
  # The robot's own loop, and none for its scatter.
  assert names.count("scan") + names.count("while") == 1
  assert not kernels.num_marked(jax.jit(batched).lower(_X).compile())
  for actual, x in zip(batched(_X), expected, strict=True):
    np.testing.assert_allclose(actual, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "function",
  [jnp.sort, lambda x: jnp.linalg.cholesky(x[0] * jnp.eye(2))],
  ids=["sort", "cholesky"],
)
def test_what_calls_a_library_stays_what_it_is(function):
  compiled = _compiled(function, np.abs(_X))
  assert not kernels.num_marked(compiled)
  np.testing.assert_allclose(
    compiled(np.abs(_X)), jax.vmap(function)(np.abs(_X)), rtol=1e-6
  )


def test_a_function_that_computes_nothing_is_left_alone():
  compiled = _compiled(lambda x: (x, jnp.zeros(())), _X)
  assert not kernels.num_marked(compiled)
  np.testing.assert_array_equal(compiled(_X)[0], _X)


def test_arguments_may_be_unused_within_a_loop():
  batched = batching.of_batch(lambda x, _: jnp.sin(x), _SPEC, _SPEC)

  def loop(x):
    return jax.lax.while_loop(
      lambda x: jnp.any(x > 0.5), lambda x: batched(x, x + 1), x
    )

  assert kernels.num_marked(jax.jit(loop).lower(_X).compile())
  np.testing.assert_array_less(jax.jit(loop)(_X), 0.5)


def test_keys_are_taken_and_returned():
  def function(key):
    key, own = jax.random.split(key)
    return key, jax.random.uniform(own, (2,))

  keys = jax.random.split(jax.random.key(0), 4)
  batched = batching.of_batch(
    function, jax.eval_shape(lambda: jax.random.key(0))
  )
  actual, expected = jax.jit(batched)(keys), jax.vmap(function)(keys)
  assert jnp.all(jax.random.key_data(actual[0]) ==
                 jax.random.key_data(expected[0]))
  np.testing.assert_array_equal(actual[1], expected[1])


def test_python_is_called_once_whatever_the_batch():
  calls = []

  def function(x):
    calls.append(x)
    return x @ x

  batched = batching.of_batch(function, _SPEC)
  for size in (1, 2, 4):
    result = jax.jit(batched)(_X[:size])
    np.testing.assert_allclose(result, np.sum(_X[:size] ** 2, 1), rtol=1e-6)
  assert len(calls) == 1


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPUs")
@pytest.mark.parametrize(
  ("name", "backend"),
  [
    pytest.param("inverted_pendulum", "generalized", marks=pytest.mark.slow),
    ("point_maze", None),
  ],
)
def test_steps_of_environments_are_one_kernel(name, backend):
  env = environments.create(name, backend=backend)
  state = jax.eval_shape(env.reset, jax.random.split(jax.random.key(0), 2))
  action = jax.ShapeDtypeStruct((2, env.action_size), jnp.float32)
  assert kernels.num_marked(jax.jit(env.advance).lower(state, action).compile())
