"""Batch normalisation, and weights of unit norm: what conditions a critic."""

import math

import haiku as hk
import jax
import jax.numpy as jnp

from qdrl_haiku import platform, types

# As in the code of CrossQ and XQC, except that the averages are plain means of
# the first 100 batches, not exponential ones from 0 and 1.
_EPSILON = 1e-3
_RATE = 0.01
_WARM_UP = 100_000
_MOST_SCALING = 3.0
_MOST_SHIFT = 5.0
# Units of a layer with few outputs.
_FEW = 16


class BatchNorm(hk.Module):
  """Normalises each unit over a batch (Ioffe and Szegedy, arXiv 1502.03167).

  Its state holds averages of the batches' mean and variance, plain ones first,
  exponential ones with rate 0.01 after 100 batches. Batch renormalisation
  (Ioffe, arXiv 1702.03275) corrects the outputs towards those that the averages
  would give, within bounds, after `warm_up` batches.
  """

  def __init__(
    self, *, renormalize: bool = False, create_offset: bool = True,
    warm_up: int = _WARM_UP, name: str = "batch_norm",
  ) -> None:
    """Describes the layer.

    Args:
      renormalize: whether it's batch renormalisation.
      create_offset: whether an offset is learned, beside the scale.
      warm_up: after how many batches renormalisation begins, >= 0.
      name: the prefix of its parameters' names.
    """
    super().__init__(name=name)
    self._renormalize = renormalize
    self._create_offset = create_offset
    self._warm_up = warm_up

  def __call__(self, inputs: jax.Array, is_training: bool) -> jax.Array:
    """Returns inputs [..., I] normalised, scaled and moved as was learned.

    Args:
      inputs: [..., I].
      is_training: whether statistics are the batch's, over all leading axes,
        and move the averages; otherwise the averages are used, unchanged.
    """
    factor, shift = self.affine(inputs, is_training)
    return inputs * factor + shift

  def affine(
    self, inputs: jax.Array, is_training: bool
  ) -> tuple[jax.Array, jax.Array]:
    """Returns factor [I] and shift [I]: inputs * factor + shift are normal."""
    size = [inputs.shape[-1]]
    scale = hk.get_parameter("scale", size, init=jnp.ones)
    offset: jax.Array | float = 0.0
    if self._create_offset:
      offset = hk.get_parameter("offset", size, init=jnp.zeros)
    mean = hk.get_state("mean", size, init=jnp.zeros)
    variance = hk.get_state("variance", size, init=jnp.ones)
    count = hk.get_state("count", [], jnp.int32, init=jnp.zeros)
    if not is_training:
      return averaged_affine(
        {"scale": scale, "offset": offset},
        {"mean": mean, "variance": variance})
    axes = tuple(range(inputs.ndim - 1))
    batch_mean = jnp.mean(inputs, axes)
    batch_variance = jnp.mean(jnp.square(inputs - batch_mean), axes)
    deviation = jnp.sqrt(batch_variance + _EPSILON)
    factor, shift = scale / deviation, offset
    if self._renormalize:
      average_deviation = jnp.sqrt(variance + _EPSILON)
      scaling = jnp.clip(
        deviation / average_deviation, 1 / _MOST_SCALING, _MOST_SCALING)
      moved = jnp.clip(
        (batch_mean - mean) / average_deviation, -_MOST_SHIFT, _MOST_SHIFT)
      is_warm = count >= self._warm_up
      scaling, moved = jax.lax.stop_gradient(
        (jnp.where(is_warm, scaling, 1.0), jnp.where(is_warm, moved, 0.0)))
      factor, shift = factor * scaling, shift + scale * moved
    rate = jnp.maximum(1.0 / (count + 1).astype(mean.dtype), _RATE)
    for name, average, new in (
      ("mean", mean, batch_mean),
      ("variance", variance, batch_variance),
    ):
      new = jax.lax.stop_gradient(new)
      hk.set_state(name, average + rate * (new - average))
    # Stops counting before int32 overflows.
    hk.set_state("count", jnp.minimum(count, jnp.int32(2**30)) + 1)
    return factor, shift - batch_mean * factor


def averaged_affine(
  params: types.Params, averages: types.State
) -> tuple[jax.Array, jax.Array]:
  """Returns factor [I] and shift [I] of a layer outside training."""
  factor = params["scale"] * jax.lax.rsqrt(averages["variance"] + _EPSILON)
  return factor, params.get("offset", 0.0) - averages["mean"] * factor


class LinearOfAffine(hk.Module):
  """Applies a linear layer to inputs * factor + shift.

  Factor and shift are folded into weights and bias: so inputs are read once,
  and gradients by a normalisation's statistics come from matrix products.
  """

  def __init__(
    self, size: int, *, w_init: hk.initializers.Initializer | None = None,
    name: str,
  ) -> None:
    super().__init__(name=name)
    self._size = size
    self._w_init = w_init

  def __call__(
    self, inputs: jax.Array, factor: jax.Array, shift: jax.Array
  ) -> jax.Array:
    """Applies the layer: [..., I], [I] and [I] -> [..., size]."""
    fan_in = inputs.shape[-1]
    usual = hk.initializers.TruncatedNormal(1 / math.sqrt(fan_in))
    w = hk.get_parameter("w", [fan_in, self._size], init=self._w_init or usual)
    bias = shift @ w + hk.get_parameter("b", [self._size], init=jnp.zeros)
    w = factor[:, None] * w
    if self._size < _FEW:
      w = platform.weights(w)
    return inputs @ w + bias


def with_unit_norm(params: types.Params) -> types.Params:
  """Projects the weights "w" [..., inputs, units] onto the unit sphere.

  XQC (Palenicek et al., arXiv 2509.25174) does so after each step, or the norm,
  which batch normalisation cancels, would grow, and steps would change less.
  """

  def project(path: jax.tree_util.KeyPath, x: jax.Array) -> jax.Array:
    if path[-1] != jax.tree_util.DictKey("w"):
      return x
    square = jnp.sum(jnp.square(x), axis=-2, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(square, 1e-20))

  return jax.tree_util.tree_map_with_path(project, params)
