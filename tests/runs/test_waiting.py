"""Tests of the order in which devices wait for each other."""

import pytest

from qdrl_haiku.runs.waiting import in_one_order

_BODY = """%body.1 (p: f32[4]) -> f32[4] {
  %p = f32[4] parameter(0)
  ROOT %sum.1 = f32[4] all-reduce(%p), to_apply=%add
}

"""
_ADD = """HloModule jit_f

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}

"""


def _main(*lines):
  """A program whose main part has these instructions, about a parameter."""
  body = "\n".join(f"  {line}" for line in ("%a = f32[4] parameter(0)", *lines))
  return f"{_ADD}{_BODY}ENTRY %main.7 (a: f32[4]) -> f32[4] {{\n{body}\n}}\n"


_FIRST = "%first = f32[4] all-gather(%a), replica_groups={{0,1}}"


@pytest.mark.parametrize("lines", [
  ["ROOT %b = f32[4] negate(%a)"],
  [_FIRST, "ROOT %b = f32[4] negate(%first)"],
  [_FIRST, "%b = f32[4] negate(%first)", "ROOT %c = f32[4] all-reduce(%b), "
   "to_apply=%add"],
  [_FIRST, "ROOT %c = f32[4] while(%first), condition=%add, body=%body.1"],
])  # fmt: skip
def test_what_needs_the_other_is_in_one_order(lines):
  assert in_one_order(_main(*lines))


@pytest.mark.parametrize("line", [
  "ROOT %c = f32[4] all-reduce-start(%a), to_apply=%add",
  "ROOT %c = f32[4] while(%a), condition=%add, body=%body.1",
  "ROOT %c = f32[4] conditional(%a, %a), branch_computations={%add, %body.1}",
])  # fmt: skip
def test_what_needs_nothing_of_the_other_is_in_none(line):
  assert not in_one_order(_main(_FIRST, line))


def test_of_three_each_needs_the_one_before():
  second = "%second = f32[4] all-reduce(%first), to_apply=%add"
  third = "ROOT %third = f32[4] all-reduce(%{}), to_apply=%add"
  assert in_one_order(_main(_FIRST, second, third.format("second")))
  assert not in_one_order(_main(_FIRST, second, third.format("first")))


def test_the_parts_of_one_that_is_split_in_time_are_one():
  start = "%start = f32[4] all-reduce-start(%a), to_apply=%add"
  assert in_one_order(
    _main(start, "ROOT %done = f32[4] all-reduce-done(%start)")
  )
