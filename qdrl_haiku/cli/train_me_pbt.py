"""Fills a repertoire with agents: MAP-Elites, or ME-PBT.

python launchers/train_me_pbt.py \
  --flagfile=launchers/flagfiles/me_pbt_point_maze.flags
"""

from qdrl_haiku import experiment
from qdrl_haiku.cli import training


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  training.run(experiment.TRAIN_ME_PBT, __doc__)
