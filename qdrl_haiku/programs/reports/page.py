"""Writes a page: HTML that needs no other file, of sections with figures."""

import html
import importlib.resources
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from qdrl_haiku.programs.drawing.figure import Figure
from qdrl_haiku.programs.reports import with_plotly
from qdrl_haiku.programs.storage import strict_json
from qdrl_haiku.types import Record

# Nothing is fetched, whatever the page's text or plotly may ask for.
_POLICY = (
  "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
  " img-src data: blob:")


class Section(NamedTuple):
  """A part of the page: level of its heading, 2 or 3, its title, its HTML."""

  level: int
  title: str
  content: Sequence[str]


def render_page(
  title: str, sections: Sequence[Section], refresh: int | None = None
) -> str:
  """Returns the page.

  Args:
    title: stands on top.
    sections: in their order.
    refresh: seconds after which browsers read the page anew; None for never.
  """
  from plotly import offline  # Here, since most runs are never reported.

  contents, body = [], []
  for i, (level, heading, content) in enumerate(sections):
    anchor, name = f"section-{i + 1}", html.escape(heading)
    # Parts of a section stand beside it.
    item = "<li>" if level == 2 else " "
    contents.append(f'{item}<a href="#{anchor}">{name}</a>')
    body += [f'<h{level} id="{anchor}">{name}</h{level}>', *content]
  name = html.escape(title)
  return "\n".join([
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
    '<meta name="viewport" content="width=device-width">',
    '<link rel="icon" href="data:,">',
    f'<meta http-equiv="refresh" content="{refresh}">' if refresh else "",
    f"<title>{name}</title>\n<style>\n{_resource('page.css')}</style>",
    f"</head>\n<body>\n<h1>{name}</h1>",
    f"<nav><ul>{''.join(contents)}</ul></nav>", *body,
    f"<script>{_script(offline.get_plotlyjs())}</script>",
    f"<script>\n{_script(_resource('page.js'))}</script>",
    "</body>\n</html>\n"])


def page_text(text: str) -> str:
  """Returns a paragraph."""
  return f"<p>{html.escape(text)}</p>"


def page_figure(figure: Figure, caption: str) -> str:
  """Returns a figure."""
  return _figure(
    with_plotly.draw_with_plotly(figure), '<div class="plot"></div>', caption)


def page_elites(data: Record, caption: str) -> str:
  """Returns a repertoire, of `elite_table_to_json`, whose cells are clicked."""
  content = (
    '<div class="repertoire"><div class="map"></div><div class="cell"><label>'
    f'Cell <input type="number" min="0" max="{data["num_cells"] - 1}"></label>'
    '<table></table></div><div class="front"></div><div class="way"></div>'
    '</div>')
  return _figure(data, content, caption)


def page_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
  """Returns a table whose first column names its rows."""
  lines = ["<tr>" + "".join(f"<th>{html.escape(x)}</th>" for x in head)]
  for name, *values in rows:
    cells = "".join(f"<td>{html.escape(str(value))}</td>" for value in values)
    lines.append(f'<tr><th scope="row">{html.escape(str(name))}</th>{cells}')
  return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def page_pairs(items: Iterable[tuple[str, str]]) -> str:
  """Returns names with a value each, in columns."""
  rows = "".join(
    f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
    for name, value in items)
  return f"<dl>{rows}</dl>"


def page_details(summary: str, content: str) -> str:
  """Returns content that a click unfolds."""
  name = html.escape(summary)
  return f"<details><summary>{name}</summary>{content}</details>"


def _figure(data: dict[str, object], content: str, caption: str) -> str:
  """Returns HTML with the data that `page.js` draws into it."""
  value = strict_json.strict_json_value(data)
  text = json.dumps(value, allow_nan=False, separators=(",", ":"))
  text = text.replace("<", "\\u003c")  # So that it ends no script.
  return (
    f'<figure><script type="application/json">{text}</script>'
    f"{content}<figcaption>{html.escape(caption)}</figcaption></figure>")


def _script(text: str) -> str:
  """Returns JavaScript whose text can't end the script."""
  return text.replace("</script", "<\\/script")


def _resource(name: str) -> str:
  """Reads a file beside this one."""
  file = importlib.resources.files(__package__).joinpath(name)
  return file.read_text("utf-8")
