"""Tests of environments whose instances have skills."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import environments, skills, specs, types
from qdrl_haiku.actors import collection
from tests import toy

_PRIOR = skills.categorical(5)
_CIRCLE, _NORMAL = skills.sphere(2), skills.normal(3)
_LENGTH = 2
_WALK = environments.Environment(toy.Walk(), episode_length=_LENGTH)
# Its episodes end after different numbers of steps.
_COUNTDOWN = environments.Environment(toy.Countdown(3), episode_length=100)


@functools.cache
def _jitted(env):
  """Its reset and step, to be compiled once per shape."""
  return jax.jit(env.reset), jax.jit(env.step)


@functools.cache
def _make(sampling="fixed", prior=_PRIOR, env=_WALK):
  return environments.SkillEnvironment(env, prior, sampling)


def _keys(*shape, seed=0):
  return jax.random.split(jax.random.key(seed), shape)


def _states(env, num_steps, *shape):
  """The states after the reset and after each of some steps."""
  reset, step = _jitted(env)
  states = [reset(_keys(*shape))]
  action = jnp.full((*shape, env.action_size), 0.1)
  for _ in range(num_steps):
    states.append(step(states[-1], action))
  return states


def _episodes(env, num_episodes, *shape):
  """The skills in each of some episodes of `_LENGTH` steps, [episodes, ...]."""
  states = _states(env, _LENGTH * (num_episodes - 1), *shape)
  return np.stack([s.info["skill"] for s in states[::_LENGTH]])


@pytest.mark.parametrize(("sampling", "prior"), [
  ("fixed", _PRIOR), ("episode", _NORMAL)])
def test_skills_are_appended_and_nothing_else_is_changed(sampling, prior):
  env = _make(sampling, prior)
  with_skills, without = _states(env, 5, 4), _states(_WALK, 5, 4)
  assert env.observation_size == 2 + prior.size
  types = [jax.tree.map(jax.typeof, state) for state in with_skills]
  assert types[1:] == types[:-1]  # Of a reset as of a step.
  previous = with_skills[0].info["skill"]
  for state, plain in zip(with_skills, without, strict=True):
    skill = state.info.pop("skill")
    assert skill.shape == (4, prior.size)
    # Of the step just taken, though the next episode may have another.
    seen = jnp.append(plain.info["next_observation"], previous, axis=-1)
    expected = plain.replace(
      obs=jnp.append(plain.obs, skill, axis=-1),
      info=plain.info | {"next_observation": seen})
    keys = [x.info.pop("key") for x in (state, expected)]
    assert (keys[0] == keys[1]).all()  # NumPy takes no keys.
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    previous = skill


class _Parts(toy.Walk):
  """Observes a dict, of which policies see the steps alone."""

  observation_spec = None

  def _state(self, *args):
    state = super()._state(*args)
    x, steps = state.obs
    return state.replace(obs={
      "privileged": x[None], "rest": steps.astype(jnp.int32)})


def test_of_a_dict_the_skill_is_one_more_entry():
  parts = environments.Environment(_Parts(), episode_length=_LENGTH)
  env = environments.SkillEnvironment(parts, _PRIOR, keeps_returns=True)
  vectors = environments.SkillEnvironment(_WALK, _PRIOR, keeps_returns=True)
  assert env.observation_spec == parts.observation_spec | {
    "skill": specs.Array((5,))}
  both = (_states(x, 5, 3) for x in (env, vectors))
  for state, expected in zip(*both, strict=True):
    for seen, vector in (
      (state.obs, expected.obs),
      (state.info["next_observation"], expected.info["next_observation"]),
    ):
      np.testing.assert_array_equal(
        specs.as_vector(seen, env.observation_spec), vector)
    np.testing.assert_array_equal(
      state.info["skill_return"], expected.info["skill_return"])


def test_fixed_skills_are_dealt_out_as_evenly_as_possible():
  # Along the last axis: each member has all of them.
  episodes = _episodes(_make(), 3, 2, 7)[:, 1]
  assert sorted(episodes[0].sum(axis=0)) == [1, 1, 1, 2, 2]
  np.testing.assert_array_equal(episodes.sum(axis=-1), 1)
  # And they stay.
  np.testing.assert_array_equal(episodes, episodes[[0, 0, 0]])


@pytest.mark.parametrize(("shape", "shares"), [
  ((3,), [[0, 3], [1, 4], [2]]), ((), [[0, 1, 2, 3, 4]])])
def test_fewer_instances_than_skills_each_go_through_a_share(shape, shares):
  indices = _episodes(_make(), 7, *shape).argmax(axis=-1).reshape(7, -1)
  for i, share in enumerate(shares):
    assert indices[:, i].tolist() == (share * 7)[:7]


@pytest.mark.parametrize("sampling", ["fixed", "episode"])
def test_a_skill_changes_only_where_an_episode_ended(sampling):
  states = _states(_make(sampling, env=_COUNTDOWN), 12, 3)
  changed = 0
  for before, after in zip(states, states[1:], strict=False):
    differ = np.any(before.info["skill"] != after.info["skill"], axis=-1)
    ended = np.asarray(after.done) > 0
    assert not np.any(differ & ~ended)
    # Of three instances and five skills: the next one of two has another.
    if sampling == "fixed":
      expected = before.info["skill"].argmax(axis=-1) != 2
      np.testing.assert_array_equal(differ, ended & expected)
    changed += differ.sum()
  assert changed > 3


def test_episode_skills_are_drawn_from_the_prior_each_time():
  episodes = _episodes(_make("episode"), 3, 1000)
  first, second, third = episodes.argmax(axis=-1)
  for indices in (first, second, third):
    assert stats.chisquare(np.bincount(indices, minlength=5)).pvalue > 1e-3
  # Of an instance one after the other, and of neighbours: independent.
  for x, y in ((first, second), (second, third), (first[1:], first[:-1])):
    table = np.zeros((5, 5))
    np.add.at(table, (x, y), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_episode_skills_do_not_say_where_episodes_start():
  (state,) = _states(_make("episode", skills.normal(1)), 0, 2000)
  start, _, skill = np.asarray(state.obs).T
  assert stats.pearsonr(start, skill).pvalue > 1e-3
  assert stats.kstest(skill, "norm").pvalue > 1e-3


def test_fixed_continuous_skills_keep_their_draw_whatever_the_axes():
  episodes = _episodes(_make("fixed", _CIRCLE), 3, 4)
  np.testing.assert_array_equal(episodes, episodes[[0, 0, 0]])
  assert len(np.unique(episodes[0], axis=0)) == 4


def test_advance_keeps_the_skill_beyond_the_end():
  env = _make("episode")
  (state,) = _states(env, 0, 3)
  skill = state.info["skill"]
  for i in range(2 * _LENGTH):
    state = env.advance(state, jnp.full((3, 1), 0.1))
    for x in (state.obs, state.info["next_observation"]):
      np.testing.assert_array_equal(x[:, 2:], skill)
    np.testing.assert_array_equal(state.info["skill"], skill)
    assert np.all(state.done == (i >= _LENGTH - 1))


@pytest.mark.parametrize("num_envs", [1, 3])
def test_returns_of_skills_are_those_of_their_latest_whole_episodes(num_envs):
  env = environments.SkillEnvironment(
    environments.Environment(toy.Walk(100.0), episode_length=4),
    skills.categorical(3), keeps_returns=True)
  state = jax.jit(env.reset)(jax.random.split(jax.random.key(0), num_envs))
  take_actions = jax.jit(functools.partial(
    collection.take_actions, env, toy.linear_learner()))
  # In the middle of the first episode training may begin.
  latest, so_far = {}, np.full(num_envs, skills.NO_RETURN)
  for t in range(21):
    skill = np.argmax(np.asarray(state.info["skill"]), axis=-1)
    for i in range(num_envs):
      expected = latest.get((i, skill[i]), skills.NO_RETURN)
      np.testing.assert_allclose(
        state.info["skill_return"][i], expected, rtol=1e-5)
    action = jnp.full((num_envs, 1), (t % 5) / 5)
    after, batch = take_actions(state, types.Acted(action))
    np.testing.assert_array_equal(
      batch.extras["skill_return"], state.info["skill_return"])
    state = after
    so_far = so_far + np.asarray(state.reward)
    for i in np.flatnonzero(state.done):
      latest[i, skill[i]], so_far[i] = so_far[i], 0.0
  assert len(latest) == 3


def test_an_episode_that_is_not_finite_is_no_whole_one():
  env = environments.SkillEnvironment(
    environments.Environment(toy.Walk(100.0), episode_length=4),
    skills.categorical(2), keeps_returns=True)
  state, known = env.reset(_keys(2)), None
  for step in range(13):
    action = jnp.array([[jnp.nan if step == 8 else 0.1], [0.1]])
    if step == 8:
      known = state.info["skill_return"]
    state = env.step(state, action)
    if step == 8:
      assert state.done.tolist() == [1.0, 0.0]
      np.testing.assert_array_equal(state.info["skill_return"], known)
  assert np.all(np.abs(state.info["skill_return"]) < 10)
  assert np.all(state.info["skill_return"] != known)


def test_skills_may_be_chosen_anew_in_each_state():
  env = environments.SkillEnvironment(
    environments.Environment(toy.Walk(100.0), episode_length=4),
    skills.sphere(2), lambda state: state.obs[..., :2] + 1)
  state = env.reset(jax.random.split(jax.random.key(0), 3))
  for _ in range(3):
    np.testing.assert_array_equal(state.obs[:, 2:], state.obs[:, :2] + 1)
    before, state = state, env.advance(state, jnp.ones((3, 1)))
    np.testing.assert_array_equal(
      state.info["next_observation"][:, 2:], before.info["skill"])
    assert not np.array_equal(state.info["skill"], before.info["skill"])
