"""A Gaussian process over points in time and positions.

Arrays have fixed shapes; masked points change nothing. Equations are those of
Rasmussen and Williams (2006), "Gaussian Processes for Machine Learning".

Where an expression stands twice, XLA merges both in a program for several
devices and may not in one for a single device, which then rounds otherwise. So
every number is computed in one place, and decisions don't depend on devices.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.scipy.linalg import cho_factor, solve_triangular

from qdrl_haiku.types import Array, Tree

# Share of the kernel's variance per point that is added to the diagonal, so
# that float32 factorises any number of equal points.
JITTER = 1e-6
_LEARNING_RATE = 0.1
_COLUMNS = 4
_FEW_POINTS = 256


class Points(NamedTuple):
  """Holds the inputs of a Gaussian process, of one point or of N."""

  age: Array  # [N], how many decisions ago; 0 where values are predicted.
  position: Array  # [N, D], each coordinate about in [0, 1].
  # [N], 1 for the first changes of replaced members, else 0.
  is_first: Array


class Parameters(NamedTuple):
  """Holds the parameters of the kernel and of the noise, all positive."""

  variance: Array  # [], of the process.
  noise: Array  # [], the variance of the observations' noise.
  length_scales: Array  # [D], on which each coordinate matters.
  forgetting: Array  # [], epsilon: the share that changes in a step of time.


# The bounds of parameters in their order, for values of variance 1.
_LOWEST, _HIGHEST = (0.05, 1e-3, 0.1, 1e-3), (5.0, 1.0, 10.0, 0.5)


class Posterior(NamedTuple):
  """Holds the posterior given N points, masked ones included.

  The whitening [N, N] is the inverse Cholesky factor of the covariance, the
  weights [N] are alpha, both times `_remembered` of each column's point.
  """

  parameters: Parameters
  points: Points
  whitening: Array
  weights: Array


def init_gaussian_process(num_coordinates: int) -> Parameters:
  """Returns parameters from which `fit_gaussian_process` may start."""
  scales = jnp.full(num_coordinates, 0.5)
  return Parameters(*map(jnp.float32, (1.0, 0.1, scales, 0.1)))


def _similarity(parameters: Parameters, first: Points, second: Points) -> Array:
  """Returns the covariance of two points of one age.

  PB2's (Parker-Holder et al., 2020, arXiv:2002.02518, section 4.2) is, with
  the distance r of two positions measured in length scales,

    k = variance exp(-r^2 / 2)

  times what `_remembered` returns. For two first changes it is `variance` more,
  as if they shared an unknown offset: a parent was lucky in its evaluation.
  """
  # By itself XLA would multiply by the inverse, instead of dividing, on some
  # numbers of devices only, and round differently there.
  inverse = 1 / parameters.length_scales
  distance = jnp.sum(((first.position - second.position) * inverse) ** 2)
  alike = jnp.exp(-0.5 * distance)
  return parameters.variance * (alike + first.is_first * second.is_first)


def _remembered(parameters: Parameters, apart: Array) -> Array:
  """Returns (1 - epsilon)^(|t - t'| / 2)."""
  return jnp.exp(0.5 * jnp.log1p(-parameters.forgetting) * apart)


def _covariance(parameters: Parameters, points: Points, known: Array) -> Array:
  """Returns the covariance of noisy observations, the identity elsewhere."""
  size = known.shape[0]
  pairs = jax.vmap(jax.vmap(_similarity, (None, None, 0)), (None, 0, None))(
    parameters, points, points)
  apart = jnp.abs(points.age[:, None] - points.age)
  identity = jnp.eye(size, dtype=apart.dtype)
  added = parameters.noise + JITTER * size * parameters.variance
  covariance = pairs * _remembered(parameters, apart) + added * identity
  return jnp.where(known[:, None] & known, covariance, identity)


def _inverse_factor(covariance: Array) -> Array:
  """Returns the inverse of the lower Cholesky factor."""
  factor, is_lower = cho_factor(covariance, lower=True)
  # Of a large batch LAPACK's threads wait for each other: in loops, which takes
  # ten times as long on a busy machine, and for ever, where as many devices do
  # as there are threads. So there are a few columns at a time, or one.
  size = covariance.shape[0]
  return jax.lax.map(
    lambda column: solve_triangular(factor, column, lower=is_lower),
    jnp.eye(size, dtype=covariance.dtype),
    batch_size=_COLUMNS if size <= _FEW_POINTS else None).T


def gaussian_process_gradient(
  parameters: Parameters, points: Points, values: Array, mask: Array
) -> Parameters:
  """Returns the gradient of the log marginal likelihood (equation 5.9).

    d/dtheta = tr((alpha alpha' - K^-1) dK/dtheta) / 2

  It's by `parameters`, of `values` [N] observed at `points` [N] where `mask`,
  bool [N], is true.
  """
  covariance, pull_back = jax.vjp(
    lambda parameters: _covariance(parameters, points, mask), parameters)
  inverse = _inverse_factor(covariance)
  weights = (inverse @ jnp.where(mask, values, 0.0)) @ inverse
  (slopes,) = pull_back(
    0.5 * (jnp.outer(weights, weights) - inverse.T @ inverse))
  return slopes


def fit_gaussian_process(
  start: Parameters, points: Points, values: Array, mask: Array, num_steps: int
) -> Parameters:
  """Maximises the likelihood by Adam on logarithms, within bounds.

  `start` are the first parameters, of `num_steps` steps; `points`, `values` and
  `mask` are those of `gaussian_process_gradient`.
  """
  adam = optax.adam(_LEARNING_RATE)

  def step(carry: Tree, _: None) -> tuple[Tree, None]:
    parameters, state = carry
    slopes = gaussian_process_gradient(parameters, points, values, mask)
    # The gradient of the negative by logarithms.
    descent = jax.tree.map(
      lambda x, slope: jnp.nan_to_num(-x * slope), parameters, slopes)
    updates, state = adam.update(descent, state)
    moved = jax.tree.map(lambda x, y: x * jnp.exp(y), parameters, updates)
    bounded = Parameters(*map(jnp.clip, moved, _LOWEST, _HIGHEST))
    return (bounded, state), None

  carry = start, adam.init(start)
  return jax.lax.scan(step, carry, length=num_steps)[0][0]


def condition_gaussian_process(
  parameters: Parameters, points: Points, values: Array, mask: Array,
  pending: Array,
) -> Posterior:
  """Returns the posterior after observations (algorithm 2.1).

  Args:
    parameters: of kernel and noise.
    points: of N observations, those that are pending after the others.
    values: [N], what was observed; read where `mask` is true.
    mask: bool [N], which points were observed.
    pending: bool [N], which points lower deviations as if they were observed,
      and change no means.
  """
  known = mask | pending
  inverse = _inverse_factor(_covariance(parameters, points, known))
  inverse = jnp.where(known[:, None], inverse, 0.0)
  explained = jnp.where(mask, inverse @ jnp.where(mask, values, 0.0), 0.0)
  whitening = inverse * _remembered(parameters, points.age)
  return Posterior(parameters, points, whitening, explained @ whitening)


def predict_gaussian_process(
  posterior: Posterior, point: Points
) -> tuple[Array, Array]:
  """Returns the mean and the deviation of the process at one point of age 0.

  Equations 2.25 and 2.26, without the noise:

    mean = k' alpha,  variance = k(x, x) - |L^-1 k|^2
  """
  parameters, points, whitening, weights = posterior
  covariance = jax.vmap(_similarity, (None, 0, None))(parameters, points, point)
  explained = jnp.sum((whitening @ covariance) ** 2)
  prior = parameters.variance * (1 + point.is_first**2)
  variance = prior - explained
  # Rounding must not make it negative, nor the root's gradient infinite.
  deviation = jnp.sqrt(jnp.maximum(variance, 1e-6 * parameters.variance))
  return weights @ covariance, deviation
