"""Counts the cores that a process may use."""

import math
import os
import pathlib
from typing import NamedTuple


class Cores(NamedTuple):
  """Holds a number of cores, and what allows no more of them."""

  number: int
  limit: str  # "" where the process may use all of the machine's.


def usable_cores(root: pathlib.Path = pathlib.Path("/")) -> Cores:
  """Counts the cores that this process may use.

  Its affinity (of `taskset`, Slurm) and the quota of its control group (of a
  container) may allow fewer than the machine has. A quota's fraction counts as
  a core: threads of a group that has used up its time pause together, so that
  none of them waits for another.

  Args:
    root: of the file system that describes control groups.
  """
  total = os.cpu_count() or 1
  # Elsewhere than on Linux there is neither.
  affinity = getattr(os, "sched_getaffinity", lambda _: range(total))
  allowed, quota = len(affinity(0)), _quota(root)
  number = min(total, allowed, max(1, math.ceil(min(quota, total))))
  if number == total:
    return Cores(total, "")
  what = "affinity" if number == allowed else f"group's quota of {quota:g}"
  return Cores(number, f"{number} of {total} cores by the process's {what}")


def _quota(root: pathlib.Path) -> float:
  """Returns how many cores' time the process's groups have, infinite if all.

  A group is bound by the quotas of those around it.
  """
  try:
    lines = (root / "proc/self/cgroup").read_text().splitlines()
  except OSError:
    return math.inf
  mounted, quotas = root / "sys/fs/cgroup", [math.inf]
  for line in lines:
    _, controllers, path = line.split(":", 2)
    if not controllers:  # The second version.
      where, names = mounted, ["cpu.max"]
    elif "cpu" in controllers.split(","):
      where, names = mounted / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    else:
      continue
    # A container may see the host's path, and its own group where that begins.
    group = pathlib.PurePath(path.lstrip("/"))
    for folder in (group, *group.parents):
      try:
        texts = [(where / folder / name).read_text() for name in names]
        quota, period = map(float, " ".join(texts).split())
      except (OSError, ValueError):  # No limit is "max", or -1.
        continue
      quotas.append(quota / period if quota > 0 else math.inf)
  return min(quotas)
