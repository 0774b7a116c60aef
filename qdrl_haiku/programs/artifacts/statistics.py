"""Computes interquartile means and intervals of runs on several tasks.

Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", arXiv:2108.13264, section 4.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

_PERCENTILES = (2.5, 97.5)
_NUM_RESAMPLES = 10_000
# Numbers that are resampled at a time.
_BATCH = 10_000_000


class Estimate(NamedTuple):
  """A statistic [...] and the ends [...] of its 95 % bootstrap interval."""

  value: np.ndarray
  low: np.ndarray
  high: np.ndarray


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
  """Returns means [...] of scores [..., N] without floor(N/4) at each end."""
  cut = scores.shape[-1] // 4
  kept = np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut]
  return np.where(np.isnan(scores).any(axis=-1), np.nan, kept.mean(axis=-1))


def mean_interval(scores: np.ndarray) -> Estimate:
  """Returns the mean of scores [N]."""
  return _bootstrap(lambda drawn: drawn.mean(axis=-1), [scores])


def episode_spreads(values: np.ndarray) -> np.ndarray:
  """Returns standard deviations [N, ...] over M episodes; NaN if M is 1."""
  if values.shape[1] < 2:
    return np.full((len(values), *values.shape[2:]), np.nan)
  return np.std(values, axis=1, ddof=1, dtype=np.float64)


def pooled_interquartile_mean(tasks: Sequence[np.ndarray]) -> Estimate:
  """Returns the interquartile mean of all tasks' scores [N] together."""

  def statistic(*drawn: np.ndarray) -> np.ndarray:
    return interquartile_mean(np.concatenate(drawn, axis=-1))

  return _bootstrap(statistic, tasks)


def probability_of_improvement(
  tasks: Sequence[np.ndarray], others: Sequence[np.ndarray]
) -> Estimate:
  """Returns the probability that one method does better than another.

    mean over tasks of P(X > Y) + P(X = Y) / 2

  for a seed's score X of the one, Y of the other.
  """

  def statistic(*drawn: np.ndarray) -> np.ndarray:
    pairs = zip(drawn[: len(tasks)], drawn[len(tasks) :], strict=True)
    return np.mean([_share_of_wins(x, y) for x, y in pairs], axis=0)

  return _bootstrap(statistic, [*tasks, *others])


def interquartile_mean_curve(curves: np.ndarray) -> Estimate:
  """Returns the interquartile mean [T] of curves [N, T] at each point."""
  return _bootstrap(
    lambda drawn: interquartile_mean(np.swapaxes(drawn, -1, -2)), [curves])


def _share_of_wins(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns in which share of pairs the first is greater; ties are halves."""
  first, second = first[..., :, None], second[..., None, :]
  wins = (first > second) + 0.5 * (first == second)
  return wins.mean(axis=(-2, -1))


def _bootstrap(
  statistic: Callable[..., np.ndarray], samples: Sequence[np.ndarray]
) -> Estimate:
  """Returns a statistic and its percentile interval, each sample redrawn."""
  samples = [np.asarray(sample, np.float64) for sample in samples]
  rng = np.random.default_rng(0)
  # Pairs of two samples are the most that a statistic makes of them.
  longest = max(len(sample) for sample in samples)
  batch = max(1, _BATCH // (longest * sum(x.size for x in samples)))
  values: list[np.ndarray] = []
  for start in range(0, _NUM_RESAMPLES, batch):
    number = min(batch, _NUM_RESAMPLES - start)
    drawn = [
      sample[rng.integers(len(sample), size=(number, len(sample)))]
      for sample in samples]
    values.append(statistic(*drawn))
  low, high = np.percentile(np.concatenate(values), _PERCENTILES, axis=0)
  return Estimate(statistic(*samples), low, high)
