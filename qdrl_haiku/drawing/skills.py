"""The colours of skills."""

import matplotlib
import numpy as np


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
