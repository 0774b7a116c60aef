"""Makes the commands of a comparison: methods on tasks by seeds."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from qdrl_haiku import names

METRICS = {
  "train": "eval/episode_return",
  "train_me_pbt": "qd/qd_score",
  "train_pbt": "pbt/best_return",
}
"""The metric by which runs of each launcher that trains are compared."""

# What a comparison itself gives to each run.
_OURS = (
  "dry_run", "logdir", "num_seeds", "preset", "resume", "seed", "suffix"
)  # fmt: skip


class Row(NamedTuple):
  """A run that the table asks for.

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
    """Unique name of the row; a path below the comparison's."""
    first, last = self.seeds[0], self.seeds[-1]
    seeds = f"seed_{first}" if first == last else f"seeds_{first}_to_{last}"
    return f"{self.task}/{self.method}/{seeds}"


def rows(
  command: str,
  tasks: Sequence[str],
  methods: Sequence[str],
  num_seeds: Sequence[str],
  first_seed: int = 0,
) -> list[Row]:
  """Returns the runs of each task, each method and each seed.

  Args:
    command: a launcher, and flags that all runs have.
    tasks: "name: flags" each. The flags may begin with another launcher.
    methods: likewise; their flags come after a task's, and so override them.
      Those of one with the name task/method come last, on this task alone.
    num_seeds: "5", or "task:3" for one task; the last that fits counts.
    first_seed: from which they are counted on.

  Returns:
    The rows: all that there is of the first seed, then of the next one.

  Raises:
    ValueError: if the table makes no sense.
  """
  commands = [_split(f"command={command}", command)]
  named_tasks = _named("task", tasks)
  of_one_task = [x for x in methods if "/" in x.partition(":")[0]]
  named_methods = _named("method", [x for x in methods if x not in of_one_task])
  more = _on_one_task(of_one_task, named_tasks, named_methods)
  counts = _counts(num_seeds, named_tasks)
  found: list[Row] = []
  for task, of_task in named_tasks.items():
    for method, of_method in named_methods.items():
      parts = [*commands, of_task, of_method, *more.get((task, method), [])]
      launchers = [launcher for launcher, _ in parts if launcher is not None]
      if not launchers:
        raise ValueError(
          f"command={command!r} names no launcher; begin it with one of"
          f" {', '.join(METRICS)}."
        )
      flags = tuple(flag for _, words in parts for flag in words)
      seeds = tuple(range(first_seed, first_seed + counts[task]))
      together = launchers[-1] == "train"
      found += [
        Row(task, method, some, launchers[-1], flags)
        for some in ([seeds] if together else [(seed,) for seed in seeds])
      ]
  # Every method has begun everywhere before any has its second seed.
  return sorted(found, key=lambda row: row.seeds[0])


def metric(rows: Sequence[Row], given: str | None) -> str:
  """Decides by which metric runs are compared.

  Args:
    rows: of the table.
    given: the one that is asked for, if any.

  Returns:
    It, or that of the launcher.

  Raises:
    ValueError: if none is asked for, and there are several launchers.
  """
  launchers = sorted({row.launcher for row in rows})
  if given is None and len(launchers) > 1:
    raise ValueError(
      f"metric isn't given, and {', '.join(launchers)} have none in common;"
      " name one that all runs write, such as eval/episode_return."
    )
  return given or METRICS[launchers[0]]


def _named(
  kind: str, texts: Sequence[str]
) -> Mapping[str, tuple[str | None, list[str]]]:
  """Returns launchers and flags by name."""
  if not texts:
    raise ValueError(
      f"{kind} is missing; give one or more, each as 'name: flags'."
    )
  found: dict[str, tuple[str | None, list[str]]] = {}
  for text in texts:
    name, colon, words = text.partition(":")
    name = name.strip()
    if not colon or not re.fullmatch(r"\w[\w.+-]*", name):
      raise ValueError(
        f"{kind}={text!r} has no name; give it as 'name: flags', the name of"
        " letters, digits, and any of _.+-"
      )
    if name in found:
      raise ValueError(f"{kind}={text!r} has the name of another; rename one.")
    found[name] = _split(f"{kind}={text!r}", words)
  return found


def _on_one_task(
  texts: Sequence[str],
  tasks: Mapping[str, object],
  methods: Mapping[str, object],
) -> dict[tuple[str, str], list[tuple[str | None, list[str]]]]:
  """Returns what methods have on one task alone, by task and method."""
  found: dict[tuple[str, str], list[tuple[str | None, list[str]]]] = {}
  for text in texts:
    name, _, words = text.partition(":")
    task, _, method = (x.strip() for x in name.partition("/"))
    where = f"method={text!r}"
    _check_known(where, "task", task, tasks)
    _check_known(where, "method", method, methods)
    found.setdefault((task, method), []).append(_split(where, words))
  return found


def _check_known(
  where: str, kind: str, name: str, known: Mapping[str, object]
) -> None:
  """Checks that the table has a task or a method of a name."""
  if name not in known:
    raise ValueError(
      f"{where}: there is no {kind} {name!r}; {names.nearest(name, known)}"
    )


def _split(where: str, text: str) -> tuple[str | None, list[str]]:
  """Returns the launcher, if the words begin with one, and the flags."""
  try:
    words = shlex.split(text)
  except ValueError as error:
    raise ValueError(f"{where} can't be read: {error}.") from error
  launcher = None
  if words and not words[0].startswith("-"):
    launcher = words.pop(0).removesuffix(".py")
    if launcher not in METRICS:
      raise ValueError(
        f"{where}: {launcher!r} is no launcher that trains;"
        f" {names.nearest(launcher, METRICS)}"
      )
  for word in words:
    if not word.startswith("--") or not word.strip("-"):
      raise ValueError(
        f"{where}: {word!r} is no flag; write flags as --name=value."
      )
    name = word[2:].partition("=")[0]
    if name in _OURS:
      raise ValueError(
        f"{where}: --{name} is what the comparison gives to each run; leave it"
        " out."
      )
  return launcher, words


def _counts(
  num_seeds: Sequence[str], tasks: Mapping[str, object]
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
    counts |= {name: int(number) for name in ([task] if task else tasks)}
  return counts
