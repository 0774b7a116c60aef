"""Makes pure functions of Haiku modules, with running state or without."""

from collections.abc import Callable
from typing import NamedTuple

import haiku as hk
import jax

from qdrl_haiku import specs, types


class Variables(NamedTuple):
  """Holds what a network with running state has in the place of parameters."""

  params: types.Params  # The parameters, which optimisers change.
  # The running state, such as averages of batches' statistics, which training
  # moves.
  state: types.State


class PolicyLayers(NamedTuple):
  """Holds a policy's network as an export writes it."""

  # Weights by their names in a file: "layer_0/w" [I, J], "layer_0/b" [J] and so
  # on, see `programs.artifacts.numpy_policy`.
  arrays: dict[str, jax.Array]
  # Of the input, of each hidden layer, and of the output.
  sizes: tuple[int, ...]
  activation: str  # Of the hidden layers, a name of `ACTIVATIONS`.
  layer_norm: bool = False  # Whether LayerNorm stands before each activation.
  # Whether the hidden layers are residual blocks, see `ResidualMLP`.
  residual: bool = False


class Network(NamedTuple):
  """One network as pure functions.

  Attributes:
    init: (key) -> parameters, float32. The key is consumed.
    apply: (parameters, *inputs) -> outputs, for inputs with any leading axes.
    train: (parameters, *inputs) -> (outputs, parameters), in training, for a
      network with running state: its parameters are `Variables`, returned with
      the moved state. None for a network without running state.
    layers: (parameters) -> what an export writes of a policy; None if that
      isn't known, or if it doesn't see the whole input.
  """

  init: Callable[[types.Key], types.Params]
  apply: Callable[..., jax.Array]
  train: Callable[..., tuple[jax.Array, types.Params]] | None = None
  layers: Callable[[types.Params], PolicyLayers] | None = None

  def in_training(
    self, params: types.Params, *inputs: jax.Array
  ) -> tuple[jax.Array, types.Params]:
    """Applies the network to a batch while it learns, see `train`."""
    if self.train is None:
      return self.apply(params, *inputs), params
    return self.train(params, *inputs)


class StatefulNetwork(NamedTuple):
  """One network that keeps statistics, such as those of batch normalisation.

  Its state is part of a learner's state, as parameters are. Acting and
  evaluating discard the state that `apply` returns.

  Attributes:
    init: (key) -> (parameters, state), of float32 but for counts. The key is
      consumed.
    apply: (parameters, state, *inputs, is_training) -> (outputs, state). In
      training, statistics are the batch's, over all leading axes of the inputs,
      and move the state; otherwise they are the state's, which stays.
  """

  init: Callable[[types.Key], tuple[types.Params, types.State]]
  apply: Callable[..., tuple[jax.Array, types.State]]


def network(
  forward: Callable[[jax.Array], jax.Array],
  input_size: int | specs.Observation,
  see: Callable[[types.Tree, specs.Observation], jax.Array] = specs.as_vector,
) -> Network:
  """Makes a network of a function that calls Haiku's modules.

  Args:
    forward: inputs [..., input_size] -> outputs.
    input_size: how many numbers an input has, or the spec of one.
    see: makes the vector of an input and its spec, also by Haiku's modules.
  """
  spec = specs.observation_spec(input_size)
  example = specs.zeros(spec)
  transformed: hk.Transformed = hk.without_apply_rng(
    hk.transform(lambda inputs: forward(see(inputs, spec))))
  return Network(lambda key: transformed.init(key, example), transformed.apply)


def of_policy(made: Network, spec: specs.Observation) -> Network:
  """Hides from a network what only critics may observe, see `specs`."""
  if specs.is_flat(spec):
    return made
  see, train = specs.seen_by_policy, made.train
  return Network(
    made.init, lambda params, seen: made.apply(params, see(seen)),
    train and (lambda params, seen: train(params, see(seen))))


def stateful_network(
  forward: Callable[..., jax.Array], *inputs: int | specs.Observation
) -> StatefulNetwork:
  """Makes a network of a function that calls Haiku's modules with state.

  Args:
    forward: inputs [..., size], and whether it's in training, -> outputs.
    *inputs: how many numbers each input has, or its spec.
  """
  transformed: hk.TransformedWithState = hk.without_apply_rng(
    hk.transform_with_state(forward))
  examples = [specs.zeros(specs.observation_spec(x), 1) for x in inputs]

  return StatefulNetwork(
    lambda key: transformed.init(key, *examples, True),
    lambda params, state, *inputs, is_training: transformed.apply(
      params, state, *inputs, is_training))


def with_network_variables(network: StatefulNetwork) -> Network:
  """Makes a network whose parameters are `Variables`."""

  def train(
    variables: Variables, *inputs: jax.Array
  ) -> tuple[jax.Array, Variables]:
    outputs, state = network.apply(*variables, *inputs, is_training=True)
    return outputs, variables._replace(state=state)

  return Network(
    lambda key: Variables(*network.init(key)),
    lambda variables, *inputs: network.apply(
      *variables, *inputs, is_training=False)[0],
    train)
