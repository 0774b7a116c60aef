"""A picture of where skills lead."""

import pathlib

import matplotlib
import numpy as np
from matplotlib.figure import Figure

_COLUMNS = 3


def trajectories(path: pathlib.Path) -> Figure | None:
  """Draws episodes in the plane of the descriptor's first two axes.

  Args:
    path: of the `skills.npz` that `skills.write` wrote.

  Returns:
    One plot per member, episodes coloured by skill: directions and other
    continuous skills by the angle of their first two numbers. None where
    states have no descriptor of two axes.
  """
  if not path.exists():
    return None
  arrays = np.load(path)
  if arrays.get("descriptor", np.empty(0)).shape[-1] < 2:
    return None
  size = len(arrays["skill"])
  columns = min(_COLUMNS, size)
  rows = -(-size // columns)
  figure = Figure(figsize=(5 * columns, 5 * rows), layout="constrained")
  grid = np.ravel(figure.subplots(rows, columns, squeeze=False))
  for axes in grid[size:]:
    axes.axis("off")
  for member, axes in enumerate(grid[:size]):
    for episode, skill in enumerate(arrays["skill"][member]):
      length = arrays["lengths"][member, episode]
      states = arrays["descriptor"][member, episode, :length]
      axes.plot(*states[:, :2].T, color=skill_color(skill), linewidth=1)
      axes.plot(*states[-1, :2], "o", color=skill_color(skill), markersize=4)
    axes.set_title(
      "one colour per skill" if size == 1 else f"member {member}"
    )
    axes.set(
      xlabel=arrays["names"][0],
      ylabel=arrays["names"][1],
      xlim=(arrays["lower"][0], arrays["upper"][0]),
      ylim=(arrays["lower"][1], arrays["upper"][1]),
    )
  return figure


def skill_color(skill: np.ndarray) -> tuple[float, ...]:
  """Returns a colour of the wheel.

  Args:
    skill: [K].

  Returns:
    Red, green, blue and opacity, from 0 to 1.
  """
  if np.count_nonzero(skill) == 1 and skill.max() == 1:
    hue = np.argmax(skill) / skill.size
  elif skill.size == 1:
    hue = 0.5 + np.arctan(skill[0]) / np.pi
  else:
    hue = np.arctan2(skill[1], skill[0]) / (2 * np.pi) % 1
  return matplotlib.colormaps["hsv"](hue)
