"""Trains one learner, or several seeds of it side by side."""

from qdrl_haiku.programs.cli import training

if __name__ == "__main__":
  training.train_from_flags()
