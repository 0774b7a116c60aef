"""Tests of what each controller is for, where the answer is known.

Each seed is a run of its own; all of them are one program.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers

_NUM_SEEDS = 10


def _final(controller, num_decisions, members, train):
  """The best fitness at the end, by seed; a population is trained by
  (members, hyperparameters, key, number) -> (members, fitness)."""
  size = len(members)

  def run(seed):
    key = jax.random.key(seed)
    state, hyperparams = controller.init(jax.random.fold_in(key, 0), size)

    def generation(carry, number):
      state, hyperparams, members = carry
      own = jax.random.fold_in(key, number)
      members, fitness = train(members, hyperparams, own, number)
      state, decision = controller.update(state, own, fitness, hyperparams)
      members = controllers.inherit(members, decision.parents)
      return (state, decision.hyperparams, members), jnp.max(fitness)

    carry = state, hyperparams, members
    return jax.lax.scan(generation, carry, 1 + jnp.arange(num_decisions))[1][-1]

  return np.asarray(jax.jit(jax.vmap(run))(jnp.arange(_NUM_SEEDS)))


def _trapped(controller):
  """The lowest loss of the noisy quadratic model.

  Wu et al. (2018), "Understanding Short-Horizon Bias in Stochastic
  Meta-Optimization", arXiv:1803.02021, section 2: curvatures h over three
  decades, and gradients h (x - c) with c of variance 1 / h. A high rate is
  needed where it's flat and adds noise where it's steep, so that annealing wins
  at once what it loses in the end. A member is trained by ten steps of it.
  """
  curvature = jnp.logspace(0.0, -3.0, 100)

  def train(points, hyperparams, key, number):
    def step(points, key):
      noise = jax.random.normal(key, points.shape) / jnp.sqrt(curvature)
      rate = hyperparams["learning_rate"][:, None]
      return points - rate * curvature * (points - noise), None

    points, _ = jax.lax.scan(step, points, jax.random.split(key, 10))
    return points, -0.5 * jnp.sum(curvature * points**2, axis=1)

  return -_final(controller, 200, jnp.ones((8, 100)), train)


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


def _regret(controller, num_decisions=40):
  """The distance of the fittest at the end from the best possible.

  What members gain until a decision falls with the squared distance of two
  hyperparameters from a point that goes round once.
  """

  def train(fitness, hyperparams, key, number):
    angle = 2 * jnp.pi * number / num_decisions
    distance = jnp.hypot(
      hyperparams["x"] - 0.5 - 0.35 * jnp.cos(angle),
      hyperparams["y"] - 0.5 - 0.35 * jnp.sin(angle))
    fitness += 1 - 2 * distance**2
    return fitness, fitness

  return num_decisions - _final(controller, num_decisions, jnp.zeros(4), train)


@pytest.mark.slow
def test_a_model_follows_an_optimum_that_moves():
  space = {name: controllers.Uniform(0.0, 1.0) for name in "xy"}
  pbt = _regret(controllers.pbt(controllers.PBTConfig(), space))
  pb2 = _regret(controllers.pb2(controllers.PB2Config(window=64), space))
  # Of 40 seeds 39.
  assert np.sum(pb2 < pbt) >= 9
