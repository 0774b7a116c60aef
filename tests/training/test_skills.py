"""Tests of evaluating agents with skills, beside what NumPy finds."""

import numpy as np
import pytest
from scipy import special, stats

from tests.training import skill_common as common

_K, _P, _N, _T = (
  common.NUM_SKILLS, common.POPULATION_SIZE, common.NUM_EPISODES,
  common.NUM_STEPS)
_NORMALIZED = {
  "discriminator_input": "observation", "normalize_observations": True}


def _parameters(states, member, path):
  """What the hand-set discriminator of a member says of some states."""
  if states.observation_statistics is not None:
    _, mean, variance = states.observation_statistics
    path = np.clip((path - mean[member]) / np.sqrt(variance[member]), -10, 10)
  layer = states.discriminator_params["discriminator/output"]
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
  for member, episode, skill, path in common.paths(prior):
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
  (common.PRIOR, common.WALK, {}), (common.CIRCLE, common.WALK, {}),
  (common.PRIOR, common.LINE, _NORMALIZED),
], ids=["descriptor", "circle", "one axis"])
def test_scores_are_what_numpy_finds_in_the_episodes(prior, env, config):
  states, evaluation, scores = common.evaluated(prior, env, **config)
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


@pytest.mark.parametrize(
  "prior", [common.PRIOR, common.CIRCLE], ids=["discrete", "circle"])
def test_the_trajectory_has_skills_and_descriptors(prior):
  _, evaluation, _ = common.evaluated(prior)
  trajectory = evaluation.trajectory
  assert trajectory["skill"].shape == (_P, _N, prior.size)
  assert trajectory["descriptor"].shape == (_P, _N, _T, 2)
  for member, episode, skill, path in common.paths(prior):
    length = len(path)
    assert evaluation.lengths[member, episode] == length
    for found, expected in (
      (trajectory["skill"][member, episode], skill),
      (trajectory["descriptor"][member, episode, :length], path),
      (evaluation.returns[member, episode], path[:, 0].sum()),
    ):
      np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
  assert evaluation.lengths.min() < _T // 2 < evaluation.lengths.max()
