"""Measures how fast training is, and prints a line of JSON.

python launchers/benchmark.py --algorithm=pbt \
  --flagfile=launchers/flagfiles/quickstart.flags

Takes the flags of train_pbt.py, or with --algorithm=me_pbt of train_me_pbt.py.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

_START = time.monotonic()

# Imports are a part of what is measured.
from qdrl_haiku.cli import (  # noqa: E402
  devices,
  kept_programs,
  launch,
  train_me_pbt,
  train_pbt,
)
from qdrl_haiku.cli.flags import flag  # noqa: E402
from qdrl_haiku.cli.pbt_flags import ControllerFlags  # noqa: E402
from qdrl_haiku.cli.train_me_pbt import MEPBTFlags  # noqa: E402
from qdrl_haiku.cli.train_pbt import PBTFlags  # noqa: E402

_GENERATIONS = ("pbt", "me_pbt")
_ALGORITHMS = (*_GENERATIONS, "collect", "update", "exploit", "add")
# Which of a row depends on what the compilation cache holds.
_OF_THE_START = (
  "compile_seconds",
  "time_to_first_update_seconds",
  "time_to_first_generation_seconds",
)
# What changes nothing that is compiled.
_OF_MEASURING = ("output", "repetitions", "start_twice", "sweep")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkFlags(ControllerFlags):
  """Say what is measured, and how often."""

  algorithm: str = flag(
    "pbt",
    "pbt or me_pbt: whole generations; collect: their steps alone; update: "
    "their updates alone; exploit: a decision and its copies; add: MAP-Elites "
    "without agents.",
  )
  repetitions: int = flag(
    5,
    "The median is of at most so many, after a first: as many as fit into a "
    "minute. Without --perturbation_interval each takes a few seconds, and "
    "without --num_eval_episodes an evaluation is one episode.",
  )
  start_twice: bool = flag(
    True,
    "With pbt and me_pbt: start with an empty compilation cache, then with "
    "what it holds by then; otherwise with the usual cache.",
  )
  sweep: str | None = flag(
    None, "A flag and its values, like population_size:1,2,4,8: a row each."
  )
  output: str = flag("sweep.png", "A new file for a sweep's plot.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PBTBenchmarkFlags(PBTFlags, BenchmarkFlags):
  """Say what is measured of a population."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MEPBTBenchmarkFlags(MEPBTFlags, BenchmarkFlags):
  """Say what is measured of a repertoire."""


def main(flags: BenchmarkFlags) -> None:
  """Measures what the flags ask for.

  Args:
    flags: of the launcher.
  """
  flags.check_choice("algorithm", _ALGORITHMS)
  if flags.repetitions < 1:
    raise ValueError(f"--repetitions={flags.repetitions} must be at least 1.")
  if flags.sweep:
    _sweep(flags, flags.sweep)
  elif _starts_twice(flags):
    print(json.dumps(_measure_anew(flags, [])))
  else:
    _measure(flags)


