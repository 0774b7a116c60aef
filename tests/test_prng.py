"""Tests that what is drawn from one key is drawn apart."""

import pathlib
import re

import pytest

from qdrl_haiku import prng

_ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize(
  "kind", [prng.OfGeneration, prng.OfMember, prng.OfInstance]
)
def test_no_two_numbers_of_a_key_are_equal_or_a_members(kind):
  numbers = [value for name, value in vars(kind).items() if name.isupper()]
  assert len(set(numbers)) == len(numbers)
  assert all(2**30 < number < 2**31 for number in numbers)


def test_the_numbers_stand_nowhere_else():
  files = (_ROOT / "qdrl_haiku").rglob("*.py")
  found = [
    file.name
    for file in files
    if re.search(r"_[A-Z]+ = 2\*\*31 - \d", file.read_text())
  ]
  assert found == []
