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
_JITTER = 1e-4
_LEARNING_RATE = 0.1


class Points(NamedTuple):
  """Where the process is observed or asked.

  Attributes:
    time: [N], in steps between which things change by some share.
    position: [N, D], each coordinate about in [0, 1].
    category: [N, K], numbers that are the same or not.
  """

  time: Array
  position: Array
  category: Array


class Parameters(NamedTuple):
  """What the kernel and the noise are made of, all of them positive.

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


# The bounds of what is fitted, for values of variance 1.
_LOWEST = Parameters(
  variance=0.05, noise=1e-3, length_scales=0.1, forgetting=1e-3, mixture=0.05
)
_HIGHEST = Parameters(
  variance=5.0, noise=1.0, length_scales=10.0, forgetting=0.5, mixture=1.0
)


class Posterior(NamedTuple):
  """What is believed after observations.

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
  """Returns parameters from which `fit` may start.

  Args:
    num_coordinates: D.
  """
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

  Args:
    parameters: of the kernel.
    first: N points.
    second: M points.

  Returns:
    [N, M].
  """
  difference = first.position[:, None] - second.position[None]
  distance = jnp.sum((difference / parameters.length_scales) ** 2, axis=-1)
  alike = jnp.exp(-0.5 * distance)
  if first.category.shape[-1]:
    agreeing = first.category[:, None] == second.category[None]
    agreement = jnp.mean(agreeing.astype(alike.dtype), axis=-1)
    mixture = parameters.mixture
    alike = (1 - mixture) * 0.5 * (agreement + alike) + (
      mixture * agreement * alike
    )
  apart = jnp.abs(first.time[:, None] - second.time[None])
  remembered = (1 - parameters.forgetting) ** (0.5 * apart)
  return parameters.variance * alike * remembered


def _covariance(parameters: Parameters, points: Points) -> Array:
  """Returns the covariances of noisy observations, [N, N]."""
  noise = parameters.noise + _JITTER * parameters.variance
  return kernel(parameters, points, points) + noise * jnp.eye(
    points.time.shape[0]
  )


def _whiten(
  parameters: Parameters, whitening: Array, covariance: Array, row: Array
) -> Array:
  """Returns L^-1 with one more point, given its covariances [N].

  With l = L^-1 k, the new row of L is (l, s), s^2 = k(x, x) + noise - |l|^2.
  That is never less than the noise, but for rounding: nothing can fail here.
  Products are all that it takes; LAPACK's threads, which wait for each other
  in loops, make so small a matrix many times slower on a machine that is busy.
  """
  known = whitening @ covariance
  remainder = jnp.maximum(
    covariance[row] - jnp.sum(known**2), parameters.noise
  )
  new = (-known @ whitening).at[row].add(1.0) / jnp.sqrt(remainder)
  return whitening.at[row].set(new)


def condition(
  parameters: Parameters, points: Points, values: Array, mask: Array
) -> Posterior:
  """Returns what is believed after observations (algorithm 2.1).

  Args:
    parameters: of the kernel and the noise.
    points: N of them.
    values: [N]; where masked, finite ones that don't matter.
    mask: bool [N], which observations are there.

  Returns:
    The posterior.
  """
  covariance = _covariance(parameters, points)

  def add(i: Array, whitening: Array) -> Array:
    added = _whiten(parameters, whitening, covariance[i], i)
    return jnp.where(mask[i], added, whitening)

  whitening = jax.lax.fori_loop(
    0, mask.shape[0], add, jnp.zeros_like(covariance)
  )
  weights = (whitening @ values) @ whitening
  return Posterior(parameters, points, whitening, weights)


def with_pending(posterior: Posterior, row: Array, point: Points) -> Posterior:
  """Returns what will be believed once another point is observed.

  The deviations are known beforehand. The means stay as they are.

  Args:
    posterior: what is believed.
    row: int32 [], where it has room, that of no observed point.
    point: a single one, without leading axes.

  Returns:
    The posterior.
  """
  points = jax.tree.map(lambda x, y: x.at[row].set(y), posterior.points, point)
  only = jax.tree.map(lambda x: x[None], point)
  parameters = posterior.parameters
  covariance = kernel(parameters, points, only)[:, 0]
  covariance = covariance.at[row].add(
    parameters.noise + _JITTER * parameters.variance
  )
  whitening = _whiten(parameters, posterior.whitening, covariance, row)
  return posterior._replace(points=points, whitening=whitening)


def predict(posterior: Posterior, points: Points) -> tuple[Array, Array]:
  """Returns what is believed of the process itself, without the noise.

  Equations 2.25 and 2.26:

    mean = k' alpha,  variance = k(x, x) - |L^-1 k|^2

  Args:
    posterior: what is believed.
    points: M of them.

  Returns:
    The means [M] and the standard deviations [M].
  """
  parameters = posterior.parameters
  covariance = kernel(parameters, posterior.points, points)
  mean = posterior.weights @ covariance
  explained = jnp.sum((posterior.whitening @ covariance) ** 2, axis=0)
  variance = parameters.variance - explained
  # Rounding must not make it negative, nor the root's gradient infinite.
  return mean, jnp.sqrt(jnp.maximum(variance, 1e-6 * parameters.variance))


def likelihood_gradient(
  parameters: Parameters, points: Points, values: Array, mask: Array
) -> Parameters:
  """Returns the gradient of the log marginal likelihood (equation 5.9).

    d/dtheta = tr((alpha alpha' - K^-1) dK/dtheta) / 2

  Args:
    parameters: at which it is asked for.
    points: as of `condition`.
    values: as of `condition`.
    mask: as of `condition`.

  Returns:
    The derivative by each parameter.
  """
  posterior = condition(parameters, points, values, mask)
  weights, whitening = posterior.weights, posterior.whitening
  by_covariance = 0.5 * (
    weights[:, None] * weights[None] - whitening.T @ whitening
  )
  _, pull_back = jax.vjp(lambda x: _covariance(x, points), parameters)
  return pull_back(by_covariance)[0]


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

  Args:
    start: the parameters to start from, within the bounds.
    points: N of them.
    values: [N], about of mean 0 and variance 1.
    mask: bool [N], which observations are there.
    num_steps: how many.

  Returns:
    The parameters.
  """
  adam = optax.adam(_LEARNING_RATE)
  low, high = (jax.tree.map(math.log, x) for x in (_LOWEST, _HIGHEST))

  def step(
    carry: tuple[Parameters, optax.OptState], _: None
  ) -> tuple[tuple[Parameters, optax.OptState], None]:
    logarithms, state = carry
    parameters = jax.tree.map(jnp.exp, logarithms)
    gradient = likelihood_gradient(parameters, points, values, mask)
    # The loss is the negative, and its derivative by a logarithm x dL/dx.
    loss = jax.tree.map(lambda x, y: -x * y, parameters, gradient)
    updates, state = adam.update(loss, state)
    new = optax.apply_updates(logarithms, updates)
    return (jax.tree.map(jnp.clip, new, low, high), state), None

  logarithms = jax.tree.map(jnp.log, start)
  (logarithms, _), _ = jax.lax.scan(
    step, (logarithms, adam.init(logarithms)), length=num_steps
  )
  return jax.tree.map(jnp.exp, logarithms)
