"""Tests of which parts of the package may import which."""

import ast
import graphlib
import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
# From the ground up, which parts of the package each part may import.
_ALLOWED = {
  "types": set(),
  "names": set(),
  "prng": set(),
  "files": set(),
  "trees": set(),
  "checks": set(),
  "specs": set(),
  "ranges": set(),
  "hyperparameter": set(),
  "config": set(),
  "eager": set(),
  "compatibility": set(),
  "cpu": set(),
  "platform": {"cpu"},
  "losses": set(),
  "networks": set(),
  "policies": set(),
  "skills": {"losses"},
  "learners": {"losses", "networks", "policies", "skills"},
  "replay": set(),
  "environments": {"skills"},
  "actors": {"environments"},
  "controllers": set(),
  "map_elites": set(),
  "distributed": {"controllers"},
  "training": {
    "actors", "controllers", "distributed", "environments", "learners",
    "map_elites", "replay"}}
# Likewise of what programs are made of, which may import all of the above.
_ALLOWED_IN_PROGRAMS: dict[str, set[str]] = {
  "storage": set(),
  "artifacts": {"storage"},
  "drawing": set(),
  "reports": {"artifacts", "drawing", "storage"},
  "runs": {"artifacts", "drawing", "reports", "storage"},
  "benchmarks": {"runs", "storage"},
  "accelerators": {"runs"},
  "comparisons": {"artifacts", "drawing", "reports", "storage"},
  "experiment": {"runs", "storage"},
  "cli": {
    "accelerators", "artifacts", "benchmarks", "comparisons", "drawing",
    "experiment", "reports", "runs", "storage"}}
_EVERYWHERE = {
  "types", "names", "prng", "files", "trees", "checks", "config",
  "compatibility", "platform", "eager", "ranges", "specs", "hyperparameter"}


_MODULES = {
  ".".join(path.relative_to(_ROOT).with_suffix("").parts): path
  for path in (_ROOT / "qdrl_haiku").rglob("*.py")}


def _imported(path: pathlib.Path, *, for_types: bool) -> set[str]:
  """The names that a file imports, in its functions too."""
  tree = ast.parse(path.read_text())
  hidden = {
    x
    for node in ast.walk(tree)
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    for x in ast.walk(node)}
  found = set()
  for node in ast.walk(tree):
    if node in hidden and not for_types:
      continue
    if isinstance(node, ast.ImportFrom):
      found |= {f"{node.module}.{alias.name}" for alias in node.names}
    elif isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
  return found


def test_every_part_has_its_place():
  parts = [name.split(".")[1:] for name in _MODULES]
  assert {x[0] for x in parts} == {*_ALLOWED, "programs", "__init__"}
  of_programs = {x[1] for x in parts if x[0] == "programs"}
  assert of_programs == {*_ALLOWED_IN_PROGRAMS, "__init__"}


def _imported_parts(part: pathlib.Path) -> list[list[str]]:
  """The parts of the package's names that a part imports, types' too."""
  files = part.rglob("*.py") if part.is_dir() else [part.with_suffix(".py")]
  names = [
    x.split(".") for file in files for x in _imported(file, for_types=True)]
  return [x[1:] for x in names if x[0] == "qdrl_haiku" and x[1:]]


@pytest.mark.parametrize("part", sorted(_ALLOWED))
def test_a_part_imports_what_it_may(part):
  found = {x[0] for x in _imported_parts(_ROOT / "qdrl_haiku" / part)}
  assert found <= _ALLOWED[part] | _EVERYWHERE | {part, "__version__"}


@pytest.mark.parametrize("part", sorted(_ALLOWED_IN_PROGRAMS))
def test_a_part_of_programs_imports_what_it_may(part):
  found = _imported_parts(_ROOT / "qdrl_haiku" / "programs" / part)
  assert {x[0] for x in found} <= {*_ALLOWED, "programs", "__version__"}
  of_programs = {x[1] for x in found if x[0] == "programs"}
  assert of_programs <= _ALLOWED_IN_PROGRAMS[part] | {part}


@pytest.mark.parametrize("parts", [_ALLOWED, _ALLOWED_IN_PROGRAMS])
def test_imports_point_one_way(parts):
  below: set[str] = set()
  for part, allowed in parts.items():
    assert allowed <= below, part
    below.add(part)


def _module(name: str) -> str | None:
  """The module that an imported name is, or is of; a folder's is its own."""
  parent = name.rpartition(".")[0]
  places = (name, f"{name}.__init__", parent, f"{parent}.__init__")
  return next((x for x in places if x in _MODULES), None)


def test_no_modules_import_each_other_in_a_circle():
  imports = {
    name: {_module(x) for x in _imported(path, for_types=False)} - {None}
    for name, path in _MODULES.items()}
  graphlib.TopologicalSorter(imports).prepare()  # Raises if there is one.


def test_the_gate_runs_the_test_command_of_the_readme():
  commands = re.findall(
    r"^python3 -m venv .*pytest.*$", (_ROOT / "README.md").read_text(),
    re.MULTILINE)
  assert len(commands) == 1
  assert commands[0] in (_ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("name", ["jax", "jaxlib", "mujoco"])
def test_only_tested_versions_are_installed(name):
  setup = (_ROOT / "setup.py").read_text()
  (bounds,) = re.findall(rf'"{name}([<>=!][^"]*)"', setup)
  assert re.search(r"(^|,)<\d+\.\d+$", bounds)
  # It computes wrong numbers on CPUs.
  assert ("!=0.10.2" in bounds) == (name != "mujoco")
