"""Fills a repertoire with agents: MAP-Elites, or ME-PBT."""

from qdrl_haiku.programs.cli import training

if __name__ == "__main__":
  training.train_me_pbt_from_flags()
