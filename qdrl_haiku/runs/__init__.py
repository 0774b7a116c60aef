"""What a run is: compiled programs, checkpoints, records, interruption."""

from qdrl_haiku.runs.config import RunConfig
from qdrl_haiku.runs.interruption import INTERRUPTED, Interrupted
from qdrl_haiku.runs.run import Diverged, run

__all__ = ["Diverged", "INTERRUPTED", "Interrupted", "RunConfig", "run"]
