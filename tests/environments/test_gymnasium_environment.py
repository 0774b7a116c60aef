"""Tests of environments of Gymnasium, compared with Gymnasium's own loop."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments import gymnasium_environment

gymnasium = pytest.importorskip(
  "gymnasium", reason="Gymnasium is not installed (the extra [gymnasium])"
)
_INF = np.inf
_SPACES = gymnasium.spaces
_Box = _SPACES.Box
_LAST_ONLY = "the state that it returned last only; create another"


class _Counter(gymnasium.Env):
  """Counts its steps from a number below 1; the reward is the action.

  It terminates after `last` steps, and says NaN after `bad` steps.
  """

  observation_space = _Box(-_INF, _INF, (2, 1), np.float64)
  action_space = _Box(
    np.float32([-1, 2]), np.float32([3, 2.5]), dtype=np.float32
  )

  def __init__(self, last=_INF, bad=_INF):
    self.last, self.bad = last, bad

  def _observation(self):
    first = np.nan if self.steps == self.bad else self.steps + self.start
    return np.array([[first], [self.start]])

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.steps, self.start = 0, self.np_random.uniform()
    return self._observation(), {}

  def step(self, action):
    self.steps += 1
    reward = float(action[0] + 100 * action[1])
    return self._observation(), reward, self.steps >= self.last, False, {}


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
  gymnasium.register("Counter-v0", _Counter, max_episode_steps=5)
  gymnasium.register("Recorder-v0", _Recorder)
  gymnasium.register("Demanding-v0", _Demanding)
  yield
  gymnasium.registry.clear()
  gymnasium.registry.update(before)


def _keys(num):
  return jax.random.split(jax.random.key(0), num)


def _counter(**kwargs):
  return environments.create("gymnasium:Counter-v0", **kwargs)


def _run(env, num_steps, num_envs=2, ages=None):
  """States of some steps with actions of 0."""
  state = env.reset(_keys(num_envs))
  if ages is not None:
    state = state.replace(info=state.info | {"steps": jnp.array(ages)})
  states = [state]
  for _ in range(num_steps):
    actions = jnp.zeros((num_envs, env.action_size))
    states.append(env.step(states[-1], actions))
  return states


def _seeds(keys):
  """With which an instance's episode begins, from the key that it had then."""
  seed_keys = jax.vmap(jax.random.split)(keys)[:, 1]
  return [int(jax.random.bits(key, (), jnp.uint32)) for key in seed_keys]


def test_rewards_and_observations_are_those_of_a_plain_loop():
  env = environments.create("gymnasium:Pendulum-v1", episode_length=20)
  assert (env.observation_size, env.action_size) == (3, 1)
  keys = jax.random.split(jax.random.key(3), 2)
  state = env.reset(keys[:, None])
  assert state.obs.shape == (2, 1, 3)
  plain = [gymnasium.make("Pendulum-v1") for _ in keys]

  def resets(keys):
    both = zip(plain, _seeds(keys), strict=True)
    return [e.reset(seed=seed)[0] for e, seed in both]

  first = resets(keys)
  np.testing.assert_array_equal(state.obs[:, 0], first)
  rng = np.random.default_rng(0)
  for step in range(1, 21):
    action = rng.uniform(-1, 1, (2, 1, 1)).astype(np.float32)
    before = state
    state = env.step(state, jnp.asarray(action))
    done = [e.step(2 * a) for e, a in zip(plain, action[:, 0], strict=True)]
    np.testing.assert_array_equal(
      state.info["next_observation"][:, 0], [x[0] for x in done]
    )
    np.testing.assert_allclose(
      state.reward[:, 0], [x[1] for x in done], rtol=1e-6
    )
    is_last = step == 20
    np.testing.assert_array_equal(state.done, is_last)
    np.testing.assert_array_equal(state.info["truncation"], is_last)
    np.testing.assert_array_equal(state.info["discount"], 1)
    np.testing.assert_array_equal(state.info["steps"], 0 if is_last else step)
  # The next episode begins from the instance's own key.
  fresh = resets(before.info["key"][:, 0])
  np.testing.assert_array_equal(state.obs[:, 0], fresh)
  assert not np.array_equal(fresh, first)


