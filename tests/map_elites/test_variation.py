"""Tests of the variation operators."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import learners, map_elites
from tests import configs

_N = 4000
# The least p-value that chance alone is allowed; the keys are fixed.
_P_VALUE = 1e-3


_iso_line = jax.jit(map_elites.iso_line)


def _parents():
  """Leaves of equal sizes, whose draws must differ all the same."""
  shapes = {"a": (_N,), "b": (_N, 1, 2), "c": (_N, 2)}
  x1 = {name: jnp.ones(shape) for name, shape in shapes.items()}
  x2 = {"a": x1["a"] + 3.0, "b": x1["b"] + 4.0, "c": x1["c"] + 5.0}
  return x1, x2


def _steps(iso_sigma, line_sigma, seed=0):
  """What an offspring's five numbers differ in from the first parent's."""
  x1, x2 = _parents()
  y = _iso_line(jax.random.key(seed), x1, x2, iso_sigma, line_sigma)
  return np.concatenate(
    [np.asarray(y[name] - x1[name]).reshape(_N, -1) for name in "abc"], axis=1
  )


def test_iso_noise_is_normal_and_independent_everywhere():
  steps = _steps(0.5, 0.0)
  for column in steps.T:
    assert stats.kstest(column, stats.norm(scale=0.5).cdf).pvalue > _P_VALUE
  correlations = np.corrcoef(steps.T) - np.eye(5)
  assert np.abs(correlations).max() < 4 / math.sqrt(_N)
  # Nor does one offspring's noise say anything of the next one's.
  assert abs(np.corrcoef(steps[1:, 0], steps[:-1, 0])[0, 1]) < 0.07


def test_line_is_one_normal_number_per_offspring_for_all_leaves():
  steps = _steps(0.0, 0.25)
  line = steps[:, 0] / 3.0
  np.testing.assert_allclose(
    steps, line[:, None] * [[3.0, 4.0, 4.0, 5.0, 5.0]], atol=1e-5
  )
  assert stats.kstest(line, stats.norm(scale=0.25).cdf).pvalue > _P_VALUE


def test_both_terms_add_up_and_do_not_depend_on_each_other():
  both, iso, line = _steps(0.5, 0.25), _steps(1.0, 0.0), _steps(0.0, 1.0)
  np.testing.assert_allclose(both, 0.5 * iso + 0.25 * line, atol=1e-5)
  correlations = np.corrcoef(iso.T, line[:, 0])[-1, :-1]
  assert np.abs(correlations).max() < 4 / math.sqrt(_N)


def test_identical_parents_get_iso_noise_only():
  x = jnp.zeros((_N, 2))
  y = map_elites.iso_line(jax.random.key(0), x, x, 0.1, 100.0)
  assert np.std(y) == pytest.approx(0.1, rel=0.05)


def test_keys_decide_the_draws():
  first, again, other = (_steps(0.5, 0.25, seed) for seed in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert not np.any(first == other)


def test_only_floats_vary_and_dtypes_stay():
  x1 = {
    "half": jnp.ones((5, 2), jnp.bfloat16),
    "count": jnp.arange(5, dtype=jnp.int8),
    "flag": jnp.array([True, False, True, True, False]),
    "scalar": jnp.ones(5),
  }
  x2 = jax.tree.map(lambda x: jnp.zeros_like(x), x1)
  y = _iso_line(jax.random.key(0), x1, x2, 1.0, 1.0)
  for name in x1:
    assert y[name].dtype == x1[name].dtype
    assert y[name].shape == x1[name].shape
  for name in ("count", "flag"):
    np.testing.assert_array_equal(y[name], x1[name])
  for name in ("half", "scalar"):
    assert np.any(np.asarray(y[name] != x1[name]))


def test_the_same_numbers_under_jit_and_traced_sigmas():
  x1, x2 = _parents()
  plain = map_elites.iso_line(jax.random.key(0), x1, x2, 0.5, 0.25)
  compiled = _iso_line(jax.random.key(0), x1, x2, 0.5, 0.25)
  for name in plain:
    np.testing.assert_allclose(plain[name], compiled[name], atol=1e-5)


@pytest.mark.parametrize(
  "empty", [np.zeros((0, 3), np.float32), {"a": np.zeros((0,))}, {}, ()]
)
def test_there_may_be_nothing_to_vary(empty):
  y = map_elites.iso_line(jax.random.key(0), empty, empty, 1.0, 1.0)
  assert jax.tree.structure(y) == jax.tree.structure(empty)
  assert jax.tree.map(jnp.shape, y) == jax.tree.map(jnp.shape, empty)


@pytest.mark.parametrize(
  "x1, x2, complaint",
  [
    ({"a": np.zeros(2)}, {"b": np.zeros(2)}, "x1 is .*'a'.* x2 is .*'b'"),
    ({"a": np.zeros((2, 3))}, {"a": np.zeros((2, 1))}, r"x1\['a'\] .*\(2, 3\)"),
    ({"a": np.zeros(2), "b": np.zeros(3)},) * 2 + (r"x1\['a'\] has shape",),
    (np.zeros(()), np.zeros(()), r"x1 has shape \(\) .* one row per offspring"),
  ],
)
def test_parents_that_do_not_fit_are_refused(x1, x2, complaint):
  with pytest.raises(ValueError, match=complaint):
    map_elites.iso_line(jax.random.key(0), x1, x2, 1.0, 1.0)


class _Genotype(NamedTuple):
  policy_params: Any
  counter: Any
  statistics: Any


def _genotypes(value, n=3):
  return _Genotype(
    {"layer": {"w": jnp.full((n, 2, 2), value), "b": jnp.full((n, 2), value)}},
    jnp.full(n, int(value), jnp.int32),
    {"mean": jnp.full((n, 2), value)},
  )


def _add(key, x1, x2):
  del key
  return jax.tree.map(jnp.add, x1, x2)


def test_weights_only_leaves_the_rest_to_the_first_parent():
  y = map_elites.weights_only(_add)(
    jax.random.key(0), _genotypes(1.0), _genotypes(10.0)
  )
  expected = _genotypes(1.0)._replace(
    policy_params=_genotypes(11.0).policy_params
  )
  jax.tree.map(np.testing.assert_array_equal, y, expected)


def test_weights_only_hands_the_key_and_the_weights_in_their_tree():
  seen = []

  def variation(key, x1, x2):
    seen.extend([key, x1, x2])
    return x1

  key = jax.random.key(3)
  map_elites.weights_only(variation)(key, _genotypes(1.0), _genotypes(2.0))
  assert seen[0] is key
  for x in seen[1:]:
    assert x.counter is None and x.statistics == {"mean": None}
  assert np.all(seen[2].policy_params["layer"]["w"] == 2.0)


def test_weights_of_a_sac_agent_are_its_networks():
  learner = learners.sac(
    3,
    2,
    configs.make(
      learners.SACConfig,
      policy_hidden_layer_sizes=(4,),
      critic_hidden_layer_sizes=(4,),
      normalize_observations=True,
    ),
  )

  shapes = jax.eval_shape(
    lambda key: learner.genotype(learner.init(key)), jax.random.key(0)
  )
  x1, x2 = (
    jax.tree.map(lambda x, v=v: np.full((5, *x.shape), v, x.dtype), shapes)
    for v in (1.0, 2.0)
  )
  vary = jax.jit(
    map_elites.weights_only(
      functools.partial(map_elites.iso_line, iso_sigma=0.1, line_sigma=0.1)
    )
  )
  # As one agent among others, too, such as DIAYN's own.
  y = vary(
    jax.random.key(2),
    {"agent": x1, "steps": jnp.zeros(5)},
    {"agent": x2, "steps": jnp.ones(5)},
  )
  np.testing.assert_array_equal(y["steps"], np.zeros(5))
  y = y["agent"]
  assert jax.tree.structure(y) == jax.tree.structure(x1)
  for name in ("policy_params", "critic_params"):
    pairs = zip(
      jax.tree.leaves(getattr(y, name)),
      jax.tree.leaves(getattr(x1, name)),
      strict=True,
    )
    assert all(np.all(np.asarray(a != b)) for a, b in pairs)
  for name in ("log_temperature", "observation_statistics"):
    jax.tree.map(
      np.testing.assert_array_equal, getattr(y, name), getattr(x1, name)
    )


def test_a_plain_array_is_all_weights():
  x1 = (jnp.ones((2, 3)), jnp.arange(2))
  y = map_elites.weights_only(_add)(jax.random.key(0), x1, x1)
  np.testing.assert_array_equal(y[0], np.full((2, 3), 2.0))
  np.testing.assert_array_equal(y[1], x1[1])


@pytest.mark.parametrize(
  "genotype", [jnp.ones((2, 3)), {"params": jnp.ones((2, 3))}]
)
def test_hyperparams_are_no_weights(genotype):
  x = map_elites.Elite(genotype, {"discount": jnp.full(2, 0.9)})
  y = map_elites.weights_only(_add)(jax.random.key(0), x, x)
  np.testing.assert_array_equal(
    y.hyperparams["discount"], x.hyperparams["discount"]
  )
  assert np.all(jax.tree.leaves(y.genotype)[0] == 2.0)


def test_a_rule_of_ones_own_says_what_varies():
  def is_weight(path):
    return path[0].name == "statistics"

  y = map_elites.weights_only(_add, is_weight)(
    jax.random.key(0), _genotypes(1.0), _genotypes(10.0)
  )
  expected = _genotypes(1.0)._replace(statistics=_genotypes(11.0).statistics)
  jax.tree.map(np.testing.assert_array_equal, y, expected)


def test_a_genotype_without_weights_is_refused():
  vary = map_elites.weights_only(_add, lambda path: False)
  with pytest.raises(ValueError, match="is_weight=.* finds no weights"):
    vary(jax.random.key(0), _genotypes(1.0), _genotypes(1.0))


def test_a_variation_that_returns_another_tree_is_refused():
  vary = map_elites.weights_only(lambda key, x1, x2: x1.policy_params)
  with pytest.raises(ValueError, match="variation_fn=.* return the tree"):
    vary(jax.random.key(0), _genotypes(1.0), _genotypes(1.0))
