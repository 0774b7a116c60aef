"""Policies: distributions over actions, made from a network's outputs."""

import functools
import operator
from collections.abc import Callable
from typing import NamedTuple

import distrax
import jax
import jax.numpy as jnp

from qdrl_haiku import platform, specs
from qdrl_haiku.types import Tree

_MIN_SCALE = 1e-3


class NormalTanh(distrax.Transformed):
  """The tanh of a normal variable, independent in each of A dimensions.

  a = tanh(x), x ~ N(loc, scale^2), so that
  log p(a) = sum_i log N(x_i; loc_i, scale_i^2) - log(1 - a_i^2)
  (Haarnoja et al., "Soft actor-critic", 2018, appendix C, eq. 21).

  In float32 tanh(x) rounds to exactly 1 or -1 from |x| of about 9 on, so
  samples lie in [-1, 1], and an action at the border does not tell its x any
  more. Where the log-probability of a sample is needed, take
  `sample_and_log_prob`, which knows x, or keep x by `draw`.
  """

  def __init__(self, loc: jax.Array, scale: jax.Array) -> None:
    """Takes the normal variable's means and deviations > 0, both [..., A]."""
    super().__init__(
      distribution=distrax.Independent(
        distrax.Normal(loc, scale), reinterpreted_batch_ndims=1),
      bijector=distrax.Block(distrax.Tanh(), ndims=1))

  def log_prob(self, value: jax.Array) -> jax.Array:
    """Returns the log-probability density of an action.

    Args:
      value: [..., A], in [-1, 1]. Values at the border or outside count as
        the nearest representable number inside, so that the result is finite.

    Returns:
      [...], in nats.
    """
    dtype = jnp.result_type(value, self.dtype)
    largest = 1.0 - float(jnp.finfo(dtype).epsneg)
    action = jnp.clip(jnp.asarray(value, dtype), -largest, largest)
    # 1 - action is exact where it is small; 1 - action^2 would not be.
    log_above, log_below = jnp.log1p(action), jnp.log1p(-action)
    x = 0.5 * (log_above - log_below)
    log_det = jnp.sum(log_above + log_below, axis=-1)
    return self.distribution.log_prob(x) - log_det

  def mode(self) -> jax.Array:
    """Returns the greedy action, [..., A]: the tanh of the normal's mode.

    It is the median of each dimension, and not the maximum of the density,
    which lies elsewhere: at the border if scale is large.
    """
    return self.bijector.forward(self.distribution.mode())

  def draw(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws an action, and returns the x whose tanh it is.

    Of one x, log-probabilities differ between policies as those of the action
    do.

    Args:
      key: consumed.

    Returns:
      The action that `sample(seed=key)` draws, and x, both [..., A].
    """
    x, _ = self._draw(key, 1)
    x = jnp.moveaxis(x, 0, -1)[0]
    return jnp.tanh(x), x

  def log_prob_of_drawn(self, x: jax.Array) -> jax.Array:
    """Returns the log-probability density [...] of the normal variable x."""
    return self.distribution.log_prob(x)

  def mean_entropy(
    self, key: jax.Array
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Estimates the mean entropy [] by fresh actions; returns metrics, too."""
    action, log_prob = self.sample_and_log_prob(seed=key)
    return -jnp.mean(log_prob), {"action_saturation": action_saturation(action)}

  def judged(
    self, q_fn: Callable[..., jax.Array], key: jax.Array
  ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
    """Estimates how good the policy is by an action for each observation.

    Args:
      q_fn: (action [..., A]) -> critics' values [..., k].
      key: consumed.

    Returns:
      Their values [..., k], log-probabilities [...], and what is told of them.
    """
    action, log_prob = self.sample_and_log_prob(seed=key)
    told = {"action_saturation": action_saturation(action)}
    return q_fn(action), log_prob, told

  def _sample_n(self, key: jax.Array, n: int) -> jax.Array:
    x, _ = self._draw(key, n)
    return jnp.moveaxis(jnp.tanh(x), 0, -1)

  def _sample_n_and_log_prob(
    self, key: jax.Array, n: int
  ) -> tuple[jax.Array, jax.Array]:
    x, normal = self._draw(key, n)
    action, log_det = distrax.Tanh().forward_and_log_det(x)  # [A, n, ...]
    # The density is computed at x, which the action was made from, and not from
    # the noise: where scale is small beside loc, x is rounded and they differ.
    log_probs = normal.log_prob(x) - log_det
    # Row by row: on a CPU XLA doesn't vectorise a sum over the first axis.
    log_prob = functools.reduce(operator.add, log_probs)
    return jnp.moveaxis(action, 0, -1), log_prob

  def _draw(self, key: jax.Array, n: int) -> tuple[jax.Array, distrax.Normal]:
    """Returns x, [A, n, ...], and the normal distribution that it is from."""
    normal = self.distribution.distribution
    loc, scale = jnp.broadcast_arrays(normal.loc, normal.scale)
    change = platform.normal_noise(key, (n, *loc.shape), loc.dtype)
    loc, scale = (_dimensions_first(x)[:, None] for x in (loc, scale))
    x = loc + scale * _dimensions_first(change)
    return x, distrax.Normal(loc, scale)


def normal_tanh(parameters: jax.Array) -> NormalTanh:
  """Returns the stochastic policy that SAC uses.

  Args:
    parameters: [..., 2A], any real numbers: the locations, then the raw
      scales; scale = softplus(raw scale) + 1e-3.

  Returns:
    A distribution over actions in (-1, 1)^A with batch shape [...] and event
    shape [A], differentiable in reverse mode only.
  """
  loc, raw_scale = map(
    platform.outputs, jnp.split(_dimensions_first(parameters), 2))
  scale = jax.nn.softplus(raw_scale) + _MIN_SCALE
  return NormalTanh(jnp.moveaxis(loc, 0, -1), jnp.moveaxis(scale, 0, -1))


def _dimensions_first(x: jax.Array) -> jax.Array:
  """Moves A to the front, so that XLA's inner loops are over the batch.

  On a CPU only the innermost loop uses vector instructions, and A is small: for
  a batch of 256 with A = 6 the log-probability of a sample and its gradient
  take 15 instead of 76 microseconds.
  """
  return jnp.moveaxis(x, -1, 0)


def deterministic_tanh(parameters: jax.Array) -> distrax.Independent:
  """Returns the deterministic policy that TD3 uses, as a distribution.

  Args:
    parameters: [..., A], any real numbers.

  Returns:
    A distribution with batch shape [...] and event shape [A], whose mode and
    samples are tanh(parameters), in [-1, 1].
  """
  return distrax.Independent(
    distrax.Deterministic(jnp.tanh(parameters)), reinterpreted_batch_ndims=1)


class Categorical(distrax.Categorical):
  """One of n actions, int32; with the methods by which `NormalTanh` learns."""

  def __init__(self, logits: jax.Array) -> None:
    """Takes log-probabilities [..., n], up to a constant."""
    super().__init__(logits=platform.outputs(logits), dtype=jnp.int32)

  def draw(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws actions [...], returned twice."""
    action = self.sample(seed=key)
    return action, action

  def log_prob_of_drawn(self, action: jax.Array) -> jax.Array:
    """Returns the log-probabilities [...] of actions that `draw` returned."""
    return self.log_prob(action)

  def mean_entropy(
    self, key: jax.Array
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the entropies' mean [], which is exact."""
    del key
    return jnp.mean(self.entropy()), {}

  def judged(
    self, q_fn: Callable[..., jax.Array], key: jax.Array
  ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
    """Returns how good the policy is in expectation, by the lesser critic.

    Christodoulou, arXiv 1910.07207, equations 10 and 12: all that SAC's losses
    need of an action is linear in its value and its log-probability.

    Args:
      q_fn: () -> critics' values of all actions [..., n, k].
      key: not needed.

    Returns:
      Expected values [..., 1], minus entropies [...], and {}.
    """
    del key
    value = jnp.sum(self.probs * jnp.min(q_fn(), axis=-1), axis=-1)
    return value[..., None], -self.entropy(), {}

  def _sample_n(self, key: jax.Array, n: int) -> jax.Array:
    # Not -1, where logits aren't finite: environments may refuse it.
    return jnp.maximum(super()._sample_n(key, n), 0)


Distribution = NormalTanh | Categorical
"""What a stochastic policy draws actions from."""


class Head(NamedTuple):
  """Holds what the outputs of a stochastic policy's network mean."""

  name: str  # Of the distribution, as `learners.PolicyParts` has it.
  num_outputs: int  # N.
  # (outputs [..., N]) -> the distribution of actions.
  distribution: Callable[[jax.Array], Distribution]
  # (q_fn, actions [B, ...]) -> the actions' values [B, k], and what else q_fn
  # returns; q_fn as `Distribution.judged` takes it.
  taken: Callable[..., tuple[jax.Array, Tree]]


def head(action: specs.Action) -> Head:
  """Returns what stochastic policies of a kind of actions have."""
  if isinstance(action, specs.Discrete):
    return Head("categorical", action.size, Categorical, _values_of_taken)
  return Head(
    "normal_tanh", 2 * action.size, normal_tanh, lambda q_fn, a: q_fn(a))


def _values_of_taken(
  q_fn: Callable[[], tuple[jax.Array, Tree]], action: jax.Array
) -> tuple[jax.Array, Tree]:
  """Returns the values of the actions taken, one of n each."""
  q, more = q_fn()
  return jax.vmap(lambda q, i: q[i])(q, action), more


def action_saturation(action: jax.Array) -> jax.Array:
  """Returns the share of actions at the border, where tanh is flat."""
  return jnp.mean((jnp.abs(action) > 0.99).astype(jnp.float32))
