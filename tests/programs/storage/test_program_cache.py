"""Tests of the cache of programs, and of files that others wrote."""

import hashlib
import os
import pathlib
import pickle
import random
import stat
import time

import pytest

from qdrl_haiku.programs.storage import program_cache as cache_lib
from qdrl_haiku.programs.storage.program_cache import ProgramCache


@pytest.fixture
def folder(tmp_path):
  return tmp_path / "kept"


class _Bomb:
  """Makes a file where it's unpickled."""

  def __init__(self, path):
    self._path = path

  def __reduce__(self):
    return pathlib.Path.touch, (self._path,)


def test_a_value_is_read_by_starts_of_its_key_or_shared_by_all(folder):
  one, other = ProgramCache(folder, "one"), ProgramCache(folder, "other")
  assert one.write("sizes", (3, 1)) and one.write_shared("code", b"code")
  assert one.has("sizes") and not other.has("sizes")
  assert (one.read("sizes"), other.read("sizes")) == ((3, 1), None)
  assert one.read_shared("code") == other.read_shared("code") == b"code"
  assert other.read_shared("another") is None


def test_what_has_a_flipped_bit_is_never_unpickled(folder, monkeypatch):
  kept = ProgramCache(folder, "one")
  kept.write("train", random.Random(0).randbytes(28_000))
  (path,) = folder.iterdir()
  data = path.read_bytes()
  monkeypatch.setattr(pickle, "loads", None)
  positions = [*range(64), *random.Random(1).sample(range(len(data)), 200)]
  # And cut short.
  for position in [*positions, None]:
    damaged = bytearray(data if position is not None else data[:40])
    if position is not None:
      damaged[position] ^= 1 << position % 8
    path.write_bytes(damaged)
    assert kept.has("train")
    assert kept.read("train") is None
    assert not path.exists()


def test_the_folder_is_made_for_its_owner_alone(folder):
  before = os.umask(0)
  ProgramCache(folder, "one").write("sizes", (3, 1))
  os.umask(before)
  (path,) = folder.iterdir()
  modes = [stat.S_IMODE(x.stat().st_mode) for x in (folder, path)]
  assert modes == [0o700, 0o600]


@pytest.mark.parametrize("danger", ["writable", "theirs", "a link", "a file"])
def test_what_others_may_have_written_is_not_read(
  danger, folder, tmp_path, monkeypatch
):
  place = tmp_path / "theirs" if danger == "a link" else folder
  place.mkdir(0o700)
  path = place / "one-sizes"
  # As another user would write it, with the right checksum.
  data = pickle.dumps(_Bomb(tmp_path / "exploded"))
  path.write_bytes(hashlib.sha256(data).digest() + data)
  if danger == "a link":
    folder.symlink_to(place)
  elif danger == "writable":
    folder.chmod(0o1777)
  elif danger == "a file":
    path.chmod(0o666)
  else:
    someone_else = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: someone_else)
  kept = ProgramCache(folder, "one")
  assert kept.read("sizes") is None
  assert path.exists() == (danger != "a file")
  assert kept.write("other", 1) == (danger == "a file")
  assert not (tmp_path / "exploded").exists()


def test_what_can_not_be_written_is_left_out(folder):
  assert not ProgramCache(folder, "one").write("sizes", lambda: None)
  folder.write_text("")
  assert not ProgramCache(folder, "one").write("sizes", (3, 1))


def test_what_was_used_least_lately_is_forgotten(folder, monkeypatch):
  monkeypatch.setattr(cache_lib, "_MOST_BYTES", 2500)
  kept = ProgramCache(folder, "one")
  for i, code in enumerate(("first", "second", "third")):
    kept.write_shared(code, bytes(1000))
    long_ago = time.time() - 1000 + i
    os.utime(folder / code, (long_ago, long_ago))
    if code == "second":
      kept.read_shared("first")
  assert [kept.read_shared(x) is None for x in ("first", "second")] == [0, 1]


def test_of_a_folder_of_jax_its_own_files_alone_are_forgotten(
  folder, monkeypatch
):
  monkeypatch.setattr(cache_lib, "_MOST_BYTES", 2500)
  folder.mkdir()
  for i, name in enumerate(("notes", "a-cache", "b-cache", "c-cache")):
    (folder / name).write_bytes(bytes(1000))
    # jax has read the first one since it wrote it.
    read = time.time() if name == "a-cache" else i
    os.utime(folder / name, (read, i))
  cache_lib.forget_unused_programs(folder, "*-cache")
  assert {x.name for x in folder.iterdir()} == {"notes", "a-cache", "c-cache"}