def test_terminations_are_told_from_truncations():
  states = _run(_counter(last=3), 4)
  assert [s.done.tolist() for s in states] == [
    [0, 0], [0, 0], [0, 0], [1, 1], [0, 0]
  ]  # fmt: skip
  assert states[3].info["discount"].tolist() == [0, 0]
  assert states[3].info["truncation"].tolist() == [0, 0]
  # At the last step of all, a termination is a termination.
  both = _run(_counter(last=5), 5)[5]
  assert both.info["discount"].tolist() == [0, 0]


def test_each_instance_has_episodes_of_its_own():
  states = _run(_counter(), 6, ages=[0, 3])
  assert [s.done.tolist() for s in states] == [
    [0, 0], [0, 0], [0, 1], [0, 0], [0, 0], [1, 0], [0, 0]
  ]  # fmt: skip
  # Only the instance whose episode ends is reset.
  counts = [(s.obs[:, 0] - s.obs[:, 1]).round().tolist() for s in states]
  assert counts == [[0, 0], [1, 1], [2, 0], [3, 1], [4, 2], [0, 3], [1, 4]]
  assert states[5].info["next_observation"][0, 0] - 5 == pytest.approx(
    float(states[0].obs[0, 1]), abs=1e-5
  )
  # No episode begins as another did.
  starts = {float(s.obs[i, 1]) for s in states for i in range(2)}
  assert len(starts) == 4


def test_actions_are_scaled_to_the_bounds_and_nan_is_the_middle():
  env = _counter()
  assert (env.observation_size, env.action_size) == (2, 2)
  state = env.reset(_keys(4))
  actions = jnp.array([[-1.0, 1.0], [1.0, -1.0], [jnp.nan, 0.0], [9.0, -9.0]])
  state = env.step(state, actions)
  np.testing.assert_allclose(state.reward, [249, 203, 226, 203], rtol=1e-6)
  # An action that isn't finite ends the episode.
  assert state.info["truncation"].tolist() == [0, 0, 1, 0]
  assert state.info["steps"].tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize("last", [_INF, 2])
def test_an_instance_that_breaks_is_truncated_and_reset(last):
  states = _run(_counter(bad=2, last=last), 3)
  assert np.isnan(states[2].info["next_observation"][:, 0]).all()
  for values in (states[2].done, *map(states[2].info.get, (
    "truncation", "discount"
  ))):  # fmt: skip
    assert values.tolist() == [1, 1]
  assert np.isfinite(states[2].obs).all() and np.isfinite(states[3].obs).all()


def test_only_the_last_state_can_be_stepped():
  env = _counter()
  env._clock = 2**31 - 2  # More steps than an int32 counts go on.
  states = _run(env, 1)
  copied = jax.tree.map(lambda x: x[jnp.array([0, 0])], states[1])
  # Nor can one instance be in two places.
  for state in (states[0], copied):
    with pytest.raises(Exception, match=_LAST_ONLY):
      jax.block_until_ready(env.step(state, jnp.zeros((2, 2))))
  # A reset takes all of the instances.
  env.reset(_keys(3))
  with pytest.raises(Exception, match=_LAST_ONLY):
    jax.block_until_ready(env.step(states[1], jnp.zeros((2, 2))))
  with pytest.raises(ValueError, match="pool has no effect on the host"):
    env.step(states[1], jnp.zeros((2, 2)), states[1])


def test_evaluation_sees_the_ends_of_episodes():
  env = _counter(last=1)
  state = env.advance(env.reset(_keys(2)), jnp.zeros((2, 2)))
  assert state.done.tolist() == [1, 1]
  counts = state.obs[:, 0] - state.obs[:, 1]
  np.testing.assert_allclose(counts, [1, 1], rtol=1e-5)


@pytest.mark.parametrize(("low", "high", "dtype", "actions", "expected"), [
  (0, 1, np.int64, [-1, -0.01, 0, 0.01, 1], [0, 0, 1, 1, 1]),
  # Fifths of [-1, 1] end at -0.6, -0.2, 0.2 and 0.6.
  (
    -2, 2, np.int32,
    [-1, -0.61, -0.59, -0.21, -0.19, 0.19, 0.21, 0.59, 0.61, 1],
    [-2, -2, -1, -1, 0, 0, 1, 1, 2, 2],
  ),
  (-128, 127, np.int8, [-1, -0.01, 0.001, 0.995, 1], [-128, -2, 0, 127, 127]),
  (3, 3, np.uint8, [-1, 0, 1], [3, 3, 3]),
  (0, 1, np.bool_, [-1, -0.01, 0.01, 1], [False, False, True, True]),
  # Outside is the border, and NaN the middle.
  (0, 4, np.int64, [-9, 9, np.nan, np.inf], [0, 4, 2, 4]),
  # Each axis has its own shares.
  ([0, -1], [1, 3], np.int64, [[-0.1, -0.1], [1, 0.65]], [[0, 1], [1, 3]]),
])  # fmt: skip
def test_integers_are_acted_in_equal_shares(
  low, high, dtype, actions, expected
):
  space = _Box(np.atleast_1d(low), np.atleast_1d(high), dtype=dtype)
  acted = gymnasium_environment.scaled(np.array(actions), space)
  assert acted.dtype == dtype
  assert acted.reshape(np.shape(expected)).tolist() == expected


