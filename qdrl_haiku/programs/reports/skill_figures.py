"""Figures of agents with skills: where skills lead, and what they reach."""

import pathlib
from collections.abc import Sequence

import matplotlib
import matplotlib.colors
import numpy as np

from qdrl_haiku.programs.drawing import figure
from qdrl_haiku.programs.drawing.figure import Axis, Figure, Panel, Trace
from qdrl_haiku.programs.reports.runs import Run
from qdrl_haiku.types import Record

_ARRAYS = ("descriptor", "lengths", "skill", "names", "lower", "upper")
_MOST_MEMBERS = 6
_HEIGHT, _WIDTH = 480, 620


def skill_trajectories_figure(run_path: pathlib.Path) -> Figure | None:
  """Describes the latest episodes of each skill, by two axes of descriptors."""
  path = run_path / "skills.npz"
  if not path.exists():
    return None
  try:
    with np.load(path, allow_pickle=False) as file:
      if "descriptor" not in file:
        return None
      states, lengths, skills, names, lower, upper = (file[x] for x in _ARRAYS)
  except Exception as error:  # NumPy, zipfile and zlib raise many kinds.
    raise ValueError(
      f"{path} is damaged ({error}); remove it, for a report without it."
    ) from error
  if states.shape[-1] < 2:
    return None
  axes = figure.figure_axes(lower, upper, names.tolist())
  panels = [
    Panel(
      f"member {member}" if len(states) > 1 else "",
      [_episode(*one) for one in zip(*of, strict=True)], *axes)
    for member, of in enumerate(zip(states, lengths, skills, strict=True))]
  width = _WIDTH if len(panels) == 1 else None
  return Figure(panels[:_MOST_MEMBERS], _HEIGHT, width=width)


def skill_returns_figure(run: Run) -> Figure | None:
  """Describes the returns of each of the discrete skills."""
  curves: dict[int, dict[int, list[Record]]] = {}
  for row in run.skills:
    skill = _index(row["skill"])
    if skill is None:
      return None
    of_member = curves.setdefault(row["member"], {})
    of_member.setdefault(skill, []).append(row)
  panels = []
  for column, title in (
    ("diversity_return", "diversity return [sum of intrinsic rewards]"),
    ("return", figure.RETURN),
  ):
    for member in sorted(curves)[:_MOST_MEMBERS]:
      whose = f"member {member}: " if len(curves) > 1 else ""
      # Colours are those of the ways; there are too many for a legend.
      traces = [
        Trace(
          [row["step"] for row in rows], [row.get(column) for row in rows],
          f"skill {skill}", skill_figure_color(rows[0]["skill"]), 1.5,
          in_legend=False)
        for skill, rows in sorted(curves[member].items())]
      panels.append(Panel(whose + title, traces, Axis(figure.STEPS)))
  return Figure(panels) if panels else None


def skill_figure_color(skill: Sequence[float] | np.ndarray) -> str:
  """Returns the colour of a skill: a hue by its number or its direction."""
  skill = np.asarray(skill)
  if np.count_nonzero(skill) == 1 and skill.max() == 1:
    hue = np.argmax(skill) / skill.size
  elif skill.size == 1:
    hue = 0.5 + np.arctan(skill[0]) / np.pi
  else:
    hue = np.arctan2(skill[1], skill[0]) / (2 * np.pi) % 1
  red, green, blue, _ = matplotlib.colormaps["hsv"](hue)
  # Darker, for lines on white.
  return matplotlib.colors.to_hex((0.85 * red, 0.85 * green, 0.85 * blue))


def _episode(states: np.ndarray, length: int, skill: np.ndarray) -> Trace:
  """Describes one episode's way, with a dot where it ends."""
  x, y = states[figure.decimate_for_figure(int(length)), :2].T
  index = _index(skill.tolist())
  name = ", ".join(f"{x:.2f}" for x in skill) if index is None else str(index)
  return Trace(
    x, y, f"skill {name}", skill_figure_color(skill), 1.5, in_legend=False,
    sizes=[0] * (len(x) - 1) + [8], hover=f"skill {name}")


def _index(skill: Sequence[float]) -> int | None:
  """Returns the number of a one-hot skill; None of another."""
  others = [x for x in skill if x != 1]
  if len(others) + 1 != len(skill) or any(others):
    return None
  return list(skill).index(1)
