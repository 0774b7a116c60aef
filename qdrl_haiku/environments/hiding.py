"""Partial observability: parts of observations that agents don't see.

Without velocities, as in Ni et al., arXiv 2110.05038, and POPGym (Morad et al.,
arXiv 2303.01859), an agent has to remember what it saw.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from qdrl_haiku import names, specs
from qdrl_haiku.environments import interface
from qdrl_haiku.environments.interface import State
from qdrl_haiku.environments.wrappers import Around
from qdrl_haiku.types import Array, Key, Tree

# Where velocities are in a vector; of brax's robots from the end on, since
# tasks may put more before. Of humanoids, all bodies' follow on their inertias.
_HUMANOID = (*range(-222, -199), *range(-89, -23))
_VELOCITIES: dict[str, Sequence[int]] = {
  "Acrobot": (4, 5), "CartPole": (1, 3), "LunarLander": (2, 3, 5),
  "InvertedDoublePendulum": (5, 6, 7), "MountainCar": (1,), "Pendulum": (2,),
  "MountainCarContinuous": (1,), "Pusher": range(7, 14), "Reacher": (6, 7),
  "Reacher-misc": (-4, -3), "Swimmer-misc": (-4, -3),
  "ant": range(-14, 0), "halfcheetah": range(-9, 0), "hopper": range(-6, 0),
  "humanoid": _HUMANOID, "humanoidstandup": _HUMANOID,
  "inverted_double_pendulum": range(-3, 0), "inverted_pendulum": range(-2, 0),
  "pusher": range(-16, -9), "reacher": (-5, -4), "swimmer": range(-5, 0),
  "walker2d": range(-9, 0)}


def observation_names(env_name: str) -> dict[str, Sequence[int]]:
  """Returns the indices of velocities in observations by name, where known."""
  name = re.sub(r"^gym.*:|-v\d+$|_(uni|omni|trap)$", "", env_name)
  return {"velocity": _VELOCITIES[name]} if name in _VELOCITIES else {}


def what_is_seen(
  spec: specs.Observation, hide: Sequence[str],
  known: Mapping[str, Sequence[int]],
) -> tuple[specs.Observation, Callable[[Tree], Tree]]:
  """Leaves out of observations what agents don't see.

  Args:
    spec: of all that is observed.
    hide: entries of a dict, or of a vector indices or names of `known`.
    known: indices in a vector by name, from its end on if they're negative.

  Returns:
    The spec of what is seen, and what makes that of observations [..., *shape].

  Raises:
    ValueError: if what is to be hidden isn't observed, or if nothing is left.
  """
  if not hide:
    return spec, lambda o: o
  there: dict[str, Sequence[str | int]] = {}
  if isinstance(spec, Mapping):
    there = {name: (name,) for name in spec}
  elif isinstance(spec, specs.Array) and len(spec.shape) == 1:
    indices = range(spec.shape[0])
    there = {str(i): (i,) for i in indices}
    there |= {x: [indices[i] for i in places] for x, places in known.items()}
  left = dict.fromkeys(x for parts in there.values() for x in parts)
  for name in hide:
    if name not in there:
      advice = names.nearest_name(name, [
        *filter(str.isidentifier, there), f"indices below {len(left)}"])
      raise ValueError(f"hide={name!r} is no part of observations; {advice}")
  hidden = {x for name in hide for x in there[name]}
  if not (seen := [x for x in left if x not in hidden]):
    raise ValueError(f"hide={','.join(hide)} leaves nothing; hide less.")
  if isinstance(spec, Mapping):
    return {x: spec[x] for x in seen}, lambda o: {x: o[x] for x in seen}
  return (
    dataclasses.replace(spec, shape=(len(seen),)),
    lambda o: o[..., np.array(seen)])


class Hidden(Around):
  """One instance of an environment, of which agents see a part."""

  def __init__(
    self, env: interface.SingleEnvironment, hide: Sequence[str], env_name: str
  ) -> None:
    """Wraps an environment, which may have `observation_names` of its own."""
    self.env = env
    key = jax.eval_shape(lambda: jax.random.key(0))
    observed = jax.tree.map(
      lambda x: specs.Array(x.shape, x.dtype),
      jax.eval_shape(env.reset, key).obs)
    known = getattr(env, "observation_names", observation_names(env_name))
    self.observation_spec, self.see = what_is_seen(observed, hide, known)

  def reset(self, rng: Key) -> State:
    """Draws an initial state."""
    return self._hide(self.env.reset(rng))

  def step(self, state: State, action: Array, *tunables: Tree) -> State:
    """Advances by one step; args are those of `Wrapper.step`."""
    info = dict(state.info)
    state = state.replace(obs=info.pop("whole_observation"), info=info)
    return self._hide(self.env.step(state, action, *tunables))

  def _hide(self, state: State) -> State:
    """Keeps what the environment observes, and shows a part of that."""
    info = {**state.info, "whole_observation": state.obs}
    return state.replace(obs=self.see(state.obs), info=info)
