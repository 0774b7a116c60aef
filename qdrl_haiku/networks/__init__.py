"""Networks as (init, apply) pairs, and the parts that they are made of."""

from qdrl_haiku.networks.actor_critic import (
  ActorCritic,
  make_discriminator,
  make_dqn_network,
  make_ppo_networks,
  make_sac_networks,
  make_td3_networks,
)
from qdrl_haiku.networks.base import (
  Network,
  PolicyLayers,
  StatefulNetwork,
  Variables,
  network,
  stateful_network,
)
from qdrl_haiku.networks.batch_norm import BatchNorm, with_unit_norm
from qdrl_haiku.networks.batch_norm_networks import (
  BatchNormNetworks,
  make_crossq_networks,
  make_xqc_networks,
)
from qdrl_haiku.networks.config import NetworkConfig, ResidualNetworkConfig
from qdrl_haiku.networks.mlp import (
  LAYER_NORM_EPSILON,
  MLP,
  ResidualMLP,
  fix_mlp_inputs,
)
from qdrl_haiku.networks.own import OwnNetwork, OwnNetworks, own_network
from qdrl_haiku.networks.recurrent import Cell, Encoded, Sequences, encoder
