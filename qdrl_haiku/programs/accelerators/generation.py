"""Compiles one generation for an accelerator, and says what it would cost."""

from collections.abc import Callable
from typing import Any

import jax

from qdrl_haiku.programs.accelerators.cost import Cost, accelerator_cost
from qdrl_haiku.programs.accelerators.target import (
  TARGETS,
  compiling_for_target,
)
from qdrl_haiku.programs.runs.compilation import make_programs
from qdrl_haiku.training.generation import prepare
from qdrl_haiku.training.setup import Setup

PROGRAMS = ("train", "evaluate")
"""The programs of a generation; a third one draws initial states."""


def generation_costs(
  make_setup: Callable[[], Setup], target: str, num_devices: int = 1
) -> dict[str, Cost]:
  """Compiles a generation for an accelerator that need not be there.

  The setup is made while programs are traced for the target, one of `TARGETS`,
  since it holds functions that differ on CPUs; `num_devices` divide its agents.

  Returns:
    The costs of one call of each of `PROGRAMS`.

  Raises:
    ValueError: if jax's compiler for the target isn't installed.
  """
  with compiling_for_target(target, num_devices) as mesh:
    trainer = prepare(make_setup()._replace(mesh=mesh))
    key = jax.eval_shape(lambda: jax.random.key(0))
    everywhere = jax.NamedSharding(mesh, jax.P())
    run_key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=everywhere)
    programs = make_programs(trainer, run_key)
    return {
      name: accelerator_cost(
        getattr(programs, name).lower().compile(), TARGETS[target])
      for name in PROGRAMS}


def generation_costs_row(costs: dict[str, Cost]) -> dict[str, Any]:
  """Returns costs as JSON has them."""
  return {
    name: found._asdict()
    | {
      "parts": {part: x._asdict() for part, x in found.parts.items()},
      "loops": [loop._asdict() for loop in found.loops]}
    for name, found in costs.items()}


def generation_costs_table(costs: dict[str, Cost], target: str) -> str:
  """Writes costs as text."""
  title, is_cpu = TARGETS[target].title, target == "cpu"
  lines = [
    f"compiled for {title}, where a kernel is a call of compiled code or of a "
    "library; times are not modelled, loops without a number count once"
    if is_cpu
    else f"modelled for {title}; no such device was used"]
  for name, found in costs.items():
    lines += [
      f"{name}: {found.conditionals} conditionals, {found.transfers} transfers "
      f"with the host, {found.argument_bytes / 2**20:.1f} MiB of arguments, "
      f"{found.temporary_bytes / 2**20:.1f} MiB beside them",
      f"  {'part':10}{'kernels':>12}{'copies':>12}{'GB':>12}"
      + ("" if is_cpu else f"{'ms':>12}")]
    lines += [
      f"  {part:10}{x.kernels:12,}{x.copies:12,}{x.num_bytes / 1e9:12.3f}"
      + ("" if is_cpu else f"{1e3 * x.seconds:12.3f}")
      for part, x in (*found.parts.items(), ("all", found.total))]
    lines += [
      f"  {'  ' * loop.depth}loop in {loop.part}: {loop.kernels} kernels, "
      f"{loop.copies} copies among them, "
      + (f"{loop.moved_bytes:,} bytes moved, " if loop.moved_bytes else "")
      + (f"{loop.trips} times" if loop.trips else "while a condition holds")
      for loop in found.loops]
    lines += [
      f"  {kind} between devices: {num_bytes:,} bytes"
      for kind, num_bytes in found.moved_bytes.items()]
  return "\n".join(lines)
