"""Tests that the number of devices changes neither draws nor decisions.

`python -m tests.distributed.test_several_devices` trains on one device and on
two, in a process of its own, since the number of devices can't be changed once
jax has looked for them. `launchers.test_determinism` compares whole runs.
"""

import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from qdrl_haiku import controllers, distributed, training
from qdrl_haiku.programs.runs import compilation
from tests.distributed.collective_order import in_one_order
from tests.launchers import kill
from tests.training import common


def _train(num_devices):
  """Trains for two generations; says what came of it, and how."""
  # The capacity is a number that no other axis has.
  pbt = controllers.pbt(controllers.PBTConfig(), common.SPACE)
  setup = common.setup(pbt, replay_capacity=47)
  mesh = distributed.population_mesh(4, jax.devices()[:num_devices])
  key = jax.device_put(common.KEY, jax.NamedSharding(mesh, jax.P()))
  trainer = training.prepare(setup._replace(mesh=mesh))
  compiled = compilation.make_programs(trainer, key)
  state, reports = compiled.init(key), []
  for generation in (1, 2):
    initial = compiled.draw(key, generation)
    state, trained = compiled.train(state, initial.pool, key)
    state, report = compiled.evaluate(state, trained, initial.evaluation, key)
    reports.append(report)
  return {
    "results": {
      name: f"{x.shape} {hashlib.sha256(x.tobytes()).hexdigest()}"
      for name, x in common.leaves((state, reports)).items()},
    "num_replaced": int(sum(np.sum(x.decision.operator > 0) for x in reports)),
    "sharding": str(jax.tree.leaves(state.members.environment)[0].sharding),
    "programs": [
      part.compile().as_text() for part in (compiled.train, compiled.evaluate)]}


@functools.cache
def _found():
  """What comes of one device and of two."""
  done = subprocess.run(
    [sys.executable, "-m", "tests.distributed.test_several_devices"],
    cwd=pathlib.Path(__file__).parents[2],
    env=os.environ | {"JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"},
    capture_output=True, text=True, timeout=900)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


def test_two_devices_draw_and_decide_what_one_does():
  one, two = _found()
  assert one["num_replaced"] > 0
  assert two["results"] == one["results"]
  assert "'population': 2" in two["sharding"]


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


def test_no_replay_is_sent_where_none_is_inherited():
  sent = _sent("".join(_found()[1]["programs"]))
  # A few numbers of each member are, and the best one's networks.
  assert "u32[4]" in sent
  assert not [shape for shape in sent if re.search(r"\b47\b", shape)]


def test_devices_wait_for_each_other_in_one_order():
  for program in _found()[1]["programs"]:
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


if __name__ == "__main__":
  print(json.dumps([_train(1), _train(2)]))
