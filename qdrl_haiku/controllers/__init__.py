"""Controllers: who is replaced by whom, and with which hyperparameters.

A controller sees fitness and hyperparameters only. It knows no learner, actor
or environment, holds no state and moves no agent: it returns a decision, which
`inherit` applies to whatever the members consist of.
"""

from qdrl_haiku.controllers import lineage, search_space
from qdrl_haiku.controllers.explore import explore
from qdrl_haiku.controllers.pbt import (
  OPERATORS,
  Controller,
  Decision,
  PBTConfig,
  inherit,
  pbt,
)
from qdrl_haiku.controllers.schedule import schedule
from qdrl_haiku.controllers.search_space import (
  Fixed,
  LogUniform,
  OneMinusLogUniform,
  Range,
  Uniform,
)

__all__ = [
  "OPERATORS",
  "Controller",
  "Decision",
  "Fixed",
  "LogUniform",
  "OneMinusLogUniform",
  "PBTConfig",
  "Range",
  "Uniform",
  "explore",
  "inherit",
  "lineage",
  "pbt",
  "schedule",
  "search_space",
]
