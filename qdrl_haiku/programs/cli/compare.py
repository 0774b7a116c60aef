"""Trains methods on tasks by seeds, one run at a time, and compares them.

python launchers/compare.py --output=logs/comparison \
  --flagfile=launchers/flagfiles/compare_maze.flags

Started again, it goes on where it was.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple, Self

from qdrl_haiku import checks, files
from qdrl_haiku import config as config_lib
from qdrl_haiku.programs.cli import launch
from qdrl_haiku.programs.cli.launch import Given
from qdrl_haiku.programs.comparisons import plan
from qdrl_haiku.programs.storage import strict_json
from qdrl_haiku.types import Record

# As absl writes a warning: its day, time, thread and place, then its text.
_WARNING = re.compile(r"W\d{4} [^]]*\] (.*)")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _main(given: Given) -> None:
  """Trains the runs that aren't done yet, and compares those that are."""
  from qdrl_haiku.programs import runs

  config = given.fill(plan.CompareConfig())
  with checks.Refusals() as refusals:
    if not config.output:
      refusals.refuse("--output is missing: where are the runs to be?")
    planned = plan.plan_comparison(config)
    config = plan.settle_comparison(config, planned)
  output = pathlib.Path(str(config.output))
  state = _State(output, planned)
  failed = []
  with Processes() as process:
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
        _write(config, planned, state, with_picture=False)
  _write(config, planned, state, with_picture=True)
  if process.is_interrupted:
    print("interrupted; the same command goes on from here", file=sys.stderr)
    sys.exit(runs.INTERRUPTED)
  if failed:
    print(
      f"error: {len(failed)} of {len(planned)} runs failed: "
      f"{', '.join(failed)}; the same command tries them again.",
      file=sys.stderr)
    sys.exit(1)
  print(f"done: {output / 'table.md'}")


class _State:
  """Keeps the runs of a directory, their commands, and whether each is done."""

  def __init__(
    self, output: pathlib.Path, planned: Sequence[plan.PlannedRun]
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
            f"'{' '.join(before['command'])}'; choose another directory.")
      self._write()
    except OSError as error:
      raise ValueError(
        f"--output={output} can't be written ({error.strerror}); choose "
        "another.") from error

  def is_done(self, run: plan.PlannedRun) -> bool:
    """Returns whether a run has come to its end."""
    return self._runs[run.name]["done"]

  def note_done(self, run: plan.PlannedRun) -> None:
    """Notes that a run has come to its end."""
    self._runs[run.name]["done"] = True
    self._write()

  def has_begun(self, run: plan.PlannedRun) -> bool:
    """Returns whether a run can be resumed."""
    return (self._output / run.name / "config.json").exists()

  def _read(self) -> dict[str, Record]:
    """Reads the file; refuses one that is damaged, and another's directory."""
    if not any(self._output.iterdir()):
      return {}
    if not self._path.exists():
      raise ValueError(
        f"--output={self._output} holds something, but no comparison; choose "
        "another directory.")
    try:
      runs = json.loads(self._path.read_text())
      kinds = {(type(x["done"]), type(x["command"])) for x in runs.values()}
      if kinds - {(bool, list)}:
        raise TypeError("It is no comparison's.")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise ValueError(
        f"{self._path} is damaged; remove it with the runs, or choose another "
        "--output.") from error
    return runs

  def _write(self) -> None:
    """Writes the file."""
    with files.file_written_whole(self._path) as temporary:
      temporary.write_text(json.dumps(self._runs, indent=2) + "\n")


class Done(NamedTuple):
  """Holds how a launcher ended."""

  code: int
  message: str  # Its errors, or else the last line of its standard error.
  warnings: tuple[str, ...] = ()


