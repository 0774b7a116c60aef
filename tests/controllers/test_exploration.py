"""Tests of exploring where no member is replaced, as offspring do."""

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import controllers

_RATE = controllers.LogUniform(1e-4, 1e-1)
_SPACE = {"fixed": controllers.Fixed(3.0), "rate": _RATE, "tau": _RATE}
_SIZE = 64


def _explored(rates=0.01, **config):
  explore = controllers.explore(controllers.PBTConfig(**config), _SPACE)
  rates = jnp.broadcast_to(jnp.asarray(rates, jnp.float32), _SIZE)
  parents = {"fixed": jnp.full(_SIZE, 3.0), "rate": rates, "tau": rates}
  return jax.device_get(jax.jit(explore)(jax.random.key(0), parents))


def test_children_are_one_factor_from_their_own_parents():
  rates = np.geomspace(1e-3, 1e-2, _SIZE)
  children = _explored(rates, perturbation_factors=(0.5, 4.0))
  ups = []
  for name in ("rate", "tau"):
    factors = children[name] / rates
    ups.append(np.isclose(factors, 4, rtol=1e-4))
    assert np.all(ups[-1] | np.isclose(factors, 0.5, rtol=1e-4))
    assert 16 < np.sum(ups[-1]) < 48
  # Each hyperparameter tosses its own coin.
  assert 16 < np.sum(ups[0] == ups[1]) < 48
  np.testing.assert_array_equal(children["fixed"], 3.0)


def test_children_at_a_bound_stay_inside_and_differ():
  # Reflected at the upper bound, a step up of this leads back to it.
  top = np.float32(0.1 / np.sqrt(1.25))
  children = _explored(top)
  rates = np.stack([children["rate"], children["tau"]])
  assert np.all((rates >= 1e-4) & (rates <= 1e-1))
  assert not np.any(np.all(np.isclose(rates, top, rtol=1e-5), axis=0))


def test_the_mixture_resamples_with_its_probability():
  rates = _explored(explore="mixed", resample_probability=0.5)["rate"]
  perturbed = np.isclose(rates, 0.008) | np.isclose(rates, 0.0125)
  assert 16 < np.sum(perturbed) < 48
