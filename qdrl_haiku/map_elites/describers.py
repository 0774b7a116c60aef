"""Describers: what makes the descriptor of an individual of its episodes."""

from collections.abc import Callable
from typing import NamedTuple

from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Array, Key, Metrics, Tree

EPISODES = "episodes"
"""The name of an elite's episodes, by which it may be described again."""
OWN_DESCRIPTORS = "own_descriptors"
"""The name of the environment's own descriptors [D], beside learned ones."""


class Describer(NamedTuple):
  """Describes episodes, as pure functions; it may learn to do so better.

  Axes: T steps, N episodes, D descriptor, C cells. Keys are consumed.

  Attributes:
    look: (an environment's states [...] after a step) -> what is looked at of
      them, a tree of arrays [..., ...].
    summarize: (looks [T, ...], mask bool [T] of the steps that belong to the
      episode) -> the episode, any tree of arrays, by which it's described.
    describe: (state, episode) -> descriptor [D].
    init: (key) -> state, any tree of arrays; () of one that doesn't learn.
    improve: (state, repertoire, key) -> (state, whether it differs, bool []),
      after each generation. The repertoire's extra "episodes" has those by
      which each elite was described, leaves [C, N, ...]. Where the state
      differs, all elites are described and placed anew. None if it never does.
    metrics: (state) -> numbers by name, [], `qd/learned_<name>` in a
      generation's row.
  """

  look: Callable[[Tree], Tree]
  summarize: Callable[[Tree, Array], Tree]
  describe: Callable[[Tree, Tree], Array]
  init: Callable[[Key], Tree] = lambda key: ()
  improve: Callable[[Tree, Repertoire, Key], tuple[Tree, Array]] | None = None
  metrics: Callable[[Tree], Metrics] = lambda state: {}
