"""Tests of which parts of the package may import which."""

import ast
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
  "checks": set(),
  "config": set(),
  "eager": set(),
  "compatibility": set(),
  "cpu": set(),
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
    "map_elites", "replay",
  },
  "storage": {"distributed"},
  "artifacts": {
    "actors", "controllers", "distributed", "environments", "learners",
    "map_elites", "storage", "training",
  },
  "drawing": {
    "actors", "environments", "learners", "map_elites", "storage", "training",
  },
  "reports": {
    "actors", "artifacts", "controllers", "drawing", "environments",
    "learners", "map_elites", "storage", "training",
  },
  "runs": {
    "actors", "artifacts", "controllers", "distributed", "drawing",
    "environments", "learners", "map_elites", "reports", "storage",
    "training",
  },
  "benchmarks": {
    "distributed", "map_elites", "runs", "storage", "training"
  },
  "comparisons": {"drawing", "reports"},
  "experiment": {
    "controllers", "distributed", "environments", "learners", "runs",
    "storage", "training",
  },
  "cli": {
    "artifacts", "benchmarks", "comparisons", "distributed", "drawing",
    "environments", "experiment", "learners", "reports", "runs", "skills",
    "storage",
  },
}  # fmt: skip
_EVERYWHERE = {
  "types", "names", "prng", "files", "checks", "config", "compatibility",
  "cpu", "eager",
}  # fmt: skip


def _parts() -> list[str]:
  package = _ROOT / "qdrl_haiku"
  return sorted(
    path.stem
    for path in package.iterdir()
    if path.name != "__init__.py"
    and (path.suffix == ".py" or (path / "__init__.py").exists())
  )


def _imported(part: str) -> set[str]:
  """The parts of the package that one part imports."""
  path = _ROOT / "qdrl_haiku" / part
  files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
  found = set()
  for file in files:
    for node in ast.walk(ast.parse(file.read_text())):
      if isinstance(node, ast.ImportFrom) and node.module:
        if node.module == "qdrl_haiku":
          found |= {alias.name for alias in node.names}
        elif node.module.startswith("qdrl_haiku."):
          found.add(node.module.split(".")[1])
      elif isinstance(node, ast.Import):
        found |= {
          alias.name.split(".")[1]
          for alias in node.names
          if alias.name.startswith("qdrl_haiku.")
        }
  return found - {part}


def test_every_part_has_its_place():
  assert _parts() == sorted(_ALLOWED)


@pytest.mark.parametrize("part", sorted(_ALLOWED))
def test_a_part_imports_what_it_may(part):
  allowed = _ALLOWED[part] | (_EVERYWHERE - {part})
  assert _imported(part) <= allowed


def test_imports_point_one_way():
  below: set[str] = set()
  for part, allowed in _ALLOWED.items():
    assert allowed <= below, part
    below.add(part)


def test_what_may_be_imported_everywhere_imports_nothing_above():
  for part in _EVERYWHERE:
    assert _imported(part) <= _EVERYWHERE, part


def _module(path: pathlib.Path) -> str:
  parts = path.relative_to(_ROOT).with_suffix("").parts
  return ".".join(parts).removesuffix(".__init__")


def _imports_of_modules() -> dict[str, set[str]]:
  """The modules that each module imports when it's imported itself."""
  files = {_module(p): p for p in (_ROOT / "qdrl_haiku").rglob("*.py")}
  found: dict[str, set[str]] = {}
  for name, path in files.items():
    if path.name == "__init__.py":
      continue  # It imports what is in its own folder.
    found[name] = set()
    for node in ast.parse(path.read_text()).body:
      if isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
          module = f"{node.module}.{alias.name}"
          found[name] |= {x for x in (module, node.module) if x in files}
  return found


def test_no_modules_import_each_other_in_a_circle():
  left = _imports_of_modules()
  while True:
    free = {name for name, imports in left.items() if not imports & left.keys()}
    if not free:
      break
    left = {name: x for name, x in left.items() if name not in free}
  assert left == {}


def test_the_gate_runs_the_test_command_of_the_readme():
  commands = re.findall(
    r"^python3 -m venv .*pytest.*$",
    (_ROOT / "README.md").read_text(),
    re.MULTILINE,
  )
  assert len(commands) == 1
  assert commands[0] in (_ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("name", ["jax", "jaxlib", "mujoco"])
def test_only_tested_versions_are_installed(name):
  setup = (_ROOT / "setup.py").read_text()
  (bounds,) = re.findall(rf'"{name}([<>=!][^"]*)"', setup)
  assert re.search(r"(^|,)<\d+\.\d+$", bounds)
  # It computes wrong numbers on CPUs.
  assert ("!=0.10.2" in bounds) == (name != "mujoco")
