"""Trains methods on tasks by seeds, one run at a time, and compares them.

python launchers/compare.py --output=logs/comparison \
  --flagfile=launchers/flagfiles/compare_maze.flags

Started again, it goes on where it was.
"""

import dataclasses
import os
import pathlib
import sys
from typing import Any

from qdrl_haiku import config as config_lib
from qdrl_haiku.cli import launch, subprocesses
from qdrl_haiku.cli.flags import Given
from qdrl_haiku.config import Settings, setting

_STATE = "runs.json"


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
    None, "Directory of the runs and of what comes of them."
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


def main(given: Given) -> None:
  """Trains what isn't trained yet, and compares what is.

  Args:
    given: what the flags were given.
  """
  own = given.only(config_lib.flags(CompareConfig()))
  config = config_lib.replaced(CompareConfig(), own.values, own.typed)
  from qdrl_haiku import comparisons, runs

  if not config.output:
    raise ValueError("--output is missing: where are the runs to be?")
  rows = comparisons.rows(
    config.command,
    config.task,
    config.method,
    config.num_seeds,
    config.seed,
  )
  settings = _settings(config, rows)
  output = pathlib.Path(config.output)
  state = _State(output, rows)
  _check(rows, state)
  failed = []
  with subprocesses.forwarded_signals() as process:
    for i, row in enumerate(rows, start=1):
      if state.is_done(row):
        continue
      logdir = output / row.name
      more = [f"--logdir={logdir}"]
      if (logdir / "config.json").exists():
        words = [*more, "--resume"]
      else:
        words = [*row.flags, *_seeds(row), *more]
      print(f"run {i} of {len(rows)}: {row.name}", flush=True)
      logdir.parent.mkdir(parents=True, exist_ok=True)
      done = process.run(row.launcher, words, logdir.with_suffix(".log"))
      if process.is_interrupted:
        break
      if done.code == runs.DIVERGED:
        print(f"diverged: {row.name}: {done.message}", file=sys.stderr)
      elif done.code:
        failed.append(row.name)
        print(f"failed: {row.name}: {done.message}", file=sys.stderr)
      # A run that diverged is done as well, and counts, or a method would be
      # judged by its other seeds.
      if done.code in (0, runs.DIVERGED):
        state.note_done(row)
        _write(output, rows, state, settings, with_picture=False)
  _write(output, rows, state, settings, with_picture=True)
  if process.is_interrupted:
    print("interrupted; the same command goes on from here", file=sys.stderr)
    sys.exit(runs.INTERRUPTED)
  if failed:
    print(
      f"error: {len(failed)} of {len(rows)} runs failed: {', '.join(failed)}; "
      "the same command tries them again.",
      file=sys.stderr,
    )
    sys.exit(1)
  print(f"done: {output / 'table.md'}")


def _settings(config: CompareConfig, rows: Any) -> Any:
  """Returns what is asked of the runs.

  Raises:
    ValueError: if a flag makes no sense.
  """
  from qdrl_haiku import comparisons, names

  methods = list(dict.fromkeys(row.method for row in rows))
  baseline = config.baseline or ("pbt" if "pbt" in methods else methods[0])
  if baseline not in methods:
    raise ValueError(
      f"--baseline={baseline} is no method; {names.nearest(baseline, methods)}"
    )
  return comparisons.Settings(
    metric=comparisons.metric(rows, config.metric),
    baseline=baseline,
    num_last=config.num_last,
    at_steps=config.at_steps,
  )


class _State:
  """Keeps the list of runs that are there, with their commands."""

  def __init__(self, output: pathlib.Path, rows: Any) -> None:
    self._path = output / _STATE
    try:
      output.mkdir(parents=True, exist_ok=True)
      is_there = self._path.exists()
      self._runs = _read(self._path) if is_there else {}
      if not is_there and any(output.iterdir()):
        raise ValueError(
          f"--output={output} holds something, but no comparison; choose "
          "another directory."
        )
      for row in rows:
        before = self._runs.get(row.name)
        # A command that was refused, or never came to its turn, may change.
        if before is None or not (before["done"] or self.has_begun(row)):
          self._runs[row.name] = _entry(row)
        elif before["command"] != _entry(row)["command"]:
          raise ValueError(
            f"--output={output} has a run {row.name} by another command, "
            f"'{' '.join(before['command'])}'; choose another directory."
          )
      self._save()
    except OSError as error:
      raise ValueError(
        f"--output={output} can't be written ({error.strerror}); choose "
        "another."
      ) from error

  def is_done(self, row: Any) -> bool:
    return self._runs[row.name]["done"]

  def note_done(self, row: Any) -> None:
    self._runs[row.name]["done"] = True
    self._save()

  def has_begun(self, row: Any) -> bool:
    return (self._path.parent / row.name / "config.json").exists()

  def _save(self) -> None:
    import json

    from qdrl_haiku import files

    with files.written_whole(self._path) as temporary:
      temporary.write_text(json.dumps(self._runs, indent=2) + "\n")