def _measure(flags: BenchmarkFlags) -> None:
  """Measures in this process."""
  devices.prepare_jax(flags)
  import jax

  from qdrl_haiku.benchmarks import measurements
  from qdrl_haiku.distributed import sharding
  from qdrl_haiku.storage import strict_json, versions

  row: dict[str, Any] = {"algorithm": flags.algorithm}
  if flags.algorithm == "add":
    row |= measurements.adding(flags.repetitions)
  else:
    if flags.num_eval_episodes is None and flags.learner != "diayn":
      flags = dataclasses.replace(flags, num_eval_episodes=1)
    if isinstance(flags, MEPBTFlags):
      setup, _ = train_me_pbt.make_setup(flags)
    else:
      assert isinstance(flags, PBTFlags)
      setup, _ = train_pbt.make_setup(flags)
    mesh = sharding.mesh_for(setup)
    setup = setup._replace(mesh=mesh)
    if setup.controller and "perturbation_interval" not in flags.given:
      is_given = "min_replay_size" in flags.given
      setup = measurements.shortened(
        setup, min_replay_size=flags.min_replay_size if is_given else None
      )
    key = sharding.put(mesh, jax.random.key(flags.seed))
    if flags.algorithm == "collect":
      row |= measurements.collecting(setup, flags.repetitions, key)
    elif flags.algorithm == "update":
      row |= measurements.updating(setup, flags.repetitions, key)
    elif flags.algorithm == "exploit":
      row |= measurements.exploiting(setup, flags.repetitions, key)
    else:
      besides = (*launch.NOT_REMEMBERED, *_OF_MEASURING)
      settings = flags.settings(besides)
      kept = kept_programs.of_run(setup, settings)
      row |= measurements.generations(
        setup, flags.repetitions, key, _START, kept
      )
    row |= measurements.resources(setup, key)
    row |= {
      "devices_used": mesh.size,
      "perturbation_interval": setup.config.perturbation_interval,
      "num_eval_episodes": setup.config.num_eval_episodes,
    }
  print(strict_json.to_json(row | versions.versions()))


def _sweep(flags: BenchmarkFlags, sweep: str) -> None:
  """Prints a row for each value of a flag, and draws what it costs.

  Raises:
    ValueError: if there is no such flag, or the plot can't be written.
  """
  match = re.fullmatch(r"(\w+):([^,]+(?:,[^,]+)+)", sweep)
  if match is None or match[1] not in flags.kinds():
    raise ValueError(
      f"--sweep={sweep} must be a flag and its values, like "
      "population_size:1,2,4,8."
    )
  if os.path.lexists(flags.output):
    raise ValueError(f"--output={flags.output} is there; name a new file.")
  name, rows = match[1], []
  for value in match[2].split(","):
    rows.append({name: value, **_measure_anew(flags, [f"--{name}={value}"])})
    print(json.dumps(rows[-1]), flush=True)
  from qdrl_haiku.drawing import costs

  costs.costs(rows, name).savefig(flags.output, dpi=120)
  print(f"wrote {flags.output}", file=sys.stderr)


def _measure_anew(
  flags: BenchmarkFlags, arguments: Sequence[str]
) -> dict[str, Any]:
  """Measures in processes of their own, generations in two if so wanted.

  The compilation cache is empty for the first and holds what that one compiled
  for the second.

  Args:
    flags: of the launcher.
    arguments: besides those of this process.

  Returns:
    The row; of generations the second one's, with the times of both starts.
  """
  if not _starts_twice(flags):
    return _measure_elsewhere(arguments)
  with tempfile.TemporaryDirectory() as cache:
    arguments = [*arguments, f"--compilation_cache_dir={cache}"]
    cold = _measure_elsewhere([*arguments, "--repetitions=1"])
    row = _measure_elsewhere(arguments)
  for name in _OF_THE_START:
    row[f"warm_{name}"] = row[name]
    row[name] = cold[name]
  return row


def _starts_twice(flags: BenchmarkFlags) -> bool:
  return flags.start_twice and flags.algorithm in _GENERATIONS


def _measure_elsewhere(arguments: Sequence[str]) -> dict[str, Any]:
  """Measures in a process of its own, whose error becomes that of this one."""
  command = [
    sys.executable, *sys.argv, *arguments, "--sweep=", "--nostart_twice"
  ]  # fmt: skip
  with subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  ) as process:
    assert process.stdout is not None and process.stderr is not None
    # At once, since it says how long it will take.
    for line in process.stderr:
      sys.stderr.write(line)
    row = process.stdout.read()
  if process.returncode != 0:
    sys.exit(process.returncode)
  return json.loads(row)


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  is_me_pbt = "--algorithm=me_pbt" in sys.argv
  kind = MEPBTBenchmarkFlags if is_me_pbt else PBTBenchmarkFlags
  launch.run_main(main, kind)
