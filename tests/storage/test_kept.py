"""What one start of a program keeps for the next ones."""

import os
import time

from qdrl_haiku.storage import kept as kept_lib
from qdrl_haiku.storage.kept import Kept


def test_a_value_is_read_by_a_start_with_the_same_key(tmp_path):
  assert Kept(tmp_path, "one").write("sizes", (3, 1))
  assert Kept(tmp_path, "one").read("sizes") == (3, 1)
  assert Kept(tmp_path, "other").read("sizes") is None
  assert not Kept(tmp_path, "other").has("sizes")


def test_a_shared_value_is_read_by_every_start(tmp_path):
  assert Kept(tmp_path, "one").write_shared("code", b"machine code")
  assert Kept(tmp_path, "other").read_shared("code") == b"machine code"
  assert Kept(tmp_path, "other").read_shared("another") is None


def test_a_damaged_value_counts_as_not_there(tmp_path):
  kept = Kept(tmp_path, "one")
  kept.write("sizes", (3, 1))
  path = tmp_path / "one" / "sizes.pickle"
  path.write_bytes(path.read_bytes()[:-3])
  assert kept.has("sizes") and kept.read("sizes") is None


def test_what_can_not_be_written_is_left_out(tmp_path):
  folder = tmp_path / "file"
  folder.write_text("")
  assert not Kept(folder, "one").write("sizes", (3, 1))
  assert not Kept(tmp_path, "one").write("sizes", lambda: None)


def test_what_was_used_least_lately_is_forgotten(tmp_path, monkeypatch):
  monkeypatch.setattr(kept_lib, "_MOST", 2)
  for i, code in enumerate(("first", "second", "third")):
    Kept(tmp_path, "one").write_shared(code, i)
    long_ago = time.time() - 1000 + i
    os.utime(tmp_path / "shared" / f"{code}.pickle", (long_ago, long_ago))
    if code == "second":
      Kept(tmp_path, "one").read_shared("first")
  found = [Kept(tmp_path, "one").read_shared(x) for x in ("first", "second")]
  assert found == [0, None]
