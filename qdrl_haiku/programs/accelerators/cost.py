"""Counts what a compiled program launches, and models how long that takes."""

import collections
from typing import Any, NamedTuple

import jax

from qdrl_haiku.programs.accelerators import hlo
from qdrl_haiku.programs.accelerators.target import Target

PARTS = ("collect", "store", "sample", "learn", "evaluate", "decide", "inherit")
"""Named scopes of a generation; what is in none of them is "other"."""

_NO_KERNEL = frozenset({
  "after-all", "async-done", "bitcast", "constant", "get-tuple-element",
  "opt-barrier", "parameter", "partition-id", "replica-id", "tuple"})
_CALLS = frozenset({"async-start", "call", "conditional"})
_COLLECTIVES = (
  "all-gather", "all-reduce", "all-to-all", "collective", "reduce-scatter")
_TRANSFERS = frozenset({"infeed", "outfeed", "recv", "send"})


class PartCost(NamedTuple):
  """Counts what one part of a program does in a call of the program."""

  kernels: int = 0  # How many are launched, copies among them.
  copies: int = 0  # How many of them copy an array as it is.
  num_bytes: int = 0  # Read and written by all kernels.
  # Modelled: each kernel takes a launch, or its bytes at the speed of the
  # accelerator's memory, whichever is longer. NaN on a CPU.
  seconds: float = 0.0


class Loop(NamedTuple):
  """A loop of a program."""

  depth: int  # How many loops it is in.
  part: str  # The part of a generation to which it belongs.
  # How often its body runs; None if a condition decides, whose value an
  # accelerator sends to the host each time.
  trips: int | None
  # How many kernels each run of its body launches, those of inner loops and of
  # all branches of conditionals among them.
  kernels: int = 0
  copies: int = 0  # How many of these are copies.
  moved_bytes: int = 0  # Sent between devices in each run of its body.


class Cost(NamedTuple):
  """Counts what a compiled program does in a call."""

  parts: dict[str, PartCost]  # By name, of `PARTS` or "other".
  # In the order of the program, outer ones before inner ones.
  loops: list[Loop]
  # How many there are; at each an accelerator waits for the host.
  conditionals: int
  transfers: int  # How many instructions exchange data with the host.
  # Sent between devices, by collective; the body of a loop with unknown trips
  # counts once.
  moved_bytes: dict[str, int]
  argument_bytes: int  # The size of the program's arguments.
  temporary_bytes: int  # Needed beside arguments and results.

  @property
  def total(self) -> PartCost:
    """The sum over all parts."""
    return PartCost(*map(sum, zip(*self.parts.values(), strict=True)))


def accelerator_cost(compiled: jax.stages.Compiled, target: Target) -> Cost:
  """Returns the cost of a compiled program on its target."""
  module = hlo.parse_hlo(compiled.as_text() or "")
  parts: dict[str, PartCost] = collections.defaultdict(PartCost)
  loops: list[Loop] = []
  moved: dict[str, int] = collections.Counter()
  counts: dict[str, int] = collections.Counter()

  def walk(
    name: str, times: int, depth: int, scope: str
  ) -> collections.Counter[str]:
    """Adds a computation; returns what `Loop` counts in one run of it."""
    here: collections.Counter[str] = collections.Counter()
    for label, instruction in module.computations[name].items():
      opcode, inside = instruction.opcode, instruction.scope or scope
      if opcode in _NO_KERNEL or opcode.endswith("-done"):
        continue
      counts["transfers"] += (
        opcode.removesuffix("-start") in _TRANSFERS
        or "callback" in instruction.target)
      counts["conditionals"] += opcode == "conditional"
      if opcode == "while":
        turns, place = instruction.trips or 1, len(loops)
        loops.append(Loop(depth, _part_of(inside), instruction.trips))
        inner = walk(instruction.called[0], times * turns, depth + 1, inside)
        outer = loops[place]
        loops[place] = Loop(outer.depth, outer.part, outer.trips, **inner)
        here.update({kind: turns * n for kind, n in inner.items()})
        continue
      if opcode in _CALLS and instruction.called:
        for called in instruction.called:
          here.update(walk(called, times, depth, inside))
        continue
      num_bytes = hlo.hlo_moved_bytes(module, name, label)
      if opcode.startswith(_COLLECTIVES) and module.num_devices > 1:
        moved[opcode.removesuffix("-start")] += times * instruction.num_bytes
        here["moved_bytes"] += instruction.num_bytes
      is_copy = opcode in ("copy", "copy-start")
      seconds = max(target.launch_seconds, num_bytes / target.bytes_per_second)
      part = parts[_part_of(inside)]
      parts[_part_of(inside)] = PartCost(
        part.kernels + times, part.copies + times * is_copy,
        part.num_bytes + times * num_bytes, part.seconds + times * seconds)
      here.update(kernels=1, copies=is_copy)
    return here

  walk(module.entry, 1, 0, "")
  memory: Any = compiled.memory_analysis()
  return Cost(
    parts=dict(parts), loops=loops, conditionals=counts["conditionals"],
    transfers=counts["transfers"], moved_bytes=dict(moved),
    argument_bytes=memory.argument_size_in_bytes,
    temporary_bytes=memory.temp_size_in_bytes)


def _part_of(scope: str) -> str:
  """Returns the innermost part of a generation that a scope names."""
  for name in reversed(scope.replace("(", "/").replace(")", "/").split("/")):
    if name in PARTS:
      return name
  return "other"
