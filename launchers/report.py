"""Writes one HTML page about runs, finished or not; they stay as they are."""

from qdrl_haiku.programs.cli import report

if __name__ == "__main__":
  report.report_from_flags()
