"""Tests of evaluating agents with skills, beside what NumPy finds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from qdrl_haiku import environments, learners, skills, types
from qdrl_haiku.training import skills as training_skills
from tests import toy

_NUM_CELLS = 10
# Skills, members, episodes of each, and the most steps of one.
_K, _P, _N, _T = 3, 2, 5, 30
_LIMIT = 4.0
_PRIOR, _CIRCLE = skills.categorical(_K), skills.sphere(2)
# Per member and skill: how far a step goes. Some episodes end before the
# others, and from then on all would be other than it was.
_PUSHES = np.array([[0.9, -0.5, 0.2], [0.3, 0.1, 0.6]])
# No number of steps lies on the border of two cells.
_BOUNDS = environments.Descriptor(("x", "steps"), (-10.0, -0.5), (10.0, 99.5))
_WALK = environments.Environment(
  toy.Walk(_LIMIT), episode_length=_T, descriptor=_BOUNDS)
_NORMALIZED = {
  "discriminator_input": "observation", "normalize_observations": True}


class _Line(toy.Walk):
  """A walk with a descriptor of one axis."""

  descriptor = environments.Descriptor(("x",), (-10.0,), (10.0,))

  def _state(self, *args):
    state = super()._state(*args)
    return state.replace(info={"state_descriptor": state.obs[:1]})


_LINE = environments.Environment(_Line(_LIMIT), episode_length=_T)
_RESET = jax.jit(_WALK.reset)


def _learner(prior, descriptor_size, config):
  """Pushes by the agent's numbers times the skill."""
  base = toy.linear_learner()._replace(
    init=lambda key: jnp.zeros(prior.size),
    act_greedy=lambda state, observation, memory: types.Acted(jnp.sum(
      state * observation[..., 2:], axis=-1, keepdims=True)))
  return learners.diayn(base, 2, prior, descriptor_size, config)


@functools.cache
def _evaluated(prior, env, **config):
  """Agents with hand-set discriminators, as `evaluate` takes and sees them.

  Returns:
    The states, the evaluation and the scores.
  """
  descriptor_size = env.descriptor.size
  config = learners.DIAYNConfig(hidden_layer_sizes=(), **config)
  learner = _learner(prior, descriptor_size, config)
  states = jax.jit(jax.vmap(learner.init))(_keys())
  sines = np.arcsin(_PUSHES[:, : prior.size])
  states = states._replace(
    agent=jnp.asarray(sines, jnp.float32), learned=_params(states.learned))
  if config.normalize_observations:
    mean, variance = np.array([[0.5, 9.0], [-1.0, 4.0]]), np.full((2, 2), 4.0)
    states = states._replace(
      observation_statistics=learners.ObservationStatistics(
        jnp.full(2, 10.0), *map(jnp.float32, (mean, variance))))
  judge = learners.diayn_objective(2, prior, descriptor_size, config)
  env = environments.SkillEnvironment(env, prior, "fixed")
  evaluate = training_skills.skill_evaluation(env, judge, _NUM_CELLS)
  keys = jax.vmap(lambda key: jax.random.split(key, _N))(_keys())
  evaluation, scores = jax.jit(functools.partial(evaluate, learner))(
    states, jax.jit(env.reset)(keys))
  return jax.device_get((states, evaluation, scores))


def _keys():
  return jax.random.split(jax.random.key(5), _P)


def _params(like):
  """Weights that make out of x and steps what isn't all right or all wrong."""
  rng = np.random.default_rng(3)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(scale=0.3, size=x.shape), x.dtype), like)


def _paths(prior):
  """Of each member and episode: the skill and x and steps [length, 2]."""
  for member in range(_P):
    state = _RESET(jax.random.split(_keys()[member], _N))
    drawn = np.eye(_K)[np.arange(_N) % _K]
    if prior.num_skills is None:
      env = environments.SkillEnvironment(_WALK, prior, "fixed")
      keys = jax.random.split(_keys()[member], _N)
      drawn = jax.jit(env.reset)(keys).info["skill"]
    for episode in range(_N):
      skill = np.asarray(drawn[episode], np.float64)
      x, path = float(state.obs[episode, 0]), []
      push = np.sin(skill @ np.arcsin(_PUSHES[member, : prior.size]))
      while len(path) < _T and x <= _LIMIT:
        x += push
        path.append((x, len(path) + 1.0))
      yield member, episode, skill, np.array(path)


