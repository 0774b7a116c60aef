"""Tests of Haiku functions as pure ones, with state and without."""

import haiku as hk
import jax
import numpy as np

from qdrl_haiku import networks

_RNG = np.random.default_rng(0)
_INPUTS = _RNG.normal(2.0, 3.0, (16, 3)).astype(np.float32)


def _normalised(inputs, is_training):
  return hk.BatchNorm(False, False, 0.75)(inputs, is_training)


_NETWORK = networks.stateful_network(_normalised, 3)


def _averages(state):
  """The running mean and variance."""
  named = {
    jax.tree_util.keystr(path): x
    for path, x in jax.tree_util.tree_leaves_with_path(state)
  }
  return [
    next(x for n, x in named.items() if part in n and "average" in n)[..., 0, :]
    for part in ("mean", "var")
  ]


def test_in_training_statistics_are_the_batchs_and_move_the_state():
  params, state = _NETWORK.init(jax.random.key(0))
  outputs, moved = _NETWORK.apply(params, state, _INPUTS, is_training=True)
  mean, var = _INPUTS.mean(0), _INPUTS.var(0)
  np.testing.assert_allclose(
    outputs, (_INPUTS - mean) / np.sqrt(var + 1e-5), rtol=1e-4, atol=1e-5
  )
  # The first average, with its bias from beginning at 0 taken out.
  for average, expected in zip(_averages(moved), (mean, var), strict=True):
    np.testing.assert_allclose(average, expected, rtol=1e-5)


def test_otherwise_they_are_the_states_which_stays():
  params, state = _NETWORK.init(jax.random.key(0))
  _, state = _NETWORK.apply(params, state, _INPUTS, is_training=True)
  one = _INPUTS[:1] + 5
  outputs, same = _NETWORK.apply(params, state, one, is_training=False)
  np.testing.assert_allclose(
    outputs,
    (one - _INPUTS.mean(0)) / np.sqrt(_INPUTS.var(0) + 1e-5),
    rtol=1e-4,
  )
  jax.tree.map(np.testing.assert_array_equal, same, state)
