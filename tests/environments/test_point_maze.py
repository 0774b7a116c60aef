"""Tests of the point maze."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.environments import point_maze


def crosses(start, end, wall):
  """Whether segments [N, 2] enter the inside of a rectangle [4], in float64."""
  start, end, wall = (np.asarray(x, np.float64) for x in (start, end, wall))
  # Shrunk by less than a thousandth of a step, for the rounding of positions.
  low, high = wall[:2] + 1e-6, wall[2:] - 1e-6
  delta = end - start
  with np.errstate(divide="ignore", invalid="ignore"):
    first, second = (low - start) / delta, (high - start) / delta
  enter, leave = np.minimum(first, second), np.maximum(first, second)
  inside = (start > low) & (start < high)
  enter = np.where(delta == 0, np.where(inside, -np.inf, np.inf), enter)
  leave = np.where(delta == 0, np.where(inside, np.inf, -np.inf), leave)
  enter, leave = enter.max(-1).clip(min=0), leave.min(-1).clip(max=1)
  return enter < leave


@pytest.fixture(scope="module")
def maze():
  return point_maze.PointMaze()


def free_positions(maze, count, seed=0):
  positions = np.random.default_rng(seed).uniform(-1, 1, (4 * count, 2))
  blocked = np.zeros(len(positions), bool)
  for x_low, y_low, x_high, y_high in maze.walls:
    x, y = positions.T
    blocked |= (
      (x > x_low - 0.051) & (x < x_high + 0.051)
      & (y > y_low - 0.051) & (y < y_high + 0.051))
  return jnp.asarray(positions[~blocked][:count], jnp.float32)


@functools.partial(jax.jit, static_argnums=0)
def _walk(maze, positions, actions):
  def step(state, action):
    state = jax.vmap(maze.step)(state, action)
    return state, (state.obs, state.reward)

  state = jax.vmap(maze._state)(positions, jnp.zeros(len(positions)))
  return jax.lax.scan(step, state, actions)[1]


def walk(maze, positions, actions):
  """Returns the positions [T + 1, N, 2] and rewards [T, N] of actions."""
  path, rewards = _walk(maze, positions, actions)
  return np.concatenate([np.asarray(positions)[None], path]), rewards


def test_no_straight_line_between_positions_crosses_a_wall(maze):
  rng = np.random.default_rng(1)
  steps, count = 200, 500
  leaning = rng.uniform(-1, 1, (steps // 20, count, 2))
  actions = [
    rng.choice([-1.0, 0.0, 1.0], (steps, count, 2)),
    np.repeat(leaning, 20, axis=0),  # Slides around the ends of walls.
    rng.normal(size=(steps, count, 2)) * 1e6]
  path, _ = walk(
    maze, free_positions(maze, 3 * count),
    jnp.asarray(np.concatenate(actions, axis=1)))
  starts, ends = path[:-1].reshape(-1, 2), path[1:].reshape(-1, 2)
  assert np.abs(starts - ends).max() > 0.09
  assert crosses(np.array([[-0.5, 0.0]]), [[-0.2, 0.0]], maze.walls[0]).all()
  for wall in maze.walls:
    assert not crosses(starts, ends, wall).any()
  assert np.abs(path).max() <= 1


def test_a_step_moves_by_a_tenth_of_the_action_and_slides_along_walls(maze):
  # The first wall begins at x = -0.4, and the point stays 0.05 off.
  path, _ = walk(
    maze, jnp.array([[-0.8, -0.8], [-0.5, 0.0]]),
    jnp.array([[[0.5, -1.0], [1.0, 0.5]], [[-7.0, 0.2], [1.0, 0.5]]]))
  np.testing.assert_allclose(
    path[1:], [[[-0.75, -0.9], [-0.45, 0.05]], [[-0.85, -0.88], [-0.45, 0.1]]],
    atol=1e-6)


def test_a_scripted_route_reaches_the_goal_and_earns_the_initial_distance(maze):
  route = [(-0.8, 0.6), (0.0, 0.6), (0.0, -0.6), (0.6, -0.6), (0.8, 0.8)]
  position, actions = np.array(maze.start, np.float64), []
  for waypoint in route:
    steps = round(np.abs(waypoint - position).max() / 0.1)
    actions += [(waypoint - position) / steps / 0.1] * steps
    position = np.array(waypoint)
  path, rewards = walk(
    maze, jnp.asarray(maze.start)[None], jnp.asarray(actions)[:, None])
  np.testing.assert_allclose(path[-1, 0], maze.goal, atol=1e-4)
  # By hand: 12.5 steps up to the upper end of the first wall with the clearance
  # of 0.05, 2 across, 9 down to the second's lower end, 2 across, 12.5 up.
  np.testing.assert_allclose(rewards.sum(), 38, atol=0.01)


def test_the_distance_without_walls_is_that_of_a_chess_king():
  maze = point_maze.PointMaze("open")
  positions = free_positions(maze, 200)
  distances = jax.vmap(maze.distance)(positions)
  expected = np.abs(np.asarray(positions) - [0.8, 0.8]).max(-1) / 0.1
  # Interpolation is off by at most a quarter of a cell, 0.025 / 4 / 0.1.
  np.testing.assert_allclose(distances, expected, atol=0.0626)
  assert maze.distance(jnp.array([1.0, -1.0])) == pytest.approx(18, abs=1e-4)


@pytest.mark.parametrize("layout, highest", [("open", 1.125), ("maze", 2.125)])
def test_rewards_are_bounded_and_add_up_to_the_distance(layout, highest):
  maze = point_maze.PointMaze(layout)
  actions = np.random.default_rng(2).choice([-1.0, 1.0], (100, 500, 2))
  path, rewards = walk(maze, free_positions(maze, 500), jnp.asarray(actions))
  assert 0.99 < rewards.max() <= highest
  assert -highest <= rewards.min() < -0.99
  distance = jax.vmap(maze.distance)
  np.testing.assert_allclose(
    rewards.sum(axis=0), distance(path[0]) - distance(path[-1]), atol=1e-3)
