"""Reports: what runs left behind, as one page to be looked at."""

from qdrl_haiku.reports.elites import Elites
from qdrl_haiku.reports.elites import read as read_elites
from qdrl_haiku.reports.report import render
from qdrl_haiku.reports.runs import Run, read_runs

__all__ = ["Elites", "Run", "read_elites", "read_runs", "render"]
