"""Residual blocks with layer normalisation, as SimBa has them.

Lee et al., "SimBa: simplicity bias for scaling up parameters in deep
reinforcement learning", arXiv 2410.09754, section 4.
"""

import haiku as hk
import jax

from qdrl_haiku.networks import mlp

_EXPANSION = 4


class ResidualMLP(mlp.MLP):
  """An affine map, residual blocks, LayerNorm, and an affine last layer.

  Each block maps x to x + W2 activation(W1 LayerNorm(x)), the first of its two
  layers four times as wide as the second. LayerNorm after the last block keeps
  the scale of features. Hidden layers, one or more blocks, are of one size.
  """

  @staticmethod
  def exported_names(num_hidden: int) -> dict[str, str]:
    """Returns an export's names of modules, where they differ from Haiku's."""
    return {mlp.mlp_hidden_name(0): "layer_0"}

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Applies the layers: [..., I] -> [..., output_size]."""
    size, num_blocks = self.hidden_layer_sizes[0], len(self.hidden_layer_sizes)
    # He et al., arXiv 1502.01852, before rectifiers.
    init = hk.initializers.VarianceScaling(2.0)
    hidden = hk.Linear(size, name=mlp.mlp_hidden_name(0))(inputs)
    for i in range(num_blocks):
      normalized = mlp.mlp_layer_norm(i)(hidden)
      expanded = hk.Linear(
        _EXPANSION * size, w_init=init, name=f"expand_{i}")(normalized)
      hidden += hk.Linear(size, w_init=init, name=f"project_{i}")(
        self.activation(expanded))
    return self.output_layer(mlp.mlp_layer_norm(num_blocks)(hidden))
