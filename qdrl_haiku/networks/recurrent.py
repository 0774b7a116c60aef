"""Recurrent networks: an encoder of all that was observed, beside the latest.

The network, whatever it is, sees an observation and the encoder's output; what
else it sees, such as actions, enters after the encoder. Policy and critics have
one each: shared by both, it learns less (Ni et al., arXiv 2110.05038).
"""

import dataclasses
import functools
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from qdrl_haiku import specs, types
from qdrl_haiku.networks.base import Network, PolicyLayers
from qdrl_haiku.networks.own import own_network

_POLICY = "policy"
_MEMORY, _NETWORK = "memory", "network"


class Cell(NamedTuple):
  """A recurrent cell: Haiku's "gru" or "lstm", with H = `size` outputs."""

  kind: str
  size: int

  @property
  def memory_size(self) -> int:
    """M, how many numbers it remembers, outputs first."""
    return self.size * (2 if self.kind == "lstm" else 1)


class Encoded(NamedTuple):
  """Holds what a network sees: observations [..., O], and outputs [..., H]."""

  observation: types.Tree
  output: types.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sequences:
  """Holds B sequences of L steps, which recurrent networks see one by one.

  They make of it [B * S, ...], where S = L - burn_in. Axes may precede B.
  """

  observation: types.Tree  # Leaves [B, L, ...].
  # bool [B, L], where a step isn't the successor of the one before.
  begins: types.Array
  # By network, [B, L, M], with what the agent acted: taken where a step
  # `begins`.
  memory: dict[str, types.Array]
  # Leaves [B, S, ...], to be seen in the place of the observations, each after
  # all until then; or None.
  next_observation: types.Tree = None
  # First steps, which are remembered without gradients.
  burn_in: int = dataclasses.field(default=0, metadata={"static": True})


def encoder(spec: specs.Observation, cell: Cell, role: str) -> Network:
  """Makes what remembers: (parameters, observation, memory [M]) -> memory [M].

  Args:
    spec: of observations, of which a policy sees what policies do.
    cell: the cell.
    role: "policy" or "critic".
  """
  see = specs.seen_by_policy if role == _POLICY else lambda tree: tree
  seen, size = see(spec), cell.memory_size

  def forward(observation: types.Tree, memory: types.Array) -> types.Array:
    inputs = specs.as_vector(observation, seen)
    if cell.kind == "gru":
      return hk.GRU(cell.size)(inputs, memory)[1]
    state = hk.LSTMState(*jnp.split(memory, 2, axis=-1))
    return jnp.concatenate(hk.LSTM(cell.size)(inputs, state)[1], axis=-1)

  made = own_network(_MEMORY, forward, (seen, specs.Array((size,))), (size,))
  return Network(made.init, lambda params, observation, memory: made.apply(
    params[_MEMORY], see(observation), memory))


def recurrent(
  made: Network, spec: specs.Observation, cell: Cell, role: str
) -> Network:
  """Makes a network recurrent.

  Args:
    made: of observations `beside` outputs of the encoder, and perhaps actions.
    spec: of observations.
    cell: of the encoder.
    role: "policy" or "critic".

  Returns:
    The network, whose observations are `Sequences`, or `Encoded` already.

  Raises:
    ValueError: if the network has running state.
  """
  if made.train is not None:
    raise ValueError(
      f"the {role} network has running state, which recurrent ones can't have; "
      "take memory=none or a window.")
  remember, whole = encoder(spec, cell, role), beside(spec, cell)

  def init(key: types.Key) -> types.Params:
    keys = jax.random.split(key)
    return {_MEMORY: remember.init(keys[0]), _NETWORK: made.init(keys[1])}

  def encode(params: types.Params, sequences: Sequences) -> Encoded:
    stored, num = sequences.memory[role], sequences.burn_in
    by_step = jax.tree.map(lambda x: x.swapaxes(0, 1), (
      sequences.observation, sequences.begins, stored))

    def step(memory: types.Array, now: types.Tree) -> types.Tree:
      observation, begins, stored = now
      memory = jnp.where(begins[:, None], stored, memory)
      memory = remember.apply(params, observation, memory)
      return memory, memory

    memory, _ = jax.lax.scan(
      step, stored[:, 0], jax.tree.map(lambda x: x[:num], by_step))
    memories = jax.lax.scan(
      step, jax.lax.stop_gradient(memory),
      jax.tree.map(lambda x: x[num:], by_step))[1].swapaxes(0, 1)
    seen = sequences.next_observation
    if seen is None:
      seen = jax.tree.map(lambda x: x[:, num:], sequences.observation)
    else:
      memories = remember.apply(params, seen, memories)
    return jax.tree.map(
      lambda x: x.reshape(-1, *x.shape[2:]),
      Encoded(seen, memories[..., : cell.size]))

  def apply(
    params: types.Params, seen: Sequences | Encoded, *others: types.Array
  ) -> types.Array:
    if isinstance(seen, Sequences):
      if seen.begins.ndim > 2:
        return jax.vmap(functools.partial(apply, params))(seen, *others)
      seen = encode(params, seen)
    return made.apply(params[_NETWORK], whole.join(*seen), *others)

  def layers(params: types.Params) -> PolicyLayers:
    assert made.layers is not None
    found, (own,) = made.layers(params[_NETWORK]), params[_MEMORY].values()
    return found._replace(arrays=found.arrays | {
      f"{_MEMORY}/{name}": x for name, x in own.items()})

  return Network(init, apply, layers=made.layers and layers)


def beside(spec: specs.Observation, cell: Cell) -> specs.Extended:
  """Puts an encoder's outputs beside observations."""
  return specs.Extended(spec, _MEMORY, cell.size)
