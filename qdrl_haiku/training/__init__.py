"""Training: what composes environments, actors, learners and controllers."""

from qdrl_haiku.training.config import (
  CMAConfig,
  TeachingConfig,
  TrainingConfig,
  default_interval,
  iteration_steps,
)
from qdrl_haiku.training.elites import vary_agents
from qdrl_haiku.training.generation import init, restart, step
from qdrl_haiku.training.learning import train_members
from qdrl_haiku.training.repertoire_config import RepertoireConfig
from qdrl_haiku.training.search_spaces import search_space, with_values
from qdrl_haiku.training.setup import MapElites, Part, Setup
from qdrl_haiku.training.skills import skill_evaluation
from qdrl_haiku.training.state import (
  GenerationReport,
  Members,
  Population,
  State,
)

__all__ = [
  "CMAConfig",
  "GenerationReport",
  "MapElites",
  "Members",
  "Part",
  "Population",
  "RepertoireConfig",
  "Setup",
  "State",
  "TeachingConfig",
  "TrainingConfig",
  "default_interval",
  "init",
  "iteration_steps",
  "restart",
  "search_space",
  "skill_evaluation",
  "step",
  "train_members",
  "vary_agents",
  "with_values",
]
