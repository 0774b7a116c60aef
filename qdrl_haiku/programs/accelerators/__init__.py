"""Reads what a program does on an accelerator, compiled without having one."""

from qdrl_haiku.programs.accelerators.cost import Cost, accelerator_cost
from qdrl_haiku.programs.accelerators.target import (
    TARGETS,
    Target,
    compiling_for_target,
)
