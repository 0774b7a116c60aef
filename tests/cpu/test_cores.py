"""Tests of how many cores a process may use."""

import os
import re

import pytest

from qdrl_haiku.cpu.cores import usable_cores

_V1, _V2 = "3:memory:/m\n2:cpu,cpuacct:/jobs/7\n", "0::/jobs/7\n"


def _v1(quota, period=100_000):
  return {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": period}


@pytest.mark.parametrize(("affinity", "groups", "files", "number", "limit"), [
  ({0, 1, 2, 3}, None, {}, 4, ""),
  ({2}, None, {}, 1, "1 of 4 cores by the process's affinity"),
  # Of a container, which is the root of what it sees.
  (None, "0::/\n", {"": {"cpu.max": "max 100000"}}, 4, ""),
  (None, "0::/\n", {"": {"cpu.max": "200000 100000"}}, 2, "quota of 2"),
  # A fraction is a core.
  (None, "0::/\n", {"": {"cpu.max": "150000 100000"}}, 2, "2 of 4.*of 1.5"),
  (None, "0::/\n", {"": {"cpu.max": "20000 100000"}}, 1, "quota of 0.2"),
  (None, "0::/\n", {"": {"cpu.max": "900000 100000"}}, 4, ""),
  # The narrowest of the groups around the process counts.
  (None, _V2, {"jobs": {"cpu.max": "100000 50000"},
               "jobs/7": {"cpu.max": "300000 100000"}}, 2, "quota of 2"),
  (None, _V1, {"cpu/jobs/7": _v1(300_000), "cpu/jobs": _v1(-1)}, 3, "of 3"),
  # The path is the host's.
  (None, _V1, {"cpu": _v1(25_000, 50_000)}, 1, "quota of 0.5"),
  ({0, 1}, "0::/\n", {"": {"cpu.max": "300000 100000"}}, 2, "affinity"),
  ({0, 1}, "0::/\n", {"": {"cpu.max": "100000 100000"}}, 1, "quota of 1")])
def test_affinity_and_quota_bound_the_cores(
  affinity, groups, files, number, limit, tmp_path, monkeypatch
):
  monkeypatch.setattr(os, "cpu_count", lambda: 4)
  if affinity is None:  # As on a Mac.
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
  else:
    monkeypatch.setattr(
      os, "sched_getaffinity", lambda _: affinity, raising=False)
  if groups is not None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
  for folder, texts in files.items():
    for name, text in texts.items():
      path = tmp_path / "sys/fs/cgroup" / folder / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(f"{text}\n")
  found = usable_cores(tmp_path)
  assert found.number == number and bool(found.limit) == bool(limit)
  assert re.search(limit, found.limit)
