"""Tests of environments of Gymnasium, compared with Gymnasium's own loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import actors, environments
from tests import toy

gymnasium = pytest.importorskip(
  "gymnasium", reason="Gymnasium is not installed (the extra [gymnasium])"
)
_INF = np.inf


class _Counter(gymnasium.Env):
  """Counts its steps from a number below 1; the reward is the action.

  It terminates after `last` steps, and says NaN after `bad` steps.
  """

  observation_space = gymnasium.spaces.Box(-_INF, _INF, (2, 1), np.float64)
  action_space = gymnasium.spaces.Box(
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


class _Wrong(gymnasium.Env):
  """Has the spaces that it is told."""

  def __init__(self, observation=None, action=None):
    box = gymnasium.spaces.Box(-1, 1, (2,))
    self.observation_space = observation or box
    self.action_space = action or box


@pytest.fixture(autouse=True, scope="module")
def _registered():
  gymnasium.register("Counter-v0", _Counter, max_episode_steps=5)
  gymnasium.register("Wrong-v0", _Wrong)
  yield
  for name in ("Counter-v0", "Wrong-v0"):
    del gymnasium.registry[name]


def _seeds(keys):
  """With which an instance's episode begins, from the key that it had then."""
  seed_keys = jax.vmap(jax.random.split)(keys)[:, 1]
  return [int(jax.random.bits(key, (), jnp.uint32)) for key in seed_keys]


def test_rewards_and_observations_are_those_of_a_plain_loop():
  env = environments.create("gymnasium:Pendulum-v1")
  assert (env.observation_size, env.action_size) == (3, 1)
  assert env.episode_length == env.episode_steps == 200
  keys = jax.random.split(jax.random.key(3), 2)
  state = env.reset(keys[:, None])
  assert state.obs.shape == (2, 1, 3)
  plain = [gymnasium.make("Pendulum-v1") for _ in keys]
  first = [
    e.reset(seed=seed)[0] for e, seed in zip(plain, _seeds(keys), strict=True)
  ]
  np.testing.assert_array_equal(state.obs[:, 0], first)
  rng = np.random.default_rng(0)
  for step in range(1, 201):
    action = rng.uniform(-1, 1, (2, 1, 1)).astype(np.float32)
    before = state
    state = env.step(state, jnp.asarray(action))
    done = [
      e.step(2 * a) for e, a in zip(plain, action[:, 0], strict=True)
    ]
    np.testing.assert_array_equal(
      state.info["next_observation"][:, 0], [x[0] for x in done]
    )
    np.testing.assert_allclose(
      state.reward[:, 0], [x[1] for x in done], rtol=1e-6
    )
    is_last = step == 200
    assert [x[3] for x in done] == [is_last] * 2
    np.testing.assert_array_equal(state.done, is_last)
    np.testing.assert_array_equal(state.info["truncation"], is_last)
    np.testing.assert_array_equal(state.info["discount"], 1)
    np.testing.assert_array_equal(state.info["steps"], 0 if is_last else step)
  # The next episode begins from the instance's own key.
  fresh = [
    e.reset(seed=seed)[0]
    for e, seed in zip(plain, _seeds(before.info["key"][:, 0]), strict=True)
  ]
  np.testing.assert_array_equal(state.obs[:, 0], fresh)
  assert not np.array_equal(fresh, first)


def _counter(**kwargs):
  return environments.create("gymnasium:Counter-v0", **kwargs)


def _run(env, num_steps, num_envs=2, ages=None):
  """States of some steps with actions of 0."""
  state = env.reset(jax.random.split(jax.random.key(0), num_envs))
  if ages is not None:
    state = state.replace(info=state.info | {"steps": jnp.array(ages)})
  states = [state]
  for _ in range(num_steps):
    actions = jnp.zeros((num_envs, env.action_size))
    states.append(env.step(states[-1], actions))
  return states


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
  # What ends is reset, what doesn't goes on.
  counts = [(s.obs[:, 0] - s.obs[:, 1]).round().tolist() for s in states]
  assert counts == [[0, 0], [1, 1], [2, 0], [3, 1], [4, 2], [0, 3], [1, 4]]
  assert states[5].info["next_observation"][0, 0] - 5 == pytest.approx(
    float(states[0].obs[0, 1]), abs=1e-5
  )


def test_no_episode_begins_as_another_did():
  states = _run(_counter(episode_length=1), 3)
  starts = [float(x) for state in states for x in state.obs[:, 1]]
  assert len(set(starts)) == 8


def test_actions_are_scaled_to_the_bounds_and_nan_is_the_middle():
  env = _counter()
  assert (env.observation_size, env.action_size) == (2, 2)
  state = env.reset(jax.random.split(jax.random.key(0), 4))
  actions = jnp.array([[-1.0, 1.0], [1.0, -1.0], [jnp.nan, 0.0], [9.0, -9.0]])
  rewards = env.step(state, actions).reward
  np.testing.assert_allclose(rewards, [249, 203, 226, 203], rtol=1e-6)


