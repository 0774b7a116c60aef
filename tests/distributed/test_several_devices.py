"""Tests that the number of devices changes neither draws nor decisions."""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.distributed.collective_order import in_one_order
from tests.launchers import kill


@functools.cache
def _found(case):
  """What comes of a case, first on one device."""
  done = subprocess.run(
    [sys.executable, "-m", "tests.distributed.several_devices", case],
    cwd=pathlib.Path(__file__).parents[2],
    env=os.environ | {"JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu"},
    capture_output=True, text=True, timeout=900)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("case", "placements"), [
  # Devices, and slots of members.
  ("pbt", [[1, 4], [2, 4]]),
  *(
    pytest.param(*x, marks=pytest.mark.slow)
    for x in (
      # Then once more, with what is in the slots that are left over broken.
      ("uneven", [[1, 5], [2, 6], [3, 6]] * 2),
      ("pb2", [[1, 8], [4, 8]]),
      ("repertoire", [[1, 4], [3, 6]]),
      ("elites again", [[1, 8], [4, 8]]),
      ("rollouts", [[1, 4], [2, 4]])))])
def test_several_devices_draw_and_decide_what_one_does(case, placements):
  found = _found(case)
  assert [x["placement"] for x in found] == placements
  one = found[0]
  assert one.get("num_replaced", 1) > 0
  for several in found[1:]:
    results = several["results"]
    assert results.keys() == one["results"].keys()
    assert [x for x in results if results[x] != one["results"][x]] == []


def _sent(program):
  """Shapes of all that one device sends to others, outside of loops."""
  shapes, name = [], None
  in_loops = set(re.findall(r"body=%?([\w.\-]+)", program))
  for line in program.splitlines():
    if header := re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line):
      name = header[1]
    sent = re.search(r"= (.*) all-(?:gather|reduce)(?:-start)?\(", line)
    if sent and name not in in_loops:
      shapes += re.findall(r"\w+\[[\d,]*\]", sent[1])
  return shapes


def test_members_are_spread_and_no_replay_is_sent_where_none_is_inherited():
  two = _found("pbt")[1]
  assert "'population': 2" in two["sharding"]
  sent = _sent("".join(two["programs"]))
  # A few numbers of each member are, and the best one's networks.
  assert "u32[4]" in sent
  assert not [shape for shape in sent if re.search(r"\b47\b", shape)]


def test_devices_wait_for_each_other_in_one_order():
  for program in _found("pbt")[1]["programs"]:
    assert in_one_order(program)


_PARTS = """HloModule jit_f

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}

%body.1 (p: f32[4]) -> f32[4] {
  %p = f32[4] parameter(0)
  ROOT %sum.1 = f32[4] all-reduce(%p), to_apply=%add
}

"""
_FIRST = "%first = f32[4] all-gather(%a), replica_groups={{0,1}}"
_START = "%start = f32[4] all-reduce-start(%a), to_apply=%add"


@pytest.mark.parametrize(("lines", "expected"), [
  # The parts of one that is split in time are one.
  ([_START, "ROOT %done = f32[4] all-reduce-done(%start)"], True),
  # One needs the other's result, or not; in a loop.
  ([_FIRST, "%b = f32[4] negate(%first)",
    "ROOT %c = f32[4] while(%b), condition=%add, body=%body.1"], True,),
  ([_FIRST, "ROOT %c = f32[4] while(%a), condition=%add, body=%body.1"], False),
])
def test_each_collective_needs_the_one_before(lines, expected):
  body = "\n".join(f"  {x}" for x in ("%a = f32[4] parameter(0)", *lines))
  program = f"{_PARTS}ENTRY %main.7 (a: f32[4]) -> f32[4] {{\n{body}\n}}\n"
  assert in_one_order(program) == expected


@pytest.mark.slow
def test_whatever_a_run_compiles_is_in_one_order(tmp_path, monkeypatch):
  dump = tmp_path / "programs"
  flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text"
  monkeypatch.setenv("XLA_FLAGS", flags)
  command = [*kill.COMMANDS["me_pbt"], "--num_timesteps=80"]
  process = kill.start(command, tmp_path / "run", "--compilation_cache_dir=")
  kill.finish(process)
  programs = {
    path.name: path.read_text()
    for path in dump.glob("*after_optimizations.txt")}
  assert any("all-reduce" in text for text in programs.values())
  assert [x for x in programs if not in_one_order(programs[x])] == []
