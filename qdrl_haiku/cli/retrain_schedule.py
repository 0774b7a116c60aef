"""Trains agents from scratch with the schedule that PBT found for another.

python launchers/retrain_schedule.py --logdir=logs/my_run --num_seeds=4

Is it the schedule, or whose weights were inherited? All else is as in that run.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from qdrl_haiku.cli import (
  devices,
  launch,
  learner_flags,
  shared_flags,
  training_runs,
)
from qdrl_haiku.cli.flags import flag
from qdrl_haiku.cli.shared_flags import TrainingFlags

_FLAG_NAMES = {"population_size": "num_seeds"}
# Flags that the tuned run may have too, and that are this run's own.
_OWN = (
  "compilation_cache_dir", "logdir", "member", "num_seeds", "output", "resume",
  "suffix", "warm_start",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrainFlags(TrainingFlags):
  """Say whose schedule is taken, and for how many agents."""

  section = "Schedule to retrain with"

  logdir: str | None = flag(
    None,
    "Directory of the tuned run; with --resume, of the run that goes on.",
    section="Schedule to retrain with",
  )
  seed: int = flag(
    0,
    "Seed of the first agent; by default that of the tuned run plus 1.",
    section="Schedule to retrain with",
  )
  member: int | None = flag(
    None,
    "Number of the agent of the tuned run's last generation whose schedule is "
    "taken; by default the best agent that the run ever evaluated.",
  )
  num_seeds: int = flag(
    1, "Number of agents to train, with seeds from --seed upwards."
  )
  output: str | None = flag(
    None,
    "Directory to which the new run is written; by default a new one in logs/.",
  )


def main(flags: RetrainFlags) -> None:
  """Trains the agents that the flags ask for.

  Args:
    flags: of the launcher.
  """
  logdir = flags.logdir
  if not logdir:
    raise ValueError("--logdir is missing: whose schedule is to be taken?")
  flags.refuse_given(["warm_start"], "agents are trained from scratch")
  if flags.resume:
    flags.refuse_given(
      ["member", "output"], "the run that goes on has its schedule"
    )
    flags = launch.prepare(flags)
  else:
    flags = launch.with_settings_of(flags, logdir, besides=_OWN)
    devices.prepare_jax(flags)
  flags.refuse_given(
    learner_flags.hyperparam_flags(), "the schedule has its values"
  )
  from qdrl_haiku import artifacts, training

  schedule, flags = _read_schedule(flags, logdir)
  agent = shared_flags.make_agent(flags)
  setup = training.Setup(
    env=agent.env,
    eval_env=agent.eval_env,
    learner=agent.learner,
    controller=artifacts.play_back(schedule, agent.learner),
    config=shared_flags.make_training_config(
      flags,
      agent,
      population_size=flags.num_seeds,
      perturbation_interval=schedule.perturbation_interval,
    ),
    evaluate=agent.evaluate,
  )
  seeds = range(flags.seed, flags.seed + flags.num_seeds)
  retrained = training_runs.run_training(
    flags,
    setup,
    f"retrained_{learner_flags.learner_name(flags)}",
    seeds,
    more_settings={"schedule": dataclasses.asdict(schedule)},
  )
  if not flags.dry_run:
    _compare(retrained, schedule, seeds)


def _read_schedule(
  flags: RetrainFlags, logdir: str
) -> tuple[Any, RetrainFlags]:
  """Reads the schedule, and returns it with the flags of the new run."""
  from qdrl_haiku import artifacts
  from qdrl_haiku.storage.directory import RunDirectory

  settings = RunDirectory(logdir).settings()
  if flags.resume:
    try:
      return artifacts.Schedule(**settings["schedule"]), flags
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise ValueError(
        f"config.json in {logdir} is damaged: its schedule can't be read; "
        "begin a new run."
      ) from error
  schedule = artifacts.read_schedule(logdir, flags.member)
  changes: dict[str, Any] = {"logdir": flags.output}
  if "seed" not in flags.given:
    # Not the first agents of the tuned run again.
    changes["seed"] = flags.seed + 1
  if "num_timesteps" not in flags.given:
    lost = schedule.generation - schedule.num_generations
    steps = flags.num_timesteps - lost * schedule.perturbation_interval
    changes["num_timesteps"] = steps
  if flags.output:
    flags.refuse_given(["suffix"], "--output is the whole name")
  return schedule, dataclasses.replace(flags, **changes)


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
  launch.run_main(main, RetrainFlags, _FLAG_NAMES)
