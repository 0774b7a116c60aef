"""Multi-layer perceptrons, and the layers that networks share."""

from collections.abc import Callable, Sequence

import haiku as hk
import jax
import jax.numpy as jnp

from qdrl_haiku import platform, types

LAYER_NORM_EPSILON = 1e-5
"""Keeps LayerNorm's variances above 0, to which it is added."""
_OUTPUT = "output"
_EXPANSION = 4  # Of residual blocks.


class MLP(hk.Module):
  """A multi-layer perceptron with an affine last layer."""

  def __init__(
    self, hidden_layer_sizes: Sequence[int], output_size: int, *,
    activation: Callable[[jax.Array], jax.Array], layer_norm: bool = False,
    hidden_init: hk.initializers.Initializer | None = None,
    final_init: hk.initializers.Initializer | None = None, name: str,
  ) -> None:
    """Describes the layers; nothing is created before the call.

    Args:
      hidden_layer_sizes: units of each hidden layer; empty for an affine map.
      output_size: units of the last layer, >= 1.
      activation: elementwise, after each hidden layer.
      layer_norm: whether LayerNorm, with learned scale and offset, stands
        before each activation (Ba et al., arXiv 1607.06450, eq. 4).
      hidden_init: of hidden layers' weights; None for Haiku's truncated normal.
      final_init: of the last layer's weights; None for Haiku's, too.
      name: the prefix of its parameters' names.
    """
    super().__init__(name=name)
    self.hidden_layer_sizes = tuple(hidden_layer_sizes)
    self.activation = activation
    self._output_size = output_size
    self._layer_norm = layer_norm
    self._hidden_init = hidden_init
    self._final_init = final_init

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Applies the layers: [..., I] -> [..., output_size]."""
    hidden = inputs
    for i, size in enumerate(self.hidden_layer_sizes):
      hidden = hk.Linear(
        size, w_init=self._hidden_init, name=mlp_hidden_name(i))(hidden)
      if self._layer_norm:
        hidden = mlp_layer_norm(i)(hidden)
      hidden = self.activation(hidden)
    return self.output_layer(hidden)

  @staticmethod
  def exported_names(num_hidden: int) -> dict[str, str]:
    """Returns an export's names of modules, where they differ from Haiku's."""
    names = {_OUTPUT: f"layer_{num_hidden}"}
    for i in range(num_hidden):
      names[mlp_hidden_name(i)] = names[f"layer_norm_{i}"] = f"layer_{i}"
    return names

  @hk.transparent
  def output_layer(self, hidden: jax.Array) -> jax.Array:
    """Applies the last layer, which has few units: [..., I] -> [..., size]."""
    layer = hk.Linear(self._output_size, w_init=self._final_init, name=_OUTPUT)
    with hk.custom_getter(_few_outputs):
      return layer(hidden)


class ResidualMLP(MLP):
  """An affine map, residual blocks, LayerNorm, and an affine last layer.

  As in SimBa (Lee et al., arXiv 2410.09754, section 4). Each block maps x to
  x + W2 activation(W1 LayerNorm(x)), the first of its two layers four times as
  wide as the second. LayerNorm after the last block keeps the scale of
  features. Hidden layers, one or more blocks, are of one size.
  """

  @staticmethod
  def exported_names(num_hidden: int) -> dict[str, str]:
    """Returns an export's names of modules, where they differ from Haiku's."""
    return {mlp_hidden_name(0): "layer_0"}

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Applies the layers: [..., I] -> [..., output_size]."""
    size, num_blocks = self.hidden_layer_sizes[0], len(self.hidden_layer_sizes)
    # He et al., arXiv 1502.01852, before rectifiers.
    init = hk.initializers.VarianceScaling(2.0)
    hidden = hk.Linear(size, name=mlp_hidden_name(0))(inputs)
    for i in range(num_blocks):
      normalized = mlp_layer_norm(i)(hidden)
      expanded = hk.Linear(
        _EXPANSION * size, w_init=init, name=f"expand_{i}")(normalized)
      hidden += hk.Linear(size, w_init=init, name=f"project_{i}")(
        self.activation(expanded))
    return self.output_layer(mlp_layer_norm(num_blocks)(hidden))


def mlp_layer_norm(i: int) -> Callable[[jax.Array], jax.Array]:
  """Makes the i-th LayerNorm of a module, with learned scale and offset."""
  return hk.LayerNorm(
    axis=-1, create_scale=True, create_offset=True, eps=LAYER_NORM_EPSILON,
    name=f"layer_norm_{i}")


def fix_mlp_inputs(
  params: types.Params, first: int, values: jax.Array
) -> types.Params:
  """Fixes some inputs of a network, whose first layer's bias absorbs them.

  Args:
    params: of the network with I inputs.
    first: the index of the first of the K inputs that are fixed.
    values: [K], the values that these inputs have.

  Returns:
    The parameters of the same network with the other I - K inputs only.
  """
  layers = {name.rpartition("/")[2]: name for name in params}
  layer = layers.get(mlp_hidden_name(0), layers[_OUTPUT])
  weights, last = params[layer]["w"], first + values.shape[0]
  return dict(params) | {layer: {
    "w": jnp.concatenate([weights[:first], weights[last:]]),
    "b": params[layer]["b"] + values @ weights[first:last]}}


def mlp_hidden_name(i: int) -> str:
  """Returns the name of a module's i-th hidden layer."""
  return f"linear_{i}"


def _few_outputs(
  next_getter: Callable[[jax.Array], jax.Array], value: jax.Array, _: object
) -> jax.Array:
  """Gets a parameter of a layer with few outputs, see `cpu.fusion`."""
  value = next_getter(value)
  return value if value.ndim < 2 else platform.weights(value)
