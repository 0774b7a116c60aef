"""Actors: agents in environments, to collect experience or to be evaluated."""

from qdrl_haiku.actors.acting import collect, step
from qdrl_haiku.actors.evaluation import DescriptorFn, Evaluation, evaluate

__all__ = ["DescriptorFn", "Evaluation", "collect", "evaluate", "step"]
