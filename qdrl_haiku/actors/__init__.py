"""Actors: agents in environments, to collect experience or to be evaluated.

Outside of `jax.jit` each function is compiled once for its environment,
learner, functions, numbers and the arrays' shapes. Later changes of these
objects aren't seen, so make new ones; a lambda in a loop is new each time.
"""

from qdrl_haiku.actors.collection import collect, step
from qdrl_haiku.actors.coverage import count_cells, coverage_cells
from qdrl_haiku.actors.evaluation import (
  Evaluation,
  evaluate,
  evaluate_from_states,
)
from qdrl_haiku.actors.rollout import Rollout, rollout
