"""Actors: agents in environments, to collect experience or to be evaluated."""

from qdrl_haiku.actors.acting import collect, step
from qdrl_haiku.actors.evaluation import (
  Evaluation,
  evaluate,
  evaluate_from,
)
from qdrl_haiku.actors.rollout import Rollout, rollout

__all__ = [
  "Evaluation",
  "Rollout",
  "collect",
  "evaluate",
  "evaluate_from",
  "rollout",
  "step",
]