class Processes:
  """Starts launchers within a `with`; they get its SIGINT and SIGTERM."""

  def __init__(self) -> None:
    self.is_interrupted = False  # Whether one was handed on.
    self._process: subprocess.Popen | None = None

  def __enter__(self) -> Self:
    self._before = {x: signal.signal(x, self._stop) for x in _SIGNALS}
    return self

  def __exit__(self, *_: object) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def run(self, launcher: str, flags: Sequence[str], log: pathlib.Path) -> Done:
    """Runs a `launcher` with `flags` until it ends; `log` gets its output."""
    if self.is_interrupted:
      return Done(1, "interrupted")
    message, errors, warnings = "", [], []
    with (
      log.open("a", encoding="utf-8") as file,
      subprocess.Popen(
        [sys.executable, launch.subprocess_launcher(launcher), *flags],
        stdout=file, stderr=subprocess.PIPE, text=True, errors="replace",
        # A terminal's Ctrl-C is handed on, and must not come twice.
        process_group=0) as process,
    ):
      self._process = process
      if self.is_interrupted:  # Just before it was known.
        process.send_signal(signal.SIGTERM)
      assert process.stderr is not None
      for line in process.stderr:
        file.write(line)
        file.flush()
        message = line.strip() or message
        warnings += _WARNING.findall(line)
        if line.startswith("error: "):
          errors.append(line.strip())
    self._process = None
    message = "\n".join(errors) or message
    return Done(process.returncode, message, tuple(warnings))

  def _stop(self, number: int, _: FrameType | None) -> None:
    self.is_interrupted = True
    if sys.platform == "win32":  # Whose consoles tell all processes.
      return
    if self._process is not None and self._process.poll() is None:
      self._process.send_signal(number)


def _flags(run: plan.PlannedRun) -> list[str]:
  """Returns all flags of a run but its directory."""
  flags = [*run.flags, f"--seed={run.seeds[0]}"]
  if run.launcher == "train":
    flags.append(f"--population_size={len(run.seeds)}")
  return flags


def _check(
  planned: Sequence[plan.PlannedRun], state: _State, process: Processes
) -> None:
  """Lets launchers check the flags of runs that haven't begun, once each."""
  from qdrl_haiku.programs import runs

  checked: dict[tuple, plan.PlannedRun] = {}
  for run in planned:
    if not (state.is_done(run) or state.has_begun(run)):
      checked.setdefault((run.launcher, run.flags), run)
  with checks.Refusals() as refusals:
    for run in checked.values():
      print(f"checking {run.task}, {run.method}", flush=True)
      flags = [*_flags(run), "--dry_run"]
      done = process.run(run.launcher, flags, pathlib.Path(os.devnull))
      if process.is_interrupted:
        sys.exit(runs.INTERRUPTED)
      for line in done.message.splitlines() if done.code else ():
        refusals.refuse(
          f"task {run.task}, method {run.method}: "
          f"{line.removeprefix('error: ')}")
      for text in done.warnings:
        where = f"warning: task {run.task}, method {run.method}"
        print(f"{where}: {text}", file=sys.stderr)


def _write(
  config: plan.CompareConfig, planned: Sequence[plan.PlannedRun],
  state: _State, *, with_picture: bool,
) -> None:
  """Writes tables of the runs that are done, if any is."""
  from qdrl_haiku.programs.comparisons import rendering, scores

  output = pathlib.Path(config.output or "")
  curves = scores.fill_diverged([
    curve
    for run in filter(state.is_done, planned)
    for curve in scores.read_scored_curves(
      run, output / run.name, config.metric)])
  if not curves:
    return
  scored = scores.score_curves(curves, config)
  table = scores.score_table(scored, config)
  texts = {
    "scores.jsonl": strict_json.to_strict_json_lines(scored),
    "table.jsonl": strict_json.to_strict_json_lines(table),
    "table.md": rendering.render_comparison_markdown(table, config)}
  for name, text in texts.items():
    with files.file_written_whole(output / name) as temporary:
      temporary.write_text(text, "utf-8")
  if with_picture:  # It takes longer than all else.
    figure = rendering.render_comparison_picture(curves, table, config)
    path = output / f"comparison.{config.picture}"
    with files.file_written_whole(path) as temporary:
      figure.savefig(temporary, dpi=120)


def compare_from_flags() -> None:
  """Starts this launcher with the arguments of the command line."""
  launch.launch_main(
    _main, config_lib.config_tree_flags(plan.CompareConfig()), __doc__)
