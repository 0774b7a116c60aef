"""Makes the pages: documents, notebooks, and a reference of each room."""

import ast
import json
import os
import pathlib
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = pathlib.Path(__file__).parents[1]
_DOCUMENTS = {
  "README.md": "Home", "launchers/README.md": "Recipes",
  "launchers/RESULTS.md": "Results", "CHANGELOG.md": "Changes",
  "BUILD.md": "For maintainers"}
_NOTEBOOKS = sorted((_ROOT / "launchers/notebooks").glob("*.ipynb"))
# Where notebooks are opened, if the project is read on GitHub.
_ON_GITHUB = re.fullmatch(
  r"https://github\.com/([\w.-]+/[\w.-]+?)/?", os.environ.get("QDRL_HOME", ""))
# What documents show or link to beside each other.
_MEDIA = (*_ROOT.glob("launchers/pictures/*"), *_NOTEBOOKS,
          _ROOT / "tests/environments/robots/tripod.xml")


def _value(path: pathlib.Path, name: str, default: Any = None) -> Any:
  """Returns the value of a constant in a file of Python."""
  for node in ast.parse(path.read_text()).body:
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
      return ast.literal_eval(node.value)
  return default


def _members(path: pathlib.Path) -> dict[str, str]:
  """Returns the full path of each public name of a room."""
  own = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
  is_room, found = path.name == "__init__.py", {}
  tree = ast.parse(path.read_text())
  shown = () if is_room else _value(path, "__all__", ())
  for node in tree.body:
    if isinstance(node, ast.ImportFrom):
      room = _file(node.module)
      is_other = is_room and room not in (None, path)
      is_other = is_other and room.name == "__init__.py"
      others = _members(room) if is_other else {}
      found |= {
        x.asname or x.name: others.get(x.name, f"{node.module}.{x.name}")
        for x in node.names if is_room or x.name in shown}
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
      found[node.name] = f"{own}.{node.name}"
    elif isinstance(node, ast.Assign | ast.AnnAssign):
      target = node.target if isinstance(node, ast.AnnAssign) else (
        node.targets[0])
      found[ast.unparse(target)] = f"{own}.{ast.unparse(target)}"
  if is_room:  # What is imported late.
    texts = [x.value for x in ast.walk(tree) if isinstance(x, ast.Constant)]
    found |= {str(x).rpartition(".")[2]: str(x) for x in texts}
  for name, full in [*found.items()]:
    module = _file(full) if full.startswith(own.removesuffix("__init__")) else (
      None)
    if module:  # A part of a room that is a module of its own.
      inner = _members(module)
      found |= {f"{name}.{x}": inner[x] for x in inner if "." not in x}
  return {
    name: full for name, full in sorted(found.items())
    if full.startswith("qdrl_haiku.") and not re.search(r"(^|\W)_", name)
    and ".__init__." not in full and not _file(full)}


def _file(module: str) -> pathlib.Path | None:
  """Returns the file of a module, if it is one."""
  path = _ROOT.joinpath(*module.split("."))
  places = path / "__init__.py", path.with_suffix(".py")
  return next((x for x in places if x.exists()), None)


def _rooms() -> dict[str, pathlib.Path]:
  """Returns the files of the packages and modules that users import."""
  rooms = _value(_ROOT / "qdrl_haiku/__init__.py", "_ROOMS")
  files = {name: _file(f"qdrl_haiku.{x}{name}") for name, x in rooms.items()}
  return {name: path for name, path in files.items() if path is not None}


_ROOMS = _rooms()
_PUBLIC = {
  f"{room}.{name}": full for room, path in _ROOMS.items()
  for name, full in _members(path).items()}


_LINKED = _PUBLIC | {
  name: _PUBLIC[f"experiment.{name}"]
  for name in _value(_ROOT / "qdrl_haiku/__init__.py", "_EXPERIMENT_NAMES")}


def _reference(room: str) -> str:
  """Returns the page of a room; what another room has shown is a link."""
  path, others = _ROOMS[room], {}
  for name, full in _PUBLIC.items():
    others.setdefault(full, name)
  summary = ast.get_docstring(ast.parse(path.read_text())) or ""
  lines = [f"# {room}", "", summary]
  for name, full in _PUBLIC.items():
    if not name.startswith(f"{room}."):
      continue
    if others[full] != name:
      lines += ["", f"`{name}` is [`{others[full]}`][{full}]."]
      continue
    lines += [
      "", f"::: {full}", "    options:", f"      heading: {name}",
      f"      toc_label: {name.partition('.')[2]}",
      # Settings are often those of a class that several have in common.
      f"      inherited_members: {str(name.endswith('Config')).lower()}"]
  return "\n".join(lines)


