"""Pictures and films of one episode."""

import errno
import os
import pathlib
import subprocess
import types as python_types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import logging
from matplotlib import animation
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from qdrl_haiku import actors, environments, files, learners, types
from qdrl_haiku.drawing import mujoco_frames
from qdrl_haiku.drawing.stick_figures import StickFigure

# An episode that is longer is drawn up to here.
_MAX_STEPS = 10_000
_MAX_FRAMES = 500
# The shortest that all viewers of GIFs keep to.
_FRAME_SECONDS = 0.04
# A walk has no time of its own.
_WALK_SECONDS = 0.1
_ROWS, _COLUMNS = 2, 4
_DPI = 100

_DrawFn = Callable[[Axes, int], None]
"""Draws an episode on empty axes, as it is after so many steps."""


def check_format(scene: environments.Scene, file_format: str) -> None:
  """Checks that a scene can be rendered, before there is anything to render.

  Args:
    scene: what is to be drawn.
    file_format: gif, html, mp4 or png.

  Raises:
    ValueError: if not, saying why.
  """
  if file_format == "html" and isinstance(scene, environments.PlaneScene):
    raise ValueError(
      "html is brax's viewer, for its robots alone; take png or gif."
    )
  if file_format == "mp4" and not animation.FFMpegWriter.isAvailable():
    raise ValueError(
      "mp4 needs ffmpeg, which is not installed; install it (apt-get install "
      "ffmpeg), or take gif."
    )


def first_episode(
  env: environments.BatchedEnvironment,
  learner: learners.Learner,
  state: types.State,
  key: types.Key,
  scene: environments.Scene,
) -> Any:
  """Runs the first of the episodes that an evaluation with that key sees.

  Args:
    env: the environment.
    learner: the agent's.
    state: of one agent.
    key: consumed.
    scene: what of the environment is to be drawn.

  Returns:
    What the scene extracts, on the host, leaves [T+1, ...] for an episode of T
    steps: of 10,000 at most, and of those before anything was not finite.
  """
  num_steps = min(env.episode_steps, _MAX_STEPS)
  population = jax.tree.map(lambda x: x[None], state)
  rollout = jax.device_get(
    jax.jit(
      lambda state, key: actors.rollout(
        env, learner, state, key, num_steps, scene.extract
      )
    )(population, key)
  )
  seen = rollout.mask[0]
  for x in jax.tree.leaves(rollout.extracted):
    seen = seen & np.isfinite(x[0]).reshape(len(seen), -1).all(axis=1)
  length = int(np.cumprod(seen).sum())
  return jax.tree.map(lambda x: x[0, :length], rollout.extracted)


def render(
  path: str | os.PathLike[str],
  file_format: str,
  scene: environments.Scene,
  episode: Any,
  title: str,
) -> None:
  """Writes a picture, a film, or a page, whole or not at all.

  A picture of a walk has the whole way in it, one of a robot eight moments.
  Films run in real time.

  Args:
    path: of the new file.
    file_format: gif, html, mp4 or png, to which `check_format` has no
      objection.
    scene: what is drawn.
    episode: what it extracted, on the host, leaves [T+1, ...].
    title: of the picture.

  Raises:
    OSError: if it can't be written.
  """
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  try:
    with files.written_whole(path) as temporary:
      if file_format == "html":
        assert isinstance(scene, environments.RobotScene)
        temporary.write_text(_page(scene, episode))
      elif file_format == "png":
        _picture(scene, episode, title).savefig(temporary)
      else:
        _film(temporary, scene, episode, title)
  except subprocess.CalledProcessError as error:
    raise OSError(errno.EIO, "ffmpeg failed", str(path)) from error


def _page(scene: environments.RobotScene, episode: Any) -> str:
  """Returns the page of brax's viewer with the episode in it."""
  from brax import base
  from brax.io import html

  states: Any = [
    python_types.SimpleNamespace(x=base.Transform(pos=pos, rot=rot))
    for pos, rot in zip(episode["pos"], episode["rot"], strict=True)
  ]
  sys = scene.sys.tree_replace({"opt.timestep": scene.step_seconds})
  return html.render(sys, states, height="100vh", colab=False)


