"""Tests of what groups of several frequencies are for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers


def _trapped(controller):
  """The lowest loss of the noisy quadratic model at the end, by seed.

  Wu et al. (2018), "Understanding Short-Horizon Bias in Stochastic
  Meta-Optimization", arXiv:1803.02021, section 2: curvatures h over three
  decades, and gradients h (x - c) with c of variance 1 / h. A high rate is
  needed where it's flat and adds noise where it's steep, so that annealing wins
  at once what it loses in the end. A member is trained by ten steps of it.
  """
  curvature = jnp.logspace(0.0, -3.0, 100)

  def run(seed):
    key = jax.random.key(seed)
    state, hyperparams = controller.init(jax.random.fold_in(key, 0), 8)

    def generation(carry, number):
      state, hyperparams, points = carry
      own = jax.random.fold_in(key, number)

      def step(points, key):
        noise = jax.random.normal(key, points.shape) / jnp.sqrt(curvature)
        rate = hyperparams["learning_rate"][:, None]
        return points - rate * curvature * (points - noise), None

      points, _ = jax.lax.scan(step, points, jax.random.split(own, 10))
      fitness = -0.5 * jnp.sum(curvature * points**2, axis=1)
      state, decision = controller.update(state, own, fitness, hyperparams)
      points = controllers.inherit(points, decision.parents)
      return (state, decision.hyperparams, points), -jnp.max(fitness)

    carry = state, hyperparams, jnp.ones((8, 100))
    return jax.lax.scan(generation, carry, 1 + jnp.arange(200))[1][-1]

  return np.asarray(jax.jit(jax.vmap(run))(jnp.arange(10)))


@pytest.mark.slow
def test_several_frequencies_leave_a_greedy_trap():
  space = {"learning_rate": controllers.LogUniform(1e-3, 1.0)}
  pbt = _trapped(controllers.pbt(controllers.PBTConfig(), space))
  mf_pbt = _trapped(controllers.mf_pbt(controllers.MFPBTConfig(), space))
  random_search = _trapped(
    controllers.make_controller(controllers.RandomSearchConfig(), space))
  # Of 100 seeds 90, 98 and, of PBT against random search, 91.
  assert np.sum(mf_pbt < pbt) >= 9
  assert np.sum(mf_pbt < random_search) >= 9
  assert np.median(pbt) < np.median(random_search)
