"""The losses of DIAYN and the rewards of its skills, for one example.

Eysenbach et al., "Diversity is all you need: learning skills without a reward
function", 2018, https://arxiv.org/abs/1802.06070. A discriminator q(z | s) says
which skill z led to a state s; it learns by maximum likelihood, and the agent
is rewarded for states that tell its skill. There is one pair of functions for
each kind of skill, all of the same signature: discrete, continuous on the unit
sphere, and continuous and normal. Log-densities are in nats.
"""

import math

import chex
import distrax
import jax
import jax.numpy as jnp
import optax

_MIN_SCALE = 1e-3
# Divisors are at least this; below it the density is uniform to rounding.
_MIN_CONCENTRATION = 1e-12


def diayn_discriminator_loss(logits: jax.Array, skill: jax.Array) -> jax.Array:
  """Returns the discriminator's loss for a discrete skill.

  The cross-entropy -log q(z | s) = -sum_k skill[k] log softmax(logits)[k].

  Args:
    logits: [K], the discriminator's output at a state.
    skill: [K], the skill that led there, one-hot.

  Returns:
    [], the loss.
  """
  chex.assert_rank([logits, skill], 1)
  chex.assert_equal_shape([logits, skill])
  return optax.softmax_cross_entropy(logits, skill)


def diayn_reward(
  logits: jax.Array, skill: jax.Array, log_prior: jax.Array
) -> jax.Array:
  """Returns the reward of a state for a discrete skill, eq. 3.

  log q(z | s) - log p(z), without a gradient: it is a number for the critics.

  Args:
    logits: [K], the discriminator's output at the state.
    skill: [K], the skill of the agent that went there, one-hot.
    log_prior: [], log p(z); 0 leaves the term out.

  Returns:
    [], the reward.
  """
  chex.assert_rank([logits, skill, log_prior], [1, 1, 0])
  log_q = -diayn_discriminator_loss(logits, skill)
  return jax.lax.stop_gradient(log_q - log_prior)


def diayn_sphere_discriminator_loss(
  parameters: jax.Array, skill: jax.Array
) -> jax.Array:
  """Returns the discriminator's loss for a skill on the unit sphere.

  -log q(z | s) of a von Mises-Fisher distribution,

  log q(z | s) = parameters . skill - log Z_K(c), c = |parameters|,
  Z_2(c) = 2 pi I_0(c), Z_3(c) = 4 pi sinh(c) / c

  (Mardia and Jupp, "Directional statistics", 2000, sections 3.5.4 and 9.3.2):
  the concentration is the length of `parameters`, the mean their direction. It
  is a density on the circle or the sphere, uniform where `parameters` are 0.

  Value and gradient are exact to rounding for concentrations of up to 1e4 at
  least, 0 included.

  Args:
    parameters: [K], the discriminator's output at a state, any real numbers.
    skill: [K], the skill that led there, of length 1. K is 2 or 3.

  Returns:
    [], the loss.

  Raises:
    ValueError: if K is neither 2 nor 3.
  """
  chex.assert_rank([parameters, skill], 1)
  chex.assert_equal_shape([parameters, skill])
  if skill.size not in (2, 3):
    raise ValueError(
      f"skill has size {skill.size}: on the unit sphere it must be 2 or 3; take"
      " normal skills for another size.")
  return -_von_mises_fisher_log_prob(parameters, skill)


def diayn_sphere_reward(
  parameters: jax.Array, skill: jax.Array, log_prior: jax.Array
) -> jax.Array:
  """Returns the reward of a state for a skill on the unit sphere, eq. 3.

  Args:
    parameters: see `diayn_sphere_discriminator_loss`.
    skill: see there.
    log_prior: see `diayn_reward`; -log(2 pi) on the circle and -log(4 pi) on
      the sphere if it is uniform.

  Returns:
    [], the reward.
  """
  chex.assert_rank([parameters, skill, log_prior], [1, 1, 0])
  log_prob = -diayn_sphere_discriminator_loss(parameters, skill)
  return jax.lax.stop_gradient(log_prob - log_prior)


