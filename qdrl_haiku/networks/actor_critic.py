"""Policies, critics, discriminators as (init, apply) pairs of pure functions.

Hidden layers are affine, then LayerNorm where asked for, then the activation.
Their weights start from Haiku's truncated normal of standard deviation
1 / sqrt(fan-in) (LeCun et al., "Efficient BackProp", 1998, section 4.6), or are
orthogonal times sqrt(2), the last layer's times 1 (Saxe et al., arXiv
1312.6120); biases are zero. The last layer of a policy starts from
U(-3e-3, 3e-3), so that first actions are near 0 (Lillicrap et al., arXiv
1509.02971, section 7), or as those of critics do, so that new policies differ.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from qdrl_haiku import platform, specs, types
from qdrl_haiku.checks import check_count
from qdrl_haiku.networks import convolutions, mlp, recurrent
from qdrl_haiku.networks.base import Network, PolicyLayers, network, of_policy
from qdrl_haiku.networks.config import (
  ACTIVATIONS,
  NUM_CRITICS,
  NetworkConfig,
  ResidualNetworkConfig,
)
from qdrl_haiku.networks.own import OwnNetworks, own_critics, own_network
from qdrl_haiku.networks.recurrent import Cell


def _orthogonal(scale: float) -> hk.initializers.Initializer:
  """Returns an initialiser whose matrices are factorised one by one.

  On CPUs LAPACK shares the matrices of a batch among XLA's threads and waits
  in one of them: as many layers at once as there are threads wait for ever.
  """
  draw = jax.nn.initializers.orthogonal(scale)

  def init(shape: Sequence[int], dtype: jnp.dtype) -> jax.Array:
    one_by_one = jax.custom_batching.sequential_vmap(
      lambda key: draw(key, shape, dtype))
    return one_by_one(hk.next_rng_key())

  return init


_SMALL = hk.initializers.RandomUniform(-3e-3, 3e-3)
# Initialisers of hidden layers and of last layers; None is Haiku's default.
_INITS: dict[str, tuple[hk.initializers.Initializer | None, ...]] = {
  "fan_in": (None, None),
  "orthogonal": (_orthogonal(math.sqrt(2.0)), _orthogonal(1.0))}


class ActorCritic(NamedTuple):
  """The networks of one agent of SAC, TD3 or PPO.

  Attributes:
    policy: apply(parameters, observation [..., O], or a tree) -> the parameters
      of the distribution over actions: [..., 2A] for `policies.normal_tanh`, or
      [..., A] for `policies.deterministic_tanh`.
    critic: apply(parameters, observation [..., O], action [..., A]) ->
      [..., 2], the values of the twin critics, differentiable in reverse mode
      only; each leaf of its parameters has a leading axis of size 2, one entry
      for each critic. With the entries of one critic alone it is [..., 1]. Of
      discrete actions: apply(parameters, observation) -> [..., n, 2]. Of PPO:
      apply(parameters, observation [..., O]) -> [...], the value.
  """

  policy: Network
  critic: Network


def make_sac_networks(
  observation_size: int | specs.Observation, action_size: int | specs.Action,
  config: NetworkConfig = ResidualNetworkConfig(),
  own: OwnNetworks | None = None, cell: Cell | None = None,
) -> ActorCritic:
  """Returns the policy, with 2A outputs, and the twin critics of SAC.

  Of discrete actions, one of n, the policy has n outputs, the logits.

  Args:
    observation_size: O, >= 1, or the spec of observations, which are flattened
      and joined as `specs.as_vector` says, but for networks of a user's own.
    action_size: A, >= 1, or the spec of actions.
    config: what shapes the networks.
    own: networks that take the place of the package's.
    cell: of encoders, for networks that are recurrent, see `recurrent`; their
      parameters have one for both critics.

  Raises:
    ValueError: for a size that is no positive integer, residual blocks of
      different sizes or with LayerNorm, or networks that make other shapes.
  """
  return _actor_critic(observation_size, action_size, 2, config, own, cell)


def make_td3_networks(
  observation_size: int | specs.Observation, action_size: int | specs.Action,
  config: NetworkConfig = ResidualNetworkConfig(),
  own: OwnNetworks | None = None, cell: Cell | None = None,
) -> ActorCritic:
  """Returns the policy, with A outputs, and the twin critics of TD3.

  Args and errors are those of `make_sac_networks`.
  """
  action_size = specs.action_size(action_size)
  return _actor_critic(observation_size, action_size, 1, config, own, cell)


def make_ppo_networks(
  observation_size: int | specs.Observation, action_size: int | specs.Action,
  config: NetworkConfig = NetworkConfig(), own: OwnNetworks | None = None,
  cell: Cell | None = None,
) -> ActorCritic:
  """Returns the policy, with 2A outputs, and the critic of PPO.

  Args and errors are those of `make_sac_networks`.
  """
  return _actor_critic(
    observation_size, action_size, 2, config, own, cell, of_observations=True)


def make_dqn_network(
  observation_size: int | specs.Observation, action_size: specs.Discrete,
  config: NetworkConfig = ResidualNetworkConfig(),
  own: OwnNetworks | None = None,
) -> Network:
  """Returns the network of DQN: observation [..., O] -> values [..., n].

  It's shaped as policies are, and like theirs its first outputs are near 0.
  Args and errors are those of `make_sac_networks`.
  """
  return _actor_critic(
    observation_size, action_size, 1, config, own, of_observations=True).policy


def make_discriminator(
  input_size: int, parameter_size: int,
  hidden_layer_sizes: Sequence[int] = (256, 256), *, activation: str = "relu",
  layer_norm: bool = False,
) -> Network:
  """Returns a network that rewards skills, such as DIAYN's discriminator.

  Eysenbach et al., "Diversity is all you need", 2018, arXiv 1802.06070.

  It is apply(parameters, input [..., I]) -> [..., parameter_size].

  Args:
    input_size: I, how many numbers describe a state to it, >= 1.
    parameter_size: how many the distribution over skills has, >= 1.
    hidden_layer_sizes: units of the hidden layers, each >= 1.
    activation: of all hidden layers, see `NetworkConfig`.
    layer_norm: whether LayerNorm stands before each activation.

  Returns:
    The network: apply(parameters, input [..., I]) -> [..., parameter_size].

  Raises:
    ValueError: for a size that is no positive integer, or an unknown
      activation.
  """
  check_count("input_size", input_size, 1)
  check_count("parameter_size", parameter_size, 1)
  shape = NetworkConfig(tuple(hidden_layer_sizes), activation=activation)

  def discriminator(inputs: jax.Array) -> jax.Array:
    return mlp.MLP(
      shape.hidden_layer_sizes, parameter_size,
      activation=ACTIVATIONS[activation], layer_norm=layer_norm,
      name="discriminator")(inputs)

  return network(discriminator, input_size)


def policy_final_init(
  config: NetworkConfig, default: str = "small",
  usual: hk.initializers.Initializer | None = None,
) -> hk.initializers.Initializer | None:
  """Returns the initialiser of a policy's last layer.

  A setting of `config` says whether it is "small" or `usual`; else `default`
  does, the network's own.
  """
  return _SMALL if (config.policy_final_init or default) == "small" else usual


def _actor_critic(
  observation_size: int | specs.Observation, action_size: int | specs.Action,
  outputs_per_action: int, config: NetworkConfig, own: OwnNetworks | None,
  cell: Cell | None = None, *, of_observations: bool = False,
) -> ActorCritic:
  """Returns the policy and twin critics, or one critic `of_observations`."""
  observed = specs.observation_spec(observation_size)
  if cell is not None:
    made = _actor_critic(
      recurrent.beside(observed, cell).spec, action_size, outputs_per_action,
      config, own, of_observations=of_observations)
    return ActorCritic(*(
      recurrent.recurrent(network, observed, cell, role)
      for role, network in made._asdict().items()))
  seen = specs.seen_by_policy(observed)
  action = specs.action_spec(action_size)
  if not isinstance(config, ResidualNetworkConfig):
    config = ResidualNetworkConfig(**vars(config))
  own = own or OwnNetworks()
  hidden_init, last_init = _INITS[config.initial_weights]
  see, sees_images = specs.as_vector, config.network == "conv"
  if sees_images:
    convolutions.check_images(seen)
    see = functools.partial(
      convolutions.see, activation=ACTIVATIONS[config.activation],
      init=hidden_init)
  is_discrete = isinstance(action, specs.Discrete)
  num_outputs = action.size * (1 if is_discrete else outputs_per_action)
  if own.policy is not None:
    policy = own_network("policy", own.policy, (seen,), (num_outputs,))
  else:
    sizes = (
      specs.observation_size(seen), *config.policy_sizes, num_outputs)
    forward = _perceptron(
      "policy", config, config.policy_sizes, num_outputs,
      layer_norm=config.layer_norm, residual=config.residual,
      final_init=policy_final_init(config, usual=last_init))
    policy = network(forward, seen, see)
    if not sees_images:
      policy = policy._replace(layers=lambda params: PolicyLayers(
        _exported_arrays(params, config), sizes, config.activation,
        config.layer_norm, config.residual))
  policy = of_policy(policy, observed)
  if own.critic is not None and of_observations:
    critic = own_network("critic", own.critic, (observed,), ())
  elif own.critic is not None and is_discrete:
    critic = own_critics(own.critic, (observed,), (action.size,))
  elif own.critic is not None:
    critic = own_critics(own.critic, (observed, specs.Array(action.shape)))
  else:
    # A value of each action that there is, or one: of what critics see.
    judges_all = is_discrete and not of_observations
    judged = (observed,) if judges_all else (observed, action)
    value = _perceptron(
      "critic", config, config.critic_sizes, action.size if judges_all else 1,
      layer_norm=config.layer_norm
      if config.critic_layer_norm is None
      else config.critic_layer_norm,
      residual=config.residual
      if config.critic_residual is None
      else config.critic_residual,
      final_init=last_init)
    judge = value if judges_all else lambda inputs: value(inputs)[..., 0]
    if of_observations:
      critic = network(judge, observed, see)
    elif sees_images:
      critic = _twins(network(judge, judged, see))
    else:
      size = specs.observation_size(judged)
      critic = _twins(network(judge, size), judged)
  return ActorCritic(policy, critic)


def _exported_arrays(
  params: types.Params, config: ResidualNetworkConfig
) -> dict[str, jax.Array]:
  """Returns a policy's weights by their names in a file."""
  module = mlp.ResidualMLP if config.residual else mlp.MLP
  names = module.exported_names(len(config.policy_sizes))
  own = ((path.rpartition("/")[2], values) for path, values in params.items())
  return {
    f"{names.get(name, name)}/{kind}": x
    for name, values in own for kind, x in values.items()}


