"""Tests of the controller that plays hyperparameters back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers

_KEY = jax.random.key(0)
_CONTROLLER = controllers.schedule(
  {"rate": np.array([0.1, 0.1, 0.3], np.float32), "tau": 0.5}
)


def _after(generation, hyperparams):
  state, decision = jax.jit(_CONTROLLER.update)(
    jnp.int32(generation), _KEY, jnp.array([jnp.nan, 1.0]), hyperparams
  )
  assert state == generation + 1
  return decision


def _operators(decision):
  return [_CONTROLLER.operators[code] for code in decision.operator.tolist()]


def test_everybody_begins_with_the_first_row():
  state, hyperparams = _CONTROLLER.init(_KEY, 2)
  assert (state.dtype, int(state)) == (jnp.int32, 1)
  np.testing.assert_array_equal(hyperparams["rate"], np.float32([0.1, 0.1]))
  np.testing.assert_array_equal(hyperparams["tau"], [0.5, 0.5])


@pytest.mark.parametrize(("generation", "rate", "operator"), [
  (1, 0.1, "survive"), (2, 0.3, "schedule"), (3, 0.3, "survive"),
  (9, 0.3, "survive"),
])  # fmt: skip
def test_each_generation_has_its_row_and_later_ones_the_last(
  generation, rate, operator
):
  before = {1: 0.1, 2: 0.1}.get(generation, 0.3)
  decision = _after(
    generation, {"rate": jnp.full(2, before), "tau": jnp.full(2, 0.5)}
  )
  np.testing.assert_array_equal(
    decision.hyperparams["rate"], np.float32([rate] * 2)
  )
  assert decision.parents.tolist() == [0, 1]
  assert decision.parents.dtype == decision.operator.dtype == jnp.int32
  assert _operators(decision) == [operator] * 2
