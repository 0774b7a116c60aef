"""The settings of networks."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from qdrl_haiku.config import Settings, setting

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "elu": jax.nn.elu, "gelu": jax.nn.gelu, "leaky_relu": jax.nn.leaky_relu,
  "relu": jax.nn.relu, "swish": jax.nn.swish,
  "tanh": jnp.tanh}
"""Activations of hidden layers, by name."""
NUM_CRITICS = 2
"""Number of critics of an agent: twins."""


@dataclasses.dataclass(frozen=True)
class NetworkConfig(Settings):
  """Shapes an agent's policy and critics."""

  title = "Networks"

  hidden_layer_sizes: tuple[int, ...] = setting(
    (256, 256), "Widths of the hidden layers of all networks.", low=1)
  policy_hidden_layer_sizes: tuple[int, ...] | None = setting(
    None,
    "Widths of the policy's hidden layers; by default --hidden_layer_sizes.",
    low=1)
  critic_hidden_layer_sizes: tuple[int, ...] | None = setting(
    None,
    "Widths of the critics' hidden layers; by default --hidden_layer_sizes.",
    low=1)
  activation: str = setting(
    "relu", f"Activation of the hidden layers: {', '.join(ACTIVATIONS)}.",
    choices=tuple(ACTIVATIONS))
  policy_final_init: str | None = setting(
    None,
    "Initial weights of the policy's last layer: small, uniform from -0.003 to "
    "0.003, so that first actions are near 0, the default without a "
    "repertoire; or fan_in, as hidden layers have them by default, so that "
    "new policies act differently, the default with one, and of crossq.",
    choices=("small", "fan_in"), offered=False)
  network: str = setting(
    "mlp",
    "mlp, perceptrons of all that is observed as one vector; or conv, in which "
    "convolutions see the images first: the three of DQN where sides are 36 "
    "and more, one of 16 channels, as MinAtar's, where they are smaller.",
    choices=("mlp", "conv"))

  @property
  def policy_sizes(self) -> tuple[int, ...]:
    """Widths of the policy's hidden layers."""
    sizes = self.policy_hidden_layer_sizes
    return self.hidden_layer_sizes if sizes is None else sizes

  @property
  def critic_sizes(self) -> tuple[int, ...]:
    """Widths of each critic's hidden layers."""
    sizes = self.critic_hidden_layer_sizes
    return self.hidden_layer_sizes if sizes is None else sizes

  @property
  def has_residual_blocks(self) -> bool:
    """Whether the networks have residual blocks; only residual ones may."""
    return False


@dataclasses.dataclass(frozen=True)
class ResidualNetworkConfig(NetworkConfig):
  """Shapes networks that may be layer-normalised or residual."""

  layer_norm: bool = setting(
    False,
    "Whether LayerNorm stands before each hidden activation, in the policy and "
    "in the critics.")
  critic_layer_norm: bool | None = setting(
    None, "--layer_norm of the critics; by default that of the policy.",
    offered=False)
  residual: bool = setting(
    False,
    "Whether hidden layers are residual blocks of one width, layer-normalised "
    "(SimBa, Lee et al., arXiv 2410.09754), in the policy and in the critics.")
  critic_residual: bool | None = setting(
    None, "--residual of the critics; by default that of the policy.",
    offered=False)
  initial_weights: str = setting(
    "fan_in",
    "Initial weights of the hidden layers: fan_in, normal with a deviation of "
    "1 / sqrt(inputs); or orthogonal, times sqrt(2), which makes the first "
    "layer's weights smaller, so that agents learn sooner from observations "
    "which aren't normalised.",
    choices=("fan_in", "orthogonal"), only={"residual": (False,)})

  @property
  def has_residual_blocks(self) -> bool:
    """Whether the policy or the critics have residual blocks."""
    return self.residual or bool(self.critic_residual)
