"""Tests of pictures and films."""

import base64
import json
import re
import stat
import zlib

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import PIL.Image
import pytest

from qdrl_haiku import environments
from qdrl_haiku.programs.drawing import films, mujoco_frames
from tests import toy

_MAZE = environments.scene(environments.create("point_maze"))
# Up along the left edge, and right.
_WALK = np.array([[-0.9, -0.9], [-0.9, 0.9], [0.2, 0.9]], np.float32)
_BLUE = (0, 114, 178)
# Stands for ffmpeg: writes what it is given, its last argument says where to.
_FFMPEG = '#!/bin/sh\nfor last; do :; done\ncat > "$last"\n'


@pytest.fixture(scope="module")
def robot():
  """A pendulum, and an episode of 20 steps as physics would have it."""
  # Untraced, with the sizes that it has.
  env = environments.create("inverted_pendulum")
  scene = environments.scene(env)
  model = scene.sys.mj_model
  data = mujoco.MjData(model)
  episode = {"q": [], "pos": [], "rot": []}
  for t in range(21):
    data.qpos = [0.02 * t, 0.05 * t]
    mujoco.mj_kinematics(model, data)
    for name, x in (
      ("q", data.qpos), ("pos", data.xpos[1:]), ("rot", data.xquat[1:])
    ):
      episode[name].append(x.copy())
  return scene, {name: np.array(x) for name, x in episode.items()}


@pytest.fixture
def no_opengl(monkeypatch):
  monkeypatch.setenv("MUJOCO_GL", "disable")


def _render(path, scene, episode):
  films.render_film(path, path.suffix[1:], scene, episode, "a title")
  assert [x.name for x in path.parent.iterdir()] == [path.name]
  return path


def _pixels(image, color):
  """Where an image has a colour: rows and columns."""
  differing = np.abs(np.asarray(image.convert("RGB"), int) - color).max(axis=2)
  return np.argwhere(differing < 60)  # Thin lines are blended with white.


def test_a_walk_is_described_with_its_walls_its_start_and_its_goal():
  panel = films.film_walk(_MAZE, _WALK)
  way, end, *others = panel.traces
  np.testing.assert_array_equal(np.stack([way.x, way.y], axis=1), _WALK)
  assert (end.x, end.y) == (_WALK[-1:, 0], _WALK[-1:, 1])
  walls = [(x.x[0], x.y[0], x.x[1], x.y[2]) for x in others if x.is_area]
  np.testing.assert_allclose(walls, _MAZE.walls)
  places = {x.name: (*x.x, *x.y) for x in others if not x.is_area}
  assert places == {
    "start": tuple(_MAZE.start.tolist()), "goal": tuple(_MAZE.goal.tolist())}
  assert panel.x.title == "x"
  np.testing.assert_allclose(panel.x.range, (-1.06, 1.06))
  # On the same axes, the first step of it.
  first = films.film_walk(_MAZE, _WALK, 0)
  assert first.x == panel.x and len(first.traces[0].x) == 1


def test_a_film_of_a_walk_shows_it_step_by_step(monkeypatch, tmp_path):
  way = np.linspace([-0.9, -0.9], [-0.9, 0.9], 11)
  monkeypatch.setattr(films, "_MAX_FRAMES", 4)
  film = PIL.Image.open(_render(tmp_path / "a.gif", _MAZE, way))
  # A tenth of a second for each step, of which two in three are left out.
  assert film.n_frames == 5
  assert film.info["duration"] == 300
  lengths = []
  for frame in range(5):
    film.seek(frame)
    lengths.append(len(_pixels(film, _BLUE)))
  assert np.all(np.diff(lengths) > 50)


def test_a_picture_of_a_walk_may_be_of_vectors(tmp_path):
  text = _render(tmp_path / "a.svg", _MAZE, _WALK).read_text()
  assert f"stroke: #{bytes(_BLUE).hex()}" in text
  path = tmp_path / "new" / "a.pdf"
  assert _render(path, _MAZE, _WALK).read_bytes().startswith(b"%PDF-")


def test_without_opengl_a_robot_is_a_stick_figure(
  robot, no_opengl, tmp_path, caplog
):
  image = PIL.Image.open(_render(tmp_path / "a.png", *robot))
  # In each of the moments.
  sticks = _pixels(image, (34, 34, 34))
  quarters = np.histogram(sticks[:, 1], bins=4, range=(0, image.width))[0]
  assert quarters.min() > 200
  assert "drawn as a stick figure" in caplog.text


@pytest.mark.slow
def test_mujoco_renders_where_it_can(robot):
  scene, episode = robot
  frames = mujoco_frames.render_mujoco_frames(
    scene.sys.mj_model, episode["q"][[0, 20]])
  if frames is None:
    pytest.skip("no OpenGL here")
  assert (frames.shape[0], frames.shape[3], frames.dtype) == (2, 3, np.uint8)
  assert frames.std(axis=(1, 2, 3)).min() > 1
  assert (frames[0] != frames[1]).any()


def test_the_page_has_the_episode_in_it(robot, tmp_path):
  scene, episode = robot
  page = _render(tmp_path / "a.html", scene, episode).read_text()
  (text,) = re.findall('var system = "(.*?)"', page)
  shown = json.loads(zlib.decompress(base64.b64decode(text)))
  assert shown["opt"]["timestep"] == scene.step_seconds
  for name in ("pos", "rot"):
    np.testing.assert_allclose(
      [x[name] for x in shown["states"]["x"]], episode[name], atol=1e-6)


@pytest.mark.parametrize("exit_code", [0, 1])
def test_ffmpeg_gets_all_frames_of_a_film(exit_code, tmp_path, monkeypatch):
  folder = tmp_path / "bin"
  folder.mkdir()
  (folder / "ffmpeg").write_text(f"{_FFMPEG}exit {exit_code}\n")
  (folder / "ffmpeg").chmod(stat.S_IRWXU)
  monkeypatch.setenv("PATH", str(folder), prepend=":")
  films.check_film_format(_MAZE, "mp4")
  if exit_code:
    with pytest.raises(OSError, match="ffmpeg failed"):
      films.render_film(tmp_path / "new" / "a.mp4", "mp4", _MAZE, _WALK, "")
    assert list((tmp_path / "new").iterdir()) == []
  else:
    path = _render(tmp_path / "new" / "a.mp4", _MAZE, _WALK)
    assert path.stat().st_size == 3 * 500 * 500 * 4


class _Walk(toy.Walk):
  """Its descriptor breaks at the second step."""

  def step(self, state, action):
    state = super().step(state, action)
    is_broken = state.pipeline_state["steps"] == 2
    obs = jnp.where(is_broken, jnp.nan, state.obs)
    return state.replace(info={"state_descriptor": obs})


def test_an_episode_ends_before_what_is_not_finite():
  env = environments.Environment(_Walk(), episode_length=6)
  agent = {"offset": jnp.array(0.5), "gain": jnp.zeros(())}
  found = films.first_film_episode(
    env, toy.linear_learner(), agent, jax.random.key(2),
    environments.scene(env))
  assert len(found) == 2 and np.isfinite(found).all()
  np.testing.assert_allclose(found[1] - found[0], [np.sin(0.5), 1], rtol=1e-5)
