"""The types that every part of the package shares, and the axis letters.

Axis letters, used in every docstring and comment:

  P population, E environments, T time, B batch, N batches of one update,
  O observation, A action, K skill, D descriptor, C cells, I initial states.
"""

from typing import Any, NamedTuple

import jax

Array = jax.Array
"""Numbers or booleans on devices; texts say shapes, such as [B, O]."""
Key = jax.Array
"""A typed key, `jax.random.key(seed)`; a function that takes a key consumes it.
A single key of the older kind, `jax.random.PRNGKey(seed)`, serves as well.
"""
Params = Any
"""The parameters of a Haiku network: `{module: {name: array}}`."""
Tree = Any
"""Any pytree of arrays."""
State = Any
"""The whole state of one agent: networks, optimisers, statistics; no key."""
Hyperparams = Any
"""Any tree of at least one float leaf: all that a controller may change in
training. A hyperparameter's name is its path in the tree, joined by "/"."""
Record = dict[str, Any]
"""Maps names to what JSON, a file or keywords say."""
Metrics = dict[str, jax.Array]
"""Scalars by name, for one agent."""


class Transition(NamedTuple):
  """One step of an environment, or any number of them with leading axes.

  Attributes:
    observation: [..., O], what the agent acted on.
    action: [..., A], in [-1, 1].
    reward: [...].
    discount: [...], 0 where the episode terminated, 1 elsewhere, truncation
      included: a truncated episode is bootstrapped.
    next_observation: [..., O], the true successor, also where the environment
      has reset itself since.
    extras: further arrays by name, such as `descriptor` and `next_descriptor`
      [..., D], or `skill` [..., K]; collected transitions, and so rollouts,
      have `truncation` [...], 1 where the episode ended without terminating.
      The batches of an update are drawn uniformly from replay, in no order, and
      have only the extras that the learner `stores`: by default none, not even
      `truncation`.
  """

  observation: Array
  action: Array
  reward: Array
  discount: Array
  next_observation: Array
  extras: dict[str, Array]


class Acted(NamedTuple):
  """Holds what an agent does, with leading axes [...] of its observations."""

  action: Array  # [..., A], in [-1, 1].
  # Leaves [..., ...], with which the agent acts next; () for most.
  memory: Tree = ()
  # Further arrays by name, leaves [..., ...], that become extras of the
  # transition; those that the learner `stores` reach its updates.
  extras: dict[str, Array] = {}
