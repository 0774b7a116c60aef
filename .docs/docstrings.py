"""Lets griffe read docstrings as this package writes them."""

import ast
import re
from typing import Any

import griffe

_SECTION = re.compile(r"(Args|Attributes|Raises):\n")
_CODE = re.compile(r"(`[^`]*`)")


class Docstrings(griffe.Extension):
  """Makes Markdown of docstrings, and docstrings of fields' comments."""

  def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
    """Changes an object's docstring."""
    if obj.docstring:
      obj.docstring.value = _markdown(obj.docstring.value)

  def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
    """Takes a setting's help, or the comment beside a field or above it."""
    if attr.docstring or not isinstance(attr.parent, griffe.Class):
      return
    if text := _help(str(attr.value)) or _comment(attr):
      attr.docstring = griffe.Docstring(_markdown(text), parent=attr)


def _help(value: str) -> str:
  """Returns the help that `config.setting` is given."""
  call = ast.parse(value).body[0].value if "setting(" in value else None
  if not isinstance(call, ast.Call) or len(call.args) < 2:
    return ""
  try:
    return str(ast.literal_eval(call.args[1]))
  except ValueError:  # Made of other texts.
    return ""


def _comment(attr: griffe.Attribute) -> str:
  """Returns the comment that ends a field's line, or stands above it."""
  if attr.lineno is None:  # One that a method assigns, or is inherited.
    return ""
  lines = attr.lines_collection[attr.filepath]
  if text := lines[(attr.endlineno or attr.lineno) - 1].partition("  # ")[2]:
    return text
  found: list[str] = []
  for line in reversed(lines[: attr.lineno - 1]):
    if not line.strip().startswith("# "):
      break
    found.insert(0, line.strip()[2:])
  return " ".join(found)


def _markdown(text: str) -> str:
  """Returns a docstring without what Markdown would take for its own."""
  blocks, in_section = [], False
  for block in text.split("\n\n"):
    is_indented = block.startswith(" ")
    in_section = bool(_SECTION.match(block)) or (in_section and is_indented)
    if is_indented and not in_section:  # An equation, or a table.
      blocks.append(f"```text\n{block}\n```")
      continue
    parts = _CODE.split(block)
    parts[::2] = [
      re.sub(r"([*|])", r"\\\1", x).replace("<", "&lt;") for x in parts[::2]]
    block = "".join(parts)
    if block.startswith("Returns:\n"):
      block = "**Returns:** " + re.sub(r"\n +", "\n", block[9:].lstrip())
    blocks.append(block)
  return "\n\n".join(blocks)
