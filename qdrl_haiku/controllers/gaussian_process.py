"""A Gaussian process over points in time, settings and categories.

All is of fixed shape: points that are not there are masked, and change nothing.
The variables are those of Rasmussen and Williams (2006), "Gaussian Processes
for Machine Learning", chapters 2 and 5.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdrl_haiku.types import Array

# Of the kernel's variance, added to its diagonal: float32 factorises matrices
# of some hundred equal points then.
JITTER = 1e-4
# Rows of a matrix that are factorised together.
_BLOCK = 8


class Points(NamedTuple):
  """Holds the inputs of a Gaussian process.

  Attributes:
    time: [N], in steps between which things change by some share.
    position: [N, D], each coordinate about in [0, 1].
    category: [N, K], numbers that are the same or not.
  """

  time: Array
  position: Array
  category: Array


class Parameters(NamedTuple):
  """Holds the parameters of the kernel and of the noise, all positive.

  Attributes:
    variance: [], of the process.
    noise: [], the variance of what is added to each observation.
    length_scales: [D], how far apart in each coordinate values differ.
    forgetting: [], epsilon: the share that changes in one step of time.
    mixture: [], lambda: how much categories and position act together.
  """

  variance: Array | float
  noise: Array | float
  length_scales: Array | float
  forgetting: Array | float
  mixture: Array | float


_LEARNING_RATE = 0.1
# The bounds of what is fitted, for values of variance 1.
_LOWEST = Parameters(
  variance=0.05, noise=1e-3, length_scales=0.1, forgetting=1e-3, mixture=0.05
)
_HIGHEST = Parameters(
  variance=5.0, noise=1.0, length_scales=10.0, forgetting=0.5, mixture=1.0
)


class Posterior(NamedTuple):
  """Holds the posterior after observations.

  Attributes:
    parameters: of the kernel and the noise.
    points: [N], observed ones, and room for others.
    whitening: [N, N], the inverse L^-1 of a Cholesky factor of the observed
      points' covariance; rows and columns of all others are 0.
    weights: [N], alpha: the inverse covariance times the values.
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
  """Returns the covariances of two sets of points.

  PB2's (Parker-Holder et al., 2020, arXiv:2002.02518, section 4.2) is, with
  the distance r of two positions measured in length scales,

    k = variance exp(-r^2 / 2) (1 - epsilon)^(|t - t'| / 2)

  With categories, the exponential is k_x in PB2-Mix's sum and product
  (Parker-Holder et al., 2021, arXiv:2106.15883, section 4.2), k_h the share of
  categories that agree; the sum is halved, so that it is 1 for equal points:

    (1 - lambda) (k_h + k_x) / 2 + lambda k_h k_x
  """
  alike, agreement, remembered = factors(parameters, first, second)
  mixed = alike
  if agreement is not None:
    mixture = parameters.mixture
    mixed = (1 - mixture) * 0.5 * (agreement + alike) + (
      mixture * agreement * alike
    )
  return parameters.variance * mixed * remembered


def factors(
  parameters: Parameters, first: Points, second: Points
) -> tuple[Array, Array | None, Array]:
  """Returns of two sets of points, [N, M], what `kernel` is made of."""
  # By coordinate, so that all of it is one loop over pairs of points. Here and
  # elsewhere a common divisor is inverted first: XLA does so itself, but not on
  # any number of devices.
  inverse = 1 / jnp.asarray(parameters.length_scales)
  columns = zip(
    (first.position * inverse).T, (second.position * inverse).T, strict=True
  )
  apart = jnp.abs(first.time[:, None] - second.time[None])
  distance = jnp.zeros_like(apart)
  for one, other in columns:
    distance += (one[:, None] - other[None]) ** 2
  remembered = jnp.exp(0.5 * jnp.log1p(-parameters.forgetting) * apart)
  agreement = None
  if first.category.shape[-1]:
    agreeing = first.category[:, None] == second.category[None]
    agreement = jnp.mean(agreeing.astype(apart.dtype), axis=-1)
  return jnp.exp(-0.5 * distance), agreement, remembered


def _covariance(parameters: Parameters, points: Points) -> Array:
  """Returns the covariances of noisy observations, [N, N]."""
  covariance = kernel(parameters, points, points)
  return covariance + _added(parameters) * jnp.eye(covariance.shape[0])


def _added(parameters: Parameters) -> Array:
  """Returns noise and jitter, which are added to the diagonal."""
  return jnp.asarray(parameters.noise + JITTER * parameters.variance)


