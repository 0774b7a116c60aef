"""Writes one HTML page about runs, finished or not; they stay as they are.

python launchers/report.py --logdir=logs/first --logdir=logs/second
"""

import contextlib
import dataclasses
import importlib.util
import pathlib
import sys
import time
from collections.abc import Sequence

from qdrl_haiku import checks, files, types
from qdrl_haiku import config as config_lib
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.programs.cli import devices, launch
from qdrl_haiku.programs.cli.launch import Given

# Environment steps of all rollouts, if their number isn't given.
_DEFAULT_STEPS = 200_000


@dataclasses.dataclass(frozen=True)
class ReportConfig(Settings):
  """Says which runs are reported, and where."""

  title = "Report"

  logdir: tuple[str, ...] = setting(
    (), "Directory of a run; repeatable, for runs side by side.",
    repeatable=True)
  output: str = setting("report.html", "New file for the page.")
  rollouts: int | None = setting(
    None,
    "How many elites of a repertoire show an episode, 0 for none; by default "
    f"as many as {_DEFAULT_STEPS:,} environment steps are enough for.",
    low=0)
  follow: int | None = setting(
    None,
    "Seconds after which the page is written anew, and shown anew by browsers, "
    "until all runs have taken all their steps; without rollouts, unless "
    "--rollouts is given.",
    low=1, high=86_400)


def _main(given: Given) -> None:
  config = given.fill(ReportConfig())
  logdirs, rollouts = config.logdir, config.rollouts
  if config.follow and rollouts is None:
    rollouts = 0
  output = pathlib.Path(config.output)
  from qdrl_haiku.programs import reports

  with checks.Refusals() as refusals:
    if output.exists():
      refusals.refuse(f"--output={output} is there; name a new file.")
    elif not output.parent.is_dir():
      refusals.refuse(f"--output={output}: there is no directory for it.")
    if importlib.util.find_spec("plotly") is None:
      refusals.refuse(
        "plotly is missing, which draws the page; pip install "
        "'qdrl_haiku[report]'.")
    if not logdirs:
      raise ValueError("--logdir is missing: which runs are to be reported?")
    reports.read_runs(logdirs)
  if rollouts != 0:  # Elites are arrays of jax's, which asks for devices.
    devices.prepare_jax_devices(devices.ProcessConfig())
  with contextlib.suppress(KeyboardInterrupt):
    while not _write(logdirs, output, rollouts, config.follow):
      time.sleep(config.follow or 0)


def _write(
  logdirs: Sequence[str], output: pathlib.Path, rollouts: int | None,
  follow: int | None,
) -> bool:
  """Writes the page, and returns whether it's the last one of these runs."""
  from qdrl_haiku.programs import reports

  runs = reports.read_runs(logdirs)
  is_last = not follow or all(run.is_done for run in runs)
  elites, ways = {}, {}
  for run in runs:
    found, problems = reports.read_elite_table(run.path)
    if found is not None:
      elites[run.name] = found
      try:
        if rollouts != 0:
          ways[run.name] = _roll_out(str(run.path), found, rollouts)
      except ValueError as error:
        problems.append(f"no rollouts of {run.name}: {error}")
    for problem in problems:
      print(f"warning: {problem}", file=sys.stderr)
  page = reports.render_sections(
    runs, elites, ways, None if is_last else follow)
  try:
    with files.file_written_whole(output) as temporary:
      temporary.write_text(page, encoding="utf-8")
  except OSError as error:
    raise ValueError(
      f"--output={output} can't be written ({error.strerror}).") from error
  print(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB)", flush=True)
  return is_last


def _roll_out(
  logdir: str, elites: types.Tree, num_rollouts: int | None
) -> types.Tree:
  """Lets elites of a run act again, and returns where they went."""
  from qdrl_haiku.programs import experiment
  from qdrl_haiku.programs.reports import rollouts
  from qdrl_haiku.programs.runs.progress import progress_of_waiting

  run = experiment.read_config(logdir)
  setup = experiment.make_experiment_agent(run)
  if num_rollouts is None:
    num_rollouts = max(1, _DEFAULT_STEPS // setup.eval_env.episode_length)
  with progress_of_waiting(lambda: "compiling or rolling out"):
    return rollouts.roll_out_elites(
      setup.eval_env, setup.learner, elites, num_rollouts)


def report_from_flags() -> None:
  """Starts this launcher with the arguments of the command line."""
  launch.launch_main(
    _main, config_lib.config_tree_flags(ReportConfig()), __doc__)
