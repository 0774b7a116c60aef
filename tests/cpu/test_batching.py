"""Functions of one instance become those of a batch, as one kernel on CPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.cpu import batching, noise, xla
from tests import jaxprs, kernels, marks

# Later versions of XLA make no kernels of physics.
_MAKES_KERNELS = not xla.calls_library_for_sums()

_X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
_SPEC = jax.ShapeDtypeStruct((3,), jnp.float32)


def _compiled(function, x):
  batched = batching.rewrite_for_batching(
    function, jax.ShapeDtypeStruct(x.shape[1:], x.dtype))
  return jax.jit(batched).lower(x).compile()


def _physics(x):
  """Some of everything that robots do."""
  x = jax.lax.fori_loop(0, 3, lambda i, x: x.at[i].add(jnp.sin(x @ x)), x)
  return jnp.where(x[0] > 0, x, jnp.cross(x, x[::-1])), jnp.argmax(x)


@marks.ON_CPU
@pytest.mark.parametrize(("times", "kernel"), [(1, True), (200, False)])
def test_it_is_one_kernel_but_many_which_threads_share_of_many(times, kernel):
  x = np.tile(_X, (times, 1))
  compiled = _compiled(_physics, x)
  assert bool(kernels.num_marked(compiled)) == (kernel and _MAKES_KERNELS)
  for actual, expected in zip(compiled(x), jax.vmap(_physics)(x), strict=True):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_elsewhere_than_on_cpus_nothing_is_rewritten(monkeypatch):
  expected = jax.vmap(_physics)(_X)
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  batched = batching.rewrite_for_batching(_physics, _SPEC)
  names = {e.primitive.name for e in jaxprs.equations(batched, _X)}
  assert {"dot_general", "scatter-add"} < names
  compiled = jax.jit(batched).lower(_X).compile()
  assert not kernels.num_marked(compiled)
  for actual, x in zip(compiled(_X), expected, strict=True):
    np.testing.assert_allclose(actual, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "function", [jnp.sort, lambda x: (x, jnp.zeros(()))[0]],
  ids=["calls a library", "computes nothing"])
def test_what_can_be_no_kernel_stays_what_it_is(function):
  compiled = _compiled(function, _X)
  assert not kernels.num_marked(compiled)
  np.testing.assert_array_equal(compiled(_X), jax.vmap(function)(_X))


def _compiled_for_users(batched, *args):
  """Compiles as launchers do, while tests leave out XLA's optimisations.

  With them it refuses to make kernels of more operations.
  """
  options = xla.known_xla_options({
    "xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True,
    "xla_llvm_disable_expensive_passes": False})
  return jax.jit(batched).lower(*args).compile(options)


_WRITES = {
  "set": lambda x, i: x.at[i].set(2.0),
  "add": lambda x, i: x.at[i - 4].add(x[0]),
  "block": lambda x, i: jax.lax.dynamic_update_slice(x, x[:2], (i - 1,)),
  "literal": lambda x, i: jnp.where((x > 0).at[i].set(True), 1.0, x),
  "loop": lambda x, i: jax.lax.fori_loop(
    0, 2, lambda j, x: x.at[(i + j) % 3].add(1.0), x)}


@marks.ON_CPU
@pytest.mark.parametrize("name", _WRITES)
def test_instances_may_write_in_different_places(name):
  args = _X, np.int32([0, 2, 1, 3, -4])
  batched = batching.rewrite_for_batching(
    _WRITES[name], _SPEC, jax.ShapeDtypeStruct((), jnp.int32))
  compiled = _compiled_for_users(batched, *args)
  # Which is a scatter, that a kernel can't have.
  assert not kernels.num_marked(compiled)
  np.testing.assert_array_equal(
    compiled(*args), jax.vmap(_WRITES[name])(*args))


def _ring(x):
  """Some of everything that environments of a user's own do."""
  i = jnp.argmax(x)
  ring = jnp.zeros((4, 3)).at[1:].set(x).at[0, 0].add(2.0)
  seen = jnp.zeros(3, bool).at[0].set(True)
  x = jax.lax.switch(i, [jnp.sin, lambda y: y.at[1].set(0.0), jnp.flip], x)
  x = jax.lax.while_loop(lambda y: y.sum() < 5, lambda y: y + 1.0, x)
  x += jax.random.uniform(jax.random.fold_in(_KEY, i), (3,))
  return jnp.roll(x, i) + jnp.where(seen, ring[i], x @ ring.T @ ring)


_KEY = jax.random.key(0)


@marks.ON_CPU
def test_a_users_operations_are_one_kernel():
  batched = batching.rewrite_for_batching(_ring, _SPEC)
  compiled = _compiled_for_users(batched, _X)
  assert bool(kernels.num_marked(compiled)) == _MAKES_KERNELS
  np.testing.assert_allclose(
    compiled(_X), jax.vmap(_ring)(_X), rtol=1e-5, atol=1e-6)


@marks.ON_CPU
def test_arguments_may_be_unused_within_a_loop():
  batched = batching.rewrite_for_batching(lambda x, _: jnp.sin(x), _SPEC, _SPEC)

  def loop(x):
    return jax.lax.while_loop(
      lambda x: jnp.any(x > 0.5), lambda x: batched(x, x + 1), x)

  compiled = jax.jit(loop).lower(_X).compile()
  assert bool(kernels.num_marked(compiled)) == _MAKES_KERNELS
  np.testing.assert_array_less(compiled(_X), 0.5)


def test_keys_are_taken_and_python_is_called_once_whatever_the_batch():
  calls = []

  def function(key):
    calls.append(key)
    key, own = jax.random.split(key)
    return key, jax.random.uniform(own, (2,))

  keys = jax.random.split(jax.random.key(0), 4)
  batched = batching.rewrite_for_batching(
    function, jax.eval_shape(lambda: jax.random.key(0)))
  for size in (1, 4):
    actual = jax.jit(batched)(keys[:size])
    assert len(calls) == 1
  expected = jax.vmap(function)(keys)
  assert jnp.all(actual[0] == expected[0])
  np.testing.assert_array_equal(actual[1], expected[1])


@pytest.mark.parametrize(("shape", "implementation"), [
  ((), "threefry2x32"), ((0, 3), "threefry2x32"), ((256, 6), "threefry2x32"),
  # Which threads share.
  ((300, 200), "threefry2x32"), ((5,), "rbg")])
def test_it_is_what_jax_draws(shape, implementation):
  key = jax.random.key(7, impl=implementation)
  drawn = jax.jit(lambda key: noise.normal_noise(key, shape))(key)
  assert (drawn.shape, drawn.dtype) == (shape, jnp.float32)
  expected = jax.random.normal(key, shape)
  np.testing.assert_allclose(drawn, expected, rtol=1e-5, atol=1e-6)
