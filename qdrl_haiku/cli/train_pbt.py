"""Trains a population of agents and tunes it by population-based training.

python launchers/train_pbt.py --flagfile=launchers/flagfiles/quickstart.flags
"""

from qdrl_haiku import experiment
from qdrl_haiku.cli import training


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  training.run(experiment.TRAIN_PBT, __doc__)
