"""Measures how fast training is, and prints a line of JSON.

python launchers/benchmark.py --algorithm=pbt \
  --flagfile=launchers/flagfiles/quickstart.flags

Takes the flags of train_pbt.py, or with --algorithm=me_pbt of train_me_pbt.py.
"""

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
from absl import flags  # noqa: E402

from qdrl_haiku.cli import (  # noqa: E402
  devices,
  launch,
  learner_flags,
  train_me_pbt,
  train_pbt,
)

FLAGS = flags.FLAGS
_GENERATIONS = ("pbt", "me_pbt")
_ALGORITHMS = (*_GENERATIONS, "collect", "update", "exploit", "add")
# Which of a row depends on what the compilation cache holds.
_OF_THE_START = (
  "compile_seconds",
  "time_to_first_update_seconds",
  "time_to_first_generation_seconds",
)


def _define() -> None:
  is_me_pbt = "--algorithm=me_pbt" in sys.argv
  (train_me_pbt if is_me_pbt else train_pbt).define()
  flags.DEFINE_string(
    "algorithm",
    "pbt",
    "pbt or me_pbt: whole generations; collect: their steps alone; update: "
    "their updates alone; exploit: a decision and its copies; add: MAP-Elites "
    "without agents.",
  )
  flags.DEFINE_integer(
    "repetitions",
    5,
    "The median is of at most so many, after a first: as many as fit into a "
    "minute. Without --perturbation_interval each takes a few seconds, and "
    "without --num_eval_episodes an evaluation is one episode.",
  )
  flags.DEFINE_bool(
    "start_twice",
    True,
    "With pbt and me_pbt: start with an empty compilation cache, then with "
    "what it holds by then; otherwise with the usual cache.",
  )
  flags.DEFINE_string(
    "sweep",
    None,
    "A flag and its values, like population_size:1,2,4,8: a row each.",
  )
  flags.DEFINE_string("output", "sweep.png", "A new file for a sweep's plot.")


def main() -> None:
  """Measures what the flags ask for."""
  learner_flags.check_choice("algorithm", _ALGORITHMS)
  if FLAGS.repetitions < 1:
    raise ValueError(f"--repetitions={FLAGS.repetitions} must be at least 1.")
  if FLAGS.sweep:
    _sweep()
  elif _starts_twice():
    print(json.dumps(_measure_anew([])))
  else:
    _measure()


def _measure() -> None:
  """Measures in this process."""
  devices.prepare_jax()
  import jax

  from qdrl_haiku.distributed import sharding
  from qdrl_haiku.runs import benchmark
  from qdrl_haiku.storage import strict_json, versions

  row: dict[str, Any] = {"algorithm": FLAGS.algorithm}
  if FLAGS.algorithm == "add":
    row |= benchmark.adding(FLAGS.repetitions)
  else:
    is_me_pbt = FLAGS.algorithm == "me_pbt"
    if FLAGS.num_eval_episodes is None and FLAGS.learner != "diayn":
      FLAGS["num_eval_episodes"].value = 1
    setup = (train_me_pbt if is_me_pbt else train_pbt).make_setup()
    mesh = sharding.mesh_for(setup)
    setup = setup._replace(mesh=mesh)
    if setup.controller and not FLAGS["perturbation_interval"].present:
      is_given = FLAGS["min_replay_size"].present
      setup = benchmark.shortened(
        setup, min_replay_size=FLAGS.min_replay_size if is_given else None
      )
    key = sharding.put(mesh, jax.random.key(FLAGS.seed))
    if FLAGS.algorithm == "collect":
      row |= benchmark.collecting(setup, FLAGS.repetitions, key)
    elif FLAGS.algorithm == "update":
      row |= benchmark.updating(setup, FLAGS.repetitions, key)
    elif FLAGS.algorithm == "exploit":
      row |= benchmark.exploiting(setup, FLAGS.repetitions, key)
    else:
      row |= benchmark.generations(setup, FLAGS.repetitions, key, _START)
    row |= benchmark.resources(setup, key)
    row |= {
      "devices_used": mesh.size,
      "perturbation_interval": setup.config.perturbation_interval,
      "num_eval_episodes": setup.config.num_eval_episodes,
    }
  print(strict_json.to_json(row | versions.versions()))


def _sweep() -> None:
  """Prints a row for each value of a flag, and draws what it costs.

  Raises:
    ValueError: if there is no such flag, or the plot can't be written.
  """
  match = re.fullmatch(r"(\w+):([^,]+(?:,[^,]+)+)", FLAGS.sweep)
  if match is None or match[1] not in FLAGS:
    raise ValueError(
      f"--sweep={FLAGS.sweep} must be a flag and its values, like "
      "population_size:1,2,4,8."
    )
  if os.path.lexists(FLAGS.output):
    raise ValueError(f"--output={FLAGS.output} is there; name a new file.")
  name, rows = match[1], []
  for value in match[2].split(","):
    rows.append({name: value, **_measure_anew([f"--{name}={value}"])})
    print(json.dumps(rows[-1]), flush=True)
  from qdrl_haiku.drawing import costs

  costs.costs(rows, name).savefig(FLAGS.output, dpi=120)
  print(f"wrote {FLAGS.output}", file=sys.stderr)


def _measure_anew(arguments: Sequence[str]) -> dict[str, Any]:
  """Measures in processes of their own, generations in two if so wanted.

  The compilation cache is empty for the first and holds what that one compiled
  for the second.

  Args:
    arguments: besides those of this process.

  Returns:
    The row; of generations the second one's, with the times of both starts.
  """
  if not _starts_twice():
    return _measure_elsewhere(arguments)
  with tempfile.TemporaryDirectory() as cache:
    arguments = [*arguments, f"--compilation_cache_dir={cache}"]
    cold = _measure_elsewhere([*arguments, "--repetitions=1"])
    row = _measure_elsewhere(arguments)
  for name in _OF_THE_START:
    row[f"warm_{name}"] = row[name]
    row[name] = cold[name]
  return row


def _starts_twice() -> bool:
  return FLAGS.start_twice and FLAGS.algorithm in _GENERATIONS


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
  _define()
  launch.run_main(main)
