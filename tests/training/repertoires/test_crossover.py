"""Tests of agents that take over better steps of others' episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments, map_elites, specs
from qdrl_haiku.training.repertoires import crossover
from tests import toy
from tests.training import common
from tests.training.repertoires import test_teachers


def _setup(learner=None, **changes):
  learner = learner or toy.linear_learner()
  return test_teachers.setup_of("ascii")._replace(learner=learner, **changes)


def _moved(offset, gain, x, taken, weights):
  """Adam on the loss of an agent that does offset + gain x, by hand."""
  params, moments = np.array([offset, gain]), np.zeros((2, 2))
  for t in range(1, 33):
    action = params[0] + params[1] * x
    ratio = np.exp(-((taken - action)**2) / (2 * 2.0**2))
    slope = ratio * (taken - action) / 2.0**2
    goes_on = (weights > 0) | (ratio > 0.8)
    by_action = -np.where(goes_on, weights * slope, 0) / x.size
    gradient = np.array([by_action.sum(), (by_action * x).sum()])
    moments[0] = 0.9 * moments[0] + 0.1 * gradient
    moments[1] = 0.999 * moments[1] + 0.001 * gradient**2
    m, v = moments[0] / (1 - 0.9**t), moments[1] / (1 - 0.999**t)
    params = params - 3e-3 * m / (np.sqrt(v) + 1e-8)
  return params


def test_offspring_are_moved_as_by_hand_and_keep_hyperparameters():
  rng = np.random.default_rng(0)
  offset, gain = rng.uniform(-0.1, 0.1, (2, 3))
  x, taken = rng.uniform(-0.5, 0.5, (2, 3, 5))
  weights = rng.normal(size=(3, 5))
  parents = map_elites.Elite(
    {"offset": jnp.float32(offset), "gain": jnp.float32(gain)},
    {"noise": jnp.arange(3.0)})
  others = map_elites.Episodes(
    jnp.float32(np.stack([x, x], axis=-1)), jnp.float32(taken[..., None]),
    jnp.zeros((3, 5)), jnp.full(3, 5))
  cross = jax.jit(crossover.crossover(_setup(), None))
  moved = cross(parents, others, jnp.float32(weights))
  expected = [_moved(*row) for row in zip(
    offset, gain, x, taken, weights, strict=True)]
  found = np.stack([moved.genotype["offset"], moved.genotype["gain"]], axis=1)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
  np.testing.assert_array_equal(moved.hyperparams["noise"], [0, 1, 2])
  # Chosen leaves move alone.
  cross = jax.jit(crossover.crossover(
    _setup(), lambda path: "gain" in jax.tree_util.keystr(path)))
  moved = cross(parents, others, jnp.float32(weights)).genotype
  np.testing.assert_array_equal(moved["offset"], parents.genotype["offset"])
  assert np.all(moved["gain"] != parents.genotype["gain"])


def test_half_of_the_offspring_are_crossed_and_elites_have_episodes():
  trainer = common.Trainer(_setup())
  state, report = trainer.step(trainer.first)
  kept = state.repertoire.extras["episode"]
  occupied = np.asarray(state.repertoire.fitness) > -np.inf
  # An elite's fitness is the mean of two episodes' sums of x.
  first = kept.observation[occupied][:, 0, 0]
  assert np.all(np.abs(first) <= 0.5) and np.all(first != 0)
  assert report.fitness.shape == (4,)
  assert np.all(np.asarray(state.emitter.length) == 3)
  later = kept.to_go[occupied]
  # x after a step is what is seen before the next one.
  np.testing.assert_allclose(
    later[:, 0] - 0.99 * later[:, 1], kept.observation[occupied][:, 1, 0],
    rtol=1e-5)


class _Discrete(test_teachers._Walk):
  action_spec = specs.Discrete(2)

  def step(self, state, action):
    return super().step(state, action[None].astype(float))


def _discrete():
  env = environments.Environment(_Discrete(), episode_length=3)
  return {"env": env, "eval_env": env}


@pytest.mark.parametrize(("setup", "message"), [
  (_setup(**_discrete()), "by their distance, and here an action is one of n"),
  (_setup(toy.linear_learner()._replace(memory=lambda: jnp.zeros(1))),
   "agents with memory act by earlier ones; take memory=none")])
def test_agents_that_can_not_take_over_are_refused(setup, message):
  with pytest.raises(ValueError, match=message):
    common.shapes(setup)
