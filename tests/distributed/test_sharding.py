"""Tests of spreading members over devices, and of the bits that they send."""

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import controllers, distributed
from qdrl_haiku.distributed import bitcast, moving, sharding
from tests.training import common

_NAN = jnp.uint32(0x7FC12345).view(jnp.float32)  # With a payload.


def _devices(count):
  """Stand-ins, of which only the number matters."""
  return list(range(count))


@pytest.mark.parametrize(
  ("sizes", "available", "expected"),
  [
    ((8,), 8, 8),
    ((8,), 3, 3),  # 3 on each, where two have 4.
    ((6,), 4, 3),  # 2 on each, and four would have no less to do.
    ((7,), 4, 4),
    ((1,), 4, 1),
    ((11,), 8, 6),  # 2 on each, but one.
    ((0,), 8, 1),
    ((10,), 8, 5),
    ((10, 20), 8, 7),  # 2 to train from five on, 3 to evaluate from seven on.
    ((10, 20), 16, 10),  # 1 to train, 2 to evaluate.
    ((4, 12), 8, 6),  # 1 to train from four on, 2 to evaluate from six on.
  ],
)
def test_so_many_devices_as_have_least_to_do(sizes, available, expected):
  assert sharding.num_devices(sizes, available) == expected


@pytest.fixture
def made(monkeypatch):
  """The meshes that are made, of stand-ins."""
  made = []
  monkeypatch.setattr(
    jax, "make_mesh", lambda shape, *_, **kwargs: made.append((shape, kwargs))
  )
  return made


def test_the_mesh_has_the_first_of_the_devices(made):
  distributed.population_mesh(11, _devices(8))
  distributed.population_mesh(10, _devices(8), [20])
  for (shape, kwargs), expected in zip(made, (6, 7), strict=True):
    assert shape == (expected,)
    assert kwargs["devices"] == _devices(expected)


def test_the_mesh_of_several_processes_has_all_devices(made, monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  distributed.population_mesh(3, _devices(8))
  (shape, kwargs), = made
  assert shape == (8,)
  assert kwargs["devices"] == _devices(8)


def test_slots_that_are_left_over_hold_the_last_member():
  mesh = jax.sharding.AbstractMesh((4,), ("population",))
  members = {
    "x": jnp.arange(10.0).reshape(5, 2),
    "keys": jax.random.split(jax.random.key(0), 5),
  }
  filled = sharding.in_slots(mesh, members)
  expected = jax.tree.map(lambda x: x[jnp.array([0, 1, 2, 3, 4, 4, 4, 4])],
                          members)
  common.assert_bits_equal(filled, expected)
  common.assert_bits_equal(sharding.in_slots(mesh, filled), expected)
  common.assert_bits_equal(sharding.in_slots(None, members), members)


def test_what_has_no_slots_is_shared_evenly():
  # Five would have less to do than four, but can't share 256 cells.
  assert sharding.num_devices((10, 20), 6) == 5
  assert sharding.num_devices((10, 20), 6, num_shared_cells=256) == 4


def test_the_mesh_has_one_axis_that_vmap_can_use():
  mesh = distributed.population_mesh(4, jax.devices()[:1])
  assert mesh.axis_names == ("population",)
  assert mesh.axis_types == (jax.sharding.AxisType.Auto,)


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


@pytest.mark.parametrize("x", [
  jnp.array([-0.0, 0.0, jnp.inf, _NAN]),
  jnp.array([1.5, -2.0], jnp.bfloat16),
  jnp.array([-1, 2**31 - 1], jnp.int32),
  jnp.array([[255], [0]], jnp.uint8),
  jnp.array([-128, 127], jnp.int8),
  jnp.array([True, False]),
  jax.random.split(jax.random.key(0), 3),
])  # fmt: skip
def test_bits_come_back_as_they_were(x):
  sent = bitcast.to_integers(x)
  assert sent.dtype == jnp.uint32
  common.assert_bits_equal(bitcast.from_integers(sent, x), x)
