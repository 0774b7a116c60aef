"""Measures how fast training is, and prints a line of JSON.

python launchers/benchmark.py --algorithm=pbt \
  --flagfile=launchers/flagfiles/quickstart.flags

Takes the flags of train_pbt.py, or with --algorithm=me_pbt of train_me_pbt.py.
"""

from qdrl_haiku.cli import benchmark

if __name__ == "__main__":
  benchmark.benchmark_from_flags()
