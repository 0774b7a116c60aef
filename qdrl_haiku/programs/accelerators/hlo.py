"""Parses the text of a compiled program (XLA's HLO) into instructions."""

import math
import re
from typing import NamedTuple

_BITS = {"pred": 8}
# Operations on a part of their first operand. Where an operation writes, a
# number says which operand holds the part.
_READ_PARTS = frozenset({"dynamic-slice", "gather", "slice"})
_WRITE_PARTS = {"dynamic-update-slice": 1, "scatter": 2}
_PARTS = _READ_PARTS | _WRITE_PARTS.keys()
_DEVICES = re.compile(r"^HloModule .*\bnum_partitions=(\d+)")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(")
_CALLED = re.compile(
  r"\b(?:to_apply|calls|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_SCOPE = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# XLA compiles a call with this mark to one kernel of a CPU.
_ONE_KERNEL = 'xla_cpu_small_call="true"'


class Instruction(NamedTuple):
  """One instruction of a computation."""

  opcode: str  # Such as "fusion" or "while".
  num_bytes: int  # Of its result.
  operands: tuple[str, ...]  # Names of the instructions whose results it takes.
  # Names of the computations that it calls, but for a loop's condition and for
  # what is compiled to one kernel.
  called: tuple[str, ...]
  # How often a loop's body runs; None where that isn't known.
  trips: int | None
  scope: str  # The named scopes in which it was traced, joined by "/".
  target: str  # The library function of a custom call.
  is_root: bool  # Whether its result is that of its computation.


class Module(NamedTuple):
  """A compiled program: its computations by name, and which one is called."""

  computations: dict[str, dict[str, Instruction]]
  entry: str
  num_devices: int


def parse_hlo(text: str) -> Module:
  """Parses the text of `jax.stages.Compiled.as_text`."""
  computations: dict[str, dict[str, Instruction]] = {}
  entry, current = "", None
  for line in map(str.strip, text.splitlines()):
    if line.endswith("{") and (match := _COMPUTATION.match(line)):
      current = computations.setdefault(match[2], {})
      entry = match[2] if match[1] else entry
    elif line == "}":
      current = None
    elif current is not None and (match := _INSTRUCTION.match(line)):
      rest = line[match.end() :]
      is_root = line.startswith("ROOT")
      current[match[1]] = _instruction(match[3], match[2], rest, is_root)
  num_devices = _DEVICES.search(text)
  return Module(computations, entry, int(num_devices[1]) if num_devices else 1)


def _instruction(
  opcode: str, shape: str, rest: str, is_root: bool
) -> Instruction:
  """Parses what stands behind the opening bracket of an instruction."""
  called = _CALLED.findall(rest)
  for group in _BRANCHES.findall(rest):
    called += [name.strip(" %") for name in group.split(",")]
  trips, scope, target = (
    match[1] if (match := pattern.search(rest)) else ""
    for pattern in (_TRIPS, _SCOPE, _TARGET))
  return Instruction(
    opcode=opcode, num_bytes=hlo_num_bytes(shape),
    operands=tuple(re.findall(r"%([\w.\-]+)", rest.split(")", 1)[0])),
    called=() if _ONE_KERNEL in rest else tuple(called),
    trips=int(trips) if trips else None, scope=scope, target=target,
    is_root=is_root)


def hlo_num_bytes(shape: str) -> int:
  """Returns the bytes of an array, or of all in a tuple of arrays."""
  total = 0
  for kind, dims in re.findall(r"([a-z]+\w*)\[([\d,]*)\]", shape):
    bits = _BITS.get(kind) or int((re.search(r"\d+", kind) or "0")[0])
    total += bits * math.prod(int(x) for x in dims.split(",") if x) // 8
  return total


def hlo_moved_bytes(module: Module, computation: str, name: str) -> int:
  """Counts the bytes that an instruction reads and writes.

  A fusion that updates a part of an array in place, or gathers from it, moves
  that part alone. The instruction is called `name` in a `computation` of the
  `module`.
  """
  instructions = module.computations[computation]
  instruction = instructions[name]
  body = module.computations.get((*instruction.called, "")[0])
  if instruction.opcode != "fusion" or body is None:
    return instruction.num_bytes + sum(
      instructions[x].num_bytes for x in instruction.operands)
  users: dict[str, list[str]] = {}
  for user, inner in body.items():
    for operand in inner.operands:
      users.setdefault(operand, []).append(user)

  def read(operand: str) -> int:
    """Counts what is read of a value within the kernel."""
    if not users.get(operand):
      return 0
    total = 0
    for user in users[operand]:
      inner = body[user]
      if inner.opcode == "bitcast":
        total += read(user)
      elif inner.opcode not in _PARTS or inner.operands[0] != operand:
        return body[operand].num_bytes
      elif inner.opcode in _READ_PARTS:
        total += inner.num_bytes
    return total

  def written(result: str) -> int:
    """Counts what is written of a result of the kernel."""
    inner = body[result]
    if inner.opcode in ("bitcast", "tuple"):
      return sum(written(x) for x in inner.operands)
    if inner.opcode in _WRITE_PARTS:
      return body[inner.operands[_WRITE_PARTS[inner.opcode]]].num_bytes
    return inner.num_bytes

  return sum(
    read(x) for x, inner in body.items() if inner.opcode == "parameter"
  ) + sum(written(x) for x, inner in body.items() if inner.is_root)
