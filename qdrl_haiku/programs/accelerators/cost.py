"""Counts what a compiled program launches, and models how long that takes."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax

from qdrl_haiku.programs.accelerators import hlo

PARTS = ("collect", "store", "sample", "learn", "evaluate", "decide", "inherit")
"""Named scopes of a generation; what is in none of them is "other"."""

_NO_KERNEL = frozenset({
  "after-all", "async-done", "bitcast", "constant", "get-tuple-element",
  "opt-barrier", "parameter", "partition-id", "replica-id", "tuple"})
_CALLS = frozenset({"async-start", "call", "conditional"})
_COLLECTIVES = (
  "all-gather", "all-reduce", "all-to-all", "collective", "reduce-scatter")
_TRANSFERS = frozenset({"infeed", "outfeed", "recv", "send"})


class Target(NamedTuple):
  """An accelerator, and the numbers by which time on it is modelled."""

  title: str  # Its name.
  bytes_per_second: float  # Of its memory; NaN if times can't be modelled.
  launch_seconds: float = 2.5e-6  # The least time of each kernel.


TARGETS = {
  "h100": Target("H100 SXM, 80 GB", 3.35e12),
  "a100": Target("A100 SXM, 80 GB", 2.04e12),
  "l4": Target("L4, 24 GB", 3.0e11),
  # Arrays stay in its caches, and products take longer than memory.
  "cpu": Target("this machine's CPUs", math.nan, math.nan)}
"""Maps names to the targets that there are; a file beside this module describes
each accelerator, and jax the CPUs."""


@dataclasses.dataclass
class PartCost:
  """Counts what one part of a program does in a call of the program."""

  kernels: int = 0  # How many are launched, copies among them.
  copies: int = 0  # How many kernels only copy an array.
  num_bytes: int = 0  # Read and written by all kernels.
  # Modelled: each kernel takes a launch, or its bytes at the speed of the
  # accelerator's memory, whichever is longer. NaN on a CPU.
  seconds: float = 0.0


@dataclasses.dataclass
class Loop:
  """A loop of a program; its counts are of each run of its body.

  Inner loops and all branches of conditionals are counted, too.
  """

  depth: int  # How many loops it is in.
  part: str  # The part of a generation to which it belongs.
  # How often its body runs; None if a condition decides, whose value an
  # accelerator sends to the host each time.
  trips: int | None
  kernels: int = 0
  copies: int = 0  # How many kernels are copies.
  moved_bytes: int = 0  # Sent between devices.


@dataclasses.dataclass
class Cost:
  """Counts what a compiled program does in a call, by part and by collective.

  The body of a loop with unknown trips counts once.
  """

  argument_bytes: int  # The size of the program's arguments.
  temporary_bytes: int  # Needed beside arguments and results.
  # By name, of `PARTS` or "other".
  parts: dict[str, PartCost] = dataclasses.field(default_factory=dict)
  # In the order of the program, outer ones before inner ones.
  loops: list[Loop] = dataclasses.field(default_factory=list)
  # How many there are; at each an accelerator waits for the host.
  conditionals: int = 0
  transfers: int = 0  # How many instructions exchange data with the host.
  # Between devices.
  moved_bytes: dict[str, int] = dataclasses.field(default_factory=dict)

  @property
  def total(self) -> PartCost:
    """The sum over all parts."""
    parts = map(dataclasses.astuple, self.parts.values())
    return PartCost(*map(sum, zip(*parts, strict=True)))


def accelerator_cost(compiled: jax.stages.Compiled, target: Target) -> Cost:
  """Returns the cost of a compiled program on its target."""
  module = hlo.parse_hlo(compiled.as_text() or "")
  memory: Any = compiled.memory_analysis()
  cost = Cost(memory.argument_size_in_bytes, memory.temp_size_in_bytes)

  def walk(
    name: str, times: int, scope: str, around: list[tuple[Loop, int]]
  ) -> None:
    """Adds a computation; `around` has loops, and its runs in one of each."""
    for label, instruction in module.computations[name].items():
      opcode, inside = instruction.opcode, instruction.scope or scope
      if opcode in _NO_KERNEL or opcode.endswith("-done"):
        continue
      kind = opcode.removesuffix("-start")
      cost.transfers += kind in _TRANSFERS or "callback" in instruction.target
      cost.conditionals += opcode == "conditional"
      if opcode == "while":
        turns = instruction.trips or 1
        loop = Loop(len(around), _part_of(inside), instruction.trips)
        cost.loops.append(loop)
        outer = [(x, n * turns) for x, n in around]
        body = instruction.called[0]
        walk(body, times * turns, inside, [*outer, (loop, 1)])
      elif opcode in _CALLS and instruction.called:
        for called in instruction.called:
          walk(called, times, inside, around)
      else:
        num_bytes = hlo.hlo_moved_bytes(module, name, label)
        sent, is_copy = 0, kind == "copy"
        if opcode.startswith(_COLLECTIVES) and module.num_devices > 1:
          sent = instruction.num_bytes
          before = cost.moved_bytes.get(kind, 0)
          cost.moved_bytes[kind] = before + times * sent
        part = cost.parts.setdefault(_part_of(inside), PartCost())
        part.kernels += times
        part.copies += times * is_copy
        part.num_bytes += times * num_bytes
        part.seconds += times * max(
          target.launch_seconds, num_bytes / target.bytes_per_second)
        for loop, n in around:
          loop.kernels += n
          loop.copies += n * is_copy
          loop.moved_bytes += n * sent

  walk(module.entry, 1, "", [])
  return cost


def _part_of(scope: str) -> str:
  """Returns the innermost part of a generation that a scope names."""
  for name in reversed(scope.replace("(", "/").replace(")", "/").split("/")):
    if name in PARTS:
      return name
  return "other"


def generation_costs_table(costs: dict[str, Cost], target: str) -> str:
  """Writes costs as text."""
  title, is_cpu = TARGETS[target].title, target == "cpu"
  lines = [
    f"compiled for {title}, where a kernel is a call of compiled code or of a "
    "library; times are not modelled, loops without a number count once"
    if is_cpu
    else f"modelled for {title}; no such device was used"]
  for name, found in costs.items():
    lines += [
      f"{name}: {found.conditionals} conditionals, {found.transfers} transfers "
      f"with the host, {found.argument_bytes / 2**20:.1f} MiB of arguments, "
      f"{found.temporary_bytes / 2**20:.1f} MiB beside them",
      f"  {'part':10}{'kernels':>12}{'copies':>12}{'GB':>12}"
      + ("" if is_cpu else f"{'ms':>12}")]
    lines += [
      f"  {part:10}{x.kernels:12,}{x.copies:12,}{x.num_bytes / 1e9:12.3f}"
      + ("" if is_cpu else f"{1e3 * x.seconds:12.3f}")
      for part, x in (*found.parts.items(), ("all", found.total))]
    lines += [
      f"  {'  ' * loop.depth}loop in {loop.part}: {loop.kernels} kernels, "
      f"{loop.copies} copies among them, "
      + (f"{loop.moved_bytes:,} bytes moved, " if loop.moved_bytes else "")
      + (f"{loop.trips} times" if loop.trips else "while a condition holds")
      for loop in found.loops]
    lines += [
      f"  {kind} between devices: {num_bytes:,} bytes"
      for kind, num_bytes in found.moved_bytes.items()]
  return "\n".join(lines)
