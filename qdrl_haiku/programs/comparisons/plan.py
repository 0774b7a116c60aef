"""Plans the runs of a comparison: methods on tasks by seeds."""

import dataclasses
import re
import shlex
from collections.abc import Collection, Sequence
from typing import NamedTuple

from qdrl_haiku import checks, names
from qdrl_haiku.config import Settings, setting

# The metric by which runs of each launcher that trains are compared.
_METRICS = {
  "train": "eval/episode_return", "train_me_pbt": "qd/qd_score",
  "train_pbt": "pbt/best_return"}
# The flags that a comparison itself gives to each run.
_RESERVED = ("dry_run", "logdir", "num_seeds", "resume", "seed")
_NAME = r"\w[\w.+-]*"
_NUM_SEEDS = "5"  # Of a task whose number isn't given.


@dataclasses.dataclass(frozen=True)
class CompareConfig(Settings):
  """Says what is compared, and by which numbers."""

  title = "Comparison"

  command: str = setting(
    "train_pbt",
    "A launcher that trains (train, train_pbt or train_me_pbt), and flags that "
    "all runs have.")
  task: tuple[str, ...] = setting(
    (),
    "'name: flags', such as 'maze: --env_name=point_maze'. Repeatable. The "
    "flags may begin with another launcher.",
    repeatable=True)
  method: tuple[str, ...] = setting(
    (),
    "'name: flags', such as 'pb2: --controller=pb2', which override those of a "
    "task; 'ant/pb2: --tau=0.1' adds flags on one task alone. Repeatable.",
    repeatable=True)
  num_seeds: tuple[str, ...] = setting(
    (_NUM_SEEDS,),
    "How many seeds, or task:number for one task. Repeatable, the last that "
    "fits counts. train.py trains them side by side.",
    repeatable=True)
  seed: int = setting(0, "The first seed.", low=0, high=2**32 - 1)
  output: str | None = setting(
    None, "Directory of the runs, the tables and the picture.")
  picture: str = setting(
    "png", "Format of the picture: png, pdf or svg.",
    choices=("png", "pdf", "svg"))
  baseline: str = setting(
    "",
    "The method that others are compared with; by default pbt, or the first.")
  metric: str = setting(
    "",
    "Metric of metrics.jsonl by which methods are compared; by default "
    "pbt/best_return, eval/episode_return (train) or qd/qd_score "
    "(train_me_pbt).")
  num_last: int = setting(
    3, "A run's final value is the mean of so many last evaluations.", low=1)
  at_steps: tuple[int, ...] = setting(
    (), "Steps at which the latest value is a column, such as 10000,20000.",
    low=0)
  at_minutes: tuple[float, ...] = setting(
    (),
    "Minutes of a run, compilation included, at which the latest value is a "
    "column, such as 1,5; of seeds side by side each has its share.",
    low=0)

  @property
  def columns(self) -> tuple[str, ...]:
    """The names of columns: one for each step and minute asked for."""
    return (
      *(f"at_{step}" for step in self.at_steps),
      *(f"at_{minutes:g}_minutes" for minutes in self.at_minutes))


class PlannedRun(NamedTuple):
  """A run that a comparison consists of."""

  task: str  # Names.
  method: str
  seeds: tuple[int, ...]  # One; or all, if they are trained side by side.
  launcher: str  # Such as "train_pbt".
  flags: tuple[str, ...]  # Of the launcher, without seeds and directory.

  @property
  def name(self) -> str:
    """Unique name of the run; a path below the comparison's."""
    first, last = self.seeds[0], self.seeds[-1]
    seeds = f"seed_{first}" if first == last else f"seeds_{first}_to_{last}"
    return f"{self.task}/{self.method}/{seeds}"


_Command = tuple[str | None, tuple[str, ...]]
"""A part of a command: a launcher, if it names one, and flags."""


