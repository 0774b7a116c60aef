"""What `--help` of a launcher prints: its flags in sections."""

import dataclasses
import textwrap
from typing import Any

from qdrl_haiku.cli.flags import Flags

SECTIONS = (
  "Comparison",
  "Report",
  "Benchmark",
  "Schedule to retrain with",
  "Agent to evaluate",
  "Run",
  "Environment",
  "Training",
  "Learner",
  "Hyperparameters",
  "Skills of DIAYN (--learner=diayn)",
  "Population",
  "Controller",
  "Repertoire",
  "Emitters",
  "Evaluation",
  "Devices and processes",
  "Start",
)
"""In the order in which `--help` prints them."""
REQUESTS = frozenset({"--help", "-help", "--helpshort", "-helpshort", "-?"})
"""Arguments that ask for help."""
_WIDTH = 80
_TYPES = {
  bool: "",
  float: "a number",
  int: "an integer",
  str: "",
  tuple: "a comma-separated list",
}


def text(kind: type[Flags], description: str) -> str:
  """Returns the text of `--help`.

  Args:
    kind: of the launcher's flags.
    description: of the launcher.
  """
  kinds = kind.kinds()
  parts = [description.strip()]
  for title, fields in by_section(kind).items():
    entries = [_entry(field, kinds[field.name]) for field in fields]
    parts.append("\n".join([f"{title}:", *entries]))
  note = f"{kind.help_note} --helpfull lists every flag by module."
  parts.append(textwrap.fill(note.strip(), _WIDTH))
  return "\n\n".join(parts)


def by_section(kind: type[Flags]) -> dict[str, list[Any]]:
  """Returns the dataclass fields of the flags that `--help` shows.

  Args:
    kind: of the launcher's flags.

  Returns:
    Fields by the titles of their sections, both in the order of printing.
  """
  sections: dict[str, list[Any]] = {title: [] for title in SECTIONS}
  for field in dataclasses.fields(kind):
    if "help" in field.metadata:
      sections[_section(kind, field)].append(field)
  return {
    title: fields
    for title, fields in sections.items()
    if fields and title not in kind.hidden_sections
  }


def _section(kind: type[Flags], field: Any) -> str:
  """Returns the section that a flag names, or that of its first class."""
  if field.metadata["section"]:
    return field.metadata["section"]
  declaring = [
    base
    for base in kind.__mro__
    if issubclass(base, Flags)
    and field.name in [known.name for known in dataclasses.fields(base)]
  ]
  return declaring[-1].section


def _entry(field: Any, type_: type) -> str:
  """Returns what is printed of one flag."""
  name = f"[no]{field.name}" if type_ is bool else field.name
  default = field.default
  if isinstance(default, tuple):
    default = ",".join(default)
  facts = "repeatable" if field.metadata["repeatable"] else _TYPES[type_]
  if default not in (None, ""):
    value = str(default).lower() if type_ is bool else default
    facts = f"{facts}; default: {value}" if facts else f"default: {value}"
  help_ = field.metadata["help"]
  return textwrap.fill(
    f"--{name}: {help_} ({facts})" if facts else f"--{name}: {help_}",
    _WIDTH,
    initial_indent="  ",
    subsequent_indent="    ",
    break_long_words=False,
    break_on_hyphens=False,
  )
