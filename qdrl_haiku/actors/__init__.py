"""Actors: agents in environments, to collect experience or to be evaluated."""

from qdrl_haiku.actors.acting import collect, step
from qdrl_haiku.actors.evaluation import Evaluation, evaluate

__all__ = ["Evaluation", "collect", "evaluate", "step"]
