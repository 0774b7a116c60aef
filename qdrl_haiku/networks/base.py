"""Makes pure functions of Haiku modules, with running state or without."""

from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from qdrl_haiku import types


class Network(NamedTuple):
  """One network as two pure functions.

  Attributes:
    init: (key) -> parameters, float32. The key is consumed.
    apply: (parameters, *inputs) -> outputs, for inputs with any leading axes.
  """

  init: Callable[[types.Key], types.Params]
  apply: Callable[..., jax.Array]


class StatefulNetwork(NamedTuple):
  """One network that keeps statistics, such as those of batch normalisation.

  Its state is part of a learner's state, beside the parameters: so it's cloned,
  checkpointed and found to be non-finite as they are. Whoever acts or evaluates
  drops the new one.

  Attributes:
    init: (key) -> (parameters, state), of float32 but for counts. The key is
      consumed.
    apply: (parameters, state, *inputs, is_training) -> (outputs, state). In
      training, statistics are the batch's, over all leading axes of the inputs,
      and move the state; otherwise they are the state's, which stays.
  """

  init: Callable[[types.Key], tuple[types.Params, Any]]
  apply: Callable[..., tuple[jax.Array, Any]]


def network(
  forward: Callable[[jax.Array], jax.Array], input_size: int
) -> Network:
  """Makes a network of a function that calls Haiku's modules.

  Args:
    forward: inputs [..., input_size] -> outputs.
    input_size: how many numbers an input has.

  Returns:
    The network.
  """
  transformed: hk.Transformed = hk.without_apply_rng(hk.transform(forward))

  def init(key: types.Key) -> types.Params:
    return transformed.init(key, jnp.zeros([input_size], jnp.float32))

  return Network(init=init, apply=transformed.apply)


def stateful_network(
  forward: Callable[[jax.Array, bool], jax.Array], input_size: int
) -> StatefulNetwork:
  """Makes a network of a function that calls Haiku's modules with state.

  Args:
    forward: inputs [..., input_size], and whether it's in training, -> outputs.
    input_size: how many numbers an input has.

  Returns:
    The network.
  """
  transformed: Any = hk.without_apply_rng(hk.transform_with_state(forward))

  def init(key: types.Key) -> tuple[types.Params, Any]:
    example = jnp.zeros([1, input_size], jnp.float32)
    return transformed.init(key, example, True)

  def apply(
    params: types.Params, state: Any, inputs: jax.Array, *, is_training: bool
  ) -> tuple[jax.Array, Any]:
    return transformed.apply(params, state, inputs, is_training)

  return StatefulNetwork(init=init, apply=apply)
