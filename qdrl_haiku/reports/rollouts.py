"""Rolls out elites of a repertoire, and describes where they went."""

from typing import NamedTuple

import jax
import numpy as np

from qdrl_haiku import actors, environments, learners, types
from qdrl_haiku.artifacts import repertoire_file
from qdrl_haiku.drawing import figure, films, stick_figures
from qdrl_haiku.drawing.figure import Axis, Figure, Panel, Trace
from qdrl_haiku.reports import with_plotly
from qdrl_haiku.reports.elite_table import Elites, numbers

_SEED = 0
_HEIGHT = 420
_MOMENTS = 6
# From one moment's stick figure to the next, in sizes of the robot.
_SPACING = 1.05


class Rollouts(NamedTuple):
  """Holds one episode of each of M elites.

  Attributes:
    cells: int32 [M], of the elites.
    returns: float32 [M], of the episodes.
    figure: the way of one episode, its first traces being without points.
    paths: for each of the first traces of the figure, that of each episode,
      float [points, 2].
  """

  cells: np.ndarray
  returns: np.ndarray
  figure: Figure
  paths: list[list[np.ndarray]]


def roll_out(
  env: environments.BatchedEnvironment,
  learner: learners.Learner,
  elites: Elites,
  num_rollouts: int,
) -> Rollouts:
  """Lets elites act for one greedy episode each.

  Args:
    env: of the evaluation.
    learner: the elites'.
    elites: of `reports.read_elites`.
    num_rollouts: how many act, all over the repertoire.

  Raises:
    ValueError: if nothing of the environment can be drawn, or the elites are
      agents of another kind.
  """
  scene = environments.scene(env)
  rows = chosen(elites, num_rollouts)
  repertoire = repertoire_file.read(learner, elites.path)
  cells = elites.cells[rows]
  genotypes = jax.tree.map(lambda x: x[cells], repertoire.genotypes.genotype)

  @jax.jit
  def run(genotypes: types.Tree) -> actors.Rollout:
    return actors.rollout(
      env,
      learner,
      jax.vmap(learner.from_genotype)(genotypes),
      jax.random.key(_SEED),
      env.episode_steps,
      scene.extract,
    )

  found = jax.device_get(run(genotypes))
  lengths = np.sum(found.mask, axis=1)
  returns = np.sum(found.rewards, axis=1, where=found.mask[:, 1:])
  places, sticks = found.extracted, list[np.ndarray]()
  if isinstance(scene, environments.RobotScene):
    places, titles = _path_of_torso(scene, found.extracted["pos"])
    moments, sticks = _moments(scene, found.extracted, lengths)
    panels = [_way(*titles), moments]
  else:
    panels = [films.walk(scene, np.zeros((0, 2)))]
  ways = [
    way[figure.decimated(length)]
    for way, length in zip(places, lengths, strict=True)
  ]
  paths = [ways, [way[-1:] for way in ways], sticks]
  return Rollouts(
    cells, returns, Figure(panels, _HEIGHT // len(panels), 1),
    paths if sticks else paths[:2],
  )  # fmt: skip


def chosen(elites: Elites, num: int) -> np.ndarray:
  """Picks elites all over the repertoire, the fittest among them."""
  size = len(elites.cells)
  if num >= size:
    return np.arange(size)
  rows = np.linspace(0, size - 1, num).round().astype(int)
  best = int(np.argmax(elites.fitness))
  rows[np.argmin(np.abs(rows - best))] = best
  return np.unique(rows)


def to_json(rollouts: Rollouts) -> dict[str, object]:
  """Returns what the page draws when a cell is chosen."""
  return {
    "figure": with_plotly.draw(rollouts.figure),
    "episodes": [
      [cell, value, [[numbers(x) for x in path.T] for path in paths]]
      for cell, value, *paths in zip(
        rollouts.cells.tolist(), numbers(rollouts.returns), *rollouts.paths,
        strict=True,
      )
    ],
  }  # fmt: skip


def _way(x: str, y: str) -> Panel:
  """Describes a way in space or time, without points."""
  way = Trace([], [], "way", figure.BLUE)
  end = Trace([], [], "end", figure.ORANGE, width=0, sizes=9)
  return Panel("", [way, end], Axis(x), Axis(y))


def _path_of_torso(
  scene: environments.RobotScene, pos: np.ndarray
) -> tuple[np.ndarray, tuple[str, str]]:
  """Returns where torsos were [M, T, 2], and the titles of the axes."""
  torso = pos[:, :, 0]
  ways = torso[..., :2]
  if np.ptp(ways[..., 1]) >= 1e-2 * np.ptp(ways[..., 0]):
    return ways, ("x [m]", "y [m]")
  # It can't leave its plane: when it was where says more.
  seconds = scene.step_seconds * np.arange(torso.shape[1])
  times = np.broadcast_to(seconds, torso.shape[:2])
  return np.stack([times, torso[..., 0]], axis=-1), ("time [s]", "x [m]")


def _moments(
  scene: environments.RobotScene,
  links: dict[str, np.ndarray],
  lengths: np.ndarray,
) -> tuple[Panel, list[np.ndarray]]:
  """Describes moments side by side, and returns the lines of each episode."""
  moments = np.linspace(0, lengths - 1, _MOMENTS, axis=1).round().astype(int)
  each = np.arange(len(lengths))[:, None]
  lines = stick_figures.lines(
    scene.sys.mj_model, links["pos"][each, moments], links["rot"][each, moments]
  )
  step = _SPACING * (np.nanmax(lines[..., 0]) - np.nanmin(lines[..., 0]))
  lines[..., 0] += (step * np.arange(_MOMENTS))[:, None]
  lines = lines.reshape(len(lengths), -1, 2)
  low, high = np.nanmin(lines, axis=(0, 1)), np.nanmax(lines, axis=(0, 1))
  x, y = (
    Axis(range=(float(a), float(b)), is_hidden=True)
    for a, b in zip(low, high, strict=True)
  )
  title = f"{_MOMENTS} moments of the episode, evenly spaced"
  sticks = Trace(
    [], [], color="#222222", width=3, in_legend=False, hover="skip"
  )
  return Panel(title, [sticks], x, y, is_isometric=True), list(lines)
