"""Training: what composes environments, actors, learners and controllers."""

from qdrl_haiku.map_elites import vary_elites
from qdrl_haiku.training.config import (
  CMAConfig,
  TeachingConfig,
  TrainingConfig,
  default_training_interval,
  training_iteration_steps,
)
from qdrl_haiku.training.generation import (
  init,
  prepare,
  restart_generation,
  step,
)
from qdrl_haiku.training.learning import train_members
from qdrl_haiku.training.repertoires.config import RepertoireConfig
from qdrl_haiku.training.repertoires.describers import (
  learned_descriptor,
  make_describer,
)
from qdrl_haiku.training.repertoires.teachers import teacher
from qdrl_haiku.training.search_spaces import (
  search_space,
  with_hyperparameters,
  with_tunables,
)
from qdrl_haiku.training.setup import MapElites, Part, Setup
from qdrl_haiku.training.skills import coverage_evaluation, skill_evaluation
from qdrl_haiku.training.state import (
  GenerationReport,
  Members,
  Population,
  State,
  Trainer,
)
