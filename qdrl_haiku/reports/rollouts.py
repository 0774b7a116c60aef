"""Rolls out elites of a repertoire."""

from typing import Any

import jax
import numpy as np

from qdrl_haiku import actors, environments, learners
from qdrl_haiku.artifacts import repertoires
from qdrl_haiku.drawing import stick_figures
from qdrl_haiku.reports import figure
from qdrl_haiku.reports.repertoire import Elites, encoded

_SEED = 0
_HEIGHT = 420
_MOMENTS = 6
# Of the distance from one moment's figure to the next, in sizes of the robot.
_SPACING = 1.05


def roll_out(
  env: environments.BatchedEnvironment,
  learner: learners.Learner,
  elites: Elites,
  num_rollouts: int,
) -> dict[str, Any]:
  """Lets elites act for one greedy episode each."""
  scene = environments.scene(env)
  rows = chosen(elites, num_rollouts)
  repertoire = repertoires.read(learner, elites.path)
  cells = elites.cells[rows]
  genotypes = jax.tree.map(lambda x: x[cells], repertoire.genotypes.genotype)

  @jax.jit
  def episodes(genotypes: Any) -> actors.Rollout:
    return actors.rollout(
      env,
      learner,
      jax.vmap(learner.from_genotype)(genotypes),
      jax.random.key(_SEED),
      env.episode_steps,
      scene.extract,
    )

  found = jax.device_get(episodes(genotypes))
  lengths = np.sum(found.mask, axis=1)
  columns: dict[str, Any] = {
    "cells": encoded(cells, "<i4"),
    "returns": encoded(
      np.sum(found.rewards, axis=1, where=found.mask[:, 1:]), "<f4"
    ),
  }
  if isinstance(scene, environments.RobotScene):
    places, rest = _robot(scene, found.extracted, lengths)
  else:
    places, rest = found.extracted, _plane(scene)
  ways = [
    way[figure.decimated(length)]
    for way, length in zip(places, lengths, strict=True)
  ]
  columns["ends"] = encoded(np.cumsum([len(way) for way in ways]), "<i4")
  for name, values in zip("xy", np.concatenate(ways).T, strict=True):
    columns[name] = encoded(values, "<f4")
  return rest | {"columns": columns | rest["columns"]}


def chosen(elites: Elites, num: int) -> np.ndarray:
  """Picks elites all over the repertoire, the fittest among them."""
  size = len(elites.cells)
  if num >= size:
    return np.arange(size)
  rows = np.linspace(0, size - 1, num).round().astype(int)
  best = int(np.argmax(elites.fitness))
  rows[np.argmin(np.abs(rows - best))] = best
  return np.unique(rows)


def _plane(scene: environments.PlaneScene) -> dict[str, Any]:
  """Returns what is the same for all ways through a plane."""
  x_title, y_title = map(figure.text, scene.names)
  layout = figure.plot([], x_title, y_title, _HEIGHT)["layout"]
  for i, name in enumerate(("xaxis", "yaxis")):
    layout[name]["range"] = [float(scene.lower[i]), float(scene.upper[i])]
  layout["shapes"] = [
    {
      "type": "rect", "x0": x_low, "y0": y_low, "x1": x_high, "y1": y_high,
      "fillcolor": "#bbbbbb", "line": {"width": 0}, "layer": "below",
    }
    for x_low, y_low, x_high, y_high in scene.walls.tolist()
  ]  # fmt: skip
  traces = [
    {
      "x": [float(place[0])],
      "y": [float(place[1])],
      "mode": "markers",
      "name": name,
      "marker": {"symbol": symbol, "size": 12, "color": figure.GREEN},
    }
    for name, symbol, place in (
      ("start", "circle-open", scene.start),
      ("goal", "star", scene.goal),
    )
    if place is not None
  ]
  return {
    "layout": layout, "traces": traces, "columns": {}, "num_stick_ends": 0
  }


def _robot(
  scene: environments.RobotScene, links: dict[str, np.ndarray],
  lengths: np.ndarray,
) -> tuple[np.ndarray, dict[str, Any]]:
  """Returns the ways of robots' torsos, and moments as stick figures."""
  pos, rot = links["pos"], links["rot"]
  torso = pos[:, :, 0]
  ways, titles = torso[..., :2], ("x [m]", "y [m]")
  if np.ptp(ways[..., 1]) < 1e-2 * np.ptp(ways[..., 0]):
    # It can't leave its plane: when it was where says more.
    seconds = scene.step_seconds * np.arange(torso.shape[1])
    ways = np.stack([np.broadcast_to(seconds, torso.shape[:2]), torso[..., 0]],
                    axis=-1)
    titles = ("time [s]", "x [m]")
  layout = figure.plot([], titles[0], titles[1], _HEIGHT)["layout"]
  layout["yaxis"]["domain"] = [0.5, 1]
  layout["yaxis2"] = figure.axis("") | {
    "domain": [0, 0.28], "rangemode": "tozero", "scaleanchor": "x2",
    "visible": False,
  }  # fmt: skip
  layout["xaxis2"] = figure.axis(
    f"{_MOMENTS} moments of the episode, evenly spaced, from the side", 11
  ) | {"anchor": "y2", "showgrid": False, "showticklabels": False, "ticks": ""}
  moments = np.linspace(0, lengths - 1, _MOMENTS, axis=1).round().astype(int)
  sticks = stick_figures.read_sticks(scene.sys.mj_model)
  moves = sticks.link >= 0
  each = np.arange(len(pos))[:, None, None]
  link = (each, moments[..., None], sticks.link[moves])
  ends = stick_figures.rotate(sticks.ends[moves], rot[link][..., None, :])
  # [M, K, G, 2, 3], seen from where the torso is.
  ends = ends + pos[link][..., None, :]
  x = ends[..., 0] - torso[each[..., 0], moments, 0][..., None, None]
  x += (_SPACING * np.ptp(x) * np.arange(_MOMENTS))[:, None, None]
  layout["xaxis2"]["range"] = [float(x.min()), float(x.max())]
  return ways, {
    "layout": layout,
    "traces": [],
    "columns": {
      "stick_x": encoded(x, "<f4"), "stick_y": encoded(ends[..., 2], "<f4")
    },
    "num_stick_ends": x[0].size,
  }
