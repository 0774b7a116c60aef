"""Runs training: compiled programs, checkpoints, records, interruption."""

from qdrl_haiku.programs.runs.compilation import make_programs
from qdrl_haiku.programs.runs.config import RunConfig
from qdrl_haiku.programs.runs.divergence import (
    DIVERGED,
    Diverged,
    EndedDiverged,
)
from qdrl_haiku.programs.runs.interruption import INTERRUPTED, Interrupted
from qdrl_haiku.programs.runs.run import run
