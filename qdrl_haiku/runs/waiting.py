"""In which order the devices of a program wait for each other."""

import re

_COLLECTIVES = re.compile(
  r" (?:all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)"
  r"(?:-start)?\("
)
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"(?:ROOT )?%([\w.\-]+) = (.*)$")
_NAME = re.compile(r"%([\w.\-]+)")


def in_one_order(program: str) -> bool:
  """Returns whether what a program computes says in which order devices wait.

  XLA compiles programs for CPUs in which they wait in one order, but forgets
  it where it reads one from a file: then devices have been seen to wait for
  each other forever in two different places (jax 0.10.1). What needs a result
  is computed after it in any case.

  Args:
    program: XLA's text of it.

  Returns:
    Whether of any two collective operations that may run at once one needs,
    directly or not, what the other brings.
  """
  if not _COLLECTIVES.search(program):
    return True
  computations = _computations(program)
  waiting: dict[str, bool] = {}

  def waits(name: str) -> bool:
    """Whether devices wait for each other in a computation."""
    if name not in waiting:
      waiting[name] = any(map(is_waiting, computations[name].values()))
    return waiting[name]

  def is_waiting(instruction: str) -> bool:
    return bool(_COLLECTIVES.search(instruction)) or any(
      waits(name)
      for name in _NAME.findall(instruction)
      if name in computations
    )

  for instructions in computations.values():
    waits_there = [x for x, text in instructions.items() if is_waiting(text)]
    # In the text what is needed comes first.
    for before, after in zip(waits_there, waits_there[1:], strict=False):
      if before not in _needs(instructions, after):
        return False
  return True


def _computations(program: str) -> dict[str, dict[str, str]]:
  """Returns what is after "=" of each computation's instructions, by name."""
  found: dict[str, dict[str, str]] = {}
  instructions: dict[str, str] = {}
  for line in program.splitlines():
    if not line.startswith(" "):
      start = _COMPUTATION.match(line)
      if start:
        instructions = found.setdefault(start[1], {})
    elif match := _INSTRUCTION.match(line.strip()):
      instructions[match[1]] = match[2]
  return found


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