def diayn_normal_discriminator_loss(
  parameters: jax.Array, skill: jax.Array
) -> jax.Array:
  """Returns the discriminator's loss for a normal skill.

  -log q(z | s) = -sum_k log N(skill[k]; loc[k], scale[k]^2),
  scale = softplus(raw scale) + 1e-3.

  Args:
    parameters: [2K], the discriminator's output at a state: the locations,
      then the raw scales.
    skill: [K], the skill that led there.

  Returns:
    [], the loss.
  """
  chex.assert_rank([parameters, skill], 1)
  chex.assert_shape(parameters, (2 * skill.size,))
  loc, raw_scale = jnp.split(parameters, 2)
  scale = jax.nn.softplus(raw_scale) + _MIN_SCALE
  return -jnp.sum(distrax.Normal(loc, scale).log_prob(skill))


def diayn_normal_reward(
  parameters: jax.Array, skill: jax.Array, log_prior: jax.Array
) -> jax.Array:
  """Returns the reward of a state for a normal skill, eq. 3.

  Args:
    parameters: see `diayn_normal_discriminator_loss`.
    skill: see there.
    log_prior: see `diayn_reward`.

  Returns:
    [], the reward.
  """
  chex.assert_rank([parameters, skill, log_prior], [1, 1, 0])
  log_prob = -diayn_normal_discriminator_loss(parameters, skill)
  return jax.lax.stop_gradient(log_prob - log_prior)


# The derivative is given by hand: the norm has none at 0, and near 0 automatic
# differentiation loses the normaliser's to rounding.
@jax.custom_jvp
def _von_mises_fisher_log_prob(
  parameters: jax.Array, skill: jax.Array
) -> jax.Array:
  """Returns the log-density [] of a skill [K] on the unit sphere, K 2 or 3."""
  concentration = jnp.linalg.norm(parameters)
  positive = jnp.maximum(concentration, _MIN_CONCENTRATION)
  # parameters . skill - concentration, for a skill of length 1, and with no
  # difference of two large numbers: at 1e4 that would be wrong by 1e-3.
  distance = jnp.sum(jnp.square(parameters / positive - skill))
  exponent = -0.5 * concentration * distance
  # log Z_K(concentration) - concentration.
  if skill.size == 2:
    log_area = math.log(2 * math.pi)
    log_normaliser = jnp.log(jax.scipy.special.i0e(concentration))
  else:
    log_area = math.log(4 * math.pi)
    log_normaliser = jnp.log(-jnp.expm1(-2 * positive) / (2 * positive))
  return exponent - log_normaliser - log_area


@_von_mises_fisher_log_prob.defjvp
def _von_mises_fisher_log_prob_jvp(
  primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
  """Differentiates: the gradient by parameters is skill - mean of q."""
  parameters, skill = primals
  parameters_tangent, skill_tangent = tangents
  concentration = jnp.linalg.norm(parameters)
  mean = _mean_over_concentration(concentration, skill.size) * parameters
  # Sums, not matrix products, which an accelerator may round more coarsely.
  tangent = jnp.sum((skill - mean) * parameters_tangent)
  tangent += jnp.sum(parameters * skill_tangent)
  return _von_mises_fisher_log_prob(parameters, skill), tangent


def _mean_over_concentration(concentration: jax.Array, size: int) -> jax.Array:
  """Returns I_{K/2}(c) / I_{K/2 - 1}(c) / c, K 2 or 3; 1 / K at c = 0."""
  # Each branch is evaluated where it is finite, and used where it is exact.
  small = jnp.minimum(concentration, 1.0)
  large = jnp.maximum(concentration, 1.0)
  # The continued fraction of https://dlmf.nist.gov/10.33.E1, cut at a term
  # that is below float32 for c <= 1.
  fraction = jnp.asarray(size + 8.0, concentration.dtype)
  for term in (6.0, 4.0, 2.0, 0.0):
    fraction = size + term + jnp.square(small) / fraction
  if size == 2:
    ratio = jax.scipy.special.i1e(large) / jax.scipy.special.i0e(large)
  else:
    ratio = 1 / jnp.tanh(large) - 1 / large
  return jnp.where(concentration < 1.0, 1 / fraction, ratio / large)
