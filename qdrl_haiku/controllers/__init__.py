"""Controllers: who is replaced by whom, and with which hyperparameters.

A controller sees fitness and hyperparameters only. It knows no learner, actor
or environment and moves no agent: it returns a decision, which `inherit`
applies to whatever the members consist of. What it remembers is a state that is
handed from one decision to the next.
"""

from qdrl_haiku.controllers import lineage, search_space
from qdrl_haiku.controllers.base import Controller, Decision, check, inherit
from qdrl_haiku.controllers.exploration import explore
from qdrl_haiku.controllers.pbt import PBTConfig, pbt
from qdrl_haiku.controllers.schedule import schedule
from qdrl_haiku.controllers.search_space import (
  Fixed,
  LogUniform,
  OneMinusLogUniform,
  Range,
  Uniform,
)

__all__ = [
  "Controller",
  "Decision",
  "Fixed",
  "LogUniform",
  "OneMinusLogUniform",
  "PBTConfig",
  "Range",
  "Uniform",
  "check",
  "explore",
  "inherit",
  "lineage",
  "pbt",
  "schedule",
  "search_space",
]
