"""Actors: agents in environments, to collect experience or to be evaluated.

Outside of `jax.jit` each function is compiled once per environment, learner,
function argument, number and array shapes. Later changes to such an object have
no effect, so make a new one; a lambda in a loop is compiled each time.
"""

from qdrl_haiku.actors.collection import collect, remember, step
from qdrl_haiku.actors.coverage import count_cells, coverage_cells
from qdrl_haiku.actors.evaluation import (
  Evaluation,
  evaluate,
  evaluate_from_states,
)
from qdrl_haiku.actors.rollout import Rollout, rollout
