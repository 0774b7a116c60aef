"""Tests of environments of Gymnasium, compared with Gymnasium's own loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import actors, environments, learners, skills, specs
from qdrl_haiku.environments.suites import gymnasium_spaces
from tests.training import common

gymnasium = pytest.importorskip(
  "gymnasium", reason="Gymnasium is not installed (the extra [gymnasium])")
_INF = np.inf
_Box = gymnasium.spaces.Box
_LAST_ONLY = "the state that it returned last only; create another"


class _Counter(gymnasium.Env):
  """Counts its steps from a number below 1; the reward is the action.

  It terminates after `last` steps, and says NaN after `bad` steps. With
  `forgets` a seed doesn't decide where it begins.
  """

  observation_space = _Box(-_INF, _INF, (2, 1), np.float64)
  action_space = _Box(
    np.float32([-1, 2]), np.float32([3, 2.5]), dtype=np.float32)

  def __init__(self, last=_INF, bad=_INF, forgets=False):
    self.last, self.bad, self.forgets = last, bad, forgets

  def _observation(self):
    first = np.nan if self.steps == self.bad else self.steps + self.start
    return np.array([[first], [self.start]])

  def reset(self, *, seed=None, options=None):
    super().reset(seed=None if self.forgets else seed)
    self.steps, self.start = 0, self.np_random.uniform()
    return self._observation(), {}

  def step(self, action):
    self.steps += 1
    reward = float(action[0] + 100 * action[1])
    return self._observation(), reward, self.steps >= self.last, False, {}


class _Demanding(gymnasium.Env):
  """Must be given a size, and adds a weight to it."""

  action_space = observation_space = _Box(-1, 1, (2,))

  def __init__(self, size, weight=0):
    self.size = size + weight


class _Spaces(_Demanding):
  """Has the spaces that it's given."""

  def __init__(self, action=None, observation=None):
    self.action_space = action or _Demanding.action_space
    self.observation_space = observation or _Demanding.observation_space


@pytest.fixture(autouse=True)
def _registered():
  before = dict(gymnasium.registry)
  gymnasium.register("Counter-v0", _Counter, max_episode_steps=5)
  gymnasium.register("Spaces-v0", _Spaces)
  gymnasium.register("Demanding-v0", _Demanding)
  yield
  gymnasium.registry.clear()
  gymnasium.registry.update(before)


def _keys(num):
  return jax.random.split(jax.random.key(0), num)


def _counter(**kwargs):
  return environments.create("gymnasium:Counter-v0", **kwargs)


def _run(env, num_steps, ages=None):
  """States of some steps of two instances, with actions of 0."""
  state = env.reset(_keys(2))
  if ages is not None:
    state = state.replace(info=state.info | {"steps": jnp.array(ages)})
  states = [state]
  for _ in range(num_steps):
    states.append(env.step(states[-1], jnp.zeros((2, env.action_size))))
  return states


def test_rewards_and_observations_are_those_of_a_plain_loop():
  env = environments.create("gymnasium:Pendulum-v1", episode_length=20)
  keys = jax.random.split(jax.random.key(3), 2)
  state = env.reset(keys[:, None])
  assert state.obs.shape == (2, 1, 3)
  plain = [gymnasium.make("Pendulum-v1") for _ in keys]

  def resets(keys):
    """Each by a seed that is drawn from the key that its instance has then."""
    seed_keys = jax.vmap(jax.random.split)(keys)[:, 1]
    seeds = [int(jax.random.bits(key, (), jnp.uint32)) for key in seed_keys]
    return [e.reset(seed=x)[0] for e, x in zip(plain, seeds, strict=True)]

  first = resets(keys)
  np.testing.assert_array_equal(state.obs[:, 0], first)
  rng = np.random.default_rng(0)
  for step in range(1, 21):
    action = rng.uniform(-1, 1, (2, 1, 1)).astype(np.float32)
    before, state = state, env.step(state, jnp.asarray(action))
    done = [e.step(2 * a) for e, a in zip(plain, action[:, 0], strict=True)]
    info = state.info
    np.testing.assert_array_equal(
      info["next_observation"][:, 0], [x[0] for x in done])
    np.testing.assert_allclose(
      state.reward[:, 0], [x[1] for x in done], rtol=1e-6)
    is_last = step == 20
    np.testing.assert_array_equal(state.done, is_last)
    np.testing.assert_array_equal(info["truncation"], is_last)
    np.testing.assert_array_equal(info["discount"], 1)
    np.testing.assert_array_equal(info["steps"], 0 if is_last else step)
  # The next episode begins from the instance's own key.
  fresh = resets(before.info["key"][:, 0])
  np.testing.assert_array_equal(state.obs[:, 0], fresh)
  assert not np.array_equal(fresh, first)


