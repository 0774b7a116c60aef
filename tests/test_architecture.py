"""The shape of the package: who may import whom."""

import ast
import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_EVERYWHERE = {"types", "names", "compatibility", "fusion", "noise", "xla"}
# Which parts of the package each part may import.
_ALLOWED = {
  "types": set(),
  "names": set(),
  "compatibility": set(),
  "fusion": set(),
  "noise": set(),
  "xla": set(),
  "mlp": set(),
  "networks": {"mlp"},
  "policies": set(),
  "losses": set(),
  "skills": {"losses"},
  "learners": {"networks", "policies", "losses", "skills"},
  "export": {"learners"},
  "environments": {"skills"},
  "replay": set(),
  "actors": {"environments", "replay"},
  "controllers": set(),
  "map_elites": set(),
  "training": {
    "actors", "controllers", "environments", "learners", "map_elites",
    "replay",
  },
  "reports": {
    "actors", "controllers", "environments", "learners", "map_elites",
    "training",
  },
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
def test_imports_point_one_way(part):
  assert _imported(part) <= _ALLOWED[part] | _EVERYWHERE


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
