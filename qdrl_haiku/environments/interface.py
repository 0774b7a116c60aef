"""Defines the interface of environments: states, descriptors, methods."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp

from qdrl_haiku import checks, specs
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.types import Array, Key, Tree

TUNABLE = "env/"
"""Before a tunable's name, where it's one of an agent's hyperparameters."""
CURRICULUM = "curriculum"
"""The name in `info` of what a curriculum is told of an episode."""
BOUNDARY_SHARE = "boundary_share"
"""The tunable that says how many episodes are at a boundary."""
DescriptorFn = Callable[[Array, Array], Array]
"""Makes an episode's descriptor, [D], as `final_descriptor` does.

Of the descriptors of the states after each step, [T, D], anything where the
mask is False, and of that, bool [T]: the episode's steps, at least one.
"""


def final_descriptor(descriptors: Array, mask: Array) -> Array:
  """Returns the descriptor of an episode's last state; a `DescriptorFn`."""
  last = mask.shape[0] - 1 - jnp.argmax(mask[::-1])
  return descriptors[last]


def mean_descriptor(descriptors: Array, mask: Array) -> Array:
  """Returns the mean over the steps of an episode; a `DescriptorFn`."""
  return jnp.mean(descriptors, axis=0, where=mask[:, None])


@dataclasses.dataclass(frozen=True)
class Descriptor:
  """Describes what an environment reports in `info["state_descriptor"]` [D].

  Attributes:
    names: of the D axes, such as `("x", "y")`.
    lower: D lower bounds; values outside belong to the border cells.
    upper: D upper bounds.
    function: makes an episode's descriptor from those of its states; the
      bounds are for both.
    reward_offset: added to every step's reward so that the QD score, a sum of
      returns, grows with every cell that is filled; at least 0.

  Raises:
    ValueError: if lengths, bounds or the function's arguments make no sense.
  """

  names: tuple[str, ...]
  lower: tuple[float, ...]
  upper: tuple[float, ...]
  function: DescriptorFn = final_descriptor
  reward_offset: float = 0.0

  def __post_init__(self) -> None:
    if not checks.takes_arguments(self.function, 2):
      name = getattr(self.function, "__name__", self.function)
      raise ValueError(
        f"function={name} is no function of an episode's descriptors [T, D] "
        "and mask [T]; give one, such as environments.final_descriptor (what "
        "describes one state is the state_descriptor_fn of with_descriptor).")
    if not len(self.names) == len(self.lower) == len(self.upper):
      raise ValueError(
        f"names={self.names}, lower={self.lower}, upper={self.upper} differ in "
        "length; give one of each per axis.")
    if not all(map(lambda low, high: low < high, self.lower, self.upper)):
      raise ValueError(
        f"lower={self.lower} must be below upper={self.upper} on every axis; "
        "swap or widen the bounds.")

  @property
  def size(self) -> int:
    """D, the number of axes."""
    return len(self.names)


@dataclasses.dataclass(frozen=True)
class Objectives:
  """Describes what an environment reports in `info["objectives"]` [M]."""

  # Of M objectives, which are summed over an episode, as rewards are; more is
  # better.
  names: tuple[str, ...]
  # M numbers per step: what isn't better than them counts for nothing in a
  # hypervolume.
  reference: tuple[float, ...]

  def __post_init__(self) -> None:
    if not 0 < len(self.names) == len(self.reference):
      raise ValueError(
        f"names={self.names} and reference={self.reference} differ in length, "
        "or are empty; give one of each per objective.")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """The state of an environment, with the fields that brax's states have."""

  # All that the environment needs to go on. In the states of `Environment`: the
  # whole state of the environment that it wraps.
  pipeline_state: Tree
  # Leaves [..., ...] of a tree, mostly [..., O], what to act on next.
  obs: Tree
  reward: Array  # [...], of the step that led here; 0 after a reset.
  done: Array  # [...], 1 where that step ended an episode, else 0.
  # Arrays by name, from the environment.
  metrics: dict[str, Tree] = dataclasses.field(default_factory=dict)
  # Arrays by name; `Environment.step` lists those that it returns.
  info: dict[str, Tree] = dataclasses.field(default_factory=dict)
  # Leaves [..., ...], what the agent remembers that acts next, kept by actors;
  # () until then, and for agents without a memory.
  memory: Tree = ()

  def replace(self, **changes: Tree) -> Self:
    """Returns a copy with some fields changed, as brax's states do."""
    return dataclasses.replace(self, **changes)


