"""Tests of what is observed and done."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import environments, learners, specs
from qdrl_haiku.learners import statistics
from tests.training import common

_DICT = {
  "count": specs.Array((), "int32"), "grid": specs.Array((2, 3)),
  "place": specs.Array((2,))}


@pytest.mark.parametrize(("spec", "shape"), [
  (specs.Discrete(3), ()), (specs.Continuous(2), (2,))])
def test_actions_are_drawn_uniformly(spec, shape):
  drawn = np.asarray(spec.sample(jax.random.key(0), 300, 2))
  assert drawn.shape == (300, 2, *shape) and drawn.dtype == spec.dtype
  if shape:
    drawn = np.floor(1.5 * drawn + 1.5)  # Thirds of [-1, 1].
  counts = np.bincount(drawn.astype(int).ravel())
  assert len(counts) == 3 and stats.chisquare(counts).pvalue > 1e-3


def test_numbers_stand_for_flat_vectors_and_continuous_actions():
  for number in (4, np.int64(4)):
    spec = specs.observation_spec(number)
    assert spec == specs.Array((4,)) and specs.number_if_flat(spec) == 4
  assert specs.number_if_flat(specs.action_spec(2)) == 2
  for spec in (_DICT, specs.Array((4,), "int32"), specs.Discrete(2)):
    assert specs.number_if_flat(spec) is spec
  with pytest.raises(ValueError, match="observation_size=0 is not a count"):
    specs.observation_spec(0)
  sizes, of_specs = (
    jax.eval_shape(learners.sac(*given).init, jax.random.key(0))
    for given in ((4, 1), (specs.Array((4,)), specs.Continuous(1))))
  assert sizes == of_specs


def test_arrays_are_joined_flat_and_bytes_are_pixels():
  seen = {
    "byte": jnp.uint8([[[0, 51]]] * 3), "grid": jnp.ones((3, 2, 2)),
    "place": jnp.zeros((3, 2)), "time": jnp.int32([7, 8, 9])}
  spec = {name: specs.Array(x.shape[1:], x.dtype) for name, x in seen.items()}
  joined = specs.as_vector(seen, spec)
  assert joined.dtype == jnp.float32
  assert specs.observation_size(spec) == joined.shape[1] == 9
  np.testing.assert_allclose(
    joined, [[0, 0.2, 1, 1, 1, 1, 0, 0, time] for time in (7, 8, 9)], rtol=1e-6)


@pytest.mark.parametrize(("base", "start"), [
  (specs.Array((4,)), 4), (specs.Array((2, 2), "uint8"), 0),
  (_DICT, 1), ((specs.Array((3,)),), 0)], ids=str)
def test_a_vector_beside_an_observation_is_found_again(base, start):
  extended = specs.Extended(base, "data", 2)
  seen, vector = specs.zeros(base, 5), jnp.ones((5, 2))
  whole = extended.join(seen, vector)
  assert jax.tree.map(jnp.shape, whole) == jax.tree.map(
    jnp.shape, specs.zeros(extended.spec, 5))
  again = extended.split(whole)
  assert jax.tree.map(jnp.shape, again) == jax.tree.map(
    jnp.shape, (seen, vector))
  assert extended.start == start
  (where,) = np.nonzero(specs.as_vector(whole, extended.spec)[0])
  assert where.tolist() == [start, start + 1]


def test_an_entry_of_that_name_is_refused():
  with pytest.raises(ValueError, match="have an entry 'place'; rename it"):
    specs.Extended(_DICT, "place", 2)


def test_statistics_are_of_each_float_and_leave_integers_alone():
  rng = np.random.default_rng(0)
  seen = {
    name: rng.normal(3, 2, (2, 50, *x.shape)).astype(x.dtype)
    for name, x in _DICT.items()}
  seen["grid"][0, 0, 0, 0] = np.nan  # All of that observation is left out.
  found = statistics.init_statistics(_DICT)
  for part in range(2):
    found = statistics.update_statistics(
      found, jax.tree.map(lambda x, i=part: jnp.asarray(x[i]), seen))
  assert found.num_observations == 99 and found.mean["count"] is None
  normal = statistics.normalize_by_statistics(found, seen)
  np.testing.assert_array_equal(normal["count"], seen["count"])
  for name in ("grid", "place"):
    kept = seen[name].reshape(100, *_DICT[name].shape)[1:].astype(np.float64)
    np.testing.assert_allclose(found.mean[name], kept.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found.variance[name], kept.var(0), rtol=1e-4)
    np.testing.assert_allclose(
      normal[name][1], (seen[name][1] - kept.mean(0)) / kept.std(0), rtol=1e-3)
  assert statistics.init_statistics(specs.Array((2, 2), "uint8")) is None


class _Hidden:
  """Only critics see where the point is; its third step is NaN."""

  observation_spec = None  # As it's found.
  action_size = 1

  def _state(self, steps, place, reward):
    seen = {
      "privileged_state": place[None],
      "state": jnp.stack([jnp.where(steps == 3, jnp.nan, 0.1 * steps), 1.0])}
    return environments.State((steps, place), seen, reward, jnp.zeros(()))

  def reset(self, key):
    return self._state(jnp.float32(0), jax.random.normal(key), jnp.zeros(()))

  def step(self, state, action):
    steps, place = state.pipeline_state
    return self._state(steps + 1, place + action[0], -jnp.square(place))


def test_of_a_dict_that_breaks_the_other_steps_are_learned_from():
  # Evaluation ends before an action is NaN too.
  env, eval_env = (
    environments.Environment(_Hidden(), episode_length=x) for x in (1000, 3))
  learner = learners.td3(env.observation_spec, env.action_spec)
  setup = common.setup(learner=learner, perturbation_interval=24)._replace(
    env=env, eval_env=eval_env)
  state, report = common.step(setup, common.init(setup))
  assert report.finite.all()
  # Of twelve steps of each of two instances, every third one.
  assert report.metrics["nonfinite_transitions"].tolist() == [8.0] * 4
  assert state.members.replay.size.tolist() == [16] * 4
  known = state.members.learner.observation_statistics
  assert known.num_observations.tolist() == [16] * 4
  np.testing.assert_allclose(known.mean["state"][:, 0], 0.05, rtol=1e-5)
  assert known.mean["privileged_state"].shape == (4, 1)
