"""One HTML page that needs nothing but itself."""

import html
import importlib.resources
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from qdrl_haiku.reports.figure import Figure

# Nothing is fetched, whatever the page's text or plotly may ask for.
_POLICY = (
  "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
  " img-src data: blob:"
)


class Page:
  """A page that grows from top to bottom.

  Text is escaped; only `html` takes what is HTML already.
  """

  def __init__(self, title: str) -> None:
    self._title = title
    self._body: list[str] = []
    self._contents: list[tuple[int, str, str]] = []
    self._figures: list[Figure] = []
    self._repertoires: list[dict[str, Any]] = []

  def heading(self, level: int, title: str) -> None:
    """Begins a section, which the table of contents lists."""
    anchor = f"section-{len(self._contents) + 1}"
    self._contents.append((level, anchor, title))
    self.html(f'<h{level} id="{anchor}">{html.escape(title)}</h{level}>')

  def text(self, text: str) -> None:
    """Adds a paragraph."""
    self.html(f"<p>{html.escape(text)}</p>")

  def html(self, text: str) -> None:
    """Adds HTML."""
    self._body.append(text)

  def figure(self, figure: Figure, caption: str) -> None:
    """Adds a figure."""
    height = figure["layout"]["height"]
    self.html(
      f'<figure><div class="plot" data-figure="{len(self._figures)}" '
      f'style="height: {height}px"></div>'
      f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )
    self._figures.append(figure)

  def repertoire(self, repertoire: dict[str, Any], caption: str) -> None:
    """Adds a picture of a repertoire whose cells can be clicked."""
    self.html(
      f'<figure><div class="repertoire" '
      f'data-repertoire="{len(self._repertoires)}"><div class="map"></div>'
      '<div class="cell"><label>Cell <input type="number" min="0" '
      f'max="{repertoire["num_cells"] - 1}"></label><table></table></div>'
      '<div class="way"></div></div>'
      f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )
    self._repertoires.append(repertoire)

  def render(self) -> str:
    """Returns the page."""
    from plotly import offline  # Here, for those who make no reports.

    # Parts of a section stand beside it.
    contents = "".join(
      f'{"<li>" if level == 2 else " "}'
      f'<a href="#{anchor}">{html.escape(title)}</a>'
      for level, anchor, title in self._contents
    )
    data = {"figures": self._figures, "repertoires": self._repertoires}
    title = html.escape(self._title)
    return "\n".join(
      [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width">',
        '<link rel="icon" href="data:,">',
        f"<title>{title}</title>\n<style>\n{_resource('page.css')}</style>",
        f"</head>\n<body>\n<h1>{title}</h1>",
        f'<nav><ul>{contents}</ul></nav>',
        *self._body,
        f"<script>{_script(offline.get_plotlyjs())}</script>",
        f'<script type="application/json" id="data">{to_json(data)}</script>',
        f"<script>\n{_script(_resource('page.js'))}</script>",
        "</body>\n</html>\n",
      ]
    )


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
  """Returns a table whose first column names its rows."""
  lines = ["<tr>" + "".join(f"<th>{html.escape(x)}</th>" for x in head)]
  for name, *values in rows:
    cells = "".join(f"<td>{html.escape(str(value))}</td>" for value in values)
    lines.append(f'<tr><th scope="row">{html.escape(str(name))}</th>{cells}')
  return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def details(summary: str, content: str, is_open: bool = False) -> str:
  """Returns what is shown when it is asked for."""
  attribute = " open" if is_open else ""
  return (
    f"<details{attribute}><summary>{html.escape(summary)}</summary>"
    f"{content}</details>"
  )


def to_json(value: Any) -> str:
  """Returns strict JSON that can stand in a script."""
  text = json.dumps(_strict(value), allow_nan=False, separators=(",", ":"))
  return text.replace("<", "\\u003c")


def _strict(value: Any) -> Any:
  if isinstance(value, dict):
    return {name: _strict(x) for name, x in value.items()}
  if isinstance(value, list | tuple):
    return [_strict(x) for x in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def _script(text: str) -> str:
  """JavaScript in which nothing ends the script but its end."""
  return text.replace("</script", "<\\/script")


def _resource(name: str) -> str:
  return importlib.resources.files(__package__).joinpath(name).read_text()
