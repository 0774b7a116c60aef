"""The networks of CrossQ and XQC: twin critics with batch normalisation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from qdrl_haiku import types
from qdrl_haiku.checks import check_count
from qdrl_haiku.cpu import fusion
from qdrl_haiku.networks import actor_critic, base, batch_norm, mlp, settings


class BatchNormCritics(NamedTuple):
  """Twin critics, of which a batch's statistics are computed together.

  Each leaf of their parameters and of their state has a leading axis of size 2,
  one entry for each critic.

  Attributes:
    init: (key) -> (parameters, state). The key is consumed.
    features: (parameters, state, observation [B, O], action [B, A], *,
      is_training) -> (features [2, B, W], state), see
      `networks.StatefulNetwork`; without training for any leading axes.
    outputs: (parameters, features [2, ..., W]) -> [..., 2, K], K numbers of
      each critic, differentiable in reverse mode only. Apart from the features,
      since of a batch that goes through the critics together not all outputs
      are needed.
  """

  init: Callable[[types.Key], tuple[types.Params, Any]]
  features: Callable[..., tuple[jax.Array, Any]]
  outputs: Callable[[types.Params, jax.Array], jax.Array]


class BatchNormNetworks(NamedTuple):
  """The networks of one agent of CrossQ or XQC.

  Attributes:
    policy: as in `SACNetworks`.
    critic: the twin critics.
  """

  policy: base.Network
  critic: BatchNormCritics


def make_crossq_networks(
  observation_size: int,
  action_size: int,
  *,
  policy_hidden_layer_sizes: Sequence[int] = (256, 256),
  critic_hidden_layer_sizes: Sequence[int] = (256, 256),
  activation: str = "relu",
  policy_final_init: str = "small",
) -> BatchNormNetworks:
  """Returns the policy and the twin critics of CrossQ.

  Bhatt et al., arXiv 1902.05605, section 3: batch renormalisation of the
  critics' inputs and after each hidden layer's activation. Theirs have 2048
  units, and their policy is normalised likewise.

  Args:
    observation_size: O, >= 1.
    action_size: A, >= 1.
    policy_hidden_layer_sizes: units of the policy's hidden layers, each >= 1.
    critic_hidden_layer_sizes: units of each critic's hidden layers, each >= 1.
    activation: of all hidden layers, see `make_sac_networks`.
    policy_final_init: see `make_sac_networks`.

  Returns:
    The policy, as that of `make_sac_networks`, and the critics, of one output.

  Raises:
    ValueError: for a size that is not a positive integer, or an unknown
      activation or initialiser.
  """

  def layer(size: int, i: int, act: Any, hidden: Any, is_training: bool) -> Any:
    hidden = act(hk.Linear(size, name=f"linear_{i}")(hidden))
    return batch_norm.BatchNorm(renormalize=True, name=f"batch_norm_{i}")(
      hidden, is_training
    )

  return _networks(
    observation_size,
    action_size,
    layer=layer,
    of_inputs={"renormalize": True},
    num_outputs=1,
    policy_hidden_layer_sizes=policy_hidden_layer_sizes,
    critic_hidden_layer_sizes=critic_hidden_layer_sizes,
    activation=activation,
    policy_final_init=policy_final_init,
  )


def make_xqc_networks(
  observation_size: int,
  action_size: int,
  *,
  num_atoms: int,
  policy_hidden_layer_sizes: Sequence[int] = (256, 256),
  critic_hidden_layer_sizes: Sequence[int] = (256, 256),
  activation: str = "relu",
  policy_final_init: str = "small",
) -> BatchNormNetworks:
  """Returns the policy and the twin critics of XQC.

  Palenicek et al., arXiv 2509.25174, section 4: batch normalisation of the
  critics' inputs and before each hidden layer's activation, in place of a bias;
  logits of atoms as outputs; and weights of unit norm, which they begin with,
  and `with_unit_norm` keeps. Theirs have four layers of 512 units, and their
  policy is normalised likewise.

  Args:
    observation_size: O, >= 1.
    action_size: A, >= 1.
    num_atoms: K, of each critic's distribution of values, >= 2.
    policy_hidden_layer_sizes: units of the policy's hidden layers, each >= 1.
    critic_hidden_layer_sizes: units of each critic's hidden layers, each >= 1.
    activation: of all hidden layers, see `make_sac_networks`.
    policy_final_init: see `make_sac_networks`.

  Returns:
    The policy, as that of `make_sac_networks`, and the critics, of K outputs.

  Raises:
    ValueError: for a size that is not a positive integer, too few atoms, or an
      unknown activation or initialiser.
  """
  check_count("num_atoms", num_atoms, 2)

  def layer(size: int, i: int, act: Any, hidden: Any, is_training: bool) -> Any:
    hidden = hk.Linear(size, with_bias=False, name=f"linear_{i}")(hidden)
    return act(
      batch_norm.BatchNorm(name=f"batch_norm_{i}")(hidden, is_training)
    )

  made = _networks(
    observation_size,
    action_size,
    layer=layer,
    # The next normalisation would take it out again.
    of_inputs={"create_offset": False},
    num_outputs=num_atoms,
    policy_hidden_layer_sizes=policy_hidden_layer_sizes,
    critic_hidden_layer_sizes=critic_hidden_layer_sizes,
    activation=activation,
    policy_final_init=policy_final_init,
  )

  def init(key: types.Key) -> tuple[types.Params, Any]:
    params, state = made.critic.init(key)
    return batch_norm.with_unit_norm(params), state

  return made._replace(critic=made.critic._replace(init=init))


def _networks(
  observation_size: int,
  action_size: int,
  *,
  layer: Callable[..., jax.Array],
  of_inputs: Mapping[str, bool],
  num_outputs: int,
  policy_hidden_layer_sizes: Sequence[int],
  critic_hidden_layer_sizes: Sequence[int],
  activation: str,
  policy_final_init: str,
) -> BatchNormNetworks:
  """Returns SAC's policy, and critics of such hidden layers."""
  policy, _ = actor_critic.make_sac_networks(
    observation_size,
    action_size,
    policy_hidden_layer_sizes=policy_hidden_layer_sizes,
    critic_hidden_layer_sizes=critic_hidden_layer_sizes,
    activation=activation,
    policy_final_init=policy_final_init,
  )
  act = settings.ACTIVATIONS[activation]

  def features(inputs: jax.Array, is_training: bool) -> jax.Array:
    with hk.experimental.name_scope("critic"):
      hidden = batch_norm.BatchNorm(**of_inputs, name="batch_norm_inputs")(
        inputs, is_training
      )
      for i, size in enumerate(critic_hidden_layer_sizes):
        hidden = layer(size, i, act, hidden, is_training)
    return hidden

  def outputs(features: jax.Array) -> jax.Array:
    with hk.experimental.name_scope("critic"):
      return mlp.output_layer(num_outputs)(features)

  input_size = observation_size + action_size
  num_features = [input_size, *critic_hidden_layer_sizes][-1]
  return BatchNormNetworks(
    policy,
    _twins(
      base.stateful_network(features, input_size),
      base.network(outputs, num_features),
    ),
  )


