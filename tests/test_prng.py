"""Tests that what is drawn from one key is drawn apart."""

import pytest

from qdrl_haiku import prng


@pytest.mark.parametrize(
  "kind", [prng.OfGeneration, prng.OfMember, prng.OfInstance])
def test_no_two_numbers_of_a_key_are_equal_or_a_members(kind):
  numbers = [value for name, value in vars(kind).items() if name.isupper()]
  assert len(set(numbers)) == len(numbers)
  assert all(2**30 < number < 2**31 for number in numbers)
