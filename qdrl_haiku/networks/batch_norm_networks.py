"""The networks of CrossQ and XQC: all of them with batch normalisation."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import haiku as hk
import jax

from qdrl_haiku import platform, specs, types
from qdrl_haiku.checks import check_count
from qdrl_haiku.networks import base, batch_norm
from qdrl_haiku.networks import own as own_networks
from qdrl_haiku.networks.actor_critic import policy_final_init
from qdrl_haiku.networks.config import (
  ACTIVATIONS,
  NUM_CRITICS,
  NetworkConfig,
  ResidualNetworkConfig,
)
from qdrl_haiku.networks.own import OwnNetwork, OwnNetworks, own_network

# (inputs [..., I], whether it's in training, rows of which outputs are made).
_Forward = Callable[[jax.Array, bool, slice], jax.Array]
# (sizes of hidden layers, size of the output, its initial weights).
_MakeForward = Callable[
  [Sequence[int], int, hk.initializers.Initializer | None], _Forward]


class BatchNormNetworks(NamedTuple):
  """The networks of one agent of CrossQ or XQC.

  Attributes:
    policy: as in `ActorCritic`, of parameters that are `Variables`: it acts
      by averages of the statistics of the batches that it has learned from.
    critic: twin critics; each leaf of their parameters and of their state has a
      leading axis of size 2, one entry for each critic. apply(parameters,
      state, observation [..., O], action [..., A], *, is_training, rows) ->
      (outputs [..., 2, K], state), differentiable in reverse mode only. The
      statistics are those of the whole batch [B]; outputs are computed only for
      `rows`, a slice of it, by default all.
  """

  policy: base.Network
  critic: base.StatefulNetwork


def make_crossq_networks(
  observation_size: int | specs.Observation, action_size: int | specs.Action,
  config: NetworkConfig = NetworkConfig(), own: OwnNetworks | None = None,
) -> BatchNormNetworks:
  """Returns the policy and the twin critics of CrossQ.

  Bhatt et al., arXiv 1902.05605, section 3: batch renormalisation of inputs and
  after each hidden layer's activation, in the policy too, as in the authors'
  code. Their critics have 2048 units.

  Args and errors are those of `make_sac_networks`.
  """
  act = ACTIVATIONS[config.activation]

  def layers(
    sizes: Sequence[int], output_size: int,
    final_init: hk.initializers.Initializer | None,
  ) -> _Forward:
    def forward(inputs: jax.Array, is_training: bool, rows: slice) -> jax.Array:
      def affine(name: str, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        layer = batch_norm.BatchNorm(
          renormalize=True, name=f"batch_norm_{name}")
        return layer.affine(hidden, is_training)

      hidden, scaling = inputs, affine("inputs", inputs)
      for i, size in enumerate(sizes):
        linear = batch_norm.LinearOfAffine(size, name=f"linear_{i}")
        hidden = act(linear(hidden, *scaling))
        scaling = affine(str(i), hidden)
      return batch_norm.LinearOfAffine(
        output_size, w_init=final_init, name="output")(hidden[rows], *scaling)

    return forward

  return _networks(observation_size, action_size, config, own, 1, layers)


def make_xqc_networks(
  observation_size: int | specs.Observation, action_size: int | specs.Action,
  config: NetworkConfig = NetworkConfig(), own: OwnNetworks | None = None, *,
  num_atoms: int,
) -> BatchNormNetworks:
  """Returns the policy and the twin critics of XQC.

  Palenicek et al., arXiv 2509.25174, section 4: batch normalisation of inputs
  and before each hidden layer's activation, in place of a bias, and weights of
  unit norm from the start, which `with_unit_norm` keeps; in the policy too, as
  in the authors' code. The critics' outputs are logits of atoms. The authors'
  critics have four layers of 512 units, their policy four of 256.

  Args:
    observation_size: O, >= 1, or the spec of observations.
    action_size: A, >= 1, or the spec of actions.
    config: what shapes the networks.
    own: networks that take the place of the package's.
    num_atoms: K, of each critic's distribution of values, >= 2.
  """
  check_count("num_atoms", num_atoms, 2)
  if config.policy_final_init == "small":
    raise ValueError(
      "policy_final_init=small has no effect on xqc, whose weights are of unit "
      "norm; leave it out.")
  act = ACTIVATIONS[config.activation]

  def layers(
    sizes: Sequence[int], output_size: int,
    final_init: hk.initializers.Initializer | None,
  ) -> _Forward:
    del final_init  # The weights' norm is 1.

    def forward(inputs: jax.Array, is_training: bool, rows: slice) -> jax.Array:
      # An offset would be taken out by the next normalisation.
      layer = batch_norm.BatchNorm(
        create_offset=False, name="batch_norm_inputs")
      hidden = layer(inputs, is_training)
      for i, size in enumerate(sizes):
        hidden = hk.Linear(size, with_bias=False, name=f"linear_{i}")(hidden)
        layer = batch_norm.BatchNorm(name=f"batch_norm_{i}")
        hidden = act(layer(hidden, is_training))
      return hk.Linear(output_size, name="output")(hidden[rows])

    return forward

  return _networks(
    observation_size, action_size, config, own, num_atoms, layers,
    has_unit_norm=True)


def _weights_without_batch_norm(
  policy: base.Variables, num_hidden: int, normalizes_first: bool
) -> dict[str, jax.Array]:
  """Returns the weights of an MLP that acts as a policy, by exported names.

  Outside training batch normalisation is affine: it merges into linear layers,
  those after it, or if it stands before activations those before it.
  """
  modules, averages = (
    {name.rpartition("/")[2]: x for name, x in tree.items()} for tree in policy)

  def affine(name: str) -> tuple[jax.Array, jax.Array]:
    return batch_norm.averaged_affine(
      modules[f"batch_norm_{name}"], averages[f"batch_norm_{name}"])

  before: tuple[jax.Array, jax.Array] | None = affine("inputs")
  arrays: dict[str, jax.Array] = {}
  for i in range(num_hidden + 1):
    layer = modules[f"linear_{i}" if i < num_hidden else "output"]
    weights, bias = layer["w"], layer.get("b", 0.0)
    if before is not None:
      factor, shift = before
      weights, bias = factor[:, None] * weights, shift @ weights + bias
    before = affine(str(i)) if i < num_hidden else None
    if before is not None and normalizes_first:
      factor, shift = before
      weights, bias, before = weights * factor, bias * factor + shift, None
    arrays |= {f"layer_{i}/w": weights, f"layer_{i}/b": bias}
  return arrays


def _networks(
  observation_size: int | specs.Observation, action_size: int | specs.Action,
  config: NetworkConfig, own: OwnNetworks | None, num_outputs: int,
  layers: _MakeForward, *, has_unit_norm: bool = False,
) -> BatchNormNetworks:
  """Returns a policy and twin critics of layers."""
  observed = specs.observation_spec(observation_size)
  seen = specs.seen_by_policy(observed)
  action = specs.Continuous(specs.action_size(action_size))
  if isinstance(config, ResidualNetworkConfig):
    raise ValueError(
      "network is a ResidualNetworkConfig, whose settings have no effect on "
      "crossq and xqc; give a NetworkConfig.")
  if config.network == "conv":
    raise ValueError(
      "network=conv has no batch normalisation, which crossq and xqc need; "
      "take learner=sac or td3.")
  own = own or OwnNetworks()
  unit = batch_norm.with_unit_norm if has_unit_norm else lambda params: params

  def scoped(scope: str, forward: _Forward) -> _Forward:
    def call(inputs: jax.Array, is_training: bool, rows: slice) -> jax.Array:
      with hk.experimental.name_scope(scope):
        return forward(inputs, is_training, rows)

    return call

  def with_unit_norm_first(
    network: base.StatefulNetwork,
  ) -> base.StatefulNetwork:
    def init(key: types.Key) -> tuple[types.Params, types.State]:
      params, state = network.init(key)
      return unit(params), state

    return network._replace(init=init)

  if own.policy is not None:
    policy = own_network("policy", own.policy, (seen,), (2 * action.size,))
  else:
    sizes = (
      specs.observation_size(seen), *config.policy_sizes, 2 * action.size)
    act = scoped(
      "policy",
      layers(
        config.policy_sizes, 2 * action.size,
        # As in the authors' code: normalised, policies needn't begin near 0.
        policy_final_init(config, "fan_in")))
    policy = base.with_network_variables(
      with_unit_norm_first(base.stateful_network(
        lambda inputs, is_training: act(
          specs.as_vector(inputs, seen), is_training, slice(None)),
        seen))
    )._replace(layers=lambda variables: base.PolicyLayers(
      # Where weights have norm 1, they are normalised before the activation.
      _weights_without_batch_norm(
        variables, len(config.policy_sizes), has_unit_norm),
      sizes, config.activation))
  if own.critic is not None:
    critic = _own_critics(own.critic, observed, action, num_outputs)
  else:
    value = scoped("critic", layers(config.critic_sizes, num_outputs, None))
    critic = with_unit_norm_first(_twins(
      lambda observation, done, *rest: value(
        specs.as_vector((observation, done), (observed, action)), *rest),
      observed, action))
  return BatchNormNetworks(base.of_policy(policy, observed), critic)


def _own_critics(
  given: OwnNetwork, observed: specs.Observation, action: specs.Continuous,
  num_outputs: int,
) -> base.StatefulNetwork:
  """Returns twin critics that are made of what a user gives."""
  if own_networks.is_own_pair(given):
    twins = base.StatefulNetwork(given.init, given.apply)
  else:
    assert callable(given)
    function = own_networks.tell_own_network(given)
    twins = _twins(
      lambda observation, action, is_training, rows: function(
        observation, action, is_training)[rows],
      observed, action)

  def outputs(key: types.Key, *inputs: jax.Array) -> jax.Array:
    return twins.apply(*twins.init(key), *inputs, is_training=True)[0]

  batch = own_networks.BATCH
  own_networks.check_own_network_shapes(
    "critic", outputs, [specs.shapes(x, *batch) for x in (observed, action)],
    (*batch, NUM_CRITICS, num_outputs))
  return twins


def _twins(
  critic: Callable[..., jax.Array], observed: specs.Observation,
  action: specs.Continuous,
) -> base.StatefulNetwork:
  """Returns two critics as one network with stacked parameters."""
  transformed: hk.TransformedWithState = hk.without_apply_rng(
    hk.transform_with_state(critic))

  def init(key: types.Key) -> tuple[types.Params, types.State]:
    examples = (specs.zeros(observed, 1), specs.zeros(action, 1))
    return jax.vmap(
      lambda key: transformed.init(key, *examples, True, slice(None))
    )(jax.random.split(key, NUM_CRITICS))

  def apply(
    params: types.Params, state: types.State, observation: types.Tree,
    action: jax.Array, *, is_training: bool, rows: slice = slice(None),
  ) -> tuple[jax.Array, types.State]:
    # The inputs aren't mapped, so that both share their statistics.
    outputs, state = jax.vmap(
      lambda params, state: transformed.apply(
        params, state, observation, action, is_training, rows),
      out_axes=(-2, 0))(params, state)
    return platform.outputs(outputs), state

  return base.StatefulNetwork(init=init, apply=apply)
