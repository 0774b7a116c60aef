"""Robots of all kinds are compiled and stepped as by users, in any number.

The other tests' compiler is told to optimise little, and takes programs that
users' refuse. `.ci/run` runs another share of these each day.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.cpu import xla
from qdrl_haiku.environments import registry, robots
from tests.environments.robots import walkers

_HERE = pathlib.Path(__file__).parent
# What brax's own physics refuses.
_ONLY_MJX = ("cylinder", "ellipsoid", "tendon")
_ROBOTS = [
  *((name, backend)
    for name, entry in registry.BRAX.items() if name != "fast"
    for backend in entry.backends),
  *((name, backend)
    for name in ("arm.xml", "tripod.xml", *walkers.WALKERS)
    for backend in (
      ["mjx"] if name in _ONLY_MJX else registry.BRAX["ant"].backends))]


def _environment(name, backend, tmp_path):
  """One of brax's, or of a file."""
  if name in registry.BRAX:
    return environments.create(name, backend=backend)
  task = "reach" if name == "arm.xml" else "run"
  path = str(_HERE / name)
  if name in walkers.WALKERS:
    path = walkers.write_walker(tmp_path, name)
  return environments.create(robots.from_mjcf(path, task, backend=backend))


@pytest.mark.robots
@pytest.mark.parametrize("size", [1, 2, 16, 64, 256, 1024])
@pytest.mark.parametrize(
  ("name", "backend"), _ROBOTS, ids=map("-".join, _ROBOTS))
def test_any_number_of_robots_is_stepped(name, backend, size, tmp_path):
  env = _environment(name, backend, tmp_path)
  # What users have, and `conftest.py` turns off.
  options = xla.known_xla_options({
    "xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True,
    "xla_llvm_disable_expensive_passes": False})

  def run(keys, actions):
    return jax.lax.fori_loop(
      0, 3, lambda _, state: env.step(state, actions), env.reset(keys))

  keys = jax.random.split(jax.random.key(0), size)
  actions = jax.random.uniform(
    keys[0], (size, env.action_size), minval=-1.0, maxval=1.0)
  state = jax.jit(run).lower(keys, actions).compile(options)(keys, actions)
  assert np.all(np.isfinite(state.obs))
  assert np.all(state.info["steps"] + state.info["episodes"] > 0)
  begun = jax.jit(env.reset)(keys[:1])
  assert not jnp.allclose(state.obs[:1], begun.obs)
