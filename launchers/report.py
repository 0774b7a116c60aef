"""Writes one HTML page about runs, finished or not; they stay as they are.

python launchers/report.py --logdir=logs/first --logdir=logs/second
"""

from qdrl_haiku.cli import report

if __name__ == "__main__":
  report.report_from_flags()
