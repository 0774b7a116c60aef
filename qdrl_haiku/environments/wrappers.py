"""Environments of one instance with something added to their states."""

from collections.abc import Callable
from typing import Any

from qdrl_haiku import checks
from qdrl_haiku.environments import interface, validation
from qdrl_haiku.environments.interface import Descriptor, Objectives, State
from qdrl_haiku.types import Array, Key, Tree

StateDescriptorFn = Callable[[State], Array]
"""State of the environment -> the state's descriptor [D]."""


class Around:
  """An environment that has the attributes of `env`, the one inside."""

  env: Any

  def __getattr__(self, name: str) -> Any:
    # An object that is just being copied or unpickled has no `env` yet.
    if name == "env":
      raise AttributeError(name)
    return getattr(self.env, name)


class Wrapper(Around):
  """An environment whose states are changed before they are handed out."""

  # What `reset` returns, after the change.
  observation_spec = None

  def __init__(
    self, env: interface.SingleEnvironment, change: Callable[[State], State],
    descriptor: Descriptor | None = None,
    objectives: Objectives | None = None,
  ) -> None:
    """Wraps an environment; what isn't given is that of `env`."""
    validation.check_valid_environment(env)
    self.env: Any = env
    self._change = change
    self.objectives: Objectives | None = (
      objectives or getattr(env, "objectives", None))
    self.descriptor: Descriptor | None = (
      getattr(env, "descriptor", None) if descriptor is None else descriptor)

  def reset(self, rng: Key) -> State:
    """Draws an initial state."""
    return self._change(self.env.reset(rng))

  def step(self, state: State, action: Array, *tunables: Tree) -> State:
    """Advances by one step.

    Args:
      state: the last one, of one instance.
      action: [A] in [-1, 1], or one of n.
      *tunables: for an environment that has some, their values [] by name.
    """
    return self._change(self.env.step(state, action, *tunables))


def with_descriptor(
  env: interface.SingleEnvironment, state_descriptor_fn: StateDescriptorFn,
  descriptor: Descriptor,
) -> Wrapper:
  """Returns an environment that reports a descriptor of each of its states.

  Args:
    env: simulates one instance: one of brax's, or a user's own.
    state_descriptor_fn: state -> [D], such as
      `lambda state: state.pipeline_state.x.pos[0, :2]` for the position of the
      first link in any of brax's environments.
    descriptor: of what it returns; `env.descriptor` is replaced.

  Returns:
    The environment, with `info["state_descriptor"]` float32 [D] in its states.

  Raises:
    ValueError: if that is no function of one state, or `env` is none.
  """
  name = getattr(state_descriptor_fn, "__name__", state_descriptor_fn)
  if not checks.takes_arguments(state_descriptor_fn, 1):
    raise ValueError(
      f"state_descriptor_fn={name} is no function of one state; give one that "
      "returns its descriptor [D], such as lambda state: state.obs[:2] (what "
      "describes an episode is the function of Descriptor).")

  def describe(state: State) -> State:
    value = state_descriptor_fn(state)
    if not hasattr(value, "astype"):
      raise ValueError(
        f"state_descriptor_fn={name} returned a {type(value).__name__}; return "
        "one array, [D].")
    info = {"state_descriptor": value.astype("float32")}
    return state.replace(info=state.info | info)

  return Wrapper(env, describe, descriptor)
