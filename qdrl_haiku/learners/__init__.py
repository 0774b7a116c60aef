"""Learners: pure functions that turn transitions into better agents."""

from qdrl_haiku.learners.base import Learner
from qdrl_haiku.learners.diayn import (
  DIAYNConfig,
  DIAYNGenotype,
  DIAYNState,
  Discriminator,
  diayn,
  discriminator,
)
from qdrl_haiku.learners.sac import SACConfig, SACGenotype, SACState, sac
from qdrl_haiku.learners.statistics import ObservationStatistics
from qdrl_haiku.learners.td3 import TD3Config, TD3Genotype, TD3State, td3

__all__ = [
  "DIAYNConfig",
  "DIAYNGenotype",
  "DIAYNState",
  "Discriminator",
  "Learner",
  "ObservationStatistics",
  "SACConfig",
  "SACGenotype",
  "SACState",
  "TD3Config",
  "TD3Genotype",
  "TD3State",
  "diayn",
  "discriminator",
  "sac",
  "td3",
]
