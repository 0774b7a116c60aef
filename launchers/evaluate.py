"""Evaluates an agent that a run left behind; the run stays as it is."""

from qdrl_haiku.programs.cli import evaluate

if __name__ == "__main__":
  evaluate.evaluate_from_flags()
