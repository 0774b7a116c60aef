"""Trains agents from scratch with the schedule that PBT found for another.

python launchers/retrain_schedule.py --logdir=logs/my_run --num_seeds=4

Is it the schedule, or whose weights were inherited? All else is as in that run.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from absl import flags

from qdrl_haiku.cli import (
  devices,
  launch,
  learner_flags,
  shared_flags,
  training_runs,
)

FLAGS = flags.FLAGS
_FLAG_NAMES = {"population_size": "num_seeds"}
# Flags that the tuned run may have too, and that are this run's own.
_OWN = (
  "compilation_cache_dir", "logdir", "member", "num_seeds", "output", "resume",
  "suffix", "warm_start",
)  # fmt: skip


def _define() -> None:
  shared_flags.define()
  flags.DEFINE_integer(
    "member",
    None,
    "Which agent of the tuned run's last generation; by default the best agent "
    "that it ever evaluated.",
  )
  flags.DEFINE_integer(
    "num_seeds", 1, "How many agents, with seeds counted on from --seed."
  )
  flags.DEFINE_string(
    "output",
    None,
    "Where the new run is written; by default a new directory in logs/.",
  )
  flags.FLAGS["logdir"].help = (
    "The tuned run; with --resume the one that is to go on."
  )
  flags.FLAGS["seed"].help = (
    "Of the first agent; by default that of the tuned run plus 1."
  )


def main() -> None:
  """Trains the agents that the flags ask for."""
  if not FLAGS.logdir:
    raise ValueError("--logdir is missing: whose schedule is to be taken?")
  learner_flags.refuse_given(
    ["warm_start"], "agents are trained from scratch"
  )
  if FLAGS.resume:
    learner_flags.refuse_given(
      ["member", "output"], "the run that goes on has its schedule"
    )
    launch.prepare()
  else:
    launch.use_settings_of(FLAGS.logdir, besides=_OWN)
    devices.prepare_jax()
  learner_flags.refuse_given(
    learner_flags.hyperparam_flags(), "the schedule has its values"
  )
  from qdrl_haiku import artifacts, training

  schedule = _read_schedule()
  agent = shared_flags.make_agent()
  setup = training.Setup(
    env=agent.env,
    eval_env=agent.eval_env,
    learner=agent.learner,
    controller=artifacts.play_back(schedule, agent.learner),
    config=shared_flags.make_training_config(
      population_size=FLAGS.num_seeds,
      replay_extras=agent.replay_extras,
      fitness=agent.fitness,
      perturbation_interval=schedule.perturbation_interval,
    ),
    evaluate=agent.evaluate,
  )
  seeds = range(FLAGS.seed, FLAGS.seed + FLAGS.num_seeds)
  logdir = training_runs.run_training(
    setup,
    f"retrained_{learner_flags.learner_name()}",
    seeds,
    more_settings={"schedule": dataclasses.asdict(schedule)},
  )
  if not FLAGS.dry_run:
    _compare(logdir, schedule, seeds)


def _read_schedule() -> Any:
  """Reads the schedule, and makes the flags those of the new run."""
  from qdrl_haiku import artifacts
  from qdrl_haiku.storage.directory import RunDirectory

  settings = RunDirectory(FLAGS.logdir).settings()
  if FLAGS.resume:
    try:
      return artifacts.Schedule(**settings["schedule"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise ValueError(
        f"config.json in {FLAGS.logdir} is damaged: its schedule can't be "
        "read; begin a new run."
      ) from error
  schedule = artifacts.read_schedule(FLAGS.logdir, FLAGS.member)
  if not FLAGS["seed"].present:
    # Not the first agents of the tuned run again.
    FLAGS.seed += 1
  if not FLAGS["num_timesteps"].present:
    lost = schedule.generation - schedule.num_generations
    FLAGS.num_timesteps -= lost * schedule.perturbation_interval
  if FLAGS.output:
    learner_flags.refuse_given(["suffix"], "--output is the whole name")
  FLAGS.logdir = FLAGS.output
  return schedule


def _compare(logdir: str, schedule: Any, seeds: Sequence[int]) -> None:
  """Prints what the tuned agent reached, and those that were retrained."""
  from qdrl_haiku.storage.directory import RunDirectory

  step = schedule.num_steps
  print(
    f"tuned: member {schedule.member} of {schedule.run}, return "
    f"{_number(schedule.episode_return)} at step {step}"
  )
  rows = RunDirectory(logdir).rows("pbt_members.jsonl")
  for member, seed in enumerate(seeds):
    curve = {
      row["step"]: row["return"] for row in rows if row["member"] == member
    }
    finite = {at: x for at, x in curve.items() if x is not None}
    best = max(finite, key=lambda at: finite[at], default=None)
    print(
      f"retrained, seed {seed}: return {_number(curve.get(step))} at step "
      f"{step}, last {_number(curve[max(curve)])}, best "
      f"{_number(finite.get(best))} at step {best}"
    )


def _number(value: float | None) -> str:
  return "unknown" if value is None else f"{value:.1f}"


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  _define()
  launch.run_main(main, _FLAG_NAMES)
