"""Writes one HTML page about runs, finished or not; they stay as they are.

python launchers/report.py --logdir=logs/first --logdir=logs/second
"""

import importlib.util
import pathlib
import sys
from typing import Any

from absl import flags

from qdrl_haiku.cli import (
  devices,
  launch,
  learner_flags,
  shared_flags,
  skill_flags,
)

FLAGS = flags.FLAGS
# What elites are rolled out for in all, if nothing is said.
_DEFAULT_STEPS = 200_000
# Where the flags are defined that say what a run's agents are.
_OF_AGENTS = tuple(
  module.__name__ for module in (learner_flags, shared_flags, skill_flags)
)


def _define() -> None:
  # The flags of a run's agents, to be defined later, have one of this name.
  flags.DEFINE_multi_string(
    "logdir",
    None,
    "Directory of a run; repeatable, for runs side by side.",
    allow_override=True,
  )
  flags.DEFINE_string("output", "report.html", "A new file for the page.")
  flags.DEFINE_integer(
    "rollouts",
    None,
    "How many elites of a repertoire show an episode, 0 for none; by default "
    f"as many as {_DEFAULT_STEPS:,} environment steps are enough for.",
  )


def main() -> None:
  """Writes the report that the flags ask for."""
  logdirs, rollouts = FLAGS.logdir, FLAGS.rollouts
  if not logdirs:
    raise ValueError("--logdir is missing: which runs are to be reported?")
  if rollouts is not None and not 0 <= rollouts < 2**31:
    raise ValueError(
      f"--rollouts={rollouts} must be at least 0 and below 2**31."
    )
  output = pathlib.Path(FLAGS.output)
  if output.exists():
    raise ValueError(f"--output={output} is there; name a new file.")
  if not output.parent.is_dir():
    raise ValueError(
      f"--output={output}: there is no directory {output.parent}; make it, or "
      "choose another."
    )
  if importlib.util.find_spec("plotly") is None:
    raise ValueError(
      "plotly is missing, which draws the page; install it: pip install plotly"
    )
  from qdrl_haiku import reports

  runs = reports.read_runs(logdirs)
  elites, ways = {}, {}
  for run in runs:
    found, problems = reports.read_elites(run.path)
    for problem in problems:
      _warn(problem)
    if found is not None:
      elites[run.name] = found
  if rollouts != 0 and elites:
    shared_flags.define()
    devices.prepare_jax()
    for run in runs:
      if run.name in elites:
        try:
          ways[run.name] = _roll_out(str(run.path), elites[run.name], rollouts)
        except ValueError as error:
          _warn(f"no rollouts of {run.name}: {error}")
  _write(output, reports.render(runs, elites, ways))


def _roll_out(logdir: str, elites: Any, num_rollouts: int | None) -> Any:
  """Lets elites of a run act again.

  Args:
    logdir: directory of the run.
    elites: of its repertoire.
    num_rollouts: how many of them; None for as many as is usual.

  Returns:
    Where they went, for the page.

  Raises:
    ValueError: if the run's environment or agents can't be made again.
  """
  from qdrl_haiku.reports import rollouts

  for module in _OF_AGENTS:
    for flag in FLAGS.flags_by_module_dict()[module]:
      flag.unparse()  # It may hold what another run was set to.
  launch.use_settings_of(
    logdir, besides=("compilation_cache_dir", "logdir", "resume")
  )
  agent = shared_flags.make_agent()
  if num_rollouts is None:
    num_rollouts = max(1, _DEFAULT_STEPS // agent.eval_env.episode_steps)
  return rollouts.roll_out(
    agent.eval_env, agent.learner, elites, num_rollouts
  )


def _write(output: pathlib.Path, page: str) -> None:
  """Writes the page, whole or not at all."""
  is_ours = False
  try:
    with output.open("x", encoding="utf-8") as file:
      is_ours = True
      file.write(page)
  except OSError as error:
    if is_ours:
      output.unlink(missing_ok=True)
    raise ValueError(
      f"--output={output} can't be written ({error.strerror})."
    ) from error
  print(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB)")


def _warn(message: str) -> None:
  print(f"warning: {message}", file=sys.stderr)


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  _define()
  launch.run_main(main)
