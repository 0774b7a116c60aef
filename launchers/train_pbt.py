"""Trains a population of agents and tunes it by population-based training."""

from qdrl_haiku.programs.cli import training

if __name__ == "__main__":
  training.train_pbt_from_flags()
