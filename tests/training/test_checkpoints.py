"""Tests of what a checkpoint keeps."""

import errno
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from qdrl_haiku.training import checkpoints as checkpoints_lib
from tests.training import common


class _Box(NamedTuple):
  content: Any
  nothing: None
  empty: dict[str, Any]


def _tree():
  return {
    "keys": jax.random.split(jax.random.key(3), (2, 3)),
    "box": _Box(jnp.arange(3.0), None, {}),
    "nested": ((jnp.zeros((), jnp.int32),), {"a": {"b": jnp.array([True])}}),
    "special": jnp.array([jnp.nan, -0.0, jnp.inf, 1e-42]),
    "void": (jnp.zeros((2, 0), jnp.int32),),
  }


@pytest.fixture
def checkpoints(tmp_path):
  opened = checkpoints_lib.Checkpoints(tmp_path / "checkpoints", 2)
  yield opened
  opened.close()


def test_every_kind_of_leaf_comes_back_bit_for_bit(checkpoints):
  checkpoints.save(5, {"x": _tree()}, {})
  restored = checkpoints.restore(5, {"x": _tree()})["x"]
  assert jax.tree.structure(restored) == jax.tree.structure(_tree())
  common.assert_bits_equal(restored, _tree())
  assert jnp.issubdtype(restored["keys"].dtype, jax.dtypes.prng_key)
  assert isinstance(restored["box"], _Box)


def test_a_tree_can_be_read_by_its_shapes_and_without_the_others(checkpoints):
  tree = {name: x for name, x in _tree().items() if name != "keys"}
  checkpoints.save(5, {"x": tree, "y": {"big": jnp.ones(100)}}, {})
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  like = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), tree
  )
  common.assert_bits_equal(checkpoints.restore(5, {"x": like})["x"], tree)


def test_a_state_may_be_a_single_array(checkpoints):
  checkpoints.save(5, {"x": jnp.arange(3.0)}, {})
  restored = checkpoints.restore(5, {"x": jnp.zeros(3)})["x"]
  common.assert_bits_equal(restored, jnp.arange(3.0))


def test_what_fails_while_writing_is_raised_and_not_logged_too(
  checkpoints, monkeypatch, caplog
):
  write = epath.Path.write_text

  def full(self, *args, **kwargs):
    if self.name == "_METADATA":  # Which a thread of orbax writes.
      raise OSError(errno.ENOSPC, "No space left on device", str(self))
    return write(self, *args, **kwargs)

  monkeypatch.setattr(epath.Path, "write_text", full)
  with pytest.raises(OSError, match="can't be written"):
    checkpoints.save(5, {"x": _tree()}, {})
  assert caplog.records == []


def test_a_record_comes_back_as_it_was(checkpoints):
  record = {"generation": 3, "returns": [1.5, None], "best": {"return": 0.1}}
  checkpoints.save(5, {"x": jnp.ones(2)}, record)
  assert checkpoints.record(5) == record


def test_only_the_latest_are_kept(checkpoints, tmp_path):
  assert checkpoints.steps() == []
  for step in (10, 20, 30):
    checkpoints.save(step, {"x": jnp.full(2, step)}, {})
  assert checkpoints.steps()[0] == 30
  found = {path.name for path in (tmp_path / "checkpoints").iterdir()}
  assert found == {"20", "30"}


def test_a_checkpoint_that_is_there_stays(checkpoints):
  for value in (1, 2):
    checkpoints.save(10, {"x": jnp.full(2, value)}, {"value": value})
  assert checkpoints.record(10) == {"value": 1}


def test_arrays_of_another_shape_are_refused(checkpoints):
  checkpoints.save(10, {"x": jnp.ones(2)}, {})
  with pytest.raises(ValueError, match="shape"):
    checkpoints.restore(10, {"x": jnp.ones(3)})


def test_trees_of_another_structure_are_refused(checkpoints):
  checkpoints.save(10, {"x": {"a": jnp.ones(2)}}, {})
  for other in ({"b": jnp.ones(2)}, {"a": jnp.ones(2), "b": jnp.ones(2)}, {}):
    with pytest.raises(ValueError, match="another structure"):
      checkpoints.restore(10, {"x": other})


def test_opening_a_directory_to_read_says_nothing(tmp_path, caplog):
  checkpoints_lib.Checkpoints(tmp_path, 1).save(1, {"x": jnp.ones(2)}, {})
  caplog.clear()
  assert checkpoints_lib.Checkpoints(tmp_path).steps() == [1]
  assert caplog.records == []
