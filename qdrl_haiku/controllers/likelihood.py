"""Parameters of a Gaussian process under which observations are likely.

Rasmussen and Williams (2006), "Gaussian Processes for Machine Learning",
chapter 5.
"""

import math

import jax
import jax.numpy as jnp
import optax

from qdrl_haiku.controllers.gaussian_process import (
  JITTER,
  Parameters,
  Points,
  condition,
  factors,
)
from qdrl_haiku.types import Array

_LEARNING_RATE = 0.1
# The bounds of what is fitted, for values of variance 1.
_LOWEST = Parameters(
  variance=0.05, noise=1e-3, length_scales=0.1, forgetting=1e-3, mixture=0.05
)
_HIGHEST = Parameters(
  variance=5.0, noise=1.0, length_scales=10.0, forgetting=0.5, mixture=1.0
)


def gradient(
  parameters: Parameters, points: Points, values: Array, mask: Array
) -> Parameters:
  """Returns the gradient of the log marginal likelihood (equation 5.9).

  d/dtheta = tr((alpha alpha' - K^-1) dK/dtheta) / 2
  """
  posterior = condition(parameters, points, values, mask)
  weights, whitening = posterior.weights, posterior.whitening
  by_covariance = 0.5 * (
    weights[:, None] * weights[None] - whitening.T @ whitening
  )
  alike, agreement, remembered = factors(parameters, points, points)
  mixture = jnp.asarray(parameters.mixture)
  mixed, by_alike = alike, jnp.ones_like(mixture)
  by_mixture = jnp.zeros_like(mixture)
  scaled = by_covariance * remembered
  if agreement is not None:
    mean, product = 0.5 * (agreement + alike), agreement * alike
    mixed = (1 - mixture) * mean + mixture * product
    by_alike = 0.5 * (1 - mixture) + mixture * agreement
    by_mixture = parameters.variance * jnp.sum(scaled * (product - mean))
  by_logarithm = scaled * mixed
  apart = jnp.abs(points.time[:, None] - points.time[None])
  # Of each pair (x - x')^2 = x^2 - 2 x x' + x'^2, and all is symmetric.
  by_distance = scaled * by_alike * alike
  centred = points.position - 0.5
  squares = jnp.sum(by_distance, axis=1) @ centred**2
  products = jnp.sum(centred * (by_distance @ centred), axis=0)
  total = jnp.sum(by_logarithm)
  trace = jnp.trace(by_covariance)
  variance = parameters.variance
  return Parameters(
    variance=total + JITTER * trace,
    noise=trace,
    length_scales=2
    * variance
    * (squares - products)
    / parameters.length_scales**3,
    forgetting=-0.5
    * variance
    * jnp.sum(by_logarithm * apart)
    / (1 - parameters.forgetting),
    mixture=by_mixture,
  )


def fit(
  start: Parameters,
  points: Points,
  values: Array,
  mask: Array,
  num_steps: int,
) -> Parameters:
  """Chooses parameters under which the observations are likely.

  Adam climbs the log marginal likelihood in the parameters' logarithms, for a
  fixed number of steps and within bounds.
  """
  adam = optax.adam(_LEARNING_RATE)
  low, high = (jax.tree.map(math.log, x) for x in (_LOWEST, _HIGHEST))

  def step(
    carry: tuple[Parameters, optax.OptState], _: None
  ) -> tuple[tuple[Parameters, optax.OptState], None]:
    logarithms, state = carry
    parameters = jax.tree.map(jnp.exp, logarithms)
    by_parameter = gradient(parameters, points, values, mask)
    # The loss is the negative, and its derivative by a logarithm x dL/dx.
    loss = jax.tree.map(lambda x, y: -x * y, parameters, by_parameter)
    updates, state = adam.update(loss, state)
    new = optax.apply_updates(logarithms, updates)
    return (jax.tree.map(jnp.clip, new, low, high), state), None

  logarithms = jax.tree.map(jnp.log, start)
  (logarithms, _), _ = jax.lax.scan(
    step, (logarithms, adam.init(logarithms)), length=num_steps
  )
  return jax.tree.map(jnp.exp, logarithms)
