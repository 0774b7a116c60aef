"""Measures how fast training is, and prints a line of JSON.

python launchers/benchmark.py --algorithm=pbt \
  --flagfile=launchers/flagfiles/quickstart.flags

Takes the flags of train_pbt.py, or with --algorithm=me_pbt of train_me_pbt.py.
"""

import sys
import time
from typing import Any

_START = time.monotonic()

# Imports are a part of what is measured.
import devices  # noqa: E402
import launch  # noqa: E402
import learner_flags  # noqa: E402
import train_me_pbt  # noqa: E402
import train_pbt  # noqa: E402
from absl import flags  # noqa: E402

FLAGS = flags.FLAGS
_ALGORITHMS = ("pbt", "me_pbt", "collect", "update", "exploit", "add")


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
    "repetitions", 5, "The median is of so many, after a first."
  )


def main() -> None:
  """Measures what the flags ask for."""
  learner_flags.check_choice("algorithm", _ALGORITHMS)
  if FLAGS.repetitions < 1:
    raise ValueError(f"--repetitions={FLAGS.repetitions} must be at least 1.")
  devices.prepare_jax()
  import jax

  from qdrl_haiku import training
  from qdrl_haiku.training import benchmark, logs

  row: dict[str, Any] = {"algorithm": FLAGS.algorithm}
  if FLAGS.algorithm == "add":
    row |= benchmark.adding(FLAGS.repetitions)
  else:
    is_me_pbt = FLAGS.algorithm == "me_pbt"
    setup = (train_me_pbt if is_me_pbt else train_pbt).make_setup()
    mesh = training.population_mesh(setup.shared_evenly)
    setup = setup._replace(mesh=mesh)
    key = training.sharding.put(mesh, jax.random.key(FLAGS.seed))
    if FLAGS.algorithm == "collect":
      row |= benchmark.collecting(setup, FLAGS.repetitions, key)
    elif FLAGS.algorithm == "update":
      row |= benchmark.updating(setup, FLAGS.repetitions, key)
    elif FLAGS.algorithm == "exploit":
      row |= benchmark.exploiting(setup, FLAGS.repetitions, key)
    else:
      row |= benchmark.generations(setup, FLAGS.repetitions, key, _START)
    row |= benchmark.resources(setup, key)
    row["devices_used"] = mesh.size
  print(logs.to_json(row | logs.versions()))


if __name__ == "__main__":
  _define()
  launch.run_main(main)
