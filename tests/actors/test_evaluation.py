"""Tests of evaluating episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import actors, environments
from tests import jaxprs, toy

_LEARNER = toy.linear_learner()
_P, _N, _LONGEST = 3, 20, 6
_COUNTDOWN = environments.Environment(
  toy.Countdown(_LONGEST), episode_length=100
)
_SHORT = environments.Environment(toy.Countdown(_LONGEST), episode_length=4)
# Offsets whose sine is 0.5, 0.2 and 0.1: pushes of that size.
_STATES = {
  "offset": jnp.arcsin(jnp.array([0.5, 0.2, 0.1])), "gain": jnp.zeros(3)
}
_WALK = environments.Environment(toy.Walk(limit=1.0), episode_length=5)


def _evaluate(env, key, states=_STATES, num_episodes=_N, learner=_LEARNER):
  return actors.evaluate(env, learner, states, key, num_episodes)


_EVALUATE = jax.jit(_evaluate, static_argnums=(0, 3))


def _walk_descriptors(descriptor_fn, num_episodes=2):
  return jax.jit(
    lambda key: actors.evaluate(
      _WALK, _LEARNER, _STATES, key, num_episodes, descriptor_fn
    )
  )(jax.random.key(0))


def _starts(env, key, num_episodes=_N, population_size=_P):
  """The first observations [P, N, O], from the documented keys."""
  return np.stack([
    env.reset(
      jax.random.split(jax.random.fold_in(key, i), num_episodes)
    ).obs
    for i in range(population_size)
  ])


def test_lengths_and_returns_are_those_of_the_first_episodes():
  evaluation = _EVALUATE(_COUNTDOWN, jax.random.key(0))
  counts = _starts(_COUNTDOWN, jax.random.key(0))[..., 0]
  assert set(counts.ravel()) == set(range(1, _LONGEST + 1))
  assert evaluation.lengths.dtype == jnp.int32
  np.testing.assert_array_equal(evaluation.lengths, counts)
  np.testing.assert_array_equal(
    evaluation.returns, counts * (counts + 1) / 2
  )
  assert evaluation.descriptors is None


def test_episodes_are_truncated_at_the_episode_length():
  """Another environment than training's: the same agents, shorter episodes."""
  evaluation = _EVALUATE(_SHORT, jax.random.key(0))
  counts = _starts(_SHORT, jax.random.key(0))[..., 0]
  lengths = np.minimum(counts, 4)
  assert (counts < 4).any()
  assert (counts > 4).any()
  np.testing.assert_array_equal(evaluation.lengths, lengths)
  np.testing.assert_array_equal(
    evaluation.returns,
    [[sum(n - k for k in range(int(m))) for n, m in zip(*row, strict=True)]
     for row in zip(counts, lengths, strict=True)],
  )


@pytest.mark.parametrize("num_episodes", [1, 5])
def test_there_are_as_many_episodes_as_asked_for(num_episodes):
  evaluation = _EVALUATE(
    _SHORT, jax.random.key(0), num_episodes=num_episodes
  )
  assert evaluation.returns.shape == (_P, num_episodes)
  assert evaluation.lengths.shape == (_P, num_episodes)


def test_agents_act_greedily_in_environments_of_their_own():
  evaluation = _EVALUATE(_WALK, jax.random.key(3))
  starts = _starts(_WALK, jax.random.key(3))[..., 0]
  for i, push in enumerate((0.5, 0.2, 0.1)):
    for j, start in enumerate(starts[i]):
      path = start + push * np.arange(1, 6)
      length = min(np.sum(path <= 1.0) + 1, 5)
      assert evaluation.lengths[i, j] == length
      np.testing.assert_allclose(
        evaluation.returns[i, j], path[:length].sum(), rtol=1e-5, atol=1e-5
      )


def test_one_key_is_folded_into_one_per_member():
  key = jax.random.key(7)
  keys = jnp.stack([jax.random.fold_in(key, i) for i in range(_P)])
  with_key, with_keys = _EVALUATE(_WALK, key), _EVALUATE(_WALK, keys)
  np.testing.assert_array_equal(with_key.returns, with_keys.returns)
  other = _EVALUATE(_WALK, keys[::-1])
  assert np.all(other.returns[0] != with_keys.returns[0])


