"""Tests of digests of what a program depends on."""

import os
import pathlib
import shutil
import subprocess
import sys
import types

import brax
import pytest

from qdrl_haiku.programs.storage import fingerprints


def test_parts_that_differ_have_different_digests_in_any_order():
  parts = [1, 1.0, True, "1", [1, 2], [2, 1], 0.1, 0.1 + 1e-16, {"a": 1}]
  assert len(set(map(fingerprints.fingerprint_digest, parts))) == len(parts)
  one, other = {"a": 1, "b": 2}, {"b": 2, "a": 1}
  assert fingerprints.fingerprint_digest(
    one) == fingerprints.fingerprint_digest(other)


def test_another_process_finds_the_same_and_chooses_its_devices_after_imports():
  code = (
    "import jax, qdrl_haiku.environments, qdrl_haiku.learners;"
    "from qdrl_haiku.programs.storage import fingerprints as x;"
    "jax.config.update('jax_num_cpu_devices', 3); print(len(jax.devices()));"
    "of = x.fingerprint_of_process() | dict(devices=0, jax=0, variables=0);"
    "print(x.fingerprint_digest(of))")
  done = subprocess.run(
    [sys.executable, "-c", code], check=True, capture_output=True, text=True,
    env=os.environ | {"JAX_PLATFORMS": "cpu"})
  # But for what tests set.
  own = fingerprints.fingerprint_of_process()
  own |= {"devices": 0, "jax": 0, "variables": 0}
  assert done.stdout.split() == ["3", fingerprints.fingerprint_digest(own)]


def test_another_version_of_a_library_makes_another_process(monkeypatch):
  before = fingerprints.fingerprint_digest(
    fingerprints.fingerprint_of_process())
  installed = fingerprints._installed()
  changed = [
    "brax-99.0.dist-info" if name.startswith("brax-") else name
    for name in installed]
  assert changed != installed
  monkeypatch.setattr(fingerprints, "_installed", lambda: changed)
  now = fingerprints.fingerprint_of_process()
  assert fingerprints.fingerprint_digest(now) != before


def test_an_edited_file_makes_another_process(tmp_path, monkeypatch):
  shutil.copytree(pathlib.Path(brax.__file__).parent, tmp_path / "mine")
  shutil.copytree(_LAUNCHER.parent, tmp_path / "launchers")
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(fingerprints, "_TRACED", ("mine",))
  monkeypatch.setattr(fingerprints, "_LAUNCHERS", tmp_path / "launchers")
  found = {fingerprints._contents.__wrapped__()}
  for name in (
    "mine/envs/half_cheetah.py", "mine/envs/assets/half_cheetah.xml",
    "launchers/train.py",
  ):
    path = tmp_path / name
    path.write_text(path.read_text() + " ")
    found.add(fingerprints._contents.__wrapped__())
  assert len(found) == 4


def test_an_editors_link_to_nothing_is_no_file(tmp_path, monkeypatch):
  monkeypatch.setattr(fingerprints, "_LAUNCHERS", tmp_path)
  before = fingerprints._contents.__wrapped__()
  (tmp_path / ".#train.py").symlink_to("user@host.1234:1700000000")
  assert fingerprints._contents.__wrapped__() == before


def _users_module(monkeypatch, **files):
  """Returns what is found in a process with modules of these files."""
  modules = {name: types.ModuleType(name) for name in files}
  for name, path in files.items():
    modules[name].__file__ = path and str(path)
  process = types.SimpleNamespace(modules=modules)
  monkeypatch.setattr(fingerprints, "sys", process)
  return fingerprints.module_without_fingerprint()


_PACKAGE = pathlib.Path(fingerprints.qdrl_haiku.__file__).parent
_LAUNCHER = _PACKAGE.parent / "launchers" / "train.py"
_INSTALLED = pathlib.Path(pytest.__file__).parents[1]


@pytest.mark.parametrize(
  "path", [_PACKAGE / "files.py", _INSTALLED / "brax/math.py", pathlib.__file__]
)
def test_what_is_ours_or_installed_replaces_nothing(monkeypatch, path):
  assert _users_module(monkeypatch, __main__=_LAUNCHER, x=path) is None


@pytest.mark.parametrize(("name", "path"), [
  ("patches", __file__), ("__main__", None),
  ("sitecustomize", _INSTALLED / "sitecustomize.py")])
def test_what_is_neither_may_have_replaced_anything(monkeypatch, name, path):
  # Which says nothing of a main program without a file.
  monkeypatch.chdir(_LAUNCHER.parent / "flagfiles")
  files = {"__main__": _LAUNCHER} | {name: path}
  assert _users_module(monkeypatch, **files) == name
