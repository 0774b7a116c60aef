"""Tests of how children differ from their parents where nobody is replaced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers

_SPACE = {
  "fixed": controllers.Fixed(3.0),
  "rate": controllers.LogUniform(1e-4, 1e-1),
  "tau": controllers.LogUniform(1e-4, 1e-1),
}
_SIZE = 64


def _parents(**values):
  values = {"fixed": 3.0, "rate": 0.01, "tau": 0.01} | values
  return {name: jnp.full(_SIZE, x) for name, x in values.items()}


def _explored(seed=0, space=_SPACE, parents=None, **config):
  explore = controllers.explore(controllers.PBTConfig(**config), space)
  children = jax.jit(explore)(
    jax.random.key(seed), parents or _parents()
  )
  return jax.device_get(children)


def test_children_are_one_factor_away():
  children = _explored(perturbation_factors=(0.5, 4.0))
  for name in ("rate", "tau"):
    factors = children[name] / 0.01
    assert np.all(
      np.isclose(factors, 0.5, rtol=1e-4) | np.isclose(factors, 4, rtol=1e-4)
    )
    # Of 64 coins.
    assert 16 < np.sum(factors > 1) < 48
  np.testing.assert_array_equal(children["fixed"], 3.0)


def test_hyperparameters_step_independently_of_each_other():
  children = _explored()
  ups = [children[name] > 0.01 for name in ("rate", "tau")]
  assert 16 < np.sum(ups[0] == ups[1]) < 48


def test_children_stay_inside_the_range():
  for rate in (1e-4, 1e-1):
    for kind in ("perturb", "resample", "mixed"):
      children = _explored(explore=kind, parents=_parents(rate=rate))
      assert np.all(children["rate"] >= 1e-4 * (1 - 1e-5))
      assert np.all(children["rate"] <= 1e-1 * (1 + 1e-5))


def test_resampled_children_are_spread_over_the_range():
  rates = _explored(explore="resample")["rate"]
  assert len(set(rates.tolist())) == _SIZE
  quarters, _ = np.histogram(np.log10(rates), np.linspace(-4, -1, 4))
  assert quarters.sum() == _SIZE and quarters.min() > 8


def test_the_mixture_resamples_as_often_as_it_is_told():
  rates = _explored(explore="mixed", resample_probability=0.5)["rate"]
  perturbed = np.isclose(rates, 0.008) | np.isclose(rates, 0.0125)
  assert 16 < np.sum(perturbed) < 48


def test_each_child_is_of_its_own_parent():
  rates = jnp.geomspace(1e-3, 1e-2, _SIZE)
  children = _explored(parents=_parents() | {"rate": rates})
  factors = children["rate"] / np.asarray(rates)
  assert np.all(
    np.isclose(factors, 0.8, rtol=1e-4) | np.isclose(factors, 1.25, rtol=1e-4)
  )


def test_no_child_equals_its_parent():
  # Reflected at the upper bound, one step up of this leads back to it.
  top = 0.1 / np.sqrt(1.25)
  space = {"rate": controllers.LogUniform(1e-4, 1e-1)}
  children = _explored(
    space=space, parents={"rate": jnp.full(_SIZE, top, jnp.float32)}
  )
  assert not np.any(np.isclose(children["rate"], top, rtol=1e-5))


def test_where_all_is_fixed_nothing_changes():
  space = {name: controllers.Fixed(0.5) for name in ("a", "b")}
  parents = {name: jnp.full(_SIZE, 0.5) for name in space}
  children = _explored(space=space, parents=parents)
  for name in space:
    np.testing.assert_array_equal(children[name], 0.5)


def test_the_key_alone_decides():
  first, again, other = _explored(1), _explored(1), _explored(2)
  np.testing.assert_array_equal(first["rate"], again["rate"])
  assert np.any(first["rate"] != other["rate"])


def test_a_leaf_that_is_no_range_is_refused():
  with pytest.raises(ValueError, match=r"\['tau'\]=0.1 is not a range.*Fixed"):
    controllers.explore(controllers.PBTConfig(), {"tau": 0.1})
