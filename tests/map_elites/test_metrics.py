"""Tests of the numbers that describe a repertoire."""

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import map_elites

_EMPTY = map_elites.Repertoire.init(
  jnp.zeros(2), map_elites.Grid((5,), (0.0,), (5.0,))
)


def _filled():
  return jax.jit(map_elites.Repertoire.add)(
    _EMPTY,
    jnp.zeros((4, 2)),
    jnp.array([-3.0, 1.0, -2.0, -5.0]),
    jnp.array([[0.5], [2.5], [9.0], [2.5]]),
  )


def test_metrics_of_a_hand_worked_repertoire():
  found = jax.jit(map_elites.metrics)(_filled(), 10.0)
  assert {name: float(x) for name, x in found.items()} == {
    "qd/qd_score": 7.0 + 11.0 + 8.0,
    "qd/coverage": 60.0,
    "qd/max_fitness": 1.0,
    "qd/num_outside": 1.0,
  }


def test_without_an_offset_the_score_is_the_sum_of_fitness():
  assert float(map_elites.qd_score(_filled())) == -4.0


def test_metrics_of_an_empty_repertoire():
  found = map_elites.metrics(_EMPTY, 10.0)
  assert float(found["qd/qd_score"]) == 0
  assert float(found["qd/coverage"]) == 0
  assert int(found["qd/num_outside"]) == 0
  assert np.isnan(found["qd/max_fitness"])