def _entry(row: Any) -> dict[str, Any]:
  return {"command": [row.launcher, *row.flags], "done": False}


def _read(path: pathlib.Path) -> dict[str, Any]:
  """Reads the state.

  Raises:
    ValueError: if it's damaged.
  """
  import json

  try:
    runs = json.loads(path.read_text())
    for run in runs.values():
      if not isinstance(run["done"], bool) or not isinstance(
        run["command"], list
      ):
        raise TypeError(f"{run} is no run.")
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f"{path} is damaged; remove it with the runs, or choose another --output."
    ) from error
  return runs


def _seeds(row: Any) -> list[str]:
  """Returns the flags of a run's seeds."""
  flags = [f"--seed={row.seeds[0]}"]
  if row.launcher == "train":
    flags.append(f"--num_seeds={len(row.seeds)}")
  return flags


def _check(rows: Any, state: _State) -> None:
  """Lets launchers check the flags of runs that haven't begun.

  Raises:
    ValueError: if one refuses them.
  """
  from qdrl_haiku import runs

  checked = set()
  with subprocesses.forwarded_signals() as process:
    for row in rows:
      command = (row.launcher, *row.flags)
      if state.is_done(row) or state.has_begun(row) or command in checked:
        continue
      checked.add(command)
      print(f"checking {row.task}, {row.method}", flush=True)
      words = [*row.flags, *_seeds(row), "--dry_run"]
      done = process.run(row.launcher, words, pathlib.Path(os.devnull))
      if process.is_interrupted:
        sys.exit(runs.INTERRUPTED)
      if done.code:
        raise ValueError(
          f"task {row.task}, method {row.method}: "
          f"{done.message.removeprefix('error: ')}"
        )


def _write(
  output: pathlib.Path,
  rows: Any,
  state: _State,
  settings: Any,
  *,
  with_picture: bool,
) -> None:
  """Writes what comes of the runs that are done, if any is."""
  from qdrl_haiku import comparisons, files
  from qdrl_haiku.storage import strict_json

  curves = [
    curve
    for row in rows
    if state.is_done(row)
    for curve in comparisons.read(row, output / row.name, settings.metric)
  ]
  if not curves:
    return
  scored = comparisons.score(curves, settings)
  lines = comparisons.lines(scored, settings)
  of_seeds = [
    {
      "task": curve.task, "method": curve.method, "seed": curve.seed,
      "final": score.final, "area": score.area,
      **{
        f"at_{step}": x
        for step, x in zip(settings.at_steps, score.at, strict=True)
      },
      "total_env_steps": curve.total_env_steps, "minutes": curve.minutes,
    }
    for curve, score in scored
  ]  # fmt: skip
  texts = {
    "scores.jsonl": _json_lines(of_seeds, strict_json.to_json),
    "table.jsonl": _json_lines(
      comparisons.json_rows(lines, settings), strict_json.to_json
    ),
    "table.md": comparisons.markdown(lines, settings),
  }
  for name, text in texts.items():
    with files.written_whole(output / name) as temporary:
      temporary.write_text(text)
  if not with_picture:  # It takes longer than all else.
    return
  figure = comparisons.picture(curves, lines, settings)
  with files.written_whole(output / "comparison.png") as temporary:
    figure.savefig(temporary, dpi=120)


def _json_lines(rows: list[dict[str, Any]], to_json: Any) -> str:
  return "".join(to_json(row) + "\n" for row in rows)


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  launch.run_main(main, config_lib.flags(CompareConfig()), __doc__)
