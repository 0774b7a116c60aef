"""Controllers: who is replaced by whom, and with which hyperparameters.

A controller sees fitness and hyperparameters only. It knows no learner, actor
or environment and moves no agent: it returns a decision, which `inherit`
applies to whatever the members consist of. What it remembers is a state that is
handed from one decision to the next.
"""

from qdrl_haiku.controllers import lineage, search_space
from qdrl_haiku.controllers.base import Controller, Decision, check, inherit
from qdrl_haiku.controllers.choice import Choice
from qdrl_haiku.controllers.exploration import ExplorationConfig, explore
from qdrl_haiku.controllers.mf_pbt import MFPBTConfig, mf_pbt
from qdrl_haiku.controllers.pb2 import PB2Config, pb2
from qdrl_haiku.controllers.pbt import PBTConfig, pbt
from qdrl_haiku.controllers.random_search import random_search
from qdrl_haiku.controllers.ranges import (
  Fixed,
  LogUniform,
  OneMinusLogUniform,
  Range,
  Uniform,
)
from qdrl_haiku.controllers.registry import KINDS, RandomSearchConfig, make
from qdrl_haiku.controllers.schedule import schedule
from qdrl_haiku.controllers.successive_halving import (
  SuccessiveHalvingConfig,
  successive_halving,
)

__all__ = [
  "Choice",
  "Controller",
  "Decision",
  "ExplorationConfig",
  "Fixed",
  "KINDS",
  "LogUniform",
  "MFPBTConfig",
  "OneMinusLogUniform",
  "PB2Config",
  "PBTConfig",
  "RandomSearchConfig",
  "Range",
  "SuccessiveHalvingConfig",
  "Uniform",
  "check",
  "explore",
  "inherit",
  "lineage",
  "make",
  "mf_pbt",
  "pb2",
  "pbt",
  "random_search",
  "schedule",
  "search_space",
  "successive_halving",
]
