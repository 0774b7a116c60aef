"""A whole run: its configuration, its composition, and its training."""

from qdrl_haiku.programs.experiment.agents import (
  make_experiment_agent,
  make_skill_objective,
)
from qdrl_haiku.programs.experiment.config import (
  LAUNCHERS,
  TRAIN,
  TRAIN_ME_PBT,
  TRAIN_PBT,
  Config,
  Launcher,
  experiment_launcher,
  read_config,
)
from qdrl_haiku.programs.experiment.plan import Plan, build, plan_experiment
from qdrl_haiku.programs.experiment.train import (
  Result,
  train,
  with_train_logdir,
)