def _perceptron(
  name: str, config: ResidualNetworkConfig, sizes: Sequence[int],
  output_size: int, *, layer_norm: bool, residual: bool,
  final_init: hk.initializers.Initializer | None = None,
) -> Callable[[jax.Array], jax.Array]:
  """Returns a function that applies an `MLP` or a `ResidualMLP`."""
  if residual and layer_norm:
    raise ValueError(
      f"layer_norm has no effect on the {name}'s residual blocks, which are "
      "normalised by themselves; leave it out, or take no residual blocks.")
  if residual and len(set(sizes)) != 1:
    raise ValueError(
      f"{name}_hidden_layer_sizes={tuple(sizes)} are no sizes of residual "
      "blocks, which add to each other; give one or more that are alike, such "
      "as (128, 128).")
  module = mlp.ResidualMLP if residual else mlp.MLP
  return lambda inputs: module(
    sizes, output_size, activation=ACTIVATIONS[config.activation],
    layer_norm=layer_norm, hidden_init=_INITS[config.initial_weights][0],
    final_init=final_init, name=name)(inputs)


def _twins(critic: Network, spec: specs.Observation = None) -> Network:
  """Returns two critics, of joined inputs with a spec, as one network."""
  # Each layer is one batched product. The inputs are batched too: the first
  # layers could be one product of the same inputs, but its results would have
  # to be transposed for the second ones, and its gradient back.
  apply_both = jax.vmap(critic.apply, out_axes=-1)

  def init(key: types.Key) -> types.Params:
    return jax.vmap(critic.init)(jax.random.split(key, NUM_CRITICS))

  def apply(params: types.Params, *inputs: types.Tree) -> jax.Array:
    seen = inputs if spec is None else specs.as_vector(inputs, spec)
    # There may be the parameters of one critic alone.
    num_critics = jax.tree.leaves(params)[0].shape[0]
    values = apply_both(params, jax.tree.map(
      lambda x: jnp.broadcast_to(x, (num_critics, *x.shape)), seen))
    return platform.outputs(values)

  return Network(init, apply)
