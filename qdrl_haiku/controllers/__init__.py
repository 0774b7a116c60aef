"""Controllers: which member replaces which, and with which hyperparameters.

A controller sees fitness and hyperparameters only. It knows no learner, actor
or environment and moves no agent: it returns a decision, which `inherit`
applies to members of any kind. Its state is handed from one decision to the
next.
"""

from qdrl_haiku.controllers import lineage, search_space
from qdrl_haiku.controllers.base import (
  Controller,
  Decision,
  check_controller,
  inherit,
)
from qdrl_haiku.controllers.exploration import ExplorationConfig, explore
from qdrl_haiku.controllers.mf_pbt import MFPBTConfig, mf_pbt
from qdrl_haiku.controllers.pb2 import PB2Config, pb2
from qdrl_haiku.controllers.pbt import PBTConfig, RandomSearchConfig, pbt
from qdrl_haiku.controllers.registry import KINDS, make_controller
from qdrl_haiku.controllers.schedule import schedule
from qdrl_haiku.controllers.successive_halving import (
  SuccessiveHalvingConfig,
  successive_halving,
)
from qdrl_haiku.ranges import (
  Choice,
  Fixed,
  LogUniform,
  OneMinusLogUniform,
  Range,
  Uniform,
)
