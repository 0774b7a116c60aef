"""Counts the cores that a process may use."""

import math
import os
import pathlib
from typing import NamedTuple

from qdrl_haiku import files


class Cores(NamedTuple):
  """Holds how many cores may be used, and what limits their number."""

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
  """Returns how many cores' time the process's groups have, infinite if all."""
  # Of version 2 and of version 1, where no limit is "max" and -1.
  names = {"": ["cpu.max"], "cpu": ["cpu.cfs_quota_us", "cpu.cfs_period_us"]}
  quotas = [math.inf]
  for text in files.control_group_texts(names, root):
    quota, _, period = text.partition(" ")
    if quota.isdigit() and period.isdigit():
      quotas.append(int(quota) / int(period))
  return min(quotas)