def _parameters(states, member, path):
  """What the hand-set discriminator of a member says of some states."""
  if states.observation_statistics is not None:
    _, mean, variance = states.observation_statistics
    path = np.clip((path - mean[member]) / np.sqrt(variance[member]), -10, 10)
  layer = states.learned["discriminator_params"]["discriminator/output"]
  w, b = (np.asarray(layer[x][member], np.float64) for x in "wb")
  return path @ w + b


def _rewards(prior, parameters, skill):
  """log q - log p of each step of an episode."""
  if prior.num_skills is not None:
    return special.log_softmax(parameters, axis=-1) @ skill + np.log(_K)
  angle = np.arctan2(*skill[::-1]) - np.arctan2(*parameters.T[::-1])
  log_q = stats.vonmises.logpdf(angle, np.linalg.norm(parameters, axis=-1))
  return log_q + np.log(2 * np.pi)


def _later(values):
  """Those of the later half of an episode's steps."""
  return values[len(values) // 2 :]


def _expected(prior, states, num_axes):
  """Scores [P] by name, and diversity returns [P, N]."""
  diversity = np.zeros((_P, _N))
  later, told = np.zeros((_P, _N)), np.zeros((2, _P, _N))
  visited = [set() for _ in range(_P)]
  for member, episode, skill, path in _paths(prior):
    parameters = _parameters(states, member, path)
    rewards = _rewards(prior, parameters, skill)
    diversity[member, episode] = rewards.sum()
    later[member, episode] = _later(rewards).mean()
    is_right = parameters.argmax(axis=1) == skill.argmax()
    told[:, member, episode] = _later(is_right).mean(), is_right.mean()
    cells = np.floor(
      [(path[:, 0] + 10) / 2, (path[:, 1] + 0.5) / 10]).clip(0, 9)
    visited[member] |= set(zip(*cells[:num_axes], strict=True))
  scores = {
    "diversity_return": diversity.mean(1),
    "mutual_information_lower_bound": later.mean(1)}
  if prior.num_skills is not None:
    scores |= {
      "discriminator_accuracy": told[0].mean(1),
      "discriminator_accuracy_whole_episode": told[1].mean(1),
      "chance_accuracy": np.full(_P, 1 / _K)}
  scores = {f"diayn/{name}": x for name, x in scores.items()}
  return scores | {"eval/coverage": list(map(len, visited))}, diversity


@pytest.mark.parametrize(("prior", "env", "config"), [
  (_PRIOR, _WALK, {}), (_CIRCLE, _WALK, {}), (_PRIOR, _LINE, _NORMALIZED),
], ids=["descriptor", "circle", "one axis"])
def test_scores_are_what_numpy_finds_in_the_episodes(prior, env, config):
  states, evaluation, scores = _evaluated(prior, env, **config)
  num_axes = env.descriptor.size
  expected, diversity = _expected(prior, states, num_axes)
  assert scores.keys() == expected.keys()
  for name, x in expected.items():
    np.testing.assert_allclose(
      scores[name], x, rtol=1e-4, atol=1e-4, err_msg=name)
  np.testing.assert_allclose(
    evaluation.trajectory["diversity_return"], diversity, rtol=1e-4, atol=1e-4)
  if config == _NORMALIZED:
    # Here what is held for the likeliest changes within episodes.
    first, second = (
      scores[f"diayn/discriminator_accuracy{x}"] for x in ("", "_whole_episode")
    )
    assert np.any((first > 0) & (first < 1)) and not np.allclose(first, second)


@pytest.mark.parametrize("prior", [_PRIOR, _CIRCLE], ids=["discrete", "circle"])
def test_the_trajectory_has_skills_and_descriptors(prior):
  _, evaluation, _ = _evaluated(prior, _WALK)
  trajectory = evaluation.trajectory
  assert trajectory["skill"].shape == (_P, _N, prior.size)
  assert trajectory["descriptor"].shape == (_P, _N, _T, 2)
  for member, episode, skill, path in _paths(prior):
    length = len(path)
    assert evaluation.lengths[member, episode] == length
    for found, expected in (
      (trajectory["skill"][member, episode], skill),
      (trajectory["descriptor"][member, episode, :length], path),
      (evaluation.returns[member, episode], path[:, 0].sum()),
    ):
      np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
  assert evaluation.lengths.min() < _T // 2 < evaluation.lengths.max()
