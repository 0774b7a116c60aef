"""Trains methods on tasks by seeds, one run at a time, and compares them.

python launchers/compare.py --output=logs/comparison \
  --flagfile=launchers/flagfiles/compare_maze.flags

Started again, it goes on where it was.
"""

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qdrl_haiku import config as config_lib
from qdrl_haiku import files, names
from qdrl_haiku.cli import launch, subprocesses
from qdrl_haiku.cli.flags import Given
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.storage import strict_json

if TYPE_CHECKING:
  from qdrl_haiku import comparisons
  from qdrl_haiku.comparisons import PlannedRun


@dataclasses.dataclass(frozen=True)
class CompareConfig(Settings):
  """Says what is compared, and by which numbers."""

  title = "Comparison"

  command: str = setting(
    "train_pbt",
    "A launcher that trains (train, train_pbt or train_me_pbt), and flags that "
    "all runs have.",
  )
  task: tuple[str, ...] = setting(
    (),
    "'name: flags', such as 'maze: --env_name=point_maze'. Repeatable. The "
    "flags may begin with another launcher.",
    repeatable=True,
  )
  method: tuple[str, ...] = setting(
    (),
    "'name: flags', such as 'pb2: --controller=pb2', which override those of a "
    "task; 'ant/pb2: --tau=0.1' are more of one task alone. Repeatable.",
    repeatable=True,
  )
  num_seeds: tuple[str, ...] = setting(
    ("5",),
    "How many seeds, or task:number for one task. Repeatable, the last that "
    "fits counts. train.py trains them side by side.",
    repeatable=True,
  )
  seed: int = setting(0, "The first seed.", low=0, high=2**32 - 1)
  output: str | None = setting(
    None, "Directory of the runs, the tables and the picture."
  )
  baseline: str | None = setting(
    None,
    "The method that others are compared with; by default pbt, or the first.",
  )
  metric: str | None = setting(
    None,
    "Metric of metrics.jsonl by which methods are compared; by default "
    "pbt/best_return, eval/episode_return (train) or qd/qd_score "
    "(train_me_pbt).",
  )
  num_last: int = setting(
    3, "A run's final value is the mean of so many last evaluations.", low=1
  )
  at_steps: tuple[int, ...] = setting(
    (), "Steps at which the latest value is a column, such as 10000,20000.",
    low=0,
  )  # fmt: skip


def _main(given: Given) -> None:
  """Trains the runs that aren't done yet, and compares those that are.

  Args:
    given: what the flags were given.
  """
  config = given.fill(CompareConfig())
  from qdrl_haiku import comparisons, runs

  if not config.output:
    raise ValueError("--output is missing: where are the runs to be?")
  planned = comparisons.plan_comparison(
    config.command, config.task, config.method, config.num_seeds, config.seed
  )
  methods = list(dict.fromkeys(run.method for run in planned))
  baseline = config.baseline or ("pbt" if "pbt" in methods else methods[0])
  if baseline not in methods:
    raise ValueError(
      f"--baseline={baseline} is no method; "
      f"{names.nearest_name(baseline, methods)}"
    )
  settings = comparisons.Settings(
    metric=config.metric or comparisons.plan_comparison_metric(planned),
    baseline=baseline,
    num_last=config.num_last,
    at_steps=config.at_steps,
  )
  output = pathlib.Path(config.output)
  state = _State(output, planned)
  failed = []
  with subprocesses.forward_subprocess_signals() as process:
    _check(planned, state, process)
    for i, run in enumerate(planned, start=1):
      if state.is_done(run):
        continue
      logdir = output / run.name
      flags = [*_flags(run), f"--logdir={logdir}"]
      if state.has_begun(run):
        flags = [f"--logdir={logdir}", "--resume"]
      print(f"run {i} of {len(planned)}: {run.name}", flush=True)
      logdir.parent.mkdir(parents=True, exist_ok=True)
      done = process.run(run.launcher, flags, logdir.with_suffix(".log"))
      if process.is_interrupted:
        break
      if done.code == runs.DIVERGED:
        print(f"diverged: {run.name}: {done.message}", file=sys.stderr)
      elif done.code:
        failed.append(run.name)
        print(f"failed: {run.name}: {done.message}", file=sys.stderr)
      # A run that diverged is done as well, and counts, or a method would be
      # judged by its other seeds.
      if done.code in (0, runs.DIVERGED):
        state.note_done(run)
        _write(output, planned, state, settings, with_picture=False)
  _write(output, planned, state, settings, with_picture=True)
  if process.is_interrupted:
    print("interrupted; the same command goes on from here", file=sys.stderr)
    sys.exit(runs.INTERRUPTED)
  if failed:
    print(
      f"error: {len(failed)} of {len(planned)} runs failed: "
      f"{', '.join(failed)}; the same command tries them again.",
      file=sys.stderr,
    )
    sys.exit(1)
  print(f"done: {output / 'table.md'}")


