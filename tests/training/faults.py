"""Faults that are put into agents on purpose."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.training import common

# Which number a code stands for; codes are integers, which are always finite.
NUMBERS = np.array([0.0, np.nan, np.inf, 1e30], np.float32)
NAN, INF, HUGE = 1, 2, 3


def fill(tree, where, code, entries=slice(None)):
  """Puts a number into entries of each float leaf of some members."""

  def put(x):
    if not jnp.issubdtype(x.dtype, jnp.floating):
      return x
    rows = np.array(x).reshape(x.shape[0], -1)
    rows[np.array(where), entries] = NUMBERS[code]
    return rows.reshape(x.shape)

  return jax.tree.map(put, tree)


def inject(fault, state, where, code):
  """A state with a fault that is in its data."""
  members, hyperparams = state.members, state.hyperparams
  part, _, name = fault.partition("/")
  if part == "hyperparams":
    broken = fill(hyperparams[name], where, code)
    return common.changed(state, hyperparams | {name: broken})
  if part == "learner":
    broken = fill(getattr(members.learner, name), where, code, 0)
    learner = members.learner._replace(**{name: broken})
    return common.changed(state, learner=learner)
  if part == "replay":
    storage = members.replay.storage
    broken = fill(getattr(storage, name), where, code)
    storage = storage._replace(**{name: broken})
    replay = members.replay._replace(storage=storage)
    return common.changed(state, replay=replay)
  if part == "environment":
    broken = fill(members.environment, where, code)
    return common.changed(state, environment=broken)
  return state


def others(where, size=4):
  """The members that have none."""
  return [i for i in range(size) if i not in where]


def is_finite(state):
  """Whether all is finite but for what environments keep to themselves."""
  return common.all_finite(
    (state.members.learner, state.members.replay, state.hyperparams)
  )
