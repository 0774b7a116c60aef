"""Tests of spreading members over devices, and of the bits that they send."""

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import controllers, distributed
from qdrl_haiku.distributed import moving, sharding
from tests.training import common

_NAN = jnp.uint32(0x7FC12345).view(jnp.float32)  # With a payload.


@pytest.mark.parametrize(("sizes", "available", "cells", "expected"), [
  ((8,), 3, 0, 3),  # 3 on each, where two have 4.
  ((6,), 4, 0, 3),  # 2 on each, and four would have no less to do.
  ((1,), 4, 0, 1),
  ((11,), 8, 0, 6),  # 2 on each, but one.
  ((10, 20), 8, 0, 7),  # 2 to train from five on, 3 to evaluate from seven.
  # Five would have less to do than four, but can't share 256 cells.
  ((10, 20), 6, 256, 4)])
def test_so_many_devices_as_have_least_to_do(sizes, available, cells, expected):
  assert sharding.num_sharding_devices(sizes, available, cells) == expected


def test_the_mesh_has_the_first_devices_or_all(monkeypatch):
  made = []
  monkeypatch.setattr(
    jax, "make_mesh", lambda shape, *_, **kwargs: made.append((shape, kwargs)))
  distributed.population_mesh(10, range(8), [20])
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  distributed.population_mesh(3, range(8))
  for (shape, kwargs), expected in zip(made, (7, 8), strict=True):
    assert shape == (expected,) and kwargs["devices"] == range(expected)
    # Others can't be used by vmap.
    assert kwargs["axis_types"] == (jax.sharding.AxisType.Auto,)


def test_slots_that_are_left_over_hold_the_last_member():
  mesh = jax.sharding.AbstractMesh((4,), ("population",))
  members = {
    "x": jnp.arange(10.0).reshape(5, 2),
    "keys": jax.random.split(jax.random.key(0), 5)}
  filled = sharding.shard_into_slots(mesh, members)
  expected = common.member(members, jnp.array([0, 1, 2, 3, 4, 4, 4, 4]))
  common.assert_bits_equal(filled, expected)
  common.assert_bits_equal(sharding.shard_into_slots(mesh, filled), expected)
  common.assert_bits_equal(sharding.shard_into_slots(None, members), members)


@pytest.mark.parametrize("has_mesh", [False, True])
def test_members_move_as_parents_say_bit_for_bit(has_mesh):
  on_cpu = jax.default_backend() == "cpu"
  mesh = distributed.population_mesh(4, jax.devices()[:1]) if has_mesh else None
  members = {
    "floats": jnp.array([[-0.0, 1.0], [jnp.inf, 2.0], [_NAN, 3.0], [0.0, 4.0]]),
    "flags": jnp.array([True, False, False, True]),
    "half": jnp.array([1.5, -2.0, 0.1, -0.0], jnp.bfloat16),
    "bytes": jnp.array([[255], [0], [7], [128]], jnp.uint8),
    "keys": jax.random.split(jax.random.key(0), 4)}
  move = jax.jit(
    lambda parents: moving.inherit_by_moving(mesh, members, parents, 5))
  for parents in ([0, 1, 2, 3], [0, 0, 0, 0], [1, 0, 3, 2], [3, 1, 1, 0]):
    parents = jnp.array(parents)
    moved, turn = move(parents)
    common.assert_bits_equal(moved, controllers.inherit(members, parents))
    # One accelerator replaces all at once.
    num_turns = int(jnp.sum(parents != jnp.arange(4))) if on_cpu else 0
    assert turn == 5 + num_turns
  # In place where no parent is replaced.
  parents = jnp.array([2, 1, 2, 1])
  moved, _ = jax.jit(
    lambda x: moving.inherit_by_moving(mesh, x, parents, in_place=True)
  )(members)
  common.assert_bits_equal(moved, controllers.inherit(members, parents))
  fetched, turn = jax.jit(
    lambda i: moving.move_member_to_all(mesh, members, i, 5))(2)
  assert turn == 6
  common.assert_bits_equal(fetched, common.member(members, 2))


def test_members_stay_sharded_when_spare_slots_are_filled():
  """Programs that were compiled for them refuse all others."""
  mesh = distributed.population_mesh(4, jax.devices()[:1])
  members = {"x": jnp.arange(4), "empty": jnp.zeros((4, 0))}
  filled = moving.move_into_spare_slots(mesh, members, 3)
  assert filled["x"].tolist() == [0, 1, 2, 2]
  assert {x.sharding.spec for x in filled.values()} == {sharding.SHARDED}
