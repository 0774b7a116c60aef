"""Tests of checksums of a checkpoint's files."""

import pytest

from qdrl_haiku.storage import checksums


@pytest.mark.parametrize("place", [0, 1_500_000, 2_500_000])
def test_a_flipped_bit_is_told_wherever_in_a_large_file(place, tmp_path):
  content = bytearray(2_500_001)
  (tmp_path / "array").write_bytes(content)
  checksums.write_checksums(tmp_path)
  assert checksums.checksum_damage(tmp_path) is None
  content[place] ^= 1
  (tmp_path / "array").write_bytes(content)
  assert checksums.checksum_damage(tmp_path) == "array has other bytes"
