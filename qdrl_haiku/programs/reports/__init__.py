"""Reports: what runs left behind, as one page to be looked at."""

from qdrl_haiku.programs.reports.elite_table import Elites, read_elite_table
from qdrl_haiku.programs.reports.runs import Run, read_runs
from qdrl_haiku.programs.reports.sections import render_sections
