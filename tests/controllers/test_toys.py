"""Tests of what each controller is for, where the answer is known.

Each seed is a run of its own; all of them are one program.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers, learners

_NUM_SEEDS = 10


def noisy_quadratic(size=100, num_steps=10):
  """The noisy quadratic model as a user's learner.

  Wu et al. (2018), "Understanding Short-Horizon Bias in Stochastic
  Meta-Optimization", arXiv:1803.02021, section 2: curvatures h over three
  decades, and gradients h (x - c) with c of variance 1 / h. A high rate is
  needed where it's flat and adds noise where it's steep, so that annealing wins
  at once what it loses in the end. An update is some steps of it.
  """
  curvature = jnp.logspace(0.0, -3.0, size)

  def update(state, hyperparams, transitions, key):
    del transitions

    def step(point, key):
      noise = jax.random.normal(key, (size,)) / jnp.sqrt(curvature)
      gradient = curvature * (point - noise)
      return point - hyperparams["learning_rate"] * gradient, None

    point, _ = jax.lax.scan(step, state, jax.random.split(key, num_steps))
    return point, {"loss": 0.5 * jnp.sum(curvature * point**2)}

  return learners.Learner(
    init=lambda key: jnp.ones(size),
    update=update,
    act=lambda state, hyperparams, observation, key: jnp.zeros(1),
    act_greedy=lambda state, observation: jnp.zeros(1),
    observe=lambda state, observation: state,
    hyperparams={"learning_rate": 0.1},
    batches_per_update=1,
    genotype=lambda state: state,
    from_genotype=lambda genotype: genotype,
  )


def _trapped(controller, population_size=8, num_decisions=200):
  """The lowest loss at the end, by seed."""
  learner = noisy_quadratic()

  def run(seed):
    key = jax.random.key(seed)
    state, hyperparams = controller.init(
      jax.random.fold_in(key, 0), population_size
    )
    members = jax.vmap(learner.init)(jax.random.split(key, population_size))

    def generation(carry, number):
      state, hyperparams, members = carry
      key_ = jax.random.fold_in(key, number)
      members, metrics = jax.vmap(learner.update, (0, 0, None, 0))(
        members, hyperparams, None, jax.random.split(key_, population_size)
      )
      state, decision = controller.update(
        state, key_, -metrics["loss"], hyperparams
      )
      members = controllers.inherit(members, decision.parents)
      return (state, decision.hyperparams, members), jnp.min(metrics["loss"])

    _, losses = jax.lax.scan(
      generation,
      (state, hyperparams, members),
      1 + jnp.arange(num_decisions),
    )
    return losses[-1]

  return np.asarray(jax.jit(jax.vmap(run))(jnp.arange(_NUM_SEEDS)))


@pytest.mark.slow
def test_several_frequencies_leave_a_greedy_trap():
  space = {"learning_rate": controllers.LogUniform(1e-3, 1.0)}
  pbt = _trapped(controllers.pbt(controllers.PBTConfig(), space))
  mf_pbt = _trapped(controllers.mf_pbt(controllers.MFPBTConfig(), space))
  random_search = _trapped(controllers.random_search(space))
  # Of 100 seeds 90, 98 and, of PBT against random search, 91.
  assert np.sum(mf_pbt < pbt) >= 9
  assert np.sum(mf_pbt < random_search) >= 9
  assert np.median(pbt) < np.median(random_search)


def _regret(controller, population_size=4, num_decisions=40):
  """The distance of the fittest at the end from the best possible, by seed.

  What members gain until a decision falls with the squared distance of two
  hyperparameters from a point that goes round once.
  """

  def run(seed):
    key = jax.random.key(seed)
    state, hyperparams = controller.init(
      jax.random.fold_in(key, 0), population_size
    )

    def generation(carry, number):
      state, hyperparams, fitness = carry
      angle = 2 * jnp.pi * number / num_decisions
      distance = jnp.hypot(
        hyperparams["x"] - 0.5 - 0.35 * jnp.cos(angle),
        hyperparams["y"] - 0.5 - 0.35 * jnp.sin(angle),
      )
      fitness += 1 - 2 * distance**2
      state, decision = controller.update(
        state, jax.random.fold_in(key, number), fitness, hyperparams
      )
      inherited = fitness[decision.parents]
      return (state, decision.hyperparams, inherited), jnp.max(fitness)

    _, fittest = jax.lax.scan(
      generation,
      (state, hyperparams, jnp.zeros(population_size)),
      1 + jnp.arange(num_decisions),
    )
    return num_decisions - fittest[-1]

  return np.asarray(jax.jit(jax.vmap(run))(jnp.arange(_NUM_SEEDS)))


@pytest.mark.slow
def test_a_model_follows_an_optimum_that_moves():
  space = {name: controllers.Uniform(0.0, 1.0) for name in "xy"}
  pbt = _regret(controllers.pbt(controllers.PBTConfig(), space))
  pb2 = _regret(controllers.pb2(controllers.PB2Config(window=64), space))
  # Of 40 seeds 39.
  assert np.sum(pb2 < pbt) >= 9
