"""Reads what a program does on an accelerator, compiled without having one."""

from qdrl_haiku.programs.accelerators.cost import (
  TARGETS,
  Cost,
  Target,
  accelerator_cost,
)
from qdrl_haiku.programs.accelerators.generation import compiling_for_target
