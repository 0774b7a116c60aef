"""Tests of combinations of libraries that are refused."""

import contextlib
import importlib.metadata
import importlib.util
import types

import pytest

from qdrl_haiku import compatibility
from tests import marks


def test_a_version_of_jax_that_computes_wrong_numbers_is_refused(monkeypatch):
  compatibility.check_compatibility()
  monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.10.2")
  with pytest.raises(ImportError, match="pip install 'jax!=0.10.2'"):
    compatibility.check_compatibility()


@marks.ON_CPU
def test_wrong_numbers_are_refused_whatever_the_version(monkeypatch):
  compatibility.check_numeric_compatibility()
  # What jax 0.10.2 computes.
  monkeypatch.setattr(compatibility, "_last_square", lambda: 1065369600.0)
  monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.12.7")
  with pytest.raises(ImportError, match="pip install 'jax!=0.12.7'"):
    compatibility.check_numeric_compatibility.__wrapped__()


@pytest.mark.parametrize(("suffix", "is_refused"), [("dev", False), ("", True)])
def test_stable_tfp_is_refused(monkeypatch, tmp_path, suffix, is_refused):
  (tmp_path / "python").mkdir()
  (tmp_path / "python" / "version.py").write_text(
    "# A stable one has `_VERSION_SUFFIX = ''`.\n"
    f"_VERSION_SUFFIX = '{suffix}'\n")
  spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
  refused = pytest.raises(ImportError, match="--no-deps tfp-nightly")
  with refused if is_refused else contextlib.nullcontext():
    compatibility.check_compatibility()
