"""Tests of what a checkpoint keeps."""

import errno
import json
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from qdrl_haiku.programs.storage import checkpoints as checkpoints_lib
from qdrl_haiku.programs.storage import checksums
from qdrl_haiku.programs.storage.checkpoints import Checkpoints
from tests.launchers import kill
from tests.training import common

_LIKE = {"x": jnp.zeros(2, jnp.int32)}


class _Box(NamedTuple):
  content: Any
  nothing: None
  empty: dict[str, Any]


@pytest.fixture
def checkpoints(tmp_path):
  return Checkpoints(tmp_path / "checkpoints", writes=True)


def test_every_kind_of_leaf_comes_back_bit_for_bit(checkpoints):
  tree = {
    "keys": jax.random.split(jax.random.key(3), (2, 3)),
    "box": _Box(jnp.arange(3.0), None, {}),
    "nested": ((jnp.zeros((), jnp.int32),), {"a": {"b": jnp.array([True])}}),
    "special": jnp.array([jnp.nan, -0.0, jnp.inf, 1e-42]),
    "void": (jnp.zeros((2, 0), jnp.int32),)}
  trees = {"x": tree, "array": jnp.arange(3.0)}
  record = {"generation": 3, "returns": [1.5, None], "best": {"return": 0.1}}
  checkpoints.save(5, trees, record)
  restored = checkpoints.restore(5, trees)
  assert jax.tree.structure(restored) == jax.tree.structure(trees)
  common.assert_bits_equal(restored, trees)
  assert jnp.issubdtype(restored["x"]["keys"].dtype, jax.dtypes.prng_key)
  assert isinstance(restored["x"]["box"], _Box)
  assert checkpoints.record(5) == record
  # By shapes, and without the others.
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  like = jax.ShapeDtypeStruct((3,), jnp.float32, sharding=device)
  alone = checkpoints.restore(5, {"array": like})
  common.assert_bits_equal(alone["array"], trees["array"])


def _save(checkpoints, *steps):
  for step in steps:
    checkpoints.save(step, {"x": jnp.full(2, step)}, {"step": step})


def _listing(folder):
  return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
  "name", ["lr=[1e-3]/seed=0", "a{b}*?", "\\", "gs:", "a\nb", "äöü"])
def test_a_directory_may_have_any_name(name, tmp_path):
  folder = tmp_path / name / "checkpoints"
  opened = Checkpoints(folder, writes=True)
  _save(opened, 10, 20)
  reader = Checkpoints(folder)
  assert reader.steps() == [20, 10]
  assert reader.record(20) == {"step": 20}
  assert reader.restore(20, _LIKE)["x"].tolist() == [20, 20]
  assert reader.num_rows(20, "x") == 2
  assert _listing(tmp_path) == [pathlib.Path(name).parts[0]]


def test_a_first_one_that_is_unreadable_does_not_count(tmp_path, monkeypatch):
  # As if the path were one that orbax can take.
  monkeypatch.setattr(checkpoints_lib, "_PLAIN", re.compile(".*"))
  opened = Checkpoints(tmp_path / "a[x]", writes=True)
  with pytest.raises(OSError, match="10 can't be written: NOT_FOUND"):
    _save(opened, 10)
  assert opened.steps() == []
  Checkpoints(tmp_path / "a[x]", writes=True)
  assert _listing(tmp_path / "a[x]") == []


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
    _save(checkpoints, 5)
  assert caplog.records == []


def test_only_those_that_are_to_stay_are_kept(checkpoints, tmp_path):
  assert checkpoints.steps() == []
  _save(checkpoints, 10, 20, 30)
  with pytest.raises(OSError, match="20 can't be written: .* not empty"):
    _save(checkpoints, 20)
  shutil.rmtree(tmp_path / "checkpoints/partial-20")
  checkpoints.keep([30, 10])
  assert checkpoints.steps() == [30, 10]
  assert _listing(tmp_path / "checkpoints") == ["10", "30"]
  checkpoints.keep([10])
  _save(checkpoints, 20)
  assert checkpoints.record(20) == {"step": 20}
  assert Checkpoints(tmp_path / "checkpoints").steps() == [20, 10]


