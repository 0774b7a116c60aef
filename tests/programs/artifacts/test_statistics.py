"""Tests of statistics over tasks and seeds, against scipy and by hand."""

import itertools

import numpy as np
import pytest
from scipy import stats

from qdrl_haiku.programs.artifacts import statistics


def _exact(statistic, ways):
  """The percentiles of a statistic over all ways to draw again."""
  values = list(map(statistic, ways))
  return np.percentile(values, [2.5, 97.5], method="inverted_cdf")


def test_interquartile_means_are_those_of_scipy():
  for size in (1, 3, 4, 13):
    scores = np.random.default_rng(size).normal(size=(6, size))
    np.testing.assert_allclose(
      statistics.interquartile_mean(scores),
      stats.trim_mean(scores, 0.25, axis=-1), rtol=1e-12)
  # One that is no number is not cut off.
  scores = np.array([[1.0, 2.0, 3.0, np.nan], [1.0, 2.0, 3.0, 40.0]])
  np.testing.assert_array_equal(
    statistics.interquartile_mean(scores), [np.nan, 2.5])


def test_scores_of_all_tasks_are_pooled():
  tasks = [np.array([0.0, 1.0, 2.0]), np.array([10.0, 11.0, 12.0, 13.0, 100.0])]
  # Of eight, two go at each end: 2, 10, 11 and 12 are left.
  assert statistics.pooled_interquartile_mean(tasks).value == pytest.approx(
    8.75)
  # Seeds are drawn within their tasks; across them, the mean would vary.
  estimate = statistics.pooled_interquartile_mean(
    [np.zeros(3), np.full(3, 7.0)])
  assert estimate == (3.5, 3.5, 3.5)


def test_the_interval_is_that_of_all_ways_to_draw_seeds_again():
  # One quarter of four goes at each end; 256 ways.
  scores = np.array([1.0, 4.0, 10.0, 20.0])
  ways = itertools.product(scores, repeat=4)
  low, high = _exact(lambda x: np.mean(sorted(x)[1:3]), ways)
  estimate = statistics.pooled_interquartile_mean([scores])
  assert (estimate.low, estimate.high) == pytest.approx((low, high))


def test_improvement_is_the_share_of_pairs_that_are_won():
  # Won are 2 > 1, 4 > 1, 4 > 3, tied 3 and 3 among nine; then all of one.
  first = [np.array([0.0, 2.0, 4.0]), np.array([5.0])]
  second = [np.array([1.0, 3.0, 4.0]), np.array([-5.0])]
  estimate = statistics.probability_of_improvement(first, second)
  assert estimate.value == pytest.approx((3.5 / 9 + 1) / 2)
  number = stats.mannwhitneyu(first[0], second[0]).statistic / 9
  assert estimate.value == pytest.approx((number + 1) / 2)
  assert 0.5 <= estimate.low < estimate.value < estimate.high <= 1
