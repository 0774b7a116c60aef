"""A whole run: its configuration, its composition, and its training."""

from qdrl_haiku.experiment.agents import make_agent
from qdrl_haiku.experiment.cache_key import program_cache
from qdrl_haiku.experiment.config import Config
from qdrl_haiku.experiment.plan import Plan, plan
from qdrl_haiku.experiment.programs import (
  PROGRAMS,
  TRAIN,
  TRAIN_ME_PBT,
  TRAIN_PBT,
  Program,
  program_of,
  read_config,
)
from qdrl_haiku.experiment.train import Result, train, with_logdir

__all__ = [
  "Config",
  "PROGRAMS",
  "Plan",
  "Program",
  "Result",
  "TRAIN",
  "TRAIN_ME_PBT",
  "TRAIN_PBT",
  "make_agent",
  "plan",
  "program_cache",
  "program_of",
  "read_config",
  "train",
  "with_logdir",
]