def test_half_a_deletion_is_no_checkpoint(checkpoints, tmp_path, monkeypatch):
  _save(checkpoints, 10, 20)

  def killed(path):
    next(pathlib.Path(path).glob("x/_METADATA")).unlink()
    raise KeyboardInterrupt

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(shutil, "rmtree", killed)
    checkpoints.keep([10])
  assert Checkpoints(tmp_path / "checkpoints").steps() == [10]
  assert len(_listing(tmp_path / "checkpoints")) == 2  # Reading changes none.
  Checkpoints(tmp_path / "checkpoints", writes=True)
  assert _listing(tmp_path / "checkpoints") == ["10"]


def _flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def _cut(path):
  path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize(("harm", "pattern", "message"), [
  (_flip, "x/d/*", "has other bytes"),
  (pathlib.Path.unlink, "x/d/*", "is missing"),
  (_cut, "checksums.json", "cut short")])
def test_checksums_tell_damage(harm, pattern, message, checkpoints, tmp_path):
  _save(checkpoints, 10)
  harm(next((tmp_path / "checkpoints/10").glob(pattern)))
  with pytest.raises(checkpoints_lib.DamagedCheckpoint, match=message):
    checkpoints.record(10)
  with pytest.raises(checkpoints_lib.DamagedCheckpoint, match=message):
    checkpoints.restore(10, _LIKE)


@pytest.mark.parametrize(
  "error", [MemoryError(), OSError(errno.ESTALE, "Stale file handle")])
def test_what_cannot_be_read_is_not_damaged(
  error, checkpoints, tmp_path, monkeypatch
):
  _save(checkpoints, 10)

  def fail(*args, **kwargs):
    raise error

  for owner, name in (
    (pathlib.Path, "open"),
    # Once the checksums were found to be right.
    (json, "loads"),
  ):
    with monkeypatch.context() as patch:
      patch.setattr(owner, name, fail)
      with pytest.raises(type(error)) as raised:
        checkpoints.record(10)
    number = getattr(error, "errno", None)
    assert getattr(raised.value, "errno", None) == number
    checkpoints.record(10)


