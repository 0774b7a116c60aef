"""Tests of which of Gymnasium's spaces are taken, and how they are acted in."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments import gymnasium_spaces

gymnasium = pytest.importorskip(
  "gymnasium", reason="Gymnasium is not installed (the extra [gymnasium])"
)
_Box = gymnasium.spaces.Box


class _Recorder(gymnasium.Env):
  """Takes only actions of its space, and writes them down."""

  acted: list = []

  def __init__(self, action=None, observation=None):
    self.action_space = action or _Box(-1, 1, (2,))
    self.observation_space = observation or _Box(-1, 1, (2,))

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.observation_space.seed(seed)
    return self.observation_space.sample(), {}

  def step(self, action):
    assert self.action_space.contains(action), action
    _Recorder.acted.append(np.asarray(action).tolist())
    return self.observation_space.sample(), 1.0, False, False, {}


class _Demanding(gymnasium.Env):
  """Must be given a size, and adds a weight to it."""

  action_space = observation_space = _Box(-1, 1, (2,))

  def __init__(self, size, weight=0):
    self.size = size + weight


@pytest.fixture(autouse=True)
def _registered():
  before = dict(gymnasium.registry)
  gymnasium.register("Recorder-v0", _Recorder)
  gymnasium.register("Demanding-v0", _Demanding)
  yield
  gymnasium.registry.clear()
  gymnasium.registry.update(before)


def _integers(low, high, dtype, actions):
  space = _Box(np.array([low]), np.array([high]), dtype=dtype)
  acted = gymnasium_spaces.scaled(np.array(actions)[:, None], space)
  assert acted.dtype == dtype
  return acted[:, 0].tolist()


@pytest.mark.parametrize(("low", "high", "dtype", "actions", "expected"), [
  (0, 1, np.int64, [-1, -0.01, 0, 0.01, 1], [0, 0, 1, 1, 1]),
  # Fifths of [-1, 1] end at -0.6, -0.2, 0.2 and 0.6.
  (
    -2, 2, np.int32,
    [-1, -0.61, -0.59, -0.21, -0.19, 0.19, 0.21, 0.59, 0.61, 1],
    [-2, -2, -1, -1, 0, 0, 1, 1, 2, 2],
  ),
  (-128, 127, np.int8, [-1, -0.01, 0.001, 0.995, 1], [-128, -2, 0, 127, 127]),
  (0, 255, np.uint8, [-1, 0, 1], [0, 128, 255]),
  (3, 3, np.int64, [-1, 0, 1], [3, 3, 3]),
  (0, 1, np.bool_, [-1, -0.01, 0.01, 1], [False, False, True, True]),
  # Outside is the border, and NaN the middle.
  (0, 4, np.int64, [-9, 9, np.nan, np.inf], [0, 4, 2, 4]),
])  # fmt: skip
def test_integers_are_acted_in_equal_shares(
  low, high, dtype, actions, expected
):
  assert _integers(low, high, dtype, actions) == expected


def test_each_integer_is_acted_equally_often():
  actions = (np.arange(10_000) + 0.5) / 5000 - 1
  for low, high, dtype in ((0, 1, int), (-2, 2, int), (-5, 4, np.int8)):
    acted = _integers(low, high, dtype, actions)
    counts = np.unique(acted, return_counts=True)[1]
    np.testing.assert_array_equal(counts, 10_000 // (high - low + 1))


def test_each_axis_of_integers_has_its_own_shares():
  space = _Box(np.array([[0, -1]]), np.array([[1, 3]]), dtype=np.int64)
  actions = np.array([[-0.1, -0.1], [0.1, 0.65], [1, -1]])
  acted = gymnasium_spaces.scaled(actions, space)
  assert acted.tolist() == [[[0, 1]], [[1, 3]], [[1, -1]]]


@pytest.mark.parametrize("low, high", [
  (-np.inf, np.inf),
  (np.finfo(np.float32).min, np.finfo(np.float32).max),
  (-3.4e38, 3.4e38),
  (0, 1e20),
  (np.float32([-1, -1]), np.float32([1, np.inf])),
])
def test_bounds_that_are_none_are_refused(low, high):
  shape = np.shape(low) or (2,)
  kwargs = {"action": _Box(low, high, shape, np.float32)}
  with pytest.raises(ValueError, match=r"has no bounds.*its axis \[[01]\] g"):
    environments.create("gymnasium:Recorder-v0", **kwargs)


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_the_greatest_numbers_of_a_dtype_are_no_bounds(dtype):
  info = np.finfo if dtype == np.float64 else np.iinfo
  action = _Box(info(dtype).min, info(dtype).max - 1, (1,), dtype)
  with pytest.raises(ValueError, match="has no bounds"):
    environments.create("gymnasium:Recorder-v0", action=action)


_SPACES = gymnasium.spaces


@pytest.mark.parametrize(("space", "first", "last"), [
  (_Box(-np.inf, np.inf, (2,), np.float32), [-1, -1], [1, 1]),
  (_SPACES.Discrete(3, start=-1), -1, 1),
  (_SPACES.MultiBinary(2), [0, 0], [1, 1]),
  (_SPACES.MultiDiscrete([2, 3], start=[0, -2]), [0, -2], [1, 0]),
])
def test_advice_about_actions_works_as_it_stands(
  space, first, last, tmp_path, monkeypatch
):
  gymnasium.register("Given-v0", lambda: _Recorder(action=space))
  env = _advised("Given-v0", "action_space", tmp_path, monkeypatch)
  _Recorder.acted.clear()
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  ends = jnp.array([[-1.0], [1.0]]) * jnp.ones(env.action_size)
  jax.block_until_ready(env.step(state, ends))
  assert _Recorder.acted == [first, last]


@pytest.mark.parametrize(("space", "size"), [
  (_SPACES.Discrete(3), 3),
  (_SPACES.Dict({"a": _SPACES.Discrete(2), "b": _Box(-1, 1, (3,))}), 5),
  (_SPACES.Tuple([_SPACES.MultiBinary(2)]), 2),
])
def test_advice_about_observations_works_as_it_stands(
  space, size, tmp_path, monkeypatch
):
  gymnasium.register("Given-v0", lambda: _Recorder(observation=space))
  env = _advised("Given-v0", "observation_space", tmp_path, monkeypatch)
  assert env.observation_size == size
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  assert np.isfinite(env.step(state, jnp.zeros((2, 2))).obs).all()


def _advised(env_id, space, folder, monkeypatch):
  """Does what the refusal of a space says, in a module in a new folder."""
  with pytest.raises(ValueError, match=space) as error:
    environments.create(f"gymnasium:{env_id}")
  code, name = re.search(
    "In a module of yours, (.*); then give 'gymnasium:your_module:(.*?)'",
    str(error.value),
  ).groups()
  module = f"module_{folder.name}"
  (folder / f"{module}.py").write_text(
    f"import gymnasium\nimport numpy\n{code}\n"
  )
  monkeypatch.chdir(folder)
  monkeypatch.setattr(sys, "path", list(sys.path))
  return environments.create(f"gymnasium:{module}:{name}")


def test_an_image_of_integers_is_observed_as_numbers():
  image = _Box(0, 255, (2, 3, 3), np.uint8)
  env = environments.create("gymnasium:Recorder-v0", observation=image)
  state = env.reset(jax.random.split(jax.random.key(0), 4))
  assert state.obs.shape == (4, 18) and state.obs.dtype == jnp.float32
  assert float(state.obs.max()) > 127


@pytest.mark.parametrize(("kwargs", "message"), [
  ({"action": _Box(-1, 1, (0,))}, r"action_space .* shape \(0,\).* empty"),
  ({"observation": _Box(-1, 1, (0,))}, "observation_space .* is empty"),
  (
    {"action": gymnasium.spaces.Dict({"a": _Box(-1, 1)})},
    "is Dict.*only a Box .* Wrap it so that its actions are a Box",
  ),
])
def test_other_spaces_are_refused_in_one_line(kwargs, message):
  with pytest.raises(ValueError, match=message) as error:
    environments.create("gymnasium:Recorder-v0", **kwargs)
  assert "\n" not in str(error.value)


def test_a_constructors_missing_argument_is_named_and_how_to_give_it():
  with pytest.raises(ValueError, match="missing .*'size'") as error:
    environments.create("gymnasium:Demanding-v0")
  assert "env_name='gymnasium:Demanding-v0'" in str(error.value)
  assert "gymnasium.register(..., kwargs={'size': ...})" in str(error.value)
  assert "environments.create(..., size=...)" in str(error.value)
  assert "\n" not in str(error.value)
  # Both ways work.
  assert environments.create("gymnasium:Demanding-v0", size=1).action_size == 2
  gymnasium.register("Sized-v0", _Demanding, kwargs={"size": 1})
  assert environments.create("gymnasium:Sized-v0").action_size == 2


def test_an_argument_that_a_constructor_does_not_take_is_named():
  with pytest.raises(ValueError, match="unexpected keyword .*'sise'"):
    environments.create("gymnasium:Demanding-v0", size=1, sise=2)


def test_a_mistake_inside_a_constructor_is_shown_where_it_is():
  with pytest.raises(TypeError, match="unsupported operand"):
    environments.create("gymnasium:Demanding-v0", size=1, weight="heavy")
