"""Trains a population of agents and tunes it by population-based training.

python launchers/train_pbt.py --flagfile=launchers/flagfiles/quickstart.flags
"""

from qdrl_haiku.cli import train_pbt

if __name__ == "__main__":
  train_pbt.run()