def test_a_lost_mount_is_not_damage(checkpoints, tmp_path):
  _save(checkpoints, 10)
  (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
  with pytest.raises(OSError, match="checkpoint 10 can't be read"):
    checkpoints.record(10)


def test_without_checksums_nothing_proves_damage(tmp_path):
  folder = tmp_path / "a[x]"
  checkpoints = Checkpoints(folder, writes=True)
  _save(checkpoints, 10)
  (folder / "10/checksums.json").unlink()  # As qdrl_haiku 0.4 may have.
  assert checkpoints.restore(10, _LIKE)["x"].tolist() == [10, 10]
  for path in folder.glob("10/x/**/d/*"):
    _cut(path)
  with pytest.raises(OSError, match="10 can't be read: ") as raised:
    checkpoints.restore(10, _LIKE)
  assert str(tmp_path) in str(raised.value) and "/tmp/tmp" not in str(
    raised.value)  # Which no user knows.


# One of two processes, each with a row; the second fails to read two steps.
_PROCESS = """
import sys
import jax
import numpy as np
from qdrl_haiku.programs.storage import checkpoints, checksums

address, process, folder = sys.argv[1:]
jax.distributed.initialize(address, 2, int(process))
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
rows = np.arange(6.0, dtype=np.float32).reshape(2, 3)
array = jax.make_array_from_callback(
  rows.shape, jax.NamedSharding(mesh, jax.P("x")), lambda index: rows[index]
)
opened = checkpoints.Checkpoints(folder, writes=True)
for step in (10, 20, 30):
  opened.save(step, {"x": array}, {"step": step})
opened = checkpoints.Checkpoints(folder, writes=True)
restored = opened.restore(10, {"x": array})["x"]
print(opened.record(10), restored.addressable_shards[0].data.tolist())

def checksum_damage(folder):
  if folder.name == "20" and process == "1":
    raise PermissionError(13, "Permission denied")
  return "a file is missing" if folder.name == "30" and process == "1" else None

checksums.checksum_damage = checksum_damage
opened.keep([20, 30])
for step in (30, 20):
  try:
    print(opened.record(step))
  except (checkpoints.DamagedCheckpoint, OSError) as error:
    print(type(error).__name__, error)
    if step == 30:
      opened.set_aside(step)
print(opened.steps())
"""


@pytest.mark.slow
def test_two_processes_agree_on_what_one_of_them_reads(tmp_path):
  folder = tmp_path / "a[x]\\b"
  address = kill.free_address()
  processes = [
    subprocess.Popen(
      [sys.executable, "-c", _PROCESS, address, str(i), str(folder)],
      stdout=subprocess.PIPE, text=True)
    for i in range(2)]
  outputs = [x.communicate(timeout=300)[0].splitlines() for x in processes]
  assert [x.returncode for x in processes] == [0, 0]
  for lines, row, ours, error in zip(
    outputs,
    ([0.0, 1.0, 2.0], [3.0, 4.0, 5.0]),
    ("another process finds it so", "a file is missing"),
    ("OSError", "PermissionError"),
    strict=True,
  ):
    # The coordination service prints before.
    restored, damaged, unreadable, steps = lines[-4:]
    assert restored == f"{{'step': 10}} {[row]}"
    assert damaged.startswith("DamagedCheckpoint") and ours in damaged
    assert unreadable.startswith(f"{error} ") and "20 can't be" in unreadable
    assert steps == "[20]"
  assert _listing(folder) == ["20", "damaged-30"]


@pytest.mark.parametrize("num_rows", [2, 5])
def test_rows_may_be_dropped_or_added(checkpoints, num_rows):
  tree = {"x": jnp.ones((3, 4)), "keys": jax.random.split(jax.random.key(0), 3)}
  checkpoints.save(10, {"tree": tree}, {})
  like = jax.tree.map(lambda x: jnp.resize(x, (num_rows, *x.shape[1:])), tree)
  restored = checkpoints.restore(10, {"tree": like}, ["tree"])["tree"]
  assert restored["x"].shape == (num_rows, 4)
  common.assert_bits_equal(
    *(jax.tree.map(lambda x: x[:num_rows][:3], t) for t in (restored, tree)))
  assert not restored["x"][3:].any()


@pytest.mark.parametrize(("other", "resized"), [
  ({"a": jnp.ones((4, 4))}, []),
  # Where the number of rows may differ, nothing else may.
  ({"a": jnp.ones((3, 5))}, ["x"]),
  ({"a": jnp.ones((3, 4)), "b": jnp.ones(2)}, [])])
def test_trees_of_another_structure_are_refused(checkpoints, other, resized):
  checkpoints.save(10, {"x": {"a": jnp.ones((3, 4))}}, {})
  with pytest.raises(ValueError, match="x of .* has another structure: .*sha"):
    checkpoints.restore(10, {"x": other}, resized)


@pytest.mark.parametrize("place", [0, 1_500_000, 2_500_000])
def test_a_flipped_bit_is_told_wherever_in_a_large_file(place, tmp_path):
  content = bytearray(2_500_001)
  (tmp_path / "array").write_bytes(content)
  checksums.write_checksums(tmp_path)
  assert checksums.checksum_damage(tmp_path) is None
  content[place] ^= 1
  (tmp_path / "array").write_bytes(content)
  assert checksums.checksum_damage(tmp_path) == "array has other bytes"
