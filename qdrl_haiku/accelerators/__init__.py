"""Reads what a program does on an accelerator, compiled without having one."""

from qdrl_haiku.accelerators.cost import Cost, cost
from qdrl_haiku.accelerators.target import TARGETS, Target, compiling_for

__all__ = ["TARGETS", "Cost", "Target", "compiling_for", "cost"]
