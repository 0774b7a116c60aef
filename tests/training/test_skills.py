"""Tests of evaluating agents with skills."""

import numpy as np
import pytest
from scipy import special, stats

from tests.training import skill_common as common

_K = common.NUM_SKILLS
_P = common.POPULATION_SIZE
_N = common.NUM_EPISODES
_T = common.NUM_STEPS


def _affine(states, member, inputs):
  """What the hand-set discriminator of a member puts out, in float64."""
  layer = states.discriminator_params["discriminator/output"]
  w, b = (np.asarray(layer[x][member], np.float64) for x in "wb")
  return inputs @ w + b


def _log_q(prior, parameters, skill):
  if prior.num_skills is not None:
    return special.log_softmax(parameters, axis=-1) @ skill
  angle = np.arctan2(*skill[::-1]) - np.arctan2(*parameters.T[::-1])
  return stats.vonmises.logpdf(angle, np.linalg.norm(parameters, axis=-1))


def _log_prior(prior):
  return -np.log(_K if prior.num_skills else 2 * np.pi)


def _per_member(values):
  """(member, values of an episode) -> each member's means per episode."""
  found = [[] for _ in range(_P)]
  for member, value in values:
    found[member].append(np.mean(value))
  return [np.array(x) for x in found]


def _later(values):
  """Those of the later half of an episode's steps."""
  return values[len(values) // 2 :]


_SETTINGS = pytest.mark.parametrize(
  ("prior", "config"),
  [
    (common.PRIOR, ()),
    (common.CIRCLE, ()),
    (common.PRIOR, (("discriminator_input", "observation"),)),
    (
      common.PRIOR,
      (
        ("discriminator_input", "observation"),
        ("normalize_observations", True),
      ),
    ),
  ],
  ids=["descriptor", "circle", "observation", "normalised"],
)


def _inputs(states, member, path):
  """What the discriminator sees of some states."""
  if states.observation_statistics is None:
    return path
  _, mean, variance = states.observation_statistics
  normalized = (path - mean[member]) / np.sqrt(variance[member])
  return np.clip(normalized, -10, 10)


def _rewards(prior, states):
  """log q - log p of each step of each episode."""
  for member, episode, skill, path in common.paths(prior):
    inputs = _inputs(states, member, path)
    log_q = _log_q(prior, _affine(states, member, inputs), skill)
    yield member, episode, log_q - _log_prior(prior)


@_SETTINGS
def test_diversity_is_the_sum_over_the_steps_of_an_episode(prior, config):
  states, evaluation, scores = common.evaluated(prior, **dict(config))
  expected = np.zeros((_P, _N))
  for member, episode, rewards in _rewards(prior, states):
    expected[member, episode] = rewards.sum()
  np.testing.assert_allclose(
    evaluation.trajectory["diversity_return"], expected, rtol=1e-4, atol=1e-4
  )
  np.testing.assert_allclose(
    scores["diayn/diversity_return"],
    expected.mean(axis=1),
    rtol=1e-4,
    atol=1e-4,
  )


@_SETTINGS
def test_the_bound_is_the_mean_over_the_later_halves(prior, config):
  states, _, scores = common.evaluated(prior, **dict(config))
  later = _per_member(
    (member, _later(rewards)) for member, _, rewards in _rewards(prior, states)
  )
  np.testing.assert_allclose(
    scores["diayn/mutual_information_lower_bound"],
    [x.mean() for x in later],
    rtol=1e-4,
    atol=1e-4,
  )


def test_without_the_log_prior_only_the_diversity_changes():
  _, evaluation, scores = common.evaluated()
  _, other_evaluation, other = common.evaluated(subtract_log_prior=False)
  np.testing.assert_allclose(
    other_evaluation.trajectory["diversity_return"],
    evaluation.trajectory["diversity_return"]
    - np.log(_K) * evaluation.lengths,
    rtol=1e-4,
    atol=1e-3,
  )
  for name in scores.keys() - {"diayn/diversity_return"}:
    np.testing.assert_array_equal(other[name], scores[name], err_msg=name)


def test_accuracies_are_shares_of_steps():
  # Here what is held for the likeliest changes within episodes.
  states, _, scores = common.evaluated(
    discriminator_input="observation", normalize_observations=True
  )
  told = []
  for member, _, skill, path in common.paths():
    logits = _affine(states, member, _inputs(states, member, path))
    told.append((member, logits.argmax(axis=1) == skill.argmax()))
  for name, shares in (
    ("", [(member, _later(x)) for member, x in told]),
    ("_whole_episode", told),
  ):
    expected = [np.mean(x) for x in _per_member(shares)]
    assert any(0 < x < 1 for x in expected)
    np.testing.assert_allclose(
      scores[f"diayn/discriminator_accuracy{name}"], expected, rtol=1e-6
    )
  assert not np.allclose(
    scores["diayn/discriminator_accuracy"],
    scores["diayn/discriminator_accuracy_whole_episode"],
  )


def test_chance_is_one_in_as_many_as_there_are():
  scores = common.evaluated()[-1]
  np.testing.assert_allclose(scores["diayn/chance_accuracy"], [1 / _K] * _P)


def test_coverage_counts_the_cells_that_episodes_visit():
  scores = common.evaluated()[-1]
  visited = [set(), set()]
  for member, _, _, path in common.paths():
    for x, steps in path:
      cell = np.floor([(x + 10) / 2, (steps + 0.5) / 10]).clip(0, 9)
      visited[member].add(tuple(cell))
  assert min(map(len, visited)) > 5
  assert scores["diayn/state_coverage"].tolist() == list(map(len, visited))


def test_coverage_of_one_axis_has_ten_cells():
  _, _, scores = common.evaluated(env=common.LINE)
  visited = [set(), set()]
  for member, _, _, path in common.paths():
    visited[member] |= set(np.floor((path[:, 0] + 10) / 2).clip(0, 9))
  assert scores["diayn/state_coverage"].tolist() == list(map(len, visited))


def test_without_descriptors_there_is_no_coverage():
  _, evaluation, scores = common.evaluated(
    env=common.BLIND, discriminator_input="observation"
  )
  assert "diayn/state_coverage" not in scores
  assert evaluation.trajectory.keys() == {"skill", "diversity_return"}


def test_continuous_skills_have_no_accuracy():
  assert common.evaluated(common.CIRCLE)[-1].keys() == {
    "diayn/diversity_return",
    "diayn/mutual_information_lower_bound",
    "diayn/state_coverage",
  }


@pytest.mark.parametrize(
  "prior", [common.PRIOR, common.CIRCLE], ids=["discrete", "circle"]
)
def test_the_trajectory_has_skills_and_descriptors(prior):
  _, evaluation, _ = common.evaluated(prior)
  trajectory = evaluation.trajectory
  assert trajectory["skill"].shape == (_P, _N, prior.size)
  assert trajectory["descriptor"].shape == (_P, _N, _T, 2)
  for member, episode, skill, path in common.paths(prior):
    length = len(path)
    assert evaluation.lengths[member, episode] == length
    np.testing.assert_allclose(
      trajectory["skill"][member, episode], skill, rtol=1e-6
    )
    np.testing.assert_allclose(
      trajectory["descriptor"][member, episode, :length],
      path,
      rtol=1e-4,
      atol=1e-4,
    )
    np.testing.assert_allclose(
      evaluation.returns[member, episode],
      path[:, 0].sum(),
      rtol=1e-4,
      atol=1e-4,
    )
  assert evaluation.lengths.min() < _T // 2 < evaluation.lengths.max()
