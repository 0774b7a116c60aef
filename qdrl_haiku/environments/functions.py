"""Functions of a point: tasks without physics, on which emitters are tried.

An episode is one step, and the point is its action, from [-1, 1] scaled to
[0, 1] along each of N axes. The observation is always 1, so that a greedy
policy amounts to one point.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp

from qdrl_haiku.checks import check_count
from qdrl_haiku.environments.interface import Descriptor, Objectives, State
from qdrl_haiku.types import Array, Key

# The greatest value of Rastrigin's function along one axis, rounded up.
_RASTRIGIN_MAX = 40.354
# On [-2, 4], and of that around 2.2, too.
_PAIR_MAX = 32.313
_Scores = tuple[Array, ...]


class Function:
  """A function of a point, whose descriptor has two axes in [0, 1]."""

  observation_size = 1

  def __init__(
    self, function: Callable[[Array], _Scores], names: tuple[str, str],
    reward_offset: Callable[[int], float], num_dimensions: int = 8,
    objectives: tuple[str, ...] = (),
  ) -> None:
    """Takes the function, and the offset for so many dimensions, 2 or more.

    With objectives it returns them too, which share the offset evenly.
    """
    check_count("num_dimensions", num_dimensions, 2)
    self._function = function
    self.action_size = num_dimensions
    self.descriptor = Descriptor(
      names, (0.0, 0.0), (1.0, 1.0), reward_offset=reward_offset(num_dimensions)
    )
    self.objectives = None
    if num := len(objectives):
      least = -self.descriptor.reward_offset / num
      self.objectives = Objectives(objectives, (least,) * num)

  def reset(self, _: Key) -> State:
    """Returns the only initial state, which is the same for all keys."""
    zero, info = jnp.zeros(()), {"state_descriptor": jnp.zeros(2)}
    if self.objectives is not None:
      info["objectives"] = jnp.zeros(len(self.objectives.names))
    return State((), jnp.ones(1), zero, zero, info=info)

  def step(self, state: State, action: Array) -> State:
    """Evaluates the function."""
    point = (jnp.clip(action, -1, 1) + 1) / 2
    reward, *others = self._function(point)
    return state.replace(reward=reward, info=dict(
      zip(("state_descriptor", "objectives"), others, strict=False)))


def arm_function_scores(point: Array) -> _Scores:
  """Returns the reward of a planar arm's joint angles, and its end point.

  Cully et al. (2015), "Robots that can adapt like animals", as in QDax: the
  reward is minus the standard deviation of the joint angles, in turns; the
  descriptor is the end of an arm of length 1/2 with its base at (1/2, 1/2).
  """
  angles = jnp.cumsum(2 * jnp.pi * point - jnp.pi)
  end = jnp.stack([jnp.mean(jnp.cos(angles)), jnp.mean(jnp.sin(angles))])
  return -jnp.std(point), (end + 1) / 2


def rastrigin_function_scores(point: Array) -> _Scores:
  """Returns minus Rastrigin's function on [-5, 5]^N, and two coordinates."""
  x = 10 * point - 5
  waves = jnp.sum(10 - 10 * jnp.cos(2 * jnp.pi * x))
  return -jnp.sum(x**2) - waves, point[:2]


def rastrigin_pair_scores(point: Array) -> _Scores:
  """Returns two of Rastrigin's functions on [-2, 4]^N, with optima apart.

  Pierrot et al. (2022), as in QDax: minus the functions around 0 and around
  2.2, whose sum is the reward, and two coordinates of the point in [0, 1].
  """
  x = 6 * point[:, None] - 2 - jnp.array([0.0, 2.2])
  both = -jnp.sum(x**2 + 10 - 10 * jnp.cos(2 * jnp.pi * x), axis=0)
  return jnp.sum(both), point[:2], both


def sphere_function_scores(point: Array) -> _Scores:
  """Returns minus the squared distance on [-5, 5]^N, and two coordinates."""
  return -jnp.sum((10 * point - 5) ** 2), point[:2]


arm_function = functools.partial(
  Function, arm_function_scores, ("x", "y"), lambda n: 0.5)
rastrigin_function = functools.partial(
  Function, rastrigin_function_scores, ("x1", "x2"),
  lambda n: _RASTRIGIN_MAX * n)
rastrigin_pair_function = functools.partial(
  Function, rastrigin_pair_scores, ("x1", "x2"), lambda n: 2 * _PAIR_MAX * n,
  objectives=("around_0", "around_2.2"))
sphere_function = functools.partial(
  Function, sphere_function_scores, ("x1", "x2"), lambda n: 25.0 * n)
