"""Agents that see the last observations of an episode side by side."""

import dataclasses

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, specs, types
from qdrl_haiku.learners import base

_WINDOW = "window"


def window(
  learner: base.Learner, observation_size: int | specs.Observation, length: int
) -> base.Learner:
  """Makes a learner see the last K observations, the latest one last.

  They are side by side along the last axis of each array, zeros where an
  episode hasn't had as many. Transitions store the K - 1 former ones, as
  `window`. Statistics are those of single observations, K times, so that
  networks see the same number alike wherever it stands.

  Args:
    learner: made for K times as long observations.
    observation_size: O, or the spec of observations.
    length: K, >= 2.

  Returns:
    The learner; its state is that of the given one.
  """
  spec = specs.observation_spec(observation_size)

  def join(former: types.Tree, observation: types.Tree) -> types.Tree:
    return jax.tree.map(
      lambda x, before, now: jnp.concatenate([before, _row(x, now)], axis=-1),
      spec, former, observation)

  def later(seen: types.Tree) -> types.Tree:
    """Returns the memory of the next step, without the earliest observation."""
    return jax.tree.map(lambda x, y: y[..., _width(x):], spec, seen)

  def act(
    state: types.State, hyperparams: types.Hyperparams,
    observation: types.Tree, memory: types.Tree, key: types.Key,
  ) -> types.Acted:
    seen = join(memory, observation)
    acted = learner.act(state, hyperparams, seen, (), key)
    return acted._replace(
      memory=later(seen), extras=acted.extras | {_WINDOW: memory})

  def act_greedy(
    state: types.State, observation: types.Tree, memory: types.Tree
  ) -> types.Acted:
    seen = join(memory, observation)
    return types.Acted(learner.act_greedy(state, seen, ()).action, later(seen))

  def update(
    state: types.State, hyperparams: types.Hyperparams,
    transitions: types.Transition, key: types.Key,
  ) -> tuple[types.State, types.Metrics]:
    extras = dict(transitions.extras)
    seen = join(extras.pop(_WINDOW), transitions.observation)
    transitions = transitions._replace(
      observation=seen, extras=extras,
      next_observation=join(later(seen), transitions.next_observation))
    return learner.update(state, hyperparams, transitions, key)

  def observe(state: types.State, observation: types.Tree) -> types.State:
    return learner.observe(state, jax.tree.map(
      lambda x, now: jnp.concatenate([_row(x, now)] * length, axis=-1),
      spec, observation))

  former = side_by_side(spec, length - 1)
  return learner._replace(
    act=eager.compiled_if_eager()(act), act_greedy=act_greedy,
    update=eager.compiled_if_eager()(update), observe=observe,
    memory=lambda: specs.zeros(former), stores=(*learner.stores, _WINDOW),
    # The window of the last of n steps isn't stored.
    supports_n_step=False, share=None)


def _row(spec: specs.Array, observation: types.Array) -> types.Array:
  """Returns an observation's array with an axis along which others stand."""
  return observation if spec.shape else observation[..., None]


def _width(spec: specs.Array) -> int:
  """Returns how long an observation's array is along its last axis."""
  return spec.shape[-1] if spec.shape else 1


def side_by_side(spec: specs.Observation, length: int) -> specs.Observation:
  """Returns the spec of so many observations side by side."""
  return jax.tree.map(
    lambda x: dataclasses.replace(
      x, shape=(*x.shape[:-1], length * _width(x))), spec)
