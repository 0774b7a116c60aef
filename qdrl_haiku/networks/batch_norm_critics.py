"""The networks of CrossQ and XQC: twin critics with batch normalisation."""

from collections.abc import Callable
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from qdrl_haiku import types
from qdrl_haiku.checks import check_count
from qdrl_haiku.cpu import fusion
from qdrl_haiku.networks import actor_critic, base, batch_norm
from qdrl_haiku.networks.config import ACTIVATIONS, NUM_CRITICS, NetworkConfig
from qdrl_haiku.networks.own import (
  BATCH,
  OwnNetwork,
  OwnNetworks,
  check_own_network_shapes,
  is_own_pair,
  tell_own_network,
)

_Activation = Callable[[jax.Array], jax.Array]
# Inputs, and what normalises them.
_Affine = tuple[jax.Array, jax.Array, jax.Array]


class BatchNormNetworks(NamedTuple):
  """The networks of one agent of CrossQ or XQC.

  Attributes:
    policy: as in `ActorCritic`.
    critic: twin critics; each leaf of their parameters and of their state has a
      leading axis of size 2, one entry for each critic. apply(parameters,
      state, observation [..., O], action [..., A], *, is_training, rows) ->
      (outputs [..., 2, K], state), differentiable in reverse mode only. Of a
      batch [B] that goes through the critics together for its statistics,
      outputs are computed of `rows` only, a slice of all by default.
  """

  policy: base.Network
  critic: base.StatefulNetwork


def make_crossq_networks(
  observation_size: int,
  action_size: int,
  config: NetworkConfig = NetworkConfig(),
  own: OwnNetworks | None = None,
) -> BatchNormNetworks:
  """Returns the policy and the twin critics of CrossQ.

  Bhatt et al., arXiv 1902.05605, section 3: batch renormalisation of the
  critics' inputs and after each hidden layer's activation. Theirs have 2048
  units, and their policy is normalised likewise.

  Args and errors are those of `make_sac_networks`.
  """

  def forward(
    inputs: jax.Array, act: _Activation, is_training: bool, rows: slice
  ) -> jax.Array:
    def normalized(name: str, inputs: jax.Array) -> _Affine:
      layer = batch_norm.BatchNorm(renormalize=True, name=f"batch_norm_{name}")
      return inputs, *layer.affine(inputs, is_training)

    hidden = normalized("inputs", inputs)
    for i, size in enumerate(config.critic_sizes):
      linear = batch_norm.LinearOfAffine(size, name=f"linear_{i}")
      hidden = normalized(str(i), act(linear(*hidden)))
    hidden = hidden[0][rows], *hidden[1:]
    return batch_norm.LinearOfAffine(1, name="output")(*hidden)

  return _networks(observation_size, action_size, config, own, 1, forward)


def make_xqc_networks(
  observation_size: int,
  action_size: int,
  config: NetworkConfig = NetworkConfig(),
  own: OwnNetworks | None = None,
  *,
  num_atoms: int,
) -> BatchNormNetworks:
  """Returns the policy and the twin critics of XQC.

  Palenicek et al., arXiv 2509.25174, section 4: batch normalisation of the
  critics' inputs and before each hidden layer's activation, in place of a bias;
  logits of atoms as outputs; and weights of unit norm, which they begin with,
  and `with_unit_norm` keeps. Theirs have four layers of 512 units, and their
  policy is normalised likewise.

  Args:
    observation_size: see `make_sac_networks`, likewise those after it.
    action_size: A.
    config: what shapes the networks.
    own: networks that take the place of these.
    num_atoms: K, of each critic's distribution of values, >= 2.
  """
  check_count("num_atoms", num_atoms, 2)

  def forward(
    inputs: jax.Array, act: _Activation, is_training: bool, rows: slice
  ) -> jax.Array:
    # An offset would be taken out by the next normalisation.
    layer = batch_norm.BatchNorm(create_offset=False, name="batch_norm_inputs")
    hidden = layer(inputs, is_training)
    for i, size in enumerate(config.critic_sizes):
      hidden = hk.Linear(size, with_bias=False, name=f"linear_{i}")(hidden)
      layer = batch_norm.BatchNorm(name=f"batch_norm_{i}")
      hidden = act(layer(hidden, is_training))
    return hk.Linear(num_atoms, name="output")(hidden[rows])

  made = _networks(
    observation_size, action_size, config, own, num_atoms, forward
  )

  def init(key: types.Key) -> tuple[types.Params, types.State]:
    params, state = made.critic.init(key)
    return batch_norm.with_unit_norm(params), state

  return made._replace(critic=made.critic._replace(init=init))


def _networks(
  observation_size: int,
  action_size: int,
  config: NetworkConfig,
  own: OwnNetworks | None,
  num_outputs: int,
  forward: Callable[[jax.Array, _Activation, bool, slice], jax.Array],
) -> BatchNormNetworks:
  """Returns SAC's policy, and twins of what `forward` makes."""
  own = own or OwnNetworks()
  policy, _ = actor_critic.make_sac_networks(
    observation_size, action_size, config, own._replace(critic=None)
  )
  act = ACTIVATIONS[config.activation]

  def critic(inputs: jax.Array, is_training: bool, rows: slice) -> jax.Array:
    with hk.experimental.name_scope("critic"):
      return forward(inputs, act, is_training, rows)

  twins = _twins(critic, observation_size + action_size)
  if own.critic is not None:
    twins = _own_critics(own.critic, observation_size, action_size, num_outputs)
  return BatchNormNetworks(policy, twins)


def _own_critics(
  given: OwnNetwork, observation_size: int, action_size: int, num_outputs: int
) -> base.StatefulNetwork:
  """Returns twin critics that are made of what a user gives."""
  if is_own_pair(given):
    twins = base.StatefulNetwork(given.init, given.apply)
  else:
    assert callable(given)
    function = tell_own_network(given)

    def critic(inputs: jax.Array, is_training: bool, rows: slice) -> jax.Array:
      parts = jnp.split(inputs, [observation_size], axis=-1)
      return function(*parts, is_training)[rows]

    twins = _twins(critic, observation_size + action_size)

  def outputs(key: types.Key, *inputs: jax.Array) -> jax.Array:
    return twins.apply(*twins.init(key), *inputs, is_training=True)[0]

  check_own_network_shapes(
    "critic",
    outputs,
    [(*BATCH, observation_size), (*BATCH, action_size)],
    (*BATCH, NUM_CRITICS, num_outputs),
  )
  return twins


def _twins(
  critic: Callable[[jax.Array, bool, slice], jax.Array], input_size: int
) -> base.StatefulNetwork:
  """Returns two critics as one network with stacked parameters."""
  transformed = base.transform_with_state(critic)

  def init(key: types.Key) -> tuple[types.Params, types.State]:
    example = jnp.zeros([1, input_size], jnp.float32)
    return jax.vmap(
      lambda key: transformed.init(key, example, True, slice(None))
    )(jax.random.split(key, NUM_CRITICS))

  def apply(
    params: types.Params,
    state: types.State,
    observation: jax.Array,
    action: jax.Array,
    *,
    is_training: bool,
    rows: slice = slice(None),
  ) -> tuple[jax.Array, types.State]:
    inputs = jnp.concatenate([observation, action], axis=-1)
    # Statistics of the inputs are the same for both.
    outputs, state = jax.vmap(
      lambda params, state: transformed.apply(
        params, state, inputs, is_training, rows
      ),
      out_axes=(-2, 0),
    )(params, state)
    return fusion.without_gradient_fusion(outputs), state

  return base.StatefulNetwork(init=init, apply=apply)
