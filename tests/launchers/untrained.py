"""Runs of launchers that are soon compiled.

That takes longer than all the rest of a small run.
"""

import contextlib
import sys

import jax
import jax.numpy as jnp
import pytest

from tests.launchers import harness


@contextlib.contextmanager
def quick_compilation():
  """Compiles faster what then runs slower."""
  name = "jax_disable_most_optimizations"
  before = jax.config.values[name]
  jax.config.update(name, True)
  try:
    yield
  finally:
    jax.config.update(name, before)


def _draw_members(setup, members, hyperparams, keys):
  """Puts noise on all policies, in place of `training.train_members`."""
  del setup, hyperparams

  def draw(key, state):
    def moved(path, x):
      is_policy = "policy_params" in jax.tree_util.keystr(path)
      return x + jax.random.normal(key, x.shape) if is_policy else x

    return jax.tree_util.tree_map_with_path(moved, state)

  members = members._replace(
    learner=jax.vmap(draw)(keys, members.learner), pool=()
  )
  return members, {}, jnp.zeros(keys.shape, jnp.int32)


def start(name, *arguments):
  """Does what `harness.start` does, but agents are drawn, not trained."""
  import qdrl_haiku.runs  # noqa: F401

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      sys.modules["qdrl_haiku.training.population"],
      "train_members",
      _draw_members,
    )
    harness.start(name, *arguments)