def test_a_member_does_not_depend_on_how_many_there_are():
  key = jax.random.key(7)
  both = _EVALUATE(_WALK, key)
  first_two = _EVALUATE(_WALK, key, jax.tree.map(lambda x: x[:2], _STATES))
  np.testing.assert_array_equal(first_two.returns, both.returns[:2])
  np.testing.assert_array_equal(first_two.lengths, both.lengths[:2])


def test_members_and_episodes_start_from_different_states():
  starts = _starts(_WALK, jax.random.key(3))[..., 0]
  same = jax.tree.map(lambda x: x[jnp.zeros(_P, int)], _STATES)
  returns = np.asarray(_EVALUATE(_WALK, jax.random.key(3), same).returns)
  assert len(np.unique(starts)) == _P * _N
  assert len(np.unique(returns)) == _P * _N


def test_all_episodes_are_one_flat_batch():
  sines = jaxprs.named(
    lambda key: _evaluate(_WALK, key), "sin", jax.random.key(0)
  )
  assert [e.outvars[0].aval.shape for e in sines] == [(_P * _N,)]


def test_evaluation_stops_when_the_last_episode_has_ended():
  rounds = []

  def act_greedy(state, observation):
    jax.debug.callback(lambda: rounds.append(1))
    return _LEARNER.act_greedy(state, observation)

  learner = _LEARNER._replace(act_greedy=act_greedy)
  lengths = _evaluate(_COUNTDOWN, jax.random.key(0), learner=learner).lengths
  jax.effects_barrier()
  assert len(rounds) in (lengths.max(), _P * lengths.max())


def test_evaluation_neither_explores_nor_observes_nor_learns():
  def refuse(*args):
    raise AssertionError("evaluation called it")

  learner = _LEARNER._replace(act=refuse, observe=refuse, update=refuse)
  evaluation = _evaluate(_SHORT, jax.random.key(0), learner=learner)
  assert np.isfinite(evaluation.returns).all()


def test_a_descriptor_function_sees_the_steps_of_its_episode():
  def span(descriptors, mask):
    assert descriptors.shape == (5, 2)
    assert mask.shape == (5,)
    assert mask.dtype == jnp.bool_
    first, last = descriptors[0], descriptors[jnp.sum(mask) - 1]
    return jnp.stack([first[0], last[0], last[1], jnp.sum(mask)])

  evaluation = _walk_descriptors(span)
  starts = _starts(_WALK, jax.random.key(0), 2)[..., 0]
  assert evaluation.descriptors.shape == (_P, 2, 4)
  assert len(np.unique(evaluation.lengths)) > 1
  for i, push in enumerate((0.5, 0.2, 0.1)):
    for j, start in enumerate(starts[i]):
      length = int(evaluation.lengths[i, j])
      np.testing.assert_allclose(
        evaluation.descriptors[i, j],
        [start + push, start + push * length, length, length],
        rtol=1e-5, atol=1e-6,
      )


def test_the_mask_leaves_out_what_follows_the_end():
  def mean(descriptors, mask):
    return jnp.mean(descriptors, axis=0, where=mask[:, None])

  evaluation = _walk_descriptors(mean)
  lengths = np.asarray(evaluation.lengths)
  assert lengths.min() < 5
  # The second axis counts 1, 2, ..., length; the first is also the reward.
  np.testing.assert_allclose(
    evaluation.descriptors[..., 1], (lengths + 1) / 2, rtol=1e-6
  )
  np.testing.assert_allclose(
    evaluation.descriptors[..., 0], evaluation.returns / lengths, rtol=1e-5
  )


def test_state_descriptors_need_no_declaration():
  class Undeclared(toy.Walk):
    descriptor = None

  walk = environments.Environment(Undeclared(limit=1.0), episode_length=5)
  found, expected = (
    actors.evaluate(
      env, _LEARNER, _STATES, jax.random.key(0), 2, lambda d, m: d[0]
    ).descriptors
    for env in (walk, _WALK)
  )
  assert np.any(expected != 0)
  np.testing.assert_array_equal(found, expected)


