"""Residual blocks with layer normalisation, as SimBa has them.

Lee et al., "SimBa: simplicity bias for scaling up parameters in deep
reinforcement learning", arXiv 2410.09754, section 4.
"""

from collections.abc import Callable, Sequence

import haiku as hk
import jax

from qdrl_haiku.networks import mlp

_EXPANSION = 4


class ResidualMLP(hk.Module):
  """An affine map, residual blocks, LayerNorm, and an affine last layer.

  Each block adds to its inputs x what two layers make of them after LayerNorm,
  the first four times as wide: x + W2 activation(W1 LayerNorm(x)). A LayerNorm
  after the last block keeps features of one size however many blocks there are.
  """

  def __init__(
    self,
    hidden_layer_sizes: Sequence[int],
    output_size: int,
    *,
    activation: Callable[[jax.Array], jax.Array],
    final_init: hk.initializers.Initializer | None = None,
    name: str,
  ) -> None:
    """Describes the layers; nothing is created before the call.

    Args:
      hidden_layer_sizes: units of what each block adds to, all alike and each
        >= 1; at least one.
      output_size: units of the last layer, >= 1.
      activation: elementwise, within each block.
      final_init: the initialiser of the last layer's weights; None for that
        of an `MLP`.
      name: the module's name, the prefix of its parameters' names.
    """
    super().__init__(name=name)
    self._num_blocks = len(hidden_layer_sizes)
    self._size = hidden_layer_sizes[0]
    self._output_size = output_size
    self._activation = activation
    self._final_init = final_init

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Applies the layers.

    Args:
      inputs: [..., I].

    Returns:
      [..., output_size].
    """
    # He et al., arXiv 1502.01852, before rectifiers.
    init = hk.initializers.VarianceScaling(2.0)
    hidden = hk.Linear(self._size, name=mlp.hidden_name(0))(inputs)
    for i in range(self._num_blocks):
      normalized = mlp.layer_norm(i)(hidden)
      expanded = hk.Linear(
        _EXPANSION * self._size, w_init=init, name=f"expand_{i}"
      )(normalized)
      hidden += hk.Linear(self._size, w_init=init, name=f"project_{i}")(
        self._activation(expanded)
      )
    return mlp.output_layer(self._output_size, self._final_init)(
      mlp.layer_norm(self._num_blocks)(hidden)
    )
