"""A Gaussian process over points in time, positions and categories.

Arrays have fixed shapes; masked points change nothing. Equations are those of
Rasmussen and Williams (2006), "Gaussian Processes for Machine Learning".
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.scipy.linalg import cho_factor, solve_triangular

from qdrl_haiku.types import Array

# Share of the kernel's variance per point that is added to the diagonal, so
# that float32 factorises any number of equal points.
JITTER = 1e-6
_LEARNING_RATE = 0.1
_COLUMNS = 4


class Points(NamedTuple):
  """Holds the inputs of a Gaussian process, of one point or of N.

  Attributes:
    time: [N], in decisions.
    position: [N, D], each coordinate about in [0, 1].
    category: [N, K], numbers of which only equality matters.
  """

  time: Array
  position: Array
  category: Array


class Parameters(NamedTuple):
  """Holds the parameters of the kernel and of the noise, all positive.

  Attributes:
    variance: [], of the process.
    noise: [], the variance of the observations' noise.
    length_scales: [D], the scale on which each coordinate matters.
    forgetting: [], epsilon: the share that changes in one step of time.
    mixture: [], lambda: the weight of the product of position and categories.
  """

  variance: Array | float
  noise: Array | float
  length_scales: Array | float
  forgetting: Array | float
  mixture: Array | float


# The bounds of `fit`, for values of variance 1.
_LOWEST = Parameters(0.05, 1e-3, 0.1, 1e-3, 0.05)
_HIGHEST = Parameters(5.0, 1.0, 10.0, 0.5, 1.0)


class Posterior(NamedTuple):
  """Holds the posterior given N points, masked ones included.

  Attributes:
    parameters: of the kernel and the noise.
    points: [N].
    whitening: [N, N], the inverse of the Cholesky factor of the covariance;
      rows and columns of masked points are 0.
    weights: [N], alpha, the inverse covariance times the values.
  """

  parameters: Parameters
  points: Points
  whitening: Array
  weights: Array


def initial_parameters(num_coordinates: int) -> Parameters:
  """Returns parameters from which `fit` may start."""
  return Parameters(
    variance=jnp.ones((), jnp.float32),
    noise=jnp.full((), 0.1, jnp.float32),
    length_scales=jnp.full(num_coordinates, 0.5, jnp.float32),
    forgetting=jnp.full((), 0.1, jnp.float32),
    mixture=jnp.full((), 0.5, jnp.float32),
  )


def kernel(parameters: Parameters, first: Points, second: Points) -> Array:
  """Returns the covariance of two points.

  PB2's (Parker-Holder et al., 2020, arXiv:2002.02518, section 4.2) is, with
  the distance r of two positions measured in length scales,

    k = variance exp(-r^2 / 2) (1 - epsilon)^(|t - t'| / 2)

  With categories, the exponential k_x is mixed with the share k_h of categories
  that agree, as in PB2-Mix (Parker-Holder et al., 2021, arXiv:2106.15883,
  section 4.2); the sum is halved, so that it is 1 for equal points:

    (1 - lambda) (k_h + k_x) / 2 + lambda k_h k_x
  """
  # XLA replaces a division of many numbers by one with a multiplication, but
  # not on any number of devices. Decisions must not depend on that number.
  inverse = 1 / jnp.asarray(parameters.length_scales)
  distance = jnp.sum(((first.position - second.position) * inverse) ** 2)
  alike = jnp.exp(-0.5 * distance)
  if first.category.size:
    agreement = jnp.mean(first.category == second.category, dtype=alike.dtype)
    mixture = parameters.mixture
    alike = (1 - mixture) * 0.5 * (agreement + alike) + (
      mixture * agreement * alike
    )
  apart = jnp.abs(first.time - second.time)
  remembered = jnp.exp(0.5 * jnp.log1p(-parameters.forgetting) * apart)
  return parameters.variance * alike * remembered


# Covariances of one point [], and of many [N], with many [M].
_with_one = jax.vmap(kernel, (None, 0, None))
_with_many = jax.vmap(_with_one, (None, None, 0), out_axes=1)


def _added(parameters: Parameters, size: int) -> Array:
  """Returns noise and jitter, which are added to the diagonal."""
  return jnp.asarray(parameters.noise + JITTER * size * parameters.variance)


def gradient(
  parameters: Parameters, points: Points, values: Array, mask: Array
) -> Parameters:
  """Returns the gradient of the log marginal likelihood (equation 5.9).

  d/dtheta = tr((alpha alpha' - K^-1) dK/dtheta) / 2
  """
  posterior = condition(
    parameters, points, values, mask, jnp.zeros_like(mask)
  )
  weights, whitening = posterior.weights, posterior.whitening
  by_covariance = 0.5 * (
    jnp.outer(weights, weights) - whitening.T @ whitening
  )
  trace = jnp.trace(by_covariance)

  def product(parameters: Parameters) -> Array:
    """Returns tr(by_covariance K)."""
    covariance = _with_many(parameters, points, points)
    added = _added(parameters, mask.shape[0])
    return jnp.sum(by_covariance * covariance) + trace * added

  return jax.grad(product)(parameters)


def fit(
  start: Parameters,
  points: Points,
  values: Array,
  mask: Array,
  num_steps: int,
) -> Parameters:
  """Maximises the likelihood by Adam on logarithms, within bounds."""
  adam = optax.adam(_LEARNING_RATE)

  def step(
    carry: tuple[Parameters, optax.OptState], _: None
  ) -> tuple[tuple[Parameters, optax.OptState], None]:
    parameters, state = carry
    slopes = gradient(parameters, points, values, mask)
    # The gradient of the negative by logarithms.
    descent = jax.tree.map(
      lambda x, slope: jnp.nan_to_num(-x * slope), parameters, slopes
    )
    updates, state = adam.update(descent, state)
    parameters = jax.tree.map(
      lambda x, update, low, high: jnp.clip(x * jnp.exp(update), low, high),
      parameters,
      updates,
      _LOWEST,
      _HIGHEST,
    )
    return (parameters, state), None

  (parameters, _), _ = jax.lax.scan(
    step, (start, adam.init(start)), length=num_steps
  )
  return parameters


def condition(
  parameters: Parameters,
  points: Points,
  values: Array,
  mask: Array,
  pending: Array,
) -> Posterior:
  """Returns the posterior after observations (algorithm 2.1).

  Pending points come after the observed ones: deviations are those after their
  observation, means those before.
  """
  known = mask | pending
  covariance = _with_many(parameters, points, points)
  identity = jnp.eye(known.shape[0], dtype=covariance.dtype)
  covariance += _added(parameters, known.shape[0]) * identity
  covariance = jnp.where(known[:, None] & known, covariance, identity)
  factor, is_lower = cho_factor(covariance, lower=True)
  # A few columns at a time: with many, LAPACK's threads wait for each other in
  # loops, which takes ten times as long on a busy machine.
  whitening = jax.lax.map(
    lambda column: solve_triangular(factor, column, lower=is_lower),
    identity,
    batch_size=_COLUMNS,
  ).T
  whitening = jnp.where(known[:, None], whitening, 0.0)
  explained = jnp.where(mask, whitening @ jnp.where(mask, values, 0.0), 0.0)
  return Posterior(parameters, points, whitening, explained @ whitening)


def predict(posterior: Posterior, point: Points) -> tuple[Array, Array]:
  """Returns the mean and the deviation of the process at one point.

  Equations 2.25 and 2.26, without the noise:

    mean = k' alpha,  variance = k(x, x) - |L^-1 k|^2
  """
  parameters = posterior.parameters
  covariance = _with_one(parameters, posterior.points, point)
  mean = posterior.weights @ covariance
  explained = jnp.sum((posterior.whitening @ covariance) ** 2)
  variance = parameters.variance - explained
  # Rounding must not make it negative, nor the root's gradient infinite.
  return mean, jnp.sqrt(jnp.maximum(variance, 1e-6 * parameters.variance))
