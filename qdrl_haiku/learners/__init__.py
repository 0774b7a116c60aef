"""Learners: pure functions that turn transitions into better agents."""

from qdrl_haiku.learners import ppo as _ppo
from qdrl_haiku.learners import sac as _sac
from qdrl_haiku.learners import td3 as _td3
from qdrl_haiku.learners.base import Learner, SharedCritic
from qdrl_haiku.learners.check import check
from qdrl_haiku.learners.config import AgentConfig
from qdrl_haiku.learners.crossq import (
  CrossQConfig,
  CrossQGenotype,
  CrossQState,
  crossq,
)
from qdrl_haiku.learners.hyperparameters import Hyperparameter
from qdrl_haiku.learners.ppo import PPOConfig, PPOGenotype, PPOState, ppo
from qdrl_haiku.learners.registry import KINDS, DIAYNAgentConfig, make_learner
from qdrl_haiku.learners.sac import SACConfig, SACGenotype, SACState, sac
from qdrl_haiku.learners.statistics import ObservationStatistics
from qdrl_haiku.learners.td3 import TD3Config, TD3Genotype, TD3State, td3
from qdrl_haiku.learners.with_skills import diayn as _diayn
from qdrl_haiku.learners.with_skills.diayn import (
  DIAYNConfig,
  DIAYNGenotype,
  DIAYNState,
  Discriminator,
  diayn,
  diayn_discriminator,
)
from qdrl_haiku.learners.with_skills.metra import (
  METRAConfig,
  METRAGenotype,
  METRAState,
  metra,
)
from qdrl_haiku.learners.with_skills.skill_learner import (
  SkillObjective,
  skill_learner,
)
from qdrl_haiku.learners.xqc import XQCConfig, XQCGenotype, XQCState, xqc

HYPERPARAMETERS: dict[str, Hyperparameter] = {
  **_sac.HYPERPARAMETERS,
  **_td3.HYPERPARAMETERS,
  **_ppo.HYPERPARAMETERS,
  **_diayn.HYPERPARAMETERS,
}
"""Hyperparameters of all learners here, by name."""