class SingleEnvironment(Protocol):
  """One instance of an environment: brax's `Env`, or a user's own.

  It declares `observation_size`, O of a flat vector of floats, or
  `observation_spec`, a tree of `specs.Array`s, None for what `reset` returns;
  and `action_size`, A, or `action_spec`. States are of any type with the fields
  and the `replace` of `State`. `info["truncation"]` (1 where an episode ended
  without terminating) and `info["state_descriptor"]` [D] are understood; an
  attribute `descriptor` may describe the latter. So are `info["objectives"]`
  [M], beside the reward, which an attribute `objectives` describes.

  An attribute `tunables`, hyperparameters by name, declares what may be tuned
  of it, such as the weights of a reward's terms. Then `step` gets a third
  argument, their values [] by name: an agent's own where it collects, the
  defaults where it's evaluated. `reset` is the same for all. If the tunables
  weigh terms of the reward, `info["reward_terms"]` may say the terms [] by
  name, and by the name "rest" what is paid whatever the weights.

  An attribute `boundaries` names tunables that a curriculum may move from 0 to
  1, if `boundary_share` is one too. Then `info["curriculum"]` tells `boundary`,
  int32, the index of that which the episode is at or -1, and `return`, so far.
  """

  def reset(self, rng: Key, /) -> State:
    """Draws an initial state."""

  def step(self, state: State, action: Array, /) -> State:
    """Advances by one step with action [A], or one of n."""


class Abilities(NamedTuple):
  """Says what an environment can do; training does without the rest."""

  # Whether states can be kept and copied: for pools, for members that are
  # replaced, to evaluate beside training. If not, a run is resumed by
  # `restore`, a method (state) that brings the instances to where they stood in
  # a checkpoint's.
  copies_states: bool = True
  # Whether single instances can be reset while others go on. If not, all
  # episodes begin at once, so that agents see no other ages.
  resets_instances: bool = True
  spreads: bool = True  # Whether devices can share instances.


class BatchedEnvironment(Protocol):
  """What actors and training use of an environment; see `Environment`."""

  observation_spec: specs.Observation
  action_spec: specs.Action
  episode_length: int
  descriptor: Descriptor | None = None
  objectives: Objectives | None = None
  abilities: Abilities = Abilities()
  tunables: Mapping[str, Hyperparameter] = MappingProxyType({})

  @property
  def observation_size(self) -> int:
    """O, where one flat vector of floats is observed."""
    if specs.is_flat(self.observation_spec):
      return self.observation_spec.shape[0]
    raise ValueError(
      "observation_size is that of a flat vector of floats, and observations "
      "are none; use observation_spec.")

  @property
  def action_size(self) -> int:
    """A, where actions are continuous."""
    return specs.action_size(self.action_spec)

  def reset(self, key: Key) -> State:
    """Starts one episode per key [...]."""

  def step(
    self, state: State, action: Array, pool: State | None = None
  ) -> State:
    """Steps all instances, and resets those whose episode ended.

    What has `tunables` takes their values [...] by name too, a fourth argument.

    Args:
      state: the last one, leaves [...] and more.
      action: [..., A] in [-1, 1], or int32 [...] of one of n.
      pool: initial states of later episodes, leaves [..., I, ...]; None to draw
        them.
    """

  def advance(self, state: State, action: Array) -> State:
    """Steps with actions [..., A], without resets."""
