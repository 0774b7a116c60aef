"""Figures of agents with skills: where skills lead, and how they do."""

import pathlib
import zipfile
from typing import Any

import matplotlib.colors
import numpy as np

from qdrl_haiku.drawing.skills import skill_color
from qdrl_haiku.reports import figure
from qdrl_haiku.reports.figure import Figure, Panel
from qdrl_haiku.reports.runs import Row, Run

_MOST_MEMBERS = 6
_ARRAYS = ("descriptor", "lengths", "skill", "names", "lower", "upper")
_HEIGHT = 380
_WIDTH = 620


def read_episodes(run_path: pathlib.Path) -> dict[str, Any]:
  """Reads the latest episodes of each skill."""
  path = run_path / "skills.npz"
  if not path.exists():
    return {}
  try:
    with np.load(path, allow_pickle=False) as arrays:
      if "descriptor" not in arrays:
        return {}
      return {name: arrays[name] for name in _ARRAYS}
  except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
    raise ValueError(
      f"{path} is damaged ({error}); remove it, for a report without it."
    ) from error


def trajectories(episodes: dict[str, Any]) -> Figure | None:
  """Draws episodes in the plane of the descriptor's first two axes."""
  if not episodes or episodes["descriptor"].shape[-1] < 2:
    return None
  arrays = [episodes[name] for name in ("descriptor", "lengths", "skill")]
  items = [
    Panel(f"member {member}", [_episode(*one) for one in zip(*of, strict=True)])
    for member, of in enumerate(zip(*arrays, strict=True))
  ]
  x_title, y_title = (figure.text(name) for name in episodes["names"][:2])
  if len(items) > 1:
    items = items[:_MOST_MEMBERS]
    found = figure.panels(items, x_title, y_title, height=_HEIGHT)
  else:
    found = figure.plot(items[0].traces, x_title, y_title, _HEIGHT + 100)
    found["layout"]["width"] = _WIDTH
  for name, axis in found["layout"].items():
    for i, letter in enumerate("xy"):
      if name.startswith(f"{letter}axis"):
        axis["range"] = [
          float(episodes["lower"][i]), float(episodes["upper"][i])
        ]  # fmt: skip
  return found


def returns(run: Run) -> Figure | None:
  """Draws how each of the discrete skills does."""
  curves: dict[tuple[int, int], list[Row]] = {}
  for row in run.skills:
    skill = _index(row["skill"])
    if skill is None:
      return None
    key = (row["member"], skill)
    curves.setdefault(key, []).append(row)
  if not curves:
    return None
  members = sorted({member for member, _ in curves})[:_MOST_MEMBERS]
  items = []
  for column, title in (
    ("diversity_return", "diversity return [nats per episode]"),
    ("return", figure.RETURN),
  ):
    for member in members:
      whose = f"member {member}: " if len(members) > 1 else ""
      traces = [
        figure.line(
          [row["step"] for row in rows],
          (row.get(column) for row in rows),
          f"skill {skill}",
          _color(rows[0]["skill"]),
          1.5,
          # Colours are those of the ways; there are too many for a legend.
          showlegend=False,
          hovertemplate=f"skill {skill}, step %{{x}}<br>%{{y}}<extra></extra>",
        )
        for (owner, skill), rows in sorted(curves.items())
        if owner == member
      ]
      items.append(Panel(whose + title, traces))
  return figure.panels(items, figure.STEPS)


def _episode(
  states: np.ndarray, length: int, skill: np.ndarray
) -> dict[str, Any]:
  """Returns one episode's way, with a dot where it ends."""
  shown = figure.decimated(int(length))
  x, y = states[shown, :2].T.tolist()
  index = _index(skill.tolist())
  name = ", ".join(f"{x:.2f}" for x in skill) if index is None else str(index)
  return figure.line(
    figure.numbers(x),
    y,
    f"skill {name}",
    _color(skill),
    1.5,
    mode="lines+markers",
    cliponaxis=False,
    marker={"size": [0] * (len(x) - 1) + [8]},
    showlegend=False,
    hovertemplate=f"skill {name}<extra></extra>",
  )


def _index(skill: list[float]) -> int | None:
  """Returns which skill a one-hot vector is; None if it is none."""
  others = [x for x in skill if x != 1]
  if len(others) + 1 != len(skill) or any(others):
    return None
  return skill.index(1)


def _color(skill: Any) -> str:
  """As in the run's own pictures, but darker, for lines on white."""
  red, green, blue, _ = skill_color(np.asarray(skill))
  return matplotlib.colors.to_hex((0.85 * red, 0.85 * green, 0.85 * blue))
