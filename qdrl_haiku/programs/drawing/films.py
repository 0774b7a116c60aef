"""Pictures and films of one episode."""

import errno
import os
import pathlib
import subprocess
import types as python_types
from collections.abc import Callable

import jax
import numpy as np
from absl import logging
from matplotlib import animation
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from qdrl_haiku import actors, environments, files, learners, platform, types
from qdrl_haiku.programs.drawing import figure as figure_lib
from qdrl_haiku.programs.drawing import (
  mujoco_frames,
  stick_figures,
  with_matplotlib,
)
from qdrl_haiku.programs.drawing.figure import Panel, Trace

# An episode that is longer is drawn up to here.
_MAX_STEPS = 10_000
_MAX_FRAMES = 500
# The shortest that all viewers of GIFs keep to.
_FRAME_SECONDS = 0.04
# A walk has no time of its own.
_WALK_SECONDS = 0.1
_DPI = {".gif": 75, ".mp4": 100, ".png": 100}
# Of a GIF, which compresses few of them best.
_COLORS = 64

_DrawFn = Callable[[Axes, int], None]
"""Draws an episode on empty axes, until so many steps."""


def check_film_format(scene: environments.Scene, file_format: str) -> None:
  """Raises ValueError if a scene can't be rendered in a format."""
  if file_format == "html" and isinstance(scene, environments.PlaneScene):
    raise ValueError(
      "html is brax's viewer, for its robots alone; take png or gif.")
  if file_format == "mp4" and not animation.FFMpegWriter.isAvailable():
    raise ValueError(
      "mp4 needs ffmpeg, which is not installed; install it (apt-get install "
      "ffmpeg), or take gif.")


def first_film_episode(
  env: environments.BatchedEnvironment, learner: learners.Learner,
  state: types.State, key: types.Key, scene: environments.Scene,
  most_steps: int = _MAX_STEPS,
) -> types.Tree:
  """Runs the first of the episodes that an evaluation with that key sees.

  Args:
    env: the environment.
    learner: whose `act_greedy` chooses the actions.
    state: the agent's.
    key: one key, consumed.
    scene: `environments.scene(env)`.
    most_steps: after which the rest of a longer episode is left out.

  Returns:
    What the scene extracts of one agent, on the host, leaves [T+1, ...] for an
    episode of T steps, which is cut off before the first non-finite value.
  """

  def run(state: types.State, key: types.Key) -> actors.Rollout:
    population = jax.tree.map(lambda x: x[None], state)
    num_steps = min(env.episode_length, most_steps)
    return actors.rollout(
      env, learner, population, key, num_steps, scene.extract)

  rollout = jax.device_get(platform.compiled(run, state, key)(state, key))
  seen = rollout.mask[0]
  for x in jax.tree.leaves(rollout.extracted):
    seen = seen & np.isfinite(x[0]).reshape(len(seen), -1).all(axis=1)
  length = int(np.cumprod(seen).sum())
  return jax.tree.map(lambda x: x[0, :length], rollout.extracted)


def render_film(
  path: str | os.PathLike[str], file_format: str, scene: environments.Scene,
  episode: types.Tree, title: str,
) -> None:
  """Writes an episode, whole or not at all.

  Args:
    path: of the new file.
    file_format: gif or mp4, a film in real time; html, a page; png, pdf or svg,
      a picture; see `check_film_format`.
    scene: of the environment.
    episode: what `first_film_episode` returned.
    title: above the picture.

  Raises:
    OSError: if it can't be written.
  """
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  try:
    with files.file_written_whole(path) as temporary:
      if file_format == "html":
        assert isinstance(scene, environments.RobotScene)
        temporary.write_text(_page(scene, episode))
      elif file_format in _WRITERS:
        _film(temporary, scene, episode, title)
      else:
        _picture(scene, episode, title).savefig(temporary)
  except subprocess.CalledProcessError as error:
    raise OSError(errno.EIO, "ffmpeg failed", str(path)) from error


def film_walk(
  scene: environments.PlaneScene, positions: np.ndarray, t: int | None = None
) -> Panel:
  """Describes a way through a plane, its walls, its start and its goal.

  Args:
    scene: the plane.
    positions: [T, 2]; the axes hold all of them.
    t: the step until which the way is drawn; None for the last.

  Returns:
    The way and its end, the first two traces, and all else.
  """
  way = positions if t is None else positions[: t + 1]
  (x, y), (x_end, y_end) = way.T, way[-1:].T
  traces = [
    Trace(x, y, "way", figure_lib.BLUE),
    Trace(x_end, y_end, "end", figure_lib.ORANGE, 0, sizes=9)]
  for left, low, right, high in scene.walls:
    grey = figure_lib.GREY
    traces.append(figure_lib.figure_rectangle(left, low, right, high, grey))
  for name, symbol, place in (
    ("start", "circle-open", scene.start), ("goal", "star", scene.goal)
  ):
    if place is not None:
      x, y = place[:1], place[1:]
      color = figure_lib.GREEN
      traces.append(Trace(x, y, name, color, 0, symbol=symbol, sizes=12))
  seen = np.concatenate([positions, [scene.lower, scene.upper]])
  margin = 0.03 * np.ptp(seen, axis=0)
  axes = figure_lib.figure_axes(
    seen.min(axis=0) - margin, seen.max(axis=0) + margin, scene.names)
  return Panel("" if t is None else f"step {t}", traces, *axes)


