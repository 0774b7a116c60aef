"""Tests that flags which XLA doesn't know are left out."""

import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku.cpu import fusion, noise, xla
from tests import kernels

_ROOT = pathlib.Path(__file__).parents[2]
_UNKNOWN = "xla_cpu_that_never_was"


@pytest.fixture(autouse=True)
def _nothing_left_out_yet(monkeypatch):
  monkeypatch.setattr(xla, "_left_out", set())


def test_options_that_are_unknown_are_left_out_and_told():
  options = {"xla_backend_optimization_level": 1, _UNKNOWN: 1}
  assert xla.known_options(options) == {"xla_backend_optimization_level": 1}
  assert xla.left_out() == [_UNKNOWN]
  # Also when the answer is known already.
  xla._left_out.clear()
  xla.known_options(options)
  assert xla.left_out() == [_UNKNOWN]


def test_flags_that_are_unknown_are_left_out_and_told():
  flags = {"xla_backend_optimization_level": 1, _UNKNOWN: 1}
  assert xla.known_flags(flags) == ["--xla_backend_optimization_level=1"]
  assert xla.left_out() == [_UNKNOWN]


def test_marks_that_are_unknown_are_left_out_and_told():
  assert xla.knows_mark("xla_cpu_small_call")
  assert not xla.knows_mark(_UNKNOWN)
  assert xla.left_out() == [_UNKNOWN]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPUs")
def test_without_the_mark_there_are_many_kernels(monkeypatch):
  def draw(key):
    return noise.normal(key, (8, 3))

  key = jax.random.key(0)
  expected = draw(key)
  monkeypatch.setattr(fusion, "_SMALL_CALL", _UNKNOWN)
  assert not kernels.num_marked(jax.jit(draw).lower(key).compile())
  assert jnp.allclose(jax.jit(draw)(key), expected, rtol=1e-5)
  assert xla.left_out() == [_UNKNOWN]


def test_flags_are_nowhere_set_without_being_asked_for():
  setting = re.compile(r"""["']XLA_FLAGS["']""")
  using = {
    str(path.relative_to(_ROOT))
    for folder in ("qdrl_haiku", "launchers", "tests")
    for path in (_ROOT / folder).rglob("*.py")
    if setting.search(path.read_text())
  }
  # The first asks; the others append what it says. Tests look at it.
  tests_of_it = {
    "tests/cpu/test_xla.py", "tests/launchers/test_devices.py",
    "tests/distributed/test_collective_order.py",
    "tests/experiment/test_cache_key.py",
  }  # fmt: skip
  assert using - tests_of_it == {
    "qdrl_haiku/cpu/xla.py",
    "qdrl_haiku/cli/devices.py",
    "tests/conftest.py",
  }