def _inverse_factor(covariance: Array, least: Array) -> Array:
  """Returns L^-1 of a Cholesky factor L of a matrix [N, N].

  By blocks of rows. With l = L^-1 K' of a block's covariances K with those
  before, and V V' = C - l' l of those within, its rows are V^-1 (-l' L^-1, 1).
  Products are nearly all that it takes; LAPACK's threads, which wait for each
  other in loops, make so small a matrix many times slower on a machine that is
  busy.
  """
  size = covariance.shape[0]
  num_blocks = -(-size // _BLOCK)
  rest = num_blocks * _BLOCK - size
  padded = jax.scipy.linalg.block_diag(
    covariance, jnp.eye(rest, dtype=covariance.dtype)
  )

  def add(i: Array, inverse: Array) -> Array:
    begin = i * _BLOCK
    rows = jax.lax.dynamic_slice_in_dim(padded, begin, _BLOCK)
    known = rows @ inverse.T
    within = jax.lax.dynamic_slice_in_dim(rows, begin, _BLOCK, axis=1)
    own = _inverse_factor_by_rows(within - known @ known.T, least)
    new = jax.lax.dynamic_update_slice_in_dim(
      -own @ (known @ inverse), own, begin, axis=1
    )
    return jax.lax.dynamic_update_slice_in_dim(inverse, new, begin, axis=0)

  inverse = jax.lax.fori_loop(0, num_blocks, add, jnp.zeros_like(padded))
  return inverse[:size, :size]


def _inverse_factor_by_rows(covariance: Array, least: Array) -> Array:
  """Computes `_inverse_factor` one row after the other.

  With l = L^-1 k, the new row of L is (l, s), s^2 = k(x, x) - |l|^2. No product
  of a library's, so that XLA makes one kernel of all.
  """

  def add(i: Array, inverse: Array) -> Array:
    row = covariance[i]
    known = jnp.sum(inverse * row, axis=1)
    pivot = jnp.maximum(row[i] - jnp.sum(known**2), least)
    new = -jnp.sum(known[:, None] * inverse, axis=0)
    return inverse.at[i].set(new.at[i].add(1.0) * (1 / jnp.sqrt(pivot)))

  return jax.lax.fori_loop(
    0, covariance.shape[0], add, jnp.zeros_like(covariance)
  )


def condition(
  parameters: Parameters,
  points: Points,
  values: Array,
  mask: Array,
  pending: Array | None = None,
) -> Posterior:
  """Returns the posterior after observations (algorithm 2.1)."""
  known = mask if pending is None else mask | pending
  covariance = _covariance(parameters, points)
  # Masked points are independent of all others.
  covariance = jnp.where(known[:, None] & known[None], covariance, 0.0)
  diagonal = jnp.where(known, jnp.diagonal(covariance), 1.0)
  covariance = jnp.where(
    jnp.eye(known.shape[0], dtype=bool), diagonal, covariance
  )
  whitening = _inverse_factor(covariance, jnp.asarray(parameters.noise))
  whitening = jnp.where(known[:, None], whitening, 0.0)
  explained = jnp.where(mask, whitening @ jnp.where(mask, values, 0.0), 0.0)
  return Posterior(parameters, points, whitening, explained @ whitening)


def with_pending(posterior: Posterior, row: Array, point: Points) -> Posterior:
  """Returns the posterior once another point is observed.

  The deviations are known beforehand. The means stay as they are.
  """
  points = jax.tree.map(lambda x, y: x.at[row].set(y), posterior.points, point)
  only = jax.tree.map(lambda x: x[None], point)
  parameters, whitening = posterior.parameters, posterior.whitening
  covariance = kernel(parameters, points, only)[:, 0]
  # Another row of `_inverse_factor_by_rows`.
  known = whitening @ covariance
  variance = covariance[row] + _added(parameters)
  pivot = jnp.maximum(variance - jnp.sum(known**2), parameters.noise)
  new = (-known @ whitening).at[row].add(1.0) * (1 / jnp.sqrt(pivot))
  return posterior._replace(
    points=points, whitening=whitening.at[row].set(new)
  )


def predict(posterior: Posterior, points: Points) -> tuple[Array, Array]:
  """Returns means and deviations of the process, without the noise.

  Equations 2.25 and 2.26:

    mean = k' alpha,  variance = k(x, x) - |L^-1 k|^2
  """
  parameters = posterior.parameters
  covariance = kernel(parameters, posterior.points, points)
  mean = posterior.weights @ covariance
  explained = jnp.sum((posterior.whitening @ covariance) ** 2, axis=0)
  variance = parameters.variance - explained
  # Rounding must not make it negative, nor the root's gradient infinite.
  return mean, jnp.sqrt(jnp.maximum(variance, 1e-6 * parameters.variance))


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
  # For each pair (x - x')^2 = x^2 - 2 x x' + x'^2, and all is symmetric.
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
