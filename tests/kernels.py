"""Counts calls that are compiled to one kernel each."""

_MARKS = ('xla_cpu_small_call="true"', 'inlineable="false"')


def num_marked(compiled):
  """Returns how many calls of a compiled program have the mark of kernels."""
  return sum(
    " call(" in line and all(mark in line for mark in _MARKS)
    for line in compiled.as_text().splitlines())
