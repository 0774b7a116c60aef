"""What of a program is one kernel."""

_MARKS = ('xla_cpu_small_call="true"', 'inlineable="false"')


def num_marked(compiled):
  """How many calls of a compiled program have our mark, and so are kernels."""
  return sum(
    " call(" in line and all(mark in line for mark in _MARKS)
    for line in compiled.as_text().splitlines()
  )
