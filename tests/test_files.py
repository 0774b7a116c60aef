"""Tests of files that are there whole or not at all."""

import os
import secrets

import pytest

from qdrl_haiku import files


def test_a_file_takes_its_place_when_it_is_whole(tmp_path):
  path = tmp_path / "x.json"
  path.write_text("old")
  mode = path.stat().st_mode
  with files.file_written_whole(path) as temporary:
    temporary.write_text("new")
    assert path.read_text() == "old"
    assert files.is_file_cut_short(temporary) and not files.is_file_cut_short(
      path)
    assert temporary.suffix == ".json"
  assert path.read_text() == "new" and path.stat().st_mode == mode
  assert list(tmp_path.iterdir()) == [path]


def test_where_writing_fails_the_old_file_stays(tmp_path):
  path = tmp_path / "x.npz"
  path.write_text("old")
  with (
    pytest.raises(OSError, match="disk is full"),
    files.file_written_whole(path) as temporary,
  ):
    temporary.write_text("ne")
    raise OSError("disk is full")
  assert path.read_text() == "old"
  assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_not_written_through(tmp_path, monkeypatch):
  monkeypatch.setattr(secrets, "token_hex", lambda size: "guessed")
  others = tmp_path / "others.json"
  others.write_text("theirs")
  (tmp_path / ".x.tmp-guessed.json").symlink_to(others)
  with (
    pytest.raises(FileExistsError),
    files.file_written_whole(tmp_path / "x.json") as temporary,
  ):
    temporary.write_text("ours")
  assert others.read_text() == "theirs"


@pytest.mark.parametrize(("mode", "is_private"), [
  (0o700, True), (0o755, True),
  (0o1777, False), (0o770, False), (0o702, False)])
def test_what_others_may_write_to_is_not_private(tmp_path, mode, is_private):
  tmp_path.chmod(mode)
  reason = files.why_file_not_private(os.lstat(tmp_path))
  assert reason is None if is_private else f"mode {mode:o}" in reason


def test_what_others_own_and_links_are_not_private(tmp_path, monkeypatch):
  link = tmp_path / "link"
  link.symlink_to(tmp_path)
  assert "link" in files.why_file_not_private(os.lstat(link))
  someone_else = os.geteuid() + 1
  monkeypatch.setattr(os, "geteuid", lambda: someone_else)
  assert "another user" in files.why_file_not_private(os.lstat(tmp_path))
