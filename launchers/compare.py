"""Trains methods on tasks by seeds, one run at a time, and compares them.

python launchers/compare.py --output=logs/comparison \
  --flagfile=launchers/flagfiles/compare_maze.flags
"""

from qdrl_haiku.cli import compare

if __name__ == "__main__":
  compare.compare_from_flags()
