"""Tests of evaluating agents with skills, beside what NumPy finds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from qdrl_haiku import environments, learners, skills, types
from qdrl_haiku.training import skills as training_skills
from tests import toy

# Skills, members, episodes of each, and the most steps of one.
_K, _P, _N, _T = 3, 2, 5, 30
_LIMIT = 4.0
_PRIOR = skills.categorical(_K)
# Per member and skill: how far a step goes. Some episodes end before the
# others, and from then on all would be other than it was.
_PUSHES = np.array([[0.9, -0.5, 0.2], [0.3, 0.1, 0.6]])
# No number of steps lies on the border of two cells.
_BOUNDS = environments.Descriptor(("x", "steps"), (-10.0, -0.5), (10.0, 99.5))
_WALK = environments.Environment(
  toy.Walk(_LIMIT), episode_length=_T, descriptor=_BOUNDS)
_KEYS = jax.vmap(lambda key: jax.random.split(key, _N))(
  jax.random.split(jax.random.key(5), _P))


def _evaluate(prior):
  """Agents with hand-set discriminators, what was seen of them, and scores."""
  config = learners.DIAYNConfig(hidden_layer_sizes=())
  # Pushes by the agent's numbers times the skill.
  base = toy.linear_learner()._replace(
    init=lambda key: jnp.arcsin(jnp.ones(prior.size) / 4),
    act_greedy=lambda state, observation, memory: types.Acted(jnp.sum(
      state * observation[..., 2:], axis=-1, keepdims=True)))
  learner = learners.diayn(base, 2, prior, 2, config)
  states = jax.jit(jax.vmap(learner.init))(_KEYS[:, 0])
  rng = np.random.default_rng(0)
  # Weights that make out of x and steps what isn't all right or all wrong.
  states = states._replace(learned=jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), states.learned))
  if prior is _PRIOR:
    states = states._replace(agent=jnp.float32(np.arcsin(_PUSHES)))
  env = environments.SkillEnvironment(_WALK, prior, "fixed")
  evaluate = training_skills.skill_evaluation(
    env, learners.diayn_objective(2, prior, 2, config), coverage_cells=10)
  evaluation, scores = jax.jit(functools.partial(evaluate, learner))(
    states, jax.jit(env.reset)(_KEYS))
  return jax.device_get((states, evaluation, scores))


@pytest.fixture(scope="module")
def evaluated():
  return _evaluate(_PRIOR)


def _paths():
  """Of each member and episode: the skill and x and steps [length, 2]."""
  starts = jax.jit(_WALK.reset)(_KEYS).obs[..., 0]
  for member, episode in np.ndindex(_P, _N):
    skill, x, path = episode % _K, float(starts[member, episode]), []
    while len(path) < _T and x <= _LIMIT:
      x += _PUSHES[member, skill]
      path.append((x, len(path) + 1.0))
    yield member, episode, skill, np.array(path)


def _later(values):
  """The mean of the later half of an episode's steps."""
  return values[len(values) // 2 :].mean()


def test_scores_are_what_numpy_finds_in_the_episodes(evaluated):
  states, evaluation, scores = evaluated
  diversity, later = np.zeros((2, _P, _N))
  told, visited = np.zeros((2, _P, _N)), [set() for _ in range(_P)]
  for member, episode, skill, path in _paths():
    layer = states.learned["discriminator_params"]["discriminator/output"]
    w, b = (np.asarray(layer[x][member], np.float64) for x in "wb")
    # log q - log p of each step.
    rewards = special.log_softmax(path @ w + b, axis=-1)[:, skill] + np.log(_K)
    diversity[member, episode] = rewards.sum()
    later[member, episode] = _later(rewards)
    is_right = (path @ w + b).argmax(axis=1) == skill
    told[:, member, episode] = _later(is_right), is_right.mean()
    cells = np.floor([(path[:, 0] + 10) / 2, (path[:, 1] + 0.5) / 10])
    visited[member] |= set(zip(*cells.clip(0, 9), strict=True))
  expected = {
    "diayn/diversity_return": diversity.mean(1),
    "diayn/mutual_information_lower_bound": later.mean(1),
    "diayn/discriminator_accuracy": told[0].mean(1),
    "diayn/discriminator_accuracy_whole_episode": told[1].mean(1),
    "diayn/chance_accuracy": np.full(_P, 1 / _K),
    "eval/coverage": list(map(len, visited))}
  assert scores.keys() == expected.keys()
  for name, x in expected.items():
    np.testing.assert_allclose(
      scores[name], x, rtol=1e-4, atol=1e-4, err_msg=name)
  np.testing.assert_allclose(
    evaluation.trajectory["diversity_return"], diversity, rtol=1e-4, atol=1e-4)
  # What is held for the likeliest changes within episodes.
  assert np.any((told > 0) & (told < 1)) and not np.allclose(*told)


def test_the_trajectory_has_skills_and_descriptors(evaluated):
  evaluation = evaluated[1]
  trajectory = evaluation.trajectory
  for member, episode, skill, path in _paths():
    length = len(path)
    assert evaluation.lengths[member, episode] == length
    for found, expected in (
      (trajectory["skill"][member, episode], np.eye(_K)[skill]),
      (trajectory["descriptor"][member, episode, :length], path),
      (evaluation.returns[member, episode], path[:, 0].sum()),
    ):
      np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
  assert evaluation.lengths.min() < _T // 2 < evaluation.lengths.max()


def test_of_continuous_skills_none_can_be_told():
  _, evaluation, scores = _evaluate(skills.sphere(2))
  assert [x.removeprefix("diayn/") for x in scores] == [
    "diversity_return", "mutual_information_lower_bound", "eval/coverage"]
  assert evaluation.trajectory["skill"].shape == (_P, _N, 2)
