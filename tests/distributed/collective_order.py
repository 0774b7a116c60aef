"""In which order the devices of a program wait for each other."""

import itertools
import re

_COLLECTIVES = re.compile(
  r" (?:all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)"
  r"(?:-start)?\(")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$", re.MULTILINE)
_INSTRUCTION = re.compile(r"(?:ROOT )?%([\w.\-]+) = (.*)$")
_NAME = re.compile(r"%([\w.\-]+)")


def in_one_order(program: str) -> bool:
  """Returns whether what a program computes says in which order devices wait.

  XLA compiles programs for CPUs in which they wait in one order, but forgets
  it where it reads one from a file: then devices have been seen to wait for
  each other forever in two different places (jax 0.10.1). What needs a result
  is computed after it in any case.
  """
  waiting = _COLLECTIVES
  names: list[str] = []
  # In the text what is needed comes first, computations as instructions.
  for text in program.split("\n}"):
    if not waiting.search(text):
      continue
    instructions = _instructions(text)
    waits = [x for x, line in instructions.items() if waiting.search(line)]
    for before, after in itertools.pairwise(waits):
      if before not in _needs(instructions, after):
        return False
    names += map(re.escape, _COMPUTATION.findall(text))
    waiting = re.compile(
      rf"{_COLLECTIVES.pattern}|%(?:{'|'.join(names)})(?![\w.\-])")
  return True


def _instructions(computation: str) -> dict[str, str]:
  """Returns what is after "=" of a computation's instructions, by name."""
  lines = map(str.strip, computation.splitlines())
  return {x[1]: x[2] for x in map(_INSTRUCTION.match, lines) if x is not None}


def _needs(instructions: dict[str, str], name: str) -> set[str]:
  """Returns the names of all that an instruction needs, directly or not."""
  found: set[str] = set()
  left = [name]
  while left:
    for needed in _NAME.findall(instructions[left.pop()]):
      if needed in instructions and needed not in found:
        found.add(needed)
        left.append(needed)
  return found
