"""Learners: pure functions that turn transitions into better agents."""

from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners.base import (
  Descent,
  Learner,
  Optimizer,
  PolicyParts,
  SharedCritic,
  move_target_networks,
)
from qdrl_haiku.learners.check import check
from qdrl_haiku.learners.config import AgentConfig
from qdrl_haiku.learners.dqn import DQNConfig, DQNGenotype, DQNState, dqn
from qdrl_haiku.learners.hyperparameters import (
  COMMON as COMMON_HYPERPARAMETERS,
)
from qdrl_haiku.learners.ppo import PPOConfig, PPOGenotype, PPOState, ppo
from qdrl_haiku.learners.pqn import PQNConfig, PQNState, pqn
from qdrl_haiku.learners.registry import make_learner
from qdrl_haiku.learners.sac import SACConfig, SACGenotype, SACState, sac
from qdrl_haiku.learners.statistics import (
  LARGEST_NORMALIZED,
  ObservationStatistics,
  init_statistics,
  normalize_by_statistics,
  observe_statistics,
  update_statistics,
)
from qdrl_haiku.learners.td3 import TD3Config, TD3Genotype, TD3State, td3
from qdrl_haiku.learners.with_batch_norm.crossq import (
  CrossQConfig,
  CrossQGenotype,
  CrossQState,
  crossq,
)
from qdrl_haiku.learners.with_batch_norm.xqc import (
  XQCConfig,
  XQCGenotype,
  XQCState,
  xqc,
)
from qdrl_haiku.learners.with_skills.config import (
  DECLARATIONS,
  KINDS,
  DADSAgentConfig,
  DIAYNAgentConfig,
  METRAAgentConfig,
  SkillAgentConfig,
  SMERLAgentConfig,
  make_objective,
)
from qdrl_haiku.learners.with_skills.dads import (
  DADSConfig,
  dads,
  dads_objective,
)
from qdrl_haiku.learners.with_skills.diayn import (
  DIAYNConfig,
  diayn,
  diayn_objective,
)
from qdrl_haiku.learners.with_skills.metra import (
  METRAConfig,
  metra,
  metra_objective,
)
from qdrl_haiku.learners.with_skills.objective import (
  SkillGenotype,
  SkillObjective,
  SkillState,
  SkillSteps,
)
from qdrl_haiku.learners.with_skills.skill_learner import skill_learner
from qdrl_haiku.learners.with_skills.smerl import (
  SMERLConfig,
  smerl,
  smerl_objective,
)