def plan_comparison(config: CompareConfig) -> list[PlannedRun]:
  """Plans the runs of each task, each method and each seed.

  A method's flags come after a task's and so override them; those of the name
  task/method come last.

  Returns:
    All runs of the first seed, then those of the next.

  Raises:
    ValueError: if the table of tasks, methods and seeds makes no sense.
  """
  shared: _Command = (None, ())
  of_task: dict[str, list[_Command]] = {}
  with checks.Refusals() as refusals:
    with refusals.noted():
      shared = _command(f"command={config.command}", config.command)
    with refusals.noted():
      of_task = _parse_commands("task", config.task, _NAME)
    of_method = _parse_commands("method", config.method, f"({_NAME}/)?{_NAME}")
  everywhere = [name for name in of_method if "/" not in name]
  for name in [name for name in of_method if "/" in name]:
    task, _, method = name.partition("/")
    _check_known(f"method={name}", "task", task, of_task)
    _check_known(f"method={name}", "method", method, everywhere)
  counts = _counts(config.num_seeds, of_task)
  runs: list[PlannedRun] = []
  for task in of_task:
    for method in everywhere:
      own = of_method.get(f"{task}/{method}", [])
      parts = [shared, *of_task[task], *of_method[method], *own]
      launchers = [launcher for launcher, _ in parts if launcher]
      if not launchers:
        raise ValueError(
          f"command={config.command!r} names no launcher; begin it with one of"
          f" {', '.join(_METRICS)}.")
      flags = tuple(flag for _, part in parts for flag in part)
      seeds = tuple(range(config.seed, config.seed + counts[task]))
      together = launchers[-1] == "train"
      names_of = {flag.lstrip("-").partition("=")[0] for flag in flags}
      if together and "population_size" in names_of:
        raise ValueError(
          f"task={task}, method={method}: --population_size is how many seeds "
          "there are; give --num_seeds to the comparison instead.")
      runs += [
        PlannedRun(task, method, some, launchers[-1], flags)
        for some in ([seeds] if together else [(seed,) for seed in seeds])]
  # Every method has begun everywhere before any has its second seed.
  return sorted(runs, key=lambda run: run.seeds[0])


def settle_comparison(
  config: CompareConfig, runs: Sequence[PlannedRun]
) -> CompareConfig:
  """Returns the configuration with the metric and the baseline of its runs."""
  methods = list(dict.fromkeys(run.method for run in runs))
  baseline = config.baseline or ("pbt" if "pbt" in methods else methods[0])
  if baseline not in methods:
    raise ValueError(
      f"--baseline={baseline} is no method; "
      f"{names.nearest_name(baseline, methods)}")
  launchers = sorted({run.launcher for run in runs})
  if not config.metric and len(launchers) > 1:
    raise ValueError(
      f"metric isn't given, and {', '.join(launchers)} have none in common;"
      " name one that all runs write, such as eval/episode_return.")
  metric = config.metric or _METRICS[launchers[0]]
  return dataclasses.replace(config, baseline=baseline, metric=metric)


def _parse_commands(
  kind: str, texts: Sequence[str], pattern: str
) -> dict[str, list[_Command]]:
  """Parses "name: flags"; only names with a slash may be repeated."""
  if not texts:
    raise ValueError(
      f"{kind} is missing; give one or more, each as 'name: flags'.")
  found: dict[str, list[_Command]] = {}
  with checks.Refusals() as refusals:
    for text in texts:
      name, colon, words = text.partition(":")
      name = "/".join(part.strip() for part in name.split("/"))
      if not colon or not re.fullmatch(pattern, name):
        refusals.refuse(
          f"{kind}={text!r} has no name; give it as 'name: flags', the name of"
          " letters, digits, and any of _.+-")
      elif name in found and "/" not in name:
        refusals.refuse(f"{kind}={text!r} has the name of another; rename one.")
      with refusals.noted():
        found.setdefault(name, []).append(_command(f"{kind}={text!r}", words))
  return found


def _check_known(
  where: str, kind: str, name: str, known: Collection[str]
) -> None:
  """Refuses a name that no task, or no method, has."""
  if name not in known:
    raise ValueError(
      f"{where}: there is no {kind} {name!r}; {names.nearest_name(name, known)}"
    )


def _command(where: str, text: str) -> _Command:
  """Parses flags, and the launcher where the text begins with one."""
  try:
    words = shlex.split(text)
  except ValueError as error:
    raise ValueError(f"{where} can't be read: {error}.") from error
  launcher = None
  if words and not words[0].startswith("-"):
    launcher = words.pop(0).removesuffix(".py")
    if launcher not in _METRICS:
      raise ValueError(
        f"{where}: {launcher!r} is no launcher that trains;"
        f" {names.nearest_name(launcher, _METRICS)}")
  for word in words:
    name = word.lstrip("-").partition("=")[0]
    if word.startswith("-") and name in _RESERVED:
      raise ValueError(
        f"{where}: --{name} is what the comparison gives to each run; leave it"
        " out.")
  return launcher, tuple(words)


def _counts(num_seeds: Sequence[str], tasks: Collection[str]) -> dict[str, int]:
  """Returns the number of each task's seeds."""
  counts: dict[str, int] = {}
  for text in (_NUM_SEEDS, *num_seeds):
    task, _, number = text.rpartition(":")
    if not number.isdecimal() or not 1 <= int(number) <= 1000:
      raise ValueError(
        f"num_seeds={text} is no number from 1 to 1000, nor one after a task's"
        " name; give it like 5, or ant:3.")
    if task:
      _check_known(f"num_seeds={text}", "task", task, tasks)
    counts |= dict.fromkeys([task] if task else tasks, int(number))
  return counts
