"""Runs training: compiled programs, checkpoints, records, interruption."""

from qdrl_haiku.runs.config import RunConfig
from qdrl_haiku.runs.divergence import DIVERGED, Diverged, EndedDiverged
from qdrl_haiku.runs.interruption import INTERRUPTED, Interrupted
from qdrl_haiku.runs.programs import make_programs
from qdrl_haiku.runs.run import run