def _twins(
  body: base.StatefulNetwork, head: base.Network
) -> BatchNormCritics:
  """Returns two critics as one network with stacked parameters."""

  def init_one(key: types.Key) -> tuple[types.Params, Any]:
    body_key, head_key = jax.random.split(key)
    params, state = body.init(body_key)
    return params | head.init(head_key), state

  def init(key: types.Key) -> tuple[types.Params, Any]:
    keys = jax.random.split(key, settings.NUM_CRITICS)
    return jax.vmap(init_one)(keys)

  def features(
    params: types.Params,
    state: Any,
    observation: jax.Array,
    action: jax.Array,
    *,
    is_training: bool,
  ) -> tuple[jax.Array, Any]:
    inputs = jnp.concatenate([observation, action], axis=-1)
    return jax.vmap(
      lambda params, state, inputs: body.apply(
        params, state, inputs, is_training=is_training
      )
    )(
      params,
      state,
      jnp.broadcast_to(inputs, (settings.NUM_CRITICS, *inputs.shape)),
    )

  def outputs(params: types.Params, features: jax.Array) -> jax.Array:
    values = jax.vmap(head.apply, out_axes=-2)(params, features)
    return fusion.gradient_apart(values)

  return BatchNormCritics(init=init, features=features, outputs=outputs)
