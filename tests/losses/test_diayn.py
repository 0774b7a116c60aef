"""Tests of the losses of DIAYN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from qdrl_haiku import losses

_DISCRETE = (losses.diayn_discriminator_loss, losses.diayn_reward)
_SPHERE = (losses.diayn_sphere_discriminator_loss, losses.diayn_sphere_reward)
_NORMAL = (losses.diayn_normal_discriminator_loss, losses.diayn_normal_reward)
# A raw scale whose scale, softplus(raw) + 1e-3, is 1.
_UNIT_RAW_SCALE = 0.53974242

# Kind, parameters, skill, loss.
_CASES = (
  # q = (1/4, 3/4): log(4/3).
  ("discrete", _DISCRETE, [0.0, 1.0986123], [0.0, 1.0], 0.28768207),
  # log(2 pi I_0(2)), I_0(2) = 2.2795853, and 2 less in the mean direction.
  ("circle", _SPHERE, [2.0, 0.0], [0.0, 1.0], 2.6618706),
  ("circle_mean", _SPHERE, [2.0, 0.0], [1.0, 0.0], 0.6618706),
  # log(4 pi sinh(1)) - 1.
  ("sphere", _SPHERE, [0.0, 0.0, 1.0], [0.0, 0.0, 1.0], 1.6924637),
  # Uniform: log(2 pi), log(4 pi).
  ("circle_uniform", _SPHERE, [0.0, 0.0], [0.6, 0.8], 1.8378771),
  ("sphere_uniform", _SPHERE, [0.0] * 3, [0.6, 0.0, 0.8], 2.5310242),
  # Scale 1: 0.5 (2 - 1)^2 + 0.5 log(2 pi), and the second dimension exact.
  ("normal", _NORMAL, [1.0, -3.0, _UNIT_RAW_SCALE, _UNIT_RAW_SCALE],
   [2.0, -3.0], 0.5 + 1.8378771))


@pytest.mark.parametrize(
  ("kind", "parameters", "skill", "expected"), [case[1:] for case in _CASES],
  ids=[case[0] for case in _CASES])
def test_one_example_is_as_worked_by_hand(kind, parameters, skill, expected):
  loss_fn, reward_fn = map(jax.jit, kind)
  parameters, skill = jnp.asarray(parameters), jnp.asarray(skill)
  loss = loss_fn(parameters, skill)
  assert loss.shape == ()
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  reward = reward_fn(parameters, skill, jnp.asarray(-0.5))
  assert reward.shape == ()
  np.testing.assert_allclose(reward, -expected + 0.5, rtol=1e-6)


def _unit(x):
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _sphere_reference(parameters, skill):
  """The formula in float64, with both exponentials taken out of Z."""
  c = np.linalg.norm(parameters)
  if len(skill) == 2:
    log_normaliser = np.log(2 * np.pi * special.i0e(c)) + c
  else:
    scaled_sinh = -np.expm1(-2 * c) / (2 * c) if c else 1.0
    log_normaliser = np.log(4 * np.pi * scaled_sinh) + c
  # Rounding to float32 took the skill off the sphere.
  return log_normaliser - parameters @ _unit(skill)


# With 0, the places where the way of computing changes, and both far ends.
_CONCENTRATIONS = np.array(
  [0.0, 1e-30, 1e-19, 1e-12, 1e-6, 1e-3, 0.1, 0.3, 0.5, 0.8, 0.999, 1.0]
  + [1.001, 1.5, 2.0, 3.0, 5.0, 7.9, 8.1, 20.0, 88.0, 100.0, 710.0, 1e3]
  + [3e3, 1e4])


def _sphere_examples(size):
  """Parameters and skills, many of them where the density is large."""
  rng = np.random.default_rng(size)
  concentration = np.tile(_CONCENTRATIONS, 20)[:, None]
  mean = _unit(rng.normal(size=(len(concentration), size)))
  spread = rng.choice([0.0, 1.0, 100.0], (len(concentration), 1))
  noise = rng.normal(size=mean.shape) / np.sqrt(1 + concentration)
  parameters = (concentration * mean).astype(np.float32)
  return parameters, _unit(mean + spread * noise).astype(np.float32)


@pytest.mark.parametrize("size", [2, 3])
def test_losses_and_slopes_on_the_sphere_are_of_float64(size):
  examples = _sphere_examples(size)
  parameters, skills = (x.astype(np.float64) for x in examples)
  step = 1e-4
  losses_, gradients = [], []
  for p, z in zip(parameters, skills, strict=True):
    losses_.append(_sphere_reference(p, z))
    gradients.append([
      (_sphere_reference(p + step * e, z) - _sphere_reference(p - step * e, z))
      / (2 * step)
      for e in np.eye(size)])
  loss, gradient = jax.jit(
    jax.vmap(jax.value_and_grad(_SPHERE[0])))(*examples)
  np.testing.assert_allclose(loss, losses_, rtol=3e-6, atol=3e-6)
  np.testing.assert_allclose(gradient, gradients, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(("kind", "parameter_size", "size"), [
  (_DISCRETE, 4, 4), (_SPHERE, 2, 2), (_SPHERE, 3, 3), (_NORMAL, 4, 2)])
def test_rewards_have_no_gradient(kind, parameter_size, size):
  loss_fn, reward_fn = kind
  parameters = 0.3 * jnp.arange(1.0, parameter_size + 1)
  skill = jnp.zeros(size).at[1].set(1.0)
  args = parameters, skill, jnp.asarray(-1.0)
  assert np.all(jax.jit(jax.grad(loss_fn))(parameters, skill) != 0.0)
  for gradient in jax.jit(jax.grad(reward_fn, argnums=(0, 1, 2)))(*args):
    assert not np.any(gradient)
  for i in range(3):
    others = list(args)
    others[i] = others[i][None]
    with pytest.raises(AssertionError, match="rank"):
      reward_fn(*others)
  # One number would broadcast.
  for wrong in (parameters[:1], parameters[:-1]):
    with pytest.raises(AssertionError, match="shape"):
      loss_fn(wrong, skill)


def test_another_size_on_the_sphere_is_refused():
  with pytest.raises(ValueError, match="skill has size 4.*2 or 3"):
    losses.diayn_sphere_reward(jnp.ones(4), jnp.ones(4), jnp.zeros(()))
