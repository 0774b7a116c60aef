"""Writes one HTML page about runs, finished or not; they stay as they are.

python launchers/report.py --logdir=logs/first --logdir=logs/second
"""

import dataclasses
import importlib.util
import pathlib
import sys
from typing import Any

from qdrl_haiku.cli import devices, launch, shared_flags
from qdrl_haiku.cli.flags import Flags, flag
from qdrl_haiku.cli.shared_flags import TrainingFlags

# What elites are rolled out for in all, if nothing is said.
_DEFAULT_STEPS = 200_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportFlags(Flags):
  """Say which runs are reported, and where."""

  section = "Report"

  logdir: tuple[str, ...] = flag(
    (),
    "Directory of a run; several runs are shown side by side.",
    repeatable=True,
  )
  output: str = flag(
    "report.html", "New file to which the page is written."
  )
  rollouts: int | None = flag(
    None,
    "Number of elites of a repertoire whose episodes are shown, 0 for none; by "
    f"default as many as {_DEFAULT_STEPS:,} environment steps are enough for.",
  )


def main(flags: ReportFlags) -> None:
  """Writes the report that the flags ask for.

  Args:
    flags: of the launcher.
  """
  logdirs, rollouts = flags.logdir, flags.rollouts
  if not logdirs:
    raise ValueError("--logdir is missing: which runs are to be reported?")
  if rollouts is not None and not 0 <= rollouts < 2**31:
    raise ValueError(
      f"--rollouts={rollouts} must be at least 0 and below 2**31."
    )
  output = pathlib.Path(flags.output)
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
    devices.prepare_jax(TrainingFlags())
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

  flags = launch.with_settings_of(TrainingFlags(), logdir, besides=())
  agent = shared_flags.make_agent(flags)
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
  launch.run_main(main, ReportFlags)
