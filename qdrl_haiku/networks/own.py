"""Takes networks of a user's own, and checks them by their shapes."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeGuard

import jax
import jax.numpy as jnp

from qdrl_haiku import specs, types
from qdrl_haiku.networks import base
from qdrl_haiku.networks.config import NUM_CRITICS


class Pair(Protocol):
  """Has a network's two functions."""

  init: Callable[..., types.Tree]
  apply: Callable[..., types.Tree]


OwnNetwork = (
  base.Network | base.StatefulNetwork | Pair | Callable[..., jax.Array])
"""A network of a user's own: a plain function that calls Haiku's modules, of
batches [B, size], with `is_training` as last parameter if that matters to it;
or functions (init, apply), as `Network` or `StatefulNetwork` has them, of
inputs with any leading axes.
"""
# Leading axes of the inputs that networks are checked with.
BATCH, _AXES = (6,), (2, 3)


class OwnNetworks(NamedTuple):
  """Holds networks of a user's own for a learner, None for its usual ones.

  They may have running state, which is part of the agent as parameters are.

  Attributes:
    policy: observation [B, O], or a tree, see `specs`, -> [B, 2A], locations
      and then raw scales; of TD3 [B, A], before the tanh. Of discrete actions
      [B, n], logits, or values for DQN.
    critic: observation [B, O], action [B, A] -> [B], the value that one critic
      gives; a critic of CrossQ makes [B, 1], one of XQC logits of atoms [B, K].
      A network that is no plain function holds both critics, as
      `ActorCritic.critic` or `BatchNormNetworks.critic` describes it. PPO has
      one critic, observation [B, O] -> [B]; of discrete actions one of SAC
      makes [B, n] of it.
  """

  policy: OwnNetwork | None = None
  critic: OwnNetwork | None = None


def own_network(
  role: str, given: OwnNetwork, inputs: Sequence[int | specs.Observation],
  outputs: tuple[int, ...],
) -> base.Network:
  """Makes a network of what a user gives.

  Args:
    role: of the network, for messages.
    given: the user's network.
    inputs: specs or sizes of its inputs: the observation, and the action.
    outputs: the shape of what it makes of one example.

  Raises:
    ValueError: if it makes outputs of another shape.
  """
  axes: tuple[int, ...] = _AXES
  inputs = [specs.observation_spec(x) for x in inputs]
  if isinstance(given, base.StatefulNetwork):
    network = base.with_network_variables(given)
  elif is_own_pair(given):
    network = base.Network(
      given.init, given.apply, getattr(given, "train", None),
      getattr(given, "layers", None))
  elif callable(given):
    axes = BATCH
    with _naming(role):
      network = _transformed(given, inputs)
  else:
    raise ValueError(
      f"the {role} network is {given!r}; give a function that calls Haiku's "
      "modules, or a pair of functions, networks.Network(init, apply).")
  check_own_network_shapes(
    role,
    lambda key, *inputs: network.in_training(network.init(key), *inputs)[0],
    [specs.shapes(x, *axes) for x in inputs], (*axes, *outputs))
  return network if axes == _AXES else _flatten_axes(network, inputs)


def own_critics(
  given: OwnNetwork, inputs: Sequence[int | specs.Observation],
  outputs: tuple[int, ...] = (),
) -> base.Network:
  """Makes twin critics of what a user gives, along a last axis of the outputs.

  `given` and `inputs` are those of `own_network`, and `outputs` is the shape of
  what one critic makes of one example.
  """
  if is_own_pair(given):
    return own_network("critic", given, inputs, (*outputs, NUM_CRITICS))
  one = own_network("critic", given, inputs, outputs)

  def both(
    function: Callable[..., types.Tree], out_axes: types.Tree
  ) -> Callable[..., types.Tree]:
    def apply(params: types.Params, *inputs: jax.Array) -> types.Tree:
      return jax.vmap(lambda x: function(x, *inputs), out_axes=out_axes)(params)

    return apply

  def init(key: types.Key) -> types.Params:
    return jax.vmap(one.init)(jax.random.split(key, NUM_CRITICS))

  train = None if one.train is None else both(one.train, (-1, 0))
  return base.Network(init, both(one.apply, -1), train)


def is_own_pair(given: OwnNetwork) -> TypeGuard[Pair]:
  """Returns whether a user's network is functions (init, apply)."""
  return hasattr(given, "init") and hasattr(given, "apply")


def _takes_training(function: Callable[..., jax.Array]) -> bool:
  """Returns whether a user's function wants to know if it is in training."""
  return "is_training" in inspect.signature(function).parameters


def tell_own_network(
  function: Callable[..., jax.Array],
) -> Callable[..., jax.Array]:
  """Lets a user's function be called with `is_training` in the last place."""
  if _takes_training(function):
    return function
  return lambda *inputs: function(*inputs[:-1])


def check_own_network_shapes(
  role: str, function: Callable[..., jax.Array],
  inputs: Sequence[types.Tree], expected: tuple[int, ...],
) -> None:
  """Refuses a network that makes other shapes than it should.

  Args:
    role: of the network.
    function: (key, *inputs) -> outputs.
    inputs: their shapes and dtypes.
    expected: the shape of the outputs, which are float32.
  """
  key = jax.eval_shape(lambda: jax.random.key(0))
  with _naming(role):
    found = jax.eval_shape(function, key, *inputs)
  dtype = getattr(found, "dtype", None)
  shape = getattr(found, "shape", type(found).__name__)
  if shape != expected or dtype != jnp.float32:
    raise ValueError(
      f"the {role} network makes {dtype or ''}{shape} of inputs "
      f"{' and '.join(str(jax.tree.map(lambda y: y.shape, x)) for x in inputs)}"
      f"; it must make float32{expected}.")


@contextlib.contextmanager
def _naming(role: str) -> Iterator[None]:
  """Adds the network's role to the errors that a user's network raises."""
  try:
    yield
  except Exception as error:
    error.add_note(f"This is the {role} network.")
    raise


def _transformed(
  function: Callable[..., jax.Array], inputs: Sequence[specs.Observation]
) -> base.Network:
  """Makes a network of a plain function that calls Haiku's modules."""
  made = base.with_network_variables(
    base.stateful_network(tell_own_network(function), *inputs))
  _, state = jax.eval_shape(made.init, jax.eval_shape(jax.random.key, 0))
  if jax.tree.leaves(state) or _takes_training(function):
    return made
  return base.Network(
    lambda key: made.init(key).params,
    lambda params, *inputs: made.apply(base.Variables(params, {}), *inputs))


def _flatten_axes(
  network: base.Network, inputs: Sequence[specs.Observation]
) -> base.Network:
  """Lets a network of batches [B, ...] take inputs with any leading axes."""
  first = jax.tree.leaves(inputs)[0]

  def call(
    function: Callable[..., tuple[jax.Array, types.Params]],
    params: types.Params, *given: types.Tree,
  ) -> tuple[jax.Array, types.Params]:
    shape = jax.tree.leaves(given)[0].shape
    flat = jax.tree.map(
      lambda spec, x: x.reshape(-1, *spec.shape), tuple(inputs), given)
    outputs, moved = function(params, *flat)
    leading = shape[: len(shape) - len(first.shape)]
    return outputs.reshape(*leading, *outputs.shape[1:]), moved

  without_training = network._replace(train=None).in_training
  return base.Network(
    network.init, lambda *args: call(without_training, *args)[0],
    network.train and functools.partial(call, network.train))
