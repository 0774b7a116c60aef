"""Training: what composes environments, actors, learners and controllers."""

from qdrl_haiku.training.agents import read_agents, read_best
from qdrl_haiku.training.config import (
  TrainingConfig,
  default_interval,
  iteration_steps,
)
from qdrl_haiku.training.elites import vary_agents
from qdrl_haiku.training.episodes import evaluate_agent, summarize_evaluation
from qdrl_haiku.training.generation import GenerationReport, train_generation
from qdrl_haiku.training.illumination import Illumination
from qdrl_haiku.training.interruption import INTERRUPTED, Interrupted
from qdrl_haiku.training.learning import train_members
from qdrl_haiku.training.population import (
  Members,
  Population,
  init_members,
  init_population,
  restart_members,
)
from qdrl_haiku.training.run import Diverged, run
from qdrl_haiku.training.run_config import RunConfig
from qdrl_haiku.training.schedules import Schedule, play_back, read_schedule
from qdrl_haiku.training.search_spaces import search_space
from qdrl_haiku.training.setup import MapElites, Setup
from qdrl_haiku.training.sharding import population_mesh
from qdrl_haiku.training.skills import skill_evaluation
from qdrl_haiku.training.summary import summarize

__all__ = [
  "Diverged",
  "GenerationReport",
  "INTERRUPTED",
  "Illumination",
  "Interrupted",
  "MapElites",
  "Members",
  "Population",
  "RunConfig",
  "Schedule",
  "Setup",
  "TrainingConfig",
  "default_interval",
  "evaluate_agent",
  "init_members",
  "init_population",
  "iteration_steps",
  "play_back",
  "population_mesh",
  "read_agents",
  "read_best",
  "read_schedule",
  "restart_members",
  "run",
  "search_space",
  "skill_evaluation",
  "summarize",
  "summarize_evaluation",
  "train_generation",
  "train_members",
  "vary_agents",
]
