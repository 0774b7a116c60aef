"""Plans the runs of a comparison: methods on tasks by seeds."""

import re
import shlex
from collections.abc import Collection, Sequence
from typing import NamedTuple

from qdrl_haiku import names

# The metric by which runs of each launcher that trains are compared.
_METRICS = {
  "train": "eval/episode_return",
  "train_me_pbt": "qd/qd_score",
  "train_pbt": "pbt/best_return",
}
# The flags that a comparison itself gives to each run.
_RESERVED = (
  "dry_run", "logdir", "num_seeds", "preset", "resume", "seed", "suffix"
)  # fmt: skip
_NAME = r"\w[\w.+-]*"


class PlannedRun(NamedTuple):
  """A run that a comparison consists of.

  Attributes:
    task: its name.
    method: its name.
    seeds: one; or all, where the launcher trains them side by side.
    launcher: the program, such as "train_pbt".
    flags: for the program.
  """

  task: str
  method: str
  seeds: tuple[int, ...]
  launcher: str
  flags: tuple[str, ...]

  @property
  def name(self) -> str:
    """Unique name of the run; a path below the comparison's."""
    first, last = self.seeds[0], self.seeds[-1]
    seeds = f"seed_{first}" if first == last else f"seeds_{first}_to_{last}"
    return f"{self.task}/{self.method}/{seeds}"


_Command = tuple[str | None, tuple[str, ...]]
"""A part of a command: a launcher, if it names one, and flags."""


def plan_comparison(
  command: str,
  tasks: Sequence[str],
  methods: Sequence[str],
  num_seeds: Sequence[str],
  first_seed: int = 0,
) -> list[PlannedRun]:
  """Plans the runs of each task, each method and each seed.

  Args:
    command: a launcher, and flags that all runs have.
    tasks: "name: flags" each; the flags may begin with another launcher.
    methods: likewise; their flags come after a task's and so override them.
      Those of the name task/method come last, on that task alone.
    num_seeds: "5", or "task:3" for one task; the last that fits counts.
    first_seed: the number of the first seed.

  Returns:
    All runs of the first seed, then those of the next.
  """
  shared = _command(f"command={command}", command)
  of_task = _named("task", tasks, _NAME)
  of_method = _named("method", methods, f"({_NAME}/)?{_NAME}")
  everywhere = [name for name in of_method if "/" not in name]
  for name in [name for name in of_method if "/" in name]:
    task, _, method = name.partition("/")
    _check_known(f"method={name}", "task", task, of_task)
    _check_known(f"method={name}", "method", method, everywhere)
  counts = _counts(num_seeds, of_task)
  runs: list[PlannedRun] = []
  for task in of_task:
    for method in everywhere:
      own = of_method.get(f"{task}/{method}", [])
      parts = [shared, *of_task[task], *of_method[method], *own]
      launchers = [launcher for launcher, _ in parts if launcher]
      if not launchers:
        raise ValueError(
          f"command={command!r} names no launcher; begin it with one of"
          f" {', '.join(_METRICS)}."
        )
      flags = tuple(flag for _, part in parts for flag in part)
      seeds = tuple(range(first_seed, first_seed + counts[task]))
      together = launchers[-1] == "train"
      runs += [
        PlannedRun(task, method, some, launchers[-1], flags)
        for some in ([seeds] if together else [(seed,) for seed in seeds])
      ]
  # Every method has begun everywhere before any has its second seed.
  return sorted(runs, key=lambda run: run.seeds[0])


def plan_comparison_metric(runs: Sequence[PlannedRun]) -> str:
  """Returns the metric by which runs of one launcher are compared."""
  launchers = sorted({run.launcher for run in runs})
  if len(launchers) > 1:
    raise ValueError(
      f"metric isn't given, and {', '.join(launchers)} have none in common;"
      " name one that all runs write, such as eval/episode_return."
    )
  return _METRICS[launchers[0]]


def _named(
  kind: str, texts: Sequence[str], pattern: str
) -> dict[str, list[_Command]]:
  """Parses "name: flags"; only names with a slash may be repeated."""
  if not texts:
    raise ValueError(
      f"{kind} is missing; give one or more, each as 'name: flags'."
    )
  found: dict[str, list[_Command]] = {}
  for text in texts:
    name, colon, words = text.partition(":")
    name = "/".join(part.strip() for part in name.split("/"))
    if not colon or not re.fullmatch(pattern, name):
      raise ValueError(
        f"{kind}={text!r} has no name; give it as 'name: flags', the name of"
        " letters, digits, and any of _.+-"
      )
    if name in found and "/" not in name:
      raise ValueError(f"{kind}={text!r} has the name of another; rename one.")
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
        f" {names.nearest_name(launcher, _METRICS)}"
      )
  for word in words:
    name = word.lstrip("-").partition("=")[0]
    if word.startswith("-") and name in _RESERVED:
      raise ValueError(
        f"{where}: --{name} is what the comparison gives to each run; leave it"
        " out."
      )
  return launcher, tuple(words)


def _counts(
  num_seeds: Sequence[str], tasks: Collection[str]
) -> dict[str, int]:
  """Returns the number of each task's seeds."""
  counts: dict[str, int] = {}
  for text in num_seeds:
    task, _, number = text.rpartition(":")
    if not number.isdecimal() or not 1 <= int(number) <= 1000:
      raise ValueError(
        f"num_seeds={text} is no number from 1 to 1000, nor one after a task's"
        " name; give it like 5, or ant:3."
      )
    if task:
      _check_known(f"num_seeds={text}", "task", task, tasks)
    counts |= dict.fromkeys([task] if task else tasks, int(number))
  return counts