def test_an_instance_that_breaks_is_reset():
  states = _run(_counter(bad=2), 3)
  assert np.isnan(states[2].info["next_observation"][:, 0]).all()
  assert states[2].info["truncation"].tolist() == [1, 1]
  assert np.isfinite(states[2].obs).all() and np.isfinite(states[3].obs).all()


def test_an_instance_that_breaks_at_its_end_is_truncated_not_terminated():
  state = _run(_counter(bad=2, last=2), 2)[2]
  assert state.done.tolist() == state.info["truncation"].tolist() == [1, 1]
  assert state.info["discount"].tolist() == [1, 1]


def test_an_action_that_is_not_finite_ends_the_episode():
  env = _counter()
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  state = env.step(state, jnp.zeros((2, 2)).at[1, 0].set(jnp.nan))
  assert state.info["truncation"].tolist() == [0, 1]
  assert state.info["steps"].tolist() == [1, 0]


def test_only_the_last_state_can_be_stepped():
  env = _counter()
  states = _run(env, 1)
  with pytest.raises(Exception, match="the state that it returned last only"):
    jax.block_until_ready(env.step(states[0], jnp.zeros((2, 2))))
  # Nor can one instance be in two places.
  copied = jax.tree.map(lambda x: x[jnp.array([0, 0])], states[1])
  with pytest.raises(Exception, match="the state that it returned last only"):
    jax.block_until_ready(env.step(copied, jnp.zeros((2, 2))))
  # A reset takes all of the instances.
  env.reset(jax.random.split(jax.random.key(0), 3))
  with pytest.raises(Exception, match="create another environment"):
    jax.block_until_ready(env.step(states[1], jnp.zeros((2, 2))))


def test_more_steps_than_an_int32_counts_go_on():
  env = _counter()
  env._clock = 2**31 - 2
  states = _run(env, 3)
  assert states[1].pipeline_state[:, 0].tolist() == [0, 0]
  with pytest.raises(Exception, match="the state that it returned last only"):
    jax.block_until_ready(env.step(states[1], jnp.zeros((2, 2))))


def test_evaluation_counts_the_first_episodes_and_sees_their_ends():
  env = _counter(last=3)
  learner = toy.linear_learner()._replace(
    act_greedy=lambda state, observation: jnp.zeros(
      (*observation.shape[:-1], 2)
    )
  )
  states = {"offset": jnp.zeros(2)}
  evaluation = jax.jit(
    lambda key: actors.evaluate(
      env, learner, states, key, 3, record=lambda state: state.obs
    )
  )(jax.random.key(0))
  assert evaluation.lengths.tolist() == [[3] * 3] * 2
  np.testing.assert_allclose(evaluation.returns, 3 * 226, rtol=1e-6)
  counts = evaluation.trajectory[..., 0] - evaluation.trajectory[..., 1]
  np.testing.assert_allclose(counts[0, 0, :3], [1, 2, 3], rtol=1e-5)


_SPACES = {
  "box": gymnasium.spaces.Box(-1, 1, (2,)),
  "free": gymnasium.spaces.Box(-_INF, _INF, (2,)),
  "dict": gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2)}),
}


@pytest.mark.parametrize(("env_id", "kwargs", "message"), [
  ("CartPole-v1", {}, r"action_space of 'gymnasium:CartPole-v1' is Discrete\("),
  ("Pendulom-v1", {}, "env_name='gymnasium:Pendulom-v1' can't be .*Pendulum"),
  ("", {}, "env_name='gymnasium:' can't be made: "),
  ("no_module:A-v0", {}, "can't be made: .*no_module"),
  ("Pendulum-v1", {"backend": "spring"}, "backend='spring' .*; leave it out"),
  ("Pendulum-v1", {"action_repeat": 2}, "action_repeat=2 isn't done .*leave"),
  ("Pendulum-v1", {"episode_length": 0}, "episode_length=0 must be at least 1"),
  ("Wrong-v0", {"action": _SPACES["free"]}, "has no bounds.*TransformAction"),
  (
    "Wrong-v0",
    {"observation": _SPACES["dict"]},
    "the observation_space of 'gymnasium:Wrong-v0' is Dict.*only a Box",
  ),
])
def test_nonsense_is_refused_in_one_line(env_id, kwargs, message):
  with pytest.raises(ValueError, match=message) as error:
    environments.create(f"gymnasium:{env_id}", **kwargs)
  assert "\n" not in str(error.value)


def test_what_has_no_limit_gets_one_and_settings_reach_the_constructor():
  assert environments.create("gymnasium:Wrong-v0").episode_length == 1000
  assert _counter(episode_length=2).episode_steps == 2
  assert _run(_counter(episode_length=2), 2)[2].done.tolist() == [1, 1]