def test_a_key_of_the_older_kind_starts_the_same_episodes():
  older, typed = (
    _EVALUATE(_COUNTDOWN, key)
    for key in (jax.random.PRNGKey(0), jax.random.key(0))
  )
  assert len(set(np.ravel(typed.returns))) > 1
  np.testing.assert_array_equal(older.returns, typed.returns)


def test_an_environment_without_descriptors_is_refused():
  with pytest.raises(ValueError, match="descriptor_fn needs .* descriptors"):
    actors.evaluate(
      _SHORT, _LEARNER, _STATES, jax.random.key(0), 2, lambda d, m: d[0]
    )


def _recorded(env, record, descriptor_fn=None):
  return jax.jit(
    lambda key: actors.evaluate(
      env, _LEARNER, _STATES, key, 2, descriptor_fn, record
    )
  )(jax.random.key(0))


def test_a_trajectory_has_what_was_recorded_after_each_step():
  def record(state):
    assert state.obs.shape == (_P, 2, 2)
    return {
      "observation": state.info["next_observation"],
      "last": (state.info["steps"], state.done > 0),
    }

  evaluation = _recorded(_WALK, record)
  observation = evaluation.trajectory["observation"]
  steps, done = evaluation.trajectory["last"]
  assert observation.shape == (_P, 2, 5, 2)
  assert (steps.shape, steps.dtype) == ((_P, 2, 5), jnp.int32)
  assert done.dtype == jnp.bool_
  starts = _starts(_WALK, jax.random.key(0), 2)[..., 0]
  assert len(np.unique(evaluation.lengths)) > 1
  for i, push in enumerate((0.5, 0.2, 0.1)):
    for j, start in enumerate(starts[i]):
      length = int(evaluation.lengths[i, j])
      count = np.arange(1, length + 1)
      np.testing.assert_allclose(
        observation[i, j, :length],
        np.stack([start + push * count, count], axis=-1),
        rtol=1e-5, atol=1e-6,
      )
      np.testing.assert_array_equal(steps[i, j, :length], count)
      np.testing.assert_array_equal(done[i, j, :length], count == length)


def test_recording_changes_nothing_else():
  def mean(descriptors, mask):
    return jnp.mean(descriptors, axis=0, where=mask[:, None])

  plain = _recorded(_WALK, None, mean)
  recorded = _recorded(_WALK, lambda state: state.reward, mean)
  assert plain.trajectory is None
  assert recorded.trajectory.shape == (_P, 2, 5)
  for name in ("returns", "lengths", "descriptors"):
    np.testing.assert_array_equal(
      getattr(recorded, name), getattr(plain, name), err_msg=name
    )


def test_recording_needs_no_descriptors():
  """The rewards of the steps that an episode has make its return."""
  evaluation = _recorded(_SHORT, lambda state: state.reward)
  assert evaluation.descriptors is None
  lived = np.arange(4) < np.asarray(evaluation.lengths)[..., None]
  assert not lived.all()
  np.testing.assert_allclose(
    np.sum(evaluation.trajectory, axis=-1, where=lived), evaluation.returns
  )


def test_transitions_are_kept_where_they_are_asked_for():
  evaluation = jax.jit(
    lambda key: actors.evaluate(
      _COUNTDOWN, _LEARNER, _STATES, key, _N, keep_transitions=True
    )
  )(jax.random.key(0))
  kept = evaluation.transitions
  counts = _starts(_COUNTDOWN, jax.random.key(0))[..., 0]
  lived = np.arange(100) < np.asarray(evaluation.lengths)[..., None]
  assert kept.reward.shape == lived.shape == (_P, _N, 100)
  expected = counts[..., None] - np.arange(100)
  np.testing.assert_array_equal(
    kept.observation[..., 0][lived], expected[lived]
  )
  np.testing.assert_array_equal(
    kept.next_observation[..., 0][lived], expected[lived] - 1
  )
  np.testing.assert_array_equal(kept.reward[lived], expected[lived])
  # Each episode terminates in its last step.
  np.testing.assert_array_equal(
    kept.discount[lived], (expected != 1)[lived]
  )
  pushes = np.broadcast_to(
    _STATES["offset"][:, None, None, None], kept.action.shape
  )
  np.testing.assert_allclose(kept.action[lived], pushes[lived], rtol=1e-5)
  assert _EVALUATE(_COUNTDOWN, jax.random.key(0)).transitions is None
