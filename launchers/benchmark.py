"""Measures how fast training is, and prints a line of JSON."""

from qdrl_haiku.programs.cli import benchmark

if __name__ == "__main__":
  benchmark.benchmark_from_flags()