def _page(scene: environments.RobotScene, episode: types.Tree) -> str:
  """Returns the page of brax's viewer with the episode in it."""
  from brax import base
  from brax.io import html

  states = [
    python_types.SimpleNamespace(x=base.Transform(pos=pos, rot=rot))
    for pos, rot in zip(episode["pos"], episode["rot"], strict=True)]
  sys = scene.sys.tree_replace({"opt.timestep": scene.step_seconds})
  return html.render(sys, states, height="100vh", colab=False)


def _picture(
  scene: environments.Scene, episode: types.Tree, title: str
) -> Figure:
  """Draws a whole walk, or eight moments of a robot."""
  num_steps = len(jax.tree.leaves(episode)[0]) - 1
  rows, columns, size, moments = 1, 1, (5.0, 5.0), np.array([num_steps])
  if isinstance(scene, environments.RobotScene):
    rows, columns, size = 2, 4, (12.0, 5.0)
    moments = np.linspace(0, num_steps, rows * columns).round().astype(int)
  draw = _drawer(scene, episode, moments)
  figure = Figure(figsize=size, dpi=_DPI[".png"], layout="constrained")
  grid = figure.subplots(rows, columns, squeeze=False).flat
  for axes, t in zip(grid, moments.tolist(), strict=True):
    draw(axes, t)
  figure.suptitle(title, fontsize="medium", wrap=True)
  return figure


def _film(
  path: pathlib.Path, scene: environments.Scene, episode: types.Tree, title: str
) -> None:
  """Writes a film in real time, of at most so many frames."""
  seconds, size = _WALK_SECONDS, (5.0, 5.0)
  if isinstance(scene, environments.RobotScene):
    seconds, size = scene.step_seconds, (4.4, 3.8)
  num_steps = len(jax.tree.leaves(episode)[0]) - 1
  stride = max(1, round(_FRAME_SECONDS / seconds), -(-num_steps // _MAX_FRAMES))
  moments = np.arange(0, num_steps + stride, stride).clip(max=num_steps)
  draw = _drawer(scene, episode, moments)
  dpi = _DPI[path.suffix]
  figure = Figure(figsize=size, dpi=dpi, layout="constrained")
  figure.suptitle(title, fontsize="medium", wrap=True)
  axes = figure.subplots()
  writer = _WRITERS[path.suffix[1:]](fps=1 / (stride * seconds))
  with writer.saving(figure, str(path), dpi):
    for t in moments.tolist():
      axes.clear()
      draw(axes, t)
      if t == 0:  # Laying out takes longer than drawing.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
      writer.grab_frame()


class _GIFWriter(animation.PillowWriter):
  """Gives all frames the same few colours, which halves a film's size."""

  _frames: list[Image.Image]

  def finish(self) -> None:
    """Writes the file."""
    frames = [frame.convert("RGB") for frame in self._frames]
    # An octree of them, which has rare ones too, such as that of a line.
    palette = frames[-1].quantize(_COLORS, method=2)
    self._frames = [
      x.quantize(palette=palette, dither=Image.Dither.NONE) for x in frames]
    super().finish()


_WRITERS = {"gif": _GIFWriter, "mp4": animation.FFMpegWriter}


def _drawer(
  scene: environments.Scene, episode: types.Tree, moments: np.ndarray
) -> _DrawFn:
  """Returns what draws a scene at some moments, by MuJoCo if it can."""
  draw_panel = with_matplotlib.draw_panel_with_matplotlib
  if isinstance(scene, environments.PlaneScene):
    return lambda axes, t: draw_panel(axes, film_walk(scene, episode, t))
  model = scene.sys.mj_model
  frames = mujoco_frames.render_mujoco_frames(model, episode["q"][moments])
  if frames is None:
    logging.warning(
      "MuJoCo can't render here (it needs OpenGL, such as libEGL); drawn as a "
      "stick figure.")
    lines = stick_figures.stick_figure_lines(
      model, episode["pos"], episode["rot"])
    return lambda axes, t: draw_panel(axes, _sticks(lines, t))
  images = dict(zip(moments.tolist(), frames, strict=True))

  def draw(axes: Axes, t: int) -> None:
    axes.imshow(images[t])
    axes.axis("off")
    axes.set_title(f"step {t}", fontsize="medium")

  return draw


def _sticks(lines: np.ndarray, t: int) -> Panel:
  """Describes a stick figure, on axes that hold all of its moments."""
  axes = figure_lib.figure_axes(
    np.nanmin(lines, (0, 1)), np.nanmax(lines, (0, 1)))
  x, y = lines[t].T
  trace = Trace(x, y, color="#222222", width=4)
  return Panel(f"step {t}", [trace], *axes, is_isometric=True)