def _picture(scene: environments.Scene, episode: Any, title: str) -> Figure:
  num_steps = len(jax.tree.leaves(episode)[0]) - 1
  if isinstance(scene, environments.PlaneScene):
    figure = Figure(figsize=(5, 5), dpi=_DPI, layout="constrained")
    _draw_walk(scene, episode)(figure.subplots(), num_steps)
  else:
    moments = np.linspace(0, num_steps, _ROWS * _COLUMNS).round().astype(int)
    draw = _draw_robot(scene, episode, moments)
    size = (3 * _COLUMNS, 2.5 * _ROWS)
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    grid = figure.subplots(_ROWS, _COLUMNS).flat
    for axes, t in zip(grid, moments.tolist(), strict=True):
      draw(axes, t)
      axes.set_title(f"step {t}", fontsize="small")
  figure.suptitle(title, fontsize="medium", wrap=True)
  return figure


def _film(
  path: pathlib.Path, scene: environments.Scene, episode: Any, title: str
) -> None:
  seconds = _WALK_SECONDS
  if isinstance(scene, environments.RobotScene):
    seconds = scene.step_seconds
  num_steps = len(jax.tree.leaves(episode)[0]) - 1
  stride = max(
    1, round(_FRAME_SECONDS / seconds), -(-num_steps // _MAX_FRAMES)
  )
  moments = np.arange(0, num_steps + stride, stride).clip(max=num_steps)
  if isinstance(scene, environments.PlaneScene):
    draw, size = _draw_walk(scene, episode), (5.0, 5.0)
  else:
    draw, size = _draw_robot(scene, episode, moments), (4.4, 3.8)
  figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
  figure.suptitle(title, fontsize="medium", wrap=True)
  axes = figure.subplots()
  writers = {".gif": animation.PillowWriter, ".mp4": animation.FFMpegWriter}
  writer = writers[path.suffix](fps=1 / (stride * seconds))
  with writer.saving(figure, str(path), _DPI):
    for t in moments.tolist():
      axes.clear()
      draw(axes, t)
      axes.set_title(f"step {t}", fontsize="small")
      if t == 0:  # Laying out takes longer than drawing.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
      writer.grab_frame()


def _draw_walk(
  scene: environments.PlaneScene, positions: np.ndarray
) -> _DrawFn:
  """Returns a way through a plane, from its first step on."""
  seen = np.concatenate([positions, [scene.lower, scene.upper]])
  lower, upper = seen.min(axis=0), seen.max(axis=0)
  margin = 0.03 * (upper - lower)

  def draw(axes: Axes, t: int) -> None:
    for x_low, y_low, x_high, y_high in scene.walls:
      axes.add_patch(
        Rectangle(
          (x_low, y_low), x_high - x_low, y_high - y_low, color="0.35"
        )
      )
    if scene.start is not None:
      axes.plot(*scene.start, "s", color="0.6", markersize=10)
    if scene.goal is not None:
      axes.plot(*scene.goal, "*", color="tab:green", markersize=16)
    axes.plot(*positions[: t + 1].T, color="tab:blue", linewidth=1.5)
    axes.plot(*positions[t], "o", color="tab:red", markersize=6)
    axes.set(
      xlabel=scene.names[0],
      ylabel=scene.names[1],
      xlim=(lower[0] - margin[0], upper[0] + margin[0]),
      ylim=(lower[1] - margin[1], upper[1] + margin[1]),
      box_aspect=1,
    )

  return draw


def _draw_robot(
  scene: environments.RobotScene, episode: Any, moments: np.ndarray
) -> _DrawFn:
  """Returns a robot at some moments, by MuJoCo if it can."""
  frames = mujoco_frames.render(scene.sys.mj_model, episode["q"][moments])
  if frames is None:
    logging.warning(
      "MuJoCo can't render here (it needs OpenGL, such as libEGL); drawn as a "
      "stick figure."
    )
    return StickFigure(scene.sys, episode["pos"], episode["rot"]).draw
  images = dict(zip(moments.tolist(), frames, strict=True))

  def draw(axes: Axes, t: int) -> None:
    axes.imshow(images[t])
    axes.axis("off")

  return draw
