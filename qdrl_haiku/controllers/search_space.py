"""The text of a search space.

A search space is a tree shaped as the hyperparameters whose leaves are ranges,
see `ranges`.
"""

import dataclasses

from qdrl_haiku import names
from qdrl_haiku.controllers.choice import Choice
from qdrl_haiku.controllers.ranges import (
  Fixed,
  LogUniform,
  OneMinusLogUniform,
  Range,
  Uniform,
)

_EXAMPLE = "policy_learning_rate:log_uniform:1e-5:1e-2"
_KINDS = {
  "choice": Choice,
  "fixed": Fixed,
  "log_uniform": LogUniform,
  "one_minus_log_uniform": OneMinusLogUniform,
  "uniform": Uniform,
}


def parse(specification: str) -> tuple[str, Range]:
  """Reads a range from the command line.

  Args:
    specification: `name:kind:low:high` with the kind uniform, log_uniform or
      one_minus_log_uniform, `name:choice:value:value` with any number of
      values, or `name:fixed:value`.

  Returns:
    The hyperparameter's name and its range.

  Raises:
    ValueError: if the text is malformed or the range is refused.
  """
  where = f"search_space={specification!r}"
  name, *rest = specification.split(":")
  if not name or not rest:
    raise ValueError(f"{where} lacks a name or a kind; write it as {_EXAMPLE}.")
  kind, *texts = rest
  if kind not in _KINDS:
    raise ValueError(
      f"{where}: kind={kind!r} is unknown; {names.nearest(kind, _KINDS)}"
    )
  fields = [field.name for field in dataclasses.fields(_KINDS[kind])]
  if kind != "choice" and len(texts) != len(fields):
    raise ValueError(
      f"{where} has {len(texts)} numbers after {kind!r}, not {len(fields)};"
      f" write it as {':'.join([name, kind, *fields])} with numbers for"
      f" {' and '.join(fields)}."
    )
  try:
    values = [float(text) for text in texts]
  except ValueError:
    raise ValueError(
      f"{where} has {':'.join(texts)!r} where numbers belong; write it as"
      f" {_EXAMPLE}."
    ) from None
  try:
    if kind == "choice":
      return name, Choice(tuple(values))
    return name, _KINDS[kind](*values)
  except ValueError as error:
    raise ValueError(f"{where}: {error}") from None
