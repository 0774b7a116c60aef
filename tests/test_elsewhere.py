"""Tests of the package where other systems than Linux lack something.

Nothing but what `tests.elsewhere` hides is simulated, so passing means that the
package asks for nothing that isn't there, not that it runs there.
"""

import importlib
import os
import pathlib
import subprocess
import sys

import pytest

from qdrl_haiku.programs.cli import launch
from qdrl_haiku.programs.storage import checkpoints

_ROOT = pathlib.Path(__file__).parents[1]
_QUICK = [
  f"{__file__}::test_every_module_is_imported", "tests/test_files.py",
  "tests/cpu/test_cores.py", "tests/programs/storage/test_directory.py"]
_LONG = [
  "tests/config", "tests/losses", "tests/programs/comparisons/test_plan.py",
  "tests/programs/runs/test_resume.py", "tests/programs/storage"]
# Tests of what a system doesn't have: links to folders, locks, modes.
_NOT_THERE = {
  "darwin": "affinity_and",
  "win32": (
    "affinity_and or not_private or another_trains or any_name or "
    "proves_damage or killed_again")}
# Windows' encoding isn't UTF-8.
_ASCII = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}


def test_every_module_is_imported():
  for path in (_ROOT / "qdrl_haiku").rglob("*.py"):
    name = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
    importlib.import_module(name.removesuffix(".__init__"))


@pytest.mark.parametrize(("system", "rooms"), [
  ("win32", _QUICK), pytest.param("win32", _LONG, marks=pytest.mark.slow),
  pytest.param("darwin", _QUICK + _LONG, marks=pytest.mark.slow)])
def test_what_another_system_lacks_is_not_needed(system, rooms):
  environment = os.environ | (_ASCII if system == "win32" else {}) | {
    "QDRL_TESTS_SYSTEM": system,
    "QDRL_TESTS_CACHE": os.environ["JAX_COMPILATION_CACHE_DIR"]}
  done = subprocess.run(
    [sys.executable, "-m", "pytest", "-q", "-p", "tests.elsewhere", *rooms,
     "-k", f"not ({_NOT_THERE[system]})"], cwd=_ROOT, env=environment,
    stdout=subprocess.PIPE, text=True, errors="replace", check=False)
  assert done.returncode == 0, done.stdout


def test_paths_and_programs_may_be_those_of_windows(monkeypatch):
  path = pathlib.PureWindowsPath(r"C:\Users\Jane Doe\logs\run\checkpoints")
  assert checkpoints._PLAIN.fullmatch(path.as_posix())
  monkeypatch.setattr(sys, "platform", "win32")
  monkeypatch.setattr(sys, "argv", ["Scripts/qdrl-compare"])
  assert launch.subprocess_launcher("train_pbt") == "Scripts/qdrl-train-pbt.exe"
