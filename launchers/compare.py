"""Trains methods on tasks by seeds, one run at a time, and compares them."""

from qdrl_haiku.programs.cli import compare

if __name__ == "__main__":
  compare.compare_from_flags()
