"""Rolls out elites of a repertoire, and describes where they went."""

import jax
import numpy as np

from qdrl_haiku import actors, environments, learners
from qdrl_haiku.programs.artifacts import repertoires
from qdrl_haiku.programs.drawing import figure, films, stick_figures
from qdrl_haiku.programs.drawing.figure import Axis, Figure, Panel, Trace
from qdrl_haiku.programs.reports import with_plotly
from qdrl_haiku.programs.reports.elite_table import Elites, elite_table_numbers

_SEED = 0
_HEIGHT = 420
_MOMENTS = 6
# From one moment's stick figure to the next, in sizes of the robot.
_SPACING = 1.05


def roll_out_elites(
  env: environments.BatchedEnvironment, learner: learners.Learner,
  elites: Elites, num_rollouts: int,
) -> dict[str, object]:
  """Lets elites act for one greedy episode each, all over the repertoire.

  Args:
    env: the environment.
    learner: whose `act_greedy` acts.
    elites: of a run, of which some are chosen.
    num_rollouts: how many at most.

  Returns:
    What the page draws when a cell is chosen: a figure whose first traces have
    no points, and of each episode cell, return, and the points of these traces.

  Raises:
    ValueError: if nothing of the environment can be drawn, or the elites are
      agents of another kind.
  """
  scene = environments.scene(env)
  rows = choose_rollout_elites(elites, num_rollouts)
  repertoire = repertoires.read_repertoire(learner, elites.path)
  cells = elites.cells[rows]
  genotypes = jax.tree.map(lambda x: x[cells], repertoire.genotypes.genotype)
  agents = jax.jit(jax.vmap(learner.from_genotype))(genotypes)
  found = jax.device_get(actors.rollout(
    env, learner, agents, jax.random.key(_SEED), env.episode_length,
    scene.extract))
  lengths = np.sum(found.mask, axis=1)
  returns = np.sum(found.rewards, axis=1, where=found.mask[:, 1:])
  if isinstance(scene, environments.RobotScene):
    places, way = _path_of_torso(scene, found.extracted["pos"])
    moments, sticks = _moments(scene, found.extracted, lengths)
    panels, more = [way, moments], [sticks]
  else:
    places, more = found.extracted, []
    panels = [films.film_walk(scene, np.zeros((0, 2)))]
  ways = [
    way[figure.decimate_for_figure(length)]
    for way, length in zip(places, lengths, strict=True)]
  ends = [way[-1:] for way in ways]
  paths = zip(ways, ends, *more, strict=True)
  points = [
    [[elite_table_numbers(x) for x in path.T] for path in of_one]
    for of_one in paths]
  numbers = elite_table_numbers(returns)
  drawn = Figure(panels, _HEIGHT // len(panels), 1)
  return {
    "figure": with_plotly.draw_with_plotly(drawn),
    "episodes": list(zip(cells.tolist(), numbers, points, strict=True))}


def choose_rollout_elites(elites: Elites, num: int) -> np.ndarray:
  """Picks elites all over the repertoire, the fittest among them."""
  size = len(elites.cells)
  if num >= size:
    return np.arange(size)
  rows = np.linspace(0, size - 1, num).round().astype(int)
  best = int(np.argmax(elites.repertoire.fitness[elites.cells]))
  rows[np.argmin(np.abs(rows - best))] = best
  return np.unique(rows)


def _path_of_torso(
  scene: environments.RobotScene, pos: np.ndarray
) -> tuple[np.ndarray, Panel]:
  """Returns where torsos were [M, T, 2], and a panel for one such way."""
  root = scene.sys.mj_model.jnt_bodyid[0] - 1
  ways, x, y = pos[:, :, root, :2], "x [m]", "y [m]"
  if np.ptp(ways[..., 1]) < 1e-2 * np.ptp(ways[..., 0]):
    # It can't leave its plane: when it was where says more.
    seconds = scene.step_seconds * np.arange(ways.shape[1])
    times = np.broadcast_to(seconds, ways.shape[:2])
    ways, x, y = np.stack([times, ways[..., 0]], axis=-1), "time [s]", x
  way = Trace([], [], "way", figure.BLUE)
  end = Trace([], [], "end", figure.ORANGE, width=0, sizes=9)
  return ways, Panel("", [way, end], Axis(x), Axis(y))


def _moments(
  scene: environments.RobotScene, links: dict[str, np.ndarray],
  lengths: np.ndarray,
) -> tuple[Panel, list[np.ndarray]]:
  """Describes moments side by side, and returns the lines of each episode."""
  moments = np.linspace(0, lengths - 1, _MOMENTS, axis=1).round().astype(int)
  each = np.arange(len(lengths))[:, None]
  lines = stick_figures.stick_figure_lines(
    scene.sys.mj_model, links["pos"][each, moments], links["rot"][each, moments]
  )
  step = _SPACING * (np.nanmax(lines[..., 0]) - np.nanmin(lines[..., 0]))
  lines[..., 0] += (step * np.arange(_MOMENTS))[:, None]
  lines = lines.reshape(len(lengths), -1, 2)
  axes = figure.figure_axes(np.nanmin(lines, (0, 1)), np.nanmax(lines, (0, 1)))
  title = f"{_MOMENTS} moments of the episode, evenly spaced"
  sticks = Trace(
    [], [], color="#222222", width=3, in_legend=False, hover="skip")
  return Panel(title, [sticks], *axes, is_isometric=True), list(lines)
