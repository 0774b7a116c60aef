"""Tests of moving members from device to device."""

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import controllers, distributed
from qdrl_haiku.distributed import moving
from tests.training import common

_NAN = jnp.uint32(0x7FC12345).view(jnp.float32)  # With a payload.


@pytest.mark.parametrize("parents", [
  [0, 1, 2, 3], [0, 0, 0, 0], [1, 2, 3, 3], [1, 0, 3, 2], [3, 1, 1, 0]
])  # fmt: skip
@pytest.mark.parametrize("has_mesh", [False, True])
def test_members_move_as_parents_say_bit_for_bit(parents, has_mesh):
  mesh = distributed.population_mesh(4, jax.devices()[:1]) if has_mesh else None
  members = {
    "floats": jnp.array([[-0.0, 1.0], [jnp.inf, 2.0], [_NAN, 3.0], [0.0, 4.0]]),
    "flags": jnp.array([True, False, False, True]),
    "counts": jnp.arange(4, dtype=jnp.int32),
    "keys": jax.random.split(jax.random.key(0), 4),
  }
  parents = jnp.array(parents)
  moved, turn = jax.jit(lambda x: moving.inherit(mesh, x, parents, 5))(members)
  common.assert_bits_equal(moved, controllers.inherit(members, parents))
  assert turn == 5 + jnp.sum(parents != jnp.arange(4))


def test_members_may_move_in_place_where_no_parent_is_replaced():
  members = jnp.arange(8.0).reshape(4, 2)
  parents = jnp.array([2, 1, 2, 1])
  moved, _ = jax.jit(
    lambda x: moving.inherit(None, x, parents, in_place=True)
  )(members)
  common.assert_bits_equal(moved, members[parents])


def test_one_member_is_fetched_as_it_is():
  mesh = distributed.population_mesh(4, jax.devices()[:1])
  members = {"x": jnp.arange(8.0).reshape(4, 2), "flag": jnp.eye(4, dtype=bool)}
  fetched, turn = jax.jit(lambda i: moving.member(mesh, members, i, 5))(2)
  assert turn == 6
  common.assert_bits_equal(fetched, jax.tree.map(lambda x: x[2], members))
