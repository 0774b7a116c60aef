"""Fills a repertoire with agents: MAP-Elites, or ME-PBT.

python launchers/train_me_pbt.py \
  --flagfile=launchers/flagfiles/me_pbt_point_maze.flags
"""

from qdrl_haiku.cli import training

if __name__ == "__main__":
  training.train_me_pbt_from_flags()
