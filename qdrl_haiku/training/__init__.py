"""Training: what composes environments, actors, learners and controllers."""

from qdrl_haiku.training.config import (
  CMAConfig,
  TeachingConfig,
  TrainingConfig,
  default_interval,
  iteration_steps,
)
from qdrl_haiku.training.elites import vary_agents
from qdrl_haiku.training.generation import train_generation
from qdrl_haiku.training.illumination import Illumination, init_illumination
from qdrl_haiku.training.illumination import (
  restart_members as restart_illumination,
)
from qdrl_haiku.training.illumination import (
  train_generation as train_illumination,
)
from qdrl_haiku.training.learning import train_members
from qdrl_haiku.training.population import (
  Members,
  Population,
  init_members,
  init_population,
  restart_members,
)
from qdrl_haiku.training.repertoire_config import RepertoireConfig
from qdrl_haiku.training.reports import GenerationReport
from qdrl_haiku.training.search_spaces import (
  declaration,
  flag_of,
  search_space,
  with_values,
)
from qdrl_haiku.training.setup import MapElites, Part, Setup
from qdrl_haiku.training.skills import skill_evaluation

__all__ = [
  "CMAConfig",
  "GenerationReport",
  "Illumination",
  "MapElites",
  "Members",
  "Part",
  "Population",
  "RepertoireConfig",
  "Setup",
  "TeachingConfig",
  "TrainingConfig",
  "declaration",
  "default_interval",
  "flag_of",
  "init_illumination",
  "init_members",
  "init_population",
  "iteration_steps",
  "restart_illumination",
  "restart_members",
  "search_space",
  "skill_evaluation",
  "train_generation",
  "train_illumination",
  "train_members",
  "vary_agents",
  "with_values",
]
