"""Tests of files that are there whole or not at all."""

import pytest

from qdrl_haiku import files


def test_a_file_takes_its_place_when_it_is_whole(tmp_path):
  path = tmp_path / "x.json"
  path.write_text("old")
  with files.written_whole(path) as temporary:
    temporary.write_text("new")
    assert path.read_text() == "old"
    assert files.is_cut_short(temporary) and not files.is_cut_short(path)
    assert temporary.suffix == ".json"
  assert path.read_text() == "new"
  assert list(tmp_path.iterdir()) == [path]


def test_where_writing_fails_the_old_file_stays(tmp_path):
  path = tmp_path / "x.npz"
  path.write_text("old")
  with (
    pytest.raises(OSError, match="disk is full"),
    files.written_whole(path) as temporary,
  ):
    temporary.write_text("ne")
    raise OSError("disk is full")
  assert path.read_text() == "old"
  assert list(tmp_path.iterdir()) == [path]
