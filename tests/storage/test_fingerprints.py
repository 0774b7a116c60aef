"""Texts that differ where what a program is traced from differs."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments import brax_loading
from qdrl_haiku.storage import fingerprints


class _Box:
  def __init__(self, value):
    self.value = value


def _closed_over(x):
  return lambda y: x + y


@pytest.mark.parametrize(
  ("one", "other"),
  [
    (1, 1.0),
    (1, True),
    ("1", b"1"),
    ([1, 2], (1, 2)),
    ({"a": 1}, {"a": 2}),
    (np.zeros(2), np.zeros(2, np.float32)),
    (jnp.zeros(2), jnp.zeros((2, 1))),
    (jnp.zeros(2), jnp.asarray([0.0, -0.0])),
    (jax.random.key(0), jax.random.key(1)),
    (_Box(1), _Box(2)),
    (_closed_over(1), _closed_over(2)),
    (lambda x: x + 1, lambda x: x - 1),
    (functools.partial(max, 1), functools.partial(max, 2)),
    (jax.jit(_closed_over(1)), jax.jit(_closed_over(2))),
    (_Box(1).__init__, _Box(2).__init__),
  ],
)
def test_values_that_differ_have_different_digests(one, other):
  assert fingerprints.digest(one) != fingerprints.digest(other)
  assert fingerprints.digest(one) == fingerprints.digest(one)


def test_a_circle_ends():
  box = _Box(None)
  box.value = [box, 1]
  other = _Box(None)
  other.value = [other, 2]
  assert fingerprints.digest(box) != fingerprints.digest(other)


def test_what_can_not_be_told_apart_is_refused():
  with pytest.raises(fingerprints.Unknown, match="generator"):
    fingerprints.digest(x for x in [1])


def test_robots_that_differ_in_one_number_differ():
  with brax_loading.quiet_brax():
    env = environments.create("inverted_pendulum").unwrapped
  before = fingerprints.digest(env)
  env.sys = env.sys.replace(gravity=env.sys.gravity.at[2].multiply(1.01))
  assert fingerprints.digest(env) != before


def test_another_process_finds_the_same():
  code = (
    "from qdrl_haiku import environments\n"
    "from qdrl_haiku.storage import fingerprints\n"
    "env = environments.create('inverted_pendulum').unwrapped\n"
    "print(fingerprints.digest((env, fingerprints.of_process())))"
  )
  found = {
    subprocess.run(
      [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    for _ in range(2)
  }
  assert len(found) == 1


@pytest.mark.parametrize("package", ["brax", "mujoco", "jax"])
def test_another_version_of_a_library_makes_another_process(
  package, monkeypatch
):
  before = fingerprints.digest(fingerprints.of_process())
  installed = fingerprints._installed()
  changed = [
    f"{package}-99.0.dist-info" if name.startswith(f"{package}-") else name
    for name in installed
  ]
  assert changed != installed
  monkeypatch.setattr(fingerprints, "_installed", lambda: changed)
  assert fingerprints.digest(fingerprints.of_process()) != before


def test_an_edited_module_of_a_users_own_is_another(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / "robots_of_mine.py").write_text("import gears_of_mine\n")
  (tmp_path / "gears_of_mine.py").write_text("RATIO = 2\n")
  __import__("robots_of_mine")
  before = fingerprints.of_users_modules("robots_of_mine")
  assert fingerprints.of_users_modules("robots_of_mine") == before
  (tmp_path / "gears_of_mine.py").write_text("RATIO = 3\n")
  assert fingerprints.of_users_modules("robots_of_mine") != before
