"""Tests of the variation operators."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from qdrl_haiku import map_elites, networks

_N = 4000
# The least p-value that chance alone is allowed; the keys are fixed.
_P_VALUE = 1e-3

_iso_line = jax.jit(map_elites.iso_line)


def _steps(iso_sigma, line_sigma, seed=0):
  """What an offspring's five numbers differ in from the first parent's.

  The parents' leaves are of equal sizes, and their draws must differ.
  """
  shapes = {"a": (_N,), "b": (_N, 1, 2), "c": (_N, 2)}
  x1 = {name: jnp.ones(shape) for name, shape in shapes.items()}
  x2 = {"a": x1["a"] + 3.0, "b": x1["b"] + 4.0, "c": x1["c"] + 5.0}
  y = _iso_line(jax.random.key(seed), x1, x2, iso_sigma, line_sigma)
  return np.concatenate(
    [np.asarray(y[name] - x1[name]).reshape(_N, -1) for name in "abc"], axis=1)


def test_iso_noise_is_normal_and_independent_everywhere():
  steps = _steps(0.5, 0.0)
  for column in steps.T:
    assert stats.kstest(column, stats.norm(scale=0.5).cdf).pvalue > _P_VALUE
  correlations = np.corrcoef(steps.T) - np.eye(5)
  assert np.abs(correlations).max() < 4 / math.sqrt(_N)
  # Nor does one offspring's noise say anything of the next one's.
  assert abs(np.corrcoef(steps[1:, 0], steps[:-1, 0])[0, 1]) < 0.07
  # Other keys, other noise.
  assert not np.any(steps == _steps(0.5, 0.0, seed=1))


def test_line_is_one_normal_number_per_offspring_for_all_leaves():
  steps = _steps(0.0, 0.25)
  line = steps[:, 0] / 3.0
  np.testing.assert_allclose(
    steps, line[:, None] * [[3.0, 4.0, 4.0, 5.0, 5.0]], atol=1e-5)
  assert stats.kstest(line, stats.norm(scale=0.25).cdf).pvalue > _P_VALUE


def test_both_terms_add_up_and_do_not_depend_on_each_other():
  both, iso, line = _steps(0.5, 0.25), _steps(1.0, 0.0), _steps(0.0, 1.0)
  np.testing.assert_allclose(both, 0.5 * iso + 0.25 * line, atol=1e-5)
  correlations = np.corrcoef(iso.T, line[:, 0])[-1, :-1]
  assert np.abs(correlations).max() < 4 / math.sqrt(_N)


def test_only_floats_vary_and_dtypes_stay():
  x1 = {
    "half": jnp.ones((5, 2), jnp.bfloat16),
    "count": jnp.arange(5, dtype=jnp.int8),
    "flag": jnp.array([True, False, True, True, False]),
    "scalar": jnp.ones(5)}
  x2 = jax.tree.map(jnp.zeros_like, x1)
  y = _iso_line(jax.random.key(0), x1, x2, 1.0, 1.0)
  for name in x1:
    assert y[name].dtype == x1[name].dtype
    assert y[name].shape == x1[name].shape
    varies = np.any(np.asarray(y[name] != x1[name]))
    assert varies == (name in ("half", "scalar"))
  none = jax.tree.map(lambda x: x[:0], x1)
  nothing = map_elites.iso_line(jax.random.key(0), none, none, 1.0, 1.0)
  assert jax.tree.map(jnp.shape, nothing) == jax.tree.map(jnp.shape, none)


class _Genotype(NamedTuple):
  policy_params: Any
  counter: Any
  statistics: Any


def _genotypes(value, n=3):
  return _Genotype(
    {"layer": {"w": jnp.full((n, 2, 2), value), "b": jnp.full((n, 2), value)}},
    jnp.full(n, int(value), jnp.int32), {"mean": jnp.full((n, 2), value)})


def _add(key, x1, x2):
  del key
  return jax.tree.map(jnp.add, x1, x2)


def _vary(x1, x2):
  return map_elites.weights_only(_add)(jax.random.key(0), x1, x2)


def test_weights_only_leaves_the_rest_to_the_first_parent():
  x1, x2, both = map(_genotypes, (1.0, 10.0, 11.0))
  expected = x1._replace(policy_params=both.policy_params)
  jax.tree.map(np.testing.assert_array_equal, _vary(x1, x2), expected)


def test_the_running_state_of_a_network_is_the_first_parents():
  def genotype(value):
    x = jnp.full((3, 2), value)
    return _Genotype(networks.Variables({"w": x}, {"variance": x}), x, x)

  varied = _vary(genotype(1.0), genotype(10.0))
  assert np.all(varied.policy_params.params["w"] == 11.0)
  assert np.all(varied.policy_params.state["variance"] == 1.0)
  # A field of that name elsewhere is nothing special.
  varied = _vary({"state": jnp.ones((3, 2))}, {"state": jnp.ones((3, 2))})
  assert np.all(varied["state"] == 2.0)


def test_a_plain_array_is_all_weights_and_hyperparams_are_none():
  x1 = (jnp.ones((2, 3)), jnp.arange(2))
  varied = _vary(x1, x1)
  np.testing.assert_array_equal(varied[0], np.full((2, 3), 2.0))
  np.testing.assert_array_equal(varied[1], x1[1])
  for genotype in (jnp.ones((2, 3)), {"params": jnp.ones((2, 3))}):
    x = map_elites.Elite(genotype, {"discount": jnp.full(2, 0.9)})
    varied = _vary(x, x)
    np.testing.assert_array_equal(
      varied.hyperparams["discount"], x.hyperparams["discount"])
    assert np.all(jax.tree.leaves(varied.genotype)[0] == 2.0)