class _State:
  """Keeps the runs of a directory, their commands, and whether each is done."""

  def __init__(
    self, output: pathlib.Path, planned: "Sequence[PlannedRun]"
  ) -> None:
    self._output, self._path = output, output / "runs.json"
    try:
      output.mkdir(parents=True, exist_ok=True)
      self._runs = self._read()
      for run in planned:
        before = self._runs.get(run.name)
        command = [run.launcher, *run.flags]
        # A command that was refused, or never came to its turn, may change.
        if before is None or not (before["done"] or self.has_begun(run)):
          self._runs[run.name] = {"command": command, "done": False}
        elif before["command"] != command:
          raise ValueError(
            f"--output={output} has a run {run.name} by another command, "
            f"'{' '.join(before['command'])}'; choose another directory."
          )
      self._write()
    except OSError as error:
      raise ValueError(
        f"--output={output} can't be written ({error.strerror}); choose "
        "another."
      ) from error

  def is_done(self, run: "PlannedRun") -> bool:
    """Returns whether a run has come to its end."""
    return self._runs[run.name]["done"]

  def note_done(self, run: "PlannedRun") -> None:
    """Notes that a run has come to its end."""
    self._runs[run.name]["done"] = True
    self._write()

  def has_begun(self, run: "PlannedRun") -> bool:
    """Returns whether a run can be resumed."""
    return (self._output / run.name / "config.json").exists()

  def _read(self) -> dict[str, strict_json.Record]:
    """Reads the file; refuses one that is damaged, and another's directory."""
    if not any(self._output.iterdir()):
      return {}
    if not self._path.exists():
      raise ValueError(
        f"--output={self._output} holds something, but no comparison; choose "
        "another directory."
      )
    try:
      runs = json.loads(self._path.read_text())
      kinds = {(type(x["done"]), type(x["command"])) for x in runs.values()}
      if kinds - {(bool, list)}:
        raise TypeError("It is no comparison's.")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise ValueError(
        f"{self._path} is damaged; remove it with the runs, or choose another "
        "--output."
      ) from error
    return runs

  def _write(self) -> None:
    """Writes the file."""
    with files.file_written_whole(self._path) as temporary:
      temporary.write_text(json.dumps(self._runs, indent=2) + "\n")


def _flags(run: "PlannedRun") -> list[str]:
  """Returns all flags of a run but its directory."""
  flags = [*run.flags, f"--seed={run.seeds[0]}"]
  if run.launcher == "train":
    flags.append(f"--num_seeds={len(run.seeds)}")
  return flags


def _check(
  planned: "Sequence[PlannedRun]",
  state: _State,
  process: subprocesses.Processes,
) -> None:
  """Lets launchers check the flags of runs that haven't begun, once each."""
  from qdrl_haiku import runs

  checked: dict[tuple, PlannedRun] = {}
  for run in planned:
    if not (state.is_done(run) or state.has_begun(run)):
      checked.setdefault((run.launcher, run.flags), run)
  for run in checked.values():
    print(f"checking {run.task}, {run.method}", flush=True)
    flags = [*_flags(run), "--dry_run"]
    done = process.run(run.launcher, flags, pathlib.Path(os.devnull))
    if process.is_interrupted:
      sys.exit(runs.INTERRUPTED)
    if done.code:
      raise ValueError(
        f"task {run.task}, method {run.method}: "
        f"{done.message.removeprefix('error: ')}"
      )


def _write(
  output: pathlib.Path,
  planned: "Sequence[PlannedRun]",
  state: _State,
  settings: "comparisons.Settings",
  *,
  with_picture: bool,
) -> None:
  """Writes tables of the runs that are done, if any is."""
  from qdrl_haiku import comparisons

  curves = [
    curve
    for run in filter(state.is_done, planned)
    for curve in comparisons.read_scored_curves(
      run, output / run.name, settings.metric
    )
  ]
  if not curves:
    return
  scores = comparisons.score_curves(curves, settings)
  table = comparisons.score_table(scores, settings)
  texts = {
    "scores.jsonl": strict_json.to_strict_json_lines(scores),
    "table.jsonl": strict_json.to_strict_json_lines(table),
    "table.md": comparisons.render_comparison_markdown(table, settings),
  }
  for name, text in texts.items():
    with files.file_written_whole(output / name) as temporary:
      temporary.write_text(text)
  if with_picture:  # It takes longer than all else.
    figure = comparisons.render_comparison_picture(curves, table, settings)
    with files.file_written_whole(output / "comparison.png") as temporary:
      figure.savefig(temporary, dpi=120)


def compare_from_flags() -> None:
  """Starts this launcher with the arguments of the command line."""
  launch.launch_main(
    _main, config_lib.config_tree_flags(CompareConfig()), __doc__
  )
