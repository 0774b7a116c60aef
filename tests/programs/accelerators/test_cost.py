"""Tests what is read from the text of a compiled program."""

import types

import pytest

from qdrl_haiku.programs import accelerators
from qdrl_haiku.programs.accelerators import hlo

# A loop of three turns, each of which replaces one row of a hundred, copies
# what it has written, and asks the host which of two branches to take.
_TEXT = """HloModule jit_f, is_scheduled=true, num_partitions=2

%write (p0: f32[100,8], p1: f32[1,8], p2: s32[]) -> f32[100,8] {
  %p0 = f32[100,8]{1,0} parameter(0)
  %p1 = f32[1,8]{1,0} parameter(1)
  %p2 = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %update = f32[100,8]{1,0} dynamic-update-slice(%p0, %p1, %p2, %zero)
}

%branch (p: f32[1,8]) -> f32[1,8] {
  %p = f32[1,8]{1,0} parameter(0)
  ROOT %all = f32[1,8]{1,0} all-reduce(%p), metadata={op_name="jit(f)/decide/x"}
}

%body (t: (s32[], f32[100,8], f32[1,8])) -> (s32[], f32[100,8], f32[1,8]) {
  %t = (s32[], f32[100,8]{1,0}, f32[1,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %rows = f32[100,8]{1,0} get-tuple-element(%t), index=1
  %row = f32[1,8]{1,0} get-tuple-element(%t), index=2
  %w = f32[100,8]{1,0} fusion(%rows, %row, %i), kind=kLoop, calls=%write, metadata={op_name="jit(f)/while/body/vmap(learn)/store/y"}
  %c = f32[100,8]{1,0} copy(%w), metadata={op_name="jit(f)/while/body/learn/z"}
  %b = f32[1,8]{1,0} conditional(%i, %row, %row), branch_computations={%branch, %branch}
  ROOT %out = (s32[], f32[100,8]{1,0}, f32[1,8]{1,0}) tuple(%i, %c, %b)
}

%condition (t: (s32[], f32[100,8], f32[1,8])) -> pred[] {
  %t = (s32[], f32[100,8]{1,0}, f32[1,8]{1,0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (a: (s32[], f32[100,8], f32[1,8])) -> (s32[], f32[100,8], f32[1,8]) {
  %a = (s32[], f32[100,8]{1,0}, f32[1,8]{1,0}) parameter(0)
  ROOT %loop = (s32[], f32[100,8]{1,0}, f32[1,8]{1,0}) while(%a), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
}
"""  # noqa: E501


def test_what_a_program_costs_is_as_worked_by_hand():
  memory = types.SimpleNamespace(
    argument_size_in_bytes=3236, temp_size_in_bytes=0)
  compiled = types.SimpleNamespace(
    as_text=lambda: _TEXT, memory_analysis=lambda: memory)
  # A kernel is launched in a second, and a byte moved in a hundredth.
  target = accelerators.Target("slow", 100.0, 1.0)
  cost = accelerators.accelerator_cost(compiled, target)
  # Kernels are of the innermost part that is named, in each turn.
  kernels = {name: part.kernels for name, part in cost.parts.items()}
  assert kernels == {"store": 3, "learn": 3, "decide": 6}
  store, learn = cost.parts["store"], cost.parts["learn"]
  assert cost.total.copies == learn.copies == 3
  # A row is read and written in place, and its number is read.
  assert store.num_bytes == 3 * (32 + 32 + 4)
  assert learn.num_bytes == 3 * (3200 + 3200)
  # A kernel takes its launch or its bytes.
  assert store.seconds == pytest.approx(3.0)
  assert learn.seconds == pytest.approx(3 * 64.0)
  (loop,) = cost.loops
  assert (loop.trips, loop.kernels, loop.copies) == (3, 4, 1)
  assert loop.moved_bytes == 2 * 32
  assert cost.conditionals == 1
  assert cost.moved_bytes == {"all-reduce": 6 * 32}


@pytest.mark.parametrize(("mark", "called"), [
  ("", ("f",)), (', frontend_attributes={xla_cpu_small_call="true"}', ())])
def test_a_call_that_is_one_kernel_of_a_cpu_calls_nothing(mark, called):
  call = f"ROOT %k = f32[8]{{0}} call(%a), to_apply=%f{mark}"
  module = hlo.parse_hlo(f"ENTRY %main (a: f32[8]) -> f32[8] {{\n{call}\n}}\n")
  assert module.computations[module.entry]["k"].called == called


@pytest.mark.parametrize(("shape", "num_bytes"), [
  ("f32[4,2]{1,0}", 32), ("(bf16[3], /*index=1*/pred[5])", 11),
  ("s64[]", 8), ("f8e4m3fn[7]", 7), ("token[]", 0)])
def test_bytes_of_shapes(shape, num_bytes):
  assert hlo.hlo_num_bytes(shape) == num_bytes