def test_each_instance_has_episodes_of_its_own():
  states = _run(_counter(), 6, ages=[0, 3])
  assert [s.done.tolist() for s in states] == [
    [0, 0], [0, 0], [0, 1], [0, 0], [0, 0], [1, 0], [0, 0]]
  # Only the instance whose episode ends is reset.
  counts = [(s.obs[:, 0] - s.obs[:, 1]).round().tolist() for s in states]
  assert counts == [[0, 0], [1, 1], [2, 0], [3, 1], [4, 2], [0, 3], [1, 4]]
  assert states[5].info["next_observation"][0, 0] - 5 == pytest.approx(
    float(states[0].obs[0, 1]), abs=1e-5)
  # No episode begins as another did.
  starts = {float(s.obs[i, 1]) for s in states for i in range(2)}
  assert len(starts) == 4


def _advanced(env, state, num_steps):
  """The states after steps with actions of the step's number, up to 1."""
  states = [state]
  for i in range(num_steps):
    actions = jnp.full((2, 1, env.action_size), 0.1 * (i % 10))
    states.append(env.step(states[-1], actions))
  return states


@pytest.mark.parametrize("num_steps", [0, 7])
def test_another_environment_goes_on_from_a_state(num_steps):
  # At the second instance's age, the first of episodes of 5 steps is shorter.
  def begin(env):
    state = env.reset(_keys(2)[:, None])
    ages = jnp.array([[0], [2]])
    return state.replace(info=state.info | {"steps": ages})

  env, other = (
    environments.create("gymnasium:Pendulum-v1", episode_length=5)
    for _ in range(2))
  state = _advanced(env, begin(env), num_steps)[-1]
  other.restore(state)
  for found, expected in zip(
    _advanced(other, state, 6), _advanced(env, state, 6), strict=True
  ):
    common.assert_bits_equal(found, expected)


def test_what_does_not_repeat_itself_is_refused():
  env = _counter(forgets=True)
  state = _run(env, 2)[-1]
  with pytest.raises(ValueError, match="else after the same seed.*warm_start"):
    _counter(forgets=True).restore(state)


def test_terminations_are_told_from_truncations_and_evaluation_sees_both():
  # At the last step of all, a termination is a termination.
  env = _counter(last=2, episode_length=2)
  *_, before, end = _run(env, 2)
  assert (before.done.tolist(), end.done.tolist()) == ([0, 0], [1, 1])
  assert end.info["discount"].tolist() == [0, 0]
  assert end.info["truncation"].tolist() == [0, 0]
  for count in (1, 2):
    end = env.advance(end, jnp.zeros((2, 2)))
    np.testing.assert_allclose(end.obs[:, 0] - end.obs[:, 1], count, rtol=1e-5)
  assert end.done.tolist() == [1, 1]


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


def test_an_instance_that_breaks_is_truncated_and_reset():
  # Though it also terminates.
  *_, broken, after = _run(_counter(bad=2, last=2), 3)
  assert np.isnan(broken.info["next_observation"][:, 0]).all()
  assert broken.info["truncation"].tolist() == broken.done.tolist() == [1, 1]
  assert broken.info["discount"].tolist() == [1, 1]
  assert np.isfinite(broken.obs).all() and np.isfinite(after.obs).all()


def test_instances_may_have_skills():
  env, other = (
    environments.SkillEnvironment(
      _counter(last=2), skills.categorical(3), "episode")
    for _ in range(2))
  state = env.reset(jax.random.key(0)[None])
  for step in range(1, 4):
    skill = state.info["skill"]
    state = env.step(state, jnp.zeros((1, 2)))
    np.testing.assert_array_equal(state.info["next_observation"][:, 2:], skill)
    np.testing.assert_array_equal(state.obs[:, 2:], state.info["skill"])
    assert state.done.tolist() == [step == 2]
  other.restore(state)
  state = other.advance(state, jnp.zeros((1, 2)))
  np.testing.assert_array_equal(state.obs[:, 2:], state.info["skill"])


def test_only_the_last_state_can_be_stepped():
  env = _counter()
  # More steps than an int32 counts go on.
  env._ticket = np.array([[2**31 - 2, 0]])
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


@pytest.mark.parametrize(("low", "high", "dtype", "actions", "expected"), [
  # Fifths of [-1, 1] end at -0.6, -0.2, 0.2 and 0.6.
  (-2, 2, np.int32,
   [-1, -0.61, -0.59, -0.21, -0.19, 0.19, 0.21, 0.59, 0.61, 1],
   [-2, -2, -1, -1, 0, 0, 1, 1, 2, 2]),
  (0, 1, np.bool_, [-1, -0.01, 0.01, 1], [False, False, True, True]),
  # Outside is the border, and NaN the middle.
  (0, 4, np.int64, [-9, 9, np.nan, np.inf], [0, 4, 2, 4]),
  # Each axis has its own shares.
  ([0, -1], [1, 3], np.int64, [[-0.1, -0.1], [1, 0.65]], [[0, 1], [1, 3]])])