@pytest.mark.parametrize("low, high, dtype", [
  (-_INF, _INF, np.float32),
  (np.finfo(np.float32).min, np.finfo(np.float32).max, np.float32),
  (np.finfo(np.float64).min, np.finfo(np.float64).max, np.float64),
  (np.iinfo(np.int64).min, np.iinfo(np.int64).max - 1, np.int64),
  (0, 1e20, np.float32),
  (np.float32([-1, -1]), np.float32([1, _INF]), np.float32),
])
def test_bounds_that_are_none_are_refused(low, high, dtype):
  action = _Box(low, high, np.shape(low) or (2,), dtype)
  with pytest.raises(ValueError, match=r"has no bounds.*its axis \[[01]\] g"):
    environments.create("gymnasium:Recorder-v0", action=action)


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


@pytest.mark.parametrize(("space", "first", "last"), [
  (_Box(-_INF, _INF, (2,), np.float32), [-1, -1], [1, 1]),
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
  ends = jnp.array([[-1.0], [1.0]]) * jnp.ones(env.action_size)
  jax.block_until_ready(env.step(env.reset(_keys(2)), ends))
  assert _Recorder.acted == [first, last]


def test_advice_about_observations_works_as_it_stands(tmp_path, monkeypatch):
  space = _SPACES.Dict({"a": _SPACES.Discrete(2), "b": _Box(-1, 1, (3,))})
  gymnasium.register("Given-v0", lambda: _Recorder(observation=space))
  env = _advised("Given-v0", "observation_space", tmp_path, monkeypatch)
  assert env.observation_size == 5
  assert np.isfinite(env.step(env.reset(_keys(2)), jnp.zeros((2, 2))).obs).all()


@pytest.mark.parametrize(("env_id", "kwargs", "message"), [
  ("CartPole-v1", {}, r"action_space of 'gymnasium:CartPole-v1' is Discrete\("),
  ("Pendulom-v1", {}, "env_name='gymnasium:Pendulom-v1' can't be .*Pendulum"),
  ("", {}, "env_name='gymnasium:' can't be made: "),
  ("no_module:A-v0", {}, "can't be made: .*no_module"),
  ("Pendulum-v1", {"backend": "spring"}, "backend='spring' .*; leave it out"),
  ("Pendulum-v1", {"action_repeat": 2}, "action_repeat=2 isn't done .*leave"),
  ("Pendulum-v1", {"episode_length": 0}, "episode_length=0 is not a count"),
  ("Recorder-v0", {"action": _Box(-1, 1, (0,))}, r"shape \(0,\).* empty"),
  (
    "Recorder-v0",
    {"observation": _Box(-1, 1, (0,))},
    "the observation_space of 'gymnasium:Recorder-v0' .* is empty",
  ),
  (
    "Recorder-v0",
    {"action": _SPACES.Dict({"a": _Box(-1, 1)})},
    "is Dict.*only a Box .* Wrap it so that its actions are a Box",
  ),
  ("Demanding-v0", {}, r"missing .*'size'; give .*register\(..., kwargs="),
  ("Demanding-v0", {"size": 1, "sise": 2}, "unexpected keyword .*'sise'"),
])
def test_nonsense_is_refused_in_one_line(env_id, kwargs, message):
  with pytest.raises(ValueError, match=message) as error:
    environments.create(f"gymnasium:{env_id}", **kwargs)
  assert "\n" not in str(error.value)


def test_settings_reach_the_constructor_and_its_mistakes_the_user():
  assert environments.create("gymnasium:Recorder-v0").episode_length == 1000
  assert _counter(episode_length=2).episode_steps == 2
  assert environments.create("gymnasium:Demanding-v0", size=1).action_size == 2
  with pytest.raises(TypeError, match="unsupported operand"):
    environments.create("gymnasium:Demanding-v0", size=1, weight="heavy")
