"""Tests that what looks for a defect finds one."""

import jax
import jax.numpy as jnp

from tests import compilations, jaxprs


def test_a_new_function_is_counted_as_compiled_once():
  function = jax.jit(lambda x: 3 * x + 1)
  assert compilations.of(function, jnp.ones(3)) >= 1
  assert compilations.of(function, jnp.ones(3)) == 0


def test_a_key_that_is_drawn_from_twice_is_found():
  assert jaxprs.reused_keys(
    lambda key: jax.random.normal(key) + jax.random.normal(key, (2,)),
    jax.random.key(0))


def test_a_loop_that_waits_for_all_of_a_batch_is_found():
  assert jaxprs.waiting_loops(
    lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: 2 * x, x),
    jnp.ones(()))