def test_integers_have_equal_shares(low, high, dtype, actions, expected):
  space = _Box(np.atleast_1d(low), np.atleast_1d(high), dtype=dtype)
  acted = gymnasium_spaces.scale_action(np.array(actions), space)
  assert acted.dtype == dtype
  assert acted.reshape(np.shape(expected)).tolist() == expected


_SHORT = np.float32([-1, -1]), np.float32([1, _INF])


@pytest.mark.parametrize(("env_id", "kwargs", "message"), [
  ("Spaces-v0", {"action": gymnasium.spaces.MultiBinary(2)},
   r"action_space of 'gymnasium:Spaces-v0' is MultiBinary\(2\); only a Box or "
   r"a Discrete can be learned with. In a module of yours, "
   r"gymnasium.register\('Mine-v0', .*wrappers.TransformAction, then give"),
  ("Spaces-v0", {"action": gymnasium.spaces.MultiDiscrete([2, 3])},
   r"action_space .* is MultiDiscrete\(\[2 3\]\); .*wrappers.TransformAction"),
  ("Pendulom-v1", {}, "env_name='gymnasium:Pendulom-v1' can't be .*Pendulum"),
  ("Spaces-v0", {"observation": gymnasium.spaces.Text(2)},
   "the observation_space .*only a Box or a Dis.*FlattenObservation, then"),
  ("Spaces-v0", {"action": _Box(*_SHORT)}, r"has no bounds.* axis \[1\] goes"),
  ("Demanding-v0", {}, "can't be made: .*missing .*'size'")])
def test_nonsense_is_refused_in_one_line(env_id, kwargs, message):
  with pytest.raises(ValueError, match=message) as error:
    environments.create(f"gymnasium:{env_id}", **kwargs)
  assert "\n" not in str(error.value)


class _Camera(gymnasium.Env):
  """Shows how often each of its actions was taken, and which was the last."""

  observation_space = gymnasium.spaces.Dict({
    "picture": _Box(0, 255, (3, 2, 1), np.uint8),
    "counts": _Box(0, 255, (3, 1), np.float64),
    "last": gymnasium.spaces.Tuple((
      gymnasium.spaces.Discrete(3, start=5), gymnasium.spaces.MultiBinary(3)))})
  action_space = gymnasium.spaces.Discrete(3, start=5)

  def _observation(self, action):
    counts = np.array(self.counts)[:, None]
    picture = np.repeat(counts, 2, axis=1)[..., None].astype(np.uint8)
    was = (np.arange(3) == action - 5).astype(np.int8)
    return {
      "picture": picture, "counts": counts.astype(float), "last": (action, was)}

  def reset(self, *, seed=None, options=None):
    self.counts = [0, 0, 0]
    return self._observation(5), {}

  def step(self, action):
    self.counts[action - 5] += 1
    return self._observation(action), 0.0, False, False, {}


def test_pictures_dicts_tuples_and_discrete_actions_are_collected():
  gymnasium.register("Camera-v0", _Camera, max_episode_steps=4)
  env, other = (environments.create("gymnasium:Camera-v0") for _ in range(2))
  assert env.action_spec == specs.Discrete(3)
  one_hot = specs.Array((3,), "float32", 0, 1)
  assert env.observation_spec == {
    "picture": specs.Array((3, 2, 1), "uint8", 0, 255),
    "counts": specs.Array((3,), "float32", 0, 255),
    "last": (one_hot, one_hot)}
  learner = learners.ppo(env.observation_spec, env.action_spec)
  keys = _keys(2)
  states, hyperparams = jax.vmap(
    lambda key: (learner.init(key), learner.hyperparams))(keys)
  state, transitions = actors.collect(
    env, learner, states, hyperparams, env.reset(keys[:, None]), keys, 2)
  one_hots = np.eye(3)[transitions.action[..., 0]]  # [P, T, 3], of each step.
  seen = jax.tree.map(lambda x: x[:, :, 0], transitions.next_observation)
  for last in seen["last"]:
    np.testing.assert_array_equal(last, one_hots)
  counts = one_hots.cumsum(axis=1)
  np.testing.assert_array_equal(seen["counts"], counts)
  assert seen["picture"].dtype == jnp.uint8
  np.testing.assert_array_equal(seen["picture"][..., 1, 0], counts)
  other.restore(state)
  after = other.step(state, jnp.zeros((2, 1), jnp.int32)).obs["counts"][:, 0]
  np.testing.assert_array_equal(after, counts[:, -1] + [1, 0, 0])


def test_settings_reach_the_constructor_and_its_mistakes_the_user():
  assert environments.create("gymnasium:Spaces-v0").episode_length == 1000
  assert environments.create("gymnasium:Demanding-v0", size=1).action_size == 2
  with pytest.raises(ValueError, match="unsupported operand"):
    environments.create("gymnasium:Demanding-v0", size=1, weight="heavy")