def _notebook(path: pathlib.Path) -> str:
  """Returns a notebook, with what its cells have shown."""
  blocks = []
  for cell in json.loads(path.read_text())["cells"]:
    source = "".join(cell["source"])
    is_code = cell["cell_type"] == "code"
    blocks.append(f"```python\n{source}\n```" if is_code else source)
    for output in cell.get("outputs", []):
      data = output.get("data", {})
      image = next((x for x in data if x.startswith("image/")), None)
      text = "".join(output.get("text", data.get("text/plain", "")))
      if image:
        encoded = "".join(data[image]).replace("\n", "")
        source = f"data:{image};base64,{encoded}"
        blocks.append(f'<img alt="what the cell draws" src="{source}">')
      elif "text/html" in data:
        html = "".join(data["text/html"])
        blocks.append(f'<div class="output">{html}</div>')
      else:
        blocks.append(f"```text\n{text}\n```")
  to_run = f"Its file, to be run: [{path.name}]({path.name})."
  if _ON_GITHUB:
    place = f"{_ON_GITHUB[1]}/blob/main/{path.relative_to(_ROOT).as_posix()}"
    to_run += (
      f" [Open in Colab](https://colab.research.google.com/github/{place}).")
  blocks.insert(1, to_run)
  return "\n\n".join(blocks)


def on_config(config: MkDocsConfig) -> None:
  """Says which pages there are."""
  documents = [{title: name} for name, title in _DOCUMENTS.items()]
  notebooks = [f"launchers/notebooks/{x.stem}.md" for x in _NOTEBOOKS]
  rooms = [f"reference/{room}.md" for room in _ROOMS]
  config.nav = [
    *documents[:2], {"Notebooks": notebooks}, {"Reference": rooms},
    *documents[2:]]


def on_files(files: Files, config: MkDocsConfig) -> None:
  """Adds the pages, which keep their places, so that links stay right."""

  def add(name: str, **source: Any) -> None:
    files.append(File.generated(config, name, **source))

  for path in (*(_ROOT / x for x in _DOCUMENTS), *_MEDIA):
    add(path.relative_to(_ROOT).as_posix(), abs_src_path=str(path))
  for path in _NOTEBOOKS:
    add(f"launchers/notebooks/{path.stem}.md", content=_notebook(path))
  for room in _ROOMS:
    add(f"reference/{room}.md", content=_reference(room))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
  """Lets documents link to the pages of notebooks."""
  if page.file.src_uri not in _DOCUMENTS:
    return markdown
  markdown = markdown.replace("](notebooks)", "](notebooks/quickstart.md)")
  return markdown.replace(".ipynb)", ".md)")


def on_page_content(html: str, page: Page, **_: Any) -> str:
  """Makes links of the names that texts have in backticks."""
  room = pathlib.PurePath(page.file.src_uri).stem
  is_reference = page.file.src_uri.startswith("reference/")

  def link(match: re.Match) -> str:
    before, name = match.groups(default="")
    first, _, method = name.removeprefix("qd.").partition(".")
    full = _LINKED.get(name.removeprefix("qd."))
    # Short names, such as `ask`, are more often those of fields.
    is_plain = first.islower() and "_" not in first and not before
    if is_reference and not is_plain and full is None:
      if name in _ROOMS:
        return f'{before}<a href="{name}.html"><code>{name}</code></a>'
      full = _PUBLIC.get(f"{room}.{first}")
      full = full and ".".join([full, *[method] * bool(method)])
    if full is None:
      return match[0]
    return (
      f'{before}<autoref optional identifier="{full}"><code>{name}</code>'
      "</autoref>")

  kept = r"(<pre.*?</pre>|<a .*?</a>|<h\d.*?</h\d>|<autoref.*?</autoref>)"
  named = r"((?:those\s+of|[Ss]ee)\s+)?<code>([A-Za-z_][\w.]*)</code>"
  parts = re.split(kept, html, flags=re.DOTALL)
  parts[::2] = [re.sub(named, link, x) for x in parts[::2]]
  return "".join(parts)
