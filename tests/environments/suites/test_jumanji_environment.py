"""Tests of environments of jumanji, compared with jumanji's own functions."""

import jax
import numpy as np
import pytest

from qdrl_haiku import environments, specs, trees
from qdrl_haiku.environments.suites import jumanji_environment

jumanji = pytest.importorskip(
  "jumanji", reason="jumanji is not installed (the extra [jumanji])")
make = jumanji_environment.make_jumanji_environment


@pytest.mark.parametrize(("name", "num_actions", "seen", "limit"), [
  ("Maze-v0", 4, 7, 100),  # Its positions are named tuples in a named tuple.
  ("Snake-v1", 4, 3, 4000),
  ("Tetris-v0", 40, 4, 400),  # Rotation and column.
  ("TSP-v1", 20, 4, 1000)])  # Has no limit of its own.
def test_steps_are_those_of_jumanji(name, num_actions, seen, limit):
  one, length = make(name)
  plain = jumanji.make(name)
  assert length == limit
  assert one.action_spec == specs.Discrete(num_actions)
  state = jax.jit(one.reset)(jax.random.key(0))
  plain_state, timestep = jax.jit(plain.reset)(jax.random.key(0))
  step, plain_step = jax.jit(one.step), jax.jit(plain.step)
  ended = 0
  for action in one.action_spec.sample(jax.random.key(1), 12):
    assert isinstance(state.obs, dict)
    for x, y in zip(
      trees.tree_leaves_by_name(state.obs).values(),
      _leaves_by_name(timestep.observation), strict=True):
      np.testing.assert_array_equal(x, y)
    assert len(jax.tree.leaves(state.obs)) == seen
    if name == "Tetris-v0":
      action = np.array(divmod(int(action), 10), np.int32)
      state = step(state, 10 * action[0] + action[1])
    else:
      state = step(state, action)
    plain_state, timestep = plain_step(plain_state, action)
    assert state.reward == timestep.reward
    assert state.done == timestep.last()
    assert not state.info["truncation"]
    ended += int(state.done)
  assert ended or name == "Maze-v0"


def _leaves_by_name(observation):
  """Returns the leaves of named tuples, sorted by name at each level."""
  if not hasattr(observation, "_asdict"):
    return [observation]
  return [
    leaf for _, x in sorted(observation._asdict().items())
    for leaf in _leaves_by_name(x)]


def test_what_ends_an_episode_is_not_bootstrapped_from():
  env = environments.create("jumanji:Snake-v1")
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  for _ in range(12):  # The board is twelve wide: a wall is met.
    state = env.step(state, np.array([1, 1]))
    if state.done.all():
      break
  assert (state.done == 1).any()
  np.testing.assert_array_equal(state.info["discount"], 1 - state.done)


def test_a_board_and_a_mask_are_seen_as_one_vector():
  config = environments.EnvironmentConfig(
    env_name="jumanji:SlidingTilePuzzle-v0", env_arguments=("time_limit=9",))
  env = config.make()
  assert env.episode_length == 9
  seen = specs.as_vector(
    env.reset(jax.random.split(jax.random.key(0), 3)).obs,
    env.observation_spec)
  assert seen.shape == (3, specs.observation_size(env.observation_spec))


@pytest.mark.parametrize(("name", "arguments", "message"), [
  ("Snake-v0", (), "'jumanji:Snake-v0' is unknown; did you .*'Snake-v1'"),
  ("Snake-v1", ("size=1",), "'jumanji:Snake-v1' can't be made: .*'size'"),
  ("Connector-v3", (), "Connector-v3' rewards each of several agents"),
  ("MultiCVRP-v0", (), "takes BoundedArray.* isn't one of 2 to 4096"),
  ("FlatPack-v0", (), "takes MultiDiscreteArray.* isn't one of 2 to 4096")])
def test_nonsense_is_refused_in_one_line(name, arguments, message):
  config = environments.EnvironmentConfig(
    env_name=f"jumanji:{name}", env_arguments=arguments)
  with pytest.raises(ValueError, match=message) as error:
    config.make()
  assert "\n" not in str(error.value)
