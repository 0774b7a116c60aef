"""Reads runs for a report, without changing them."""

import contextlib
import json
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from qdrl_haiku import checks
from qdrl_haiku.programs.storage.directory import RunDirectory
from qdrl_haiku.types import Record

# Settings that say where and with which seed a run is, not what it is.
_PLACES = ("compilation_cache_dir", "logdir", "resume", "seed")


class Run(NamedTuple):
  """Holds what a run has written so far."""

  name: str  # That tells it from the other runs of the report.
  path: pathlib.Path  # Its directory.
  settings: Record  # All that it was started with.
  # Of the libraries, and the devices; empty if they aren't known.
  versions: Record
  metrics: list[Record]  # A row per generation.
  # A row per member and generation, and one per replaced member, where there is
  # a controller.
  members: list[Record]
  lineage: list[Record]
  # A row per generation, member and skill, where there are skills.
  skills: list[Record]

  @property
  def identity(self) -> Record:
    """The settings that are equal in runs that are seeds of one another."""
    return {k: x for k, x in self.settings.items() if k not in _PLACES}

  @property
  def last(self) -> Record:
    """The latest row of metrics; empty before the first generation's end."""
    return self.metrics[-1] if self.metrics else {}

  @property
  def is_done(self) -> bool:
    """Whether it has all the generations, or steps, that were asked for."""
    planned, so_far = self.settings.get("num_generations"), "generation"
    if planned is None:
      planned, so_far = self.settings.get("num_timesteps"), "step"
    if not checks.is_finite_number(planned):
      return True
    return bool(self.last.get(so_far, 0) >= planned)


def read_runs(logdirs: Sequence[str]) -> list[Run]:
  """Reads runs, finished or not, in these directories and in this order.

  Raises:
    ValueError: if one is no run, is damaged, or is there twice.
  """
  paths = [pathlib.Path(logdir) for logdir in logdirs]
  places = [path.resolve() for path in paths]
  for i, place in enumerate(places):
    if place in places[:i]:
      raise ValueError(
        f"logdir {paths[i]} is given twice; it would count as two seeds.")
  names = [place.name for place in places]
  if len(set(names)) < len(names):
    common = os.path.commonpath([place.parent for place in places])
    names = [os.path.relpath(place, common) for place in places]
  return [_read(*pair) for pair in zip(names, paths, strict=True)]


def _read(name: str, path: pathlib.Path) -> Run:
  directory = RunDirectory(path)
  settings, versions = directory.settings(), {}
  with contextlib.suppress(OSError, ValueError):
    versions = json.loads((path / "versions.json").read_text())
  files = ("metrics", "pbt_members", "pbt_lineage", "skills")
  rows = [directory.rows(f"{file}.jsonl") for file in files]
  return Run(name, path, settings, versions, *rows)
