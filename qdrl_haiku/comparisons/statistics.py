"""Computes interquartile means and intervals of runs on several tasks.

Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", arXiv:2108.13264, section 4.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

_CONFIDENCE = 0.95
_NUM_RESAMPLES = 10_000
# Numbers that are resampled at a time.
_BATCH = 10_000_000


class Estimate(NamedTuple):
  """A number with its 95 % bootstrap interval.

  Attributes:
    value: the number.
    low: the lower end; where nothing varies, the value itself.
    high: the upper end, likewise.
  """

  value: float
  low: float
  high: float


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
  """Returns the mean without the lowest and the highest quarter.

  Of n scores the floor(n / 4) at each end are left out.
  """
  num_cut = scores.shape[-1] // 4
  kept = np.sort(scores, axis=-1)[..., num_cut : scores.shape[-1] - num_cut]
  return np.where(np.isnan(scores).any(axis=-1), np.nan, kept.mean(axis=-1))


def pooled_mean(tasks: Sequence[np.ndarray]) -> Estimate:
  """Returns the interquartile mean of the scores of all tasks together."""
  scores = [np.asarray(task, np.float64) for task in tasks]

  def statistic(*drawn: np.ndarray) -> np.ndarray:
    return interquartile_mean(np.concatenate(drawn, axis=-1))

  return Estimate(*map(float, _bootstrap(statistic, scores)))


def improvement(
  tasks: Sequence[np.ndarray], others: Sequence[np.ndarray]
) -> Estimate:
  """Returns how likely one method does better than another.

    mean over tasks of P(X > Y) + P(X = Y) / 2

  for a seed's score X of the one, Y of the other.
  """
  num_tasks = len(tasks)
  scores = [np.asarray(x, np.float64) for x in (*tasks, *others)]

  def statistic(*drawn: np.ndarray) -> np.ndarray:
    wins = [
      _share_of_wins(x, y)
      for x, y in zip(drawn[:num_tasks], drawn[num_tasks:], strict=True)
    ]
    return np.mean(wins, axis=0)

  return Estimate(*map(float, _bootstrap(statistic, scores)))


def mean_curve(
  curves: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the interquartile mean of some curves at each of their points."""
  return _bootstrap(
    lambda drawn: interquartile_mean(np.swapaxes(drawn, -1, -2)),
    [np.asarray(curves, np.float64)],
  )


def _share_of_wins(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns in which share of pairs the first is greater; ties are halves."""
  first, second = first[..., :, None], second[..., None, :]
  wins = (first > second) + 0.5 * (first == second)
  return wins.mean(axis=(-2, -1))


def _bootstrap(
  statistic: Callable[..., np.ndarray], samples: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns a statistic with the ends of its percentile interval."""
  rng = np.random.default_rng(0)
  # Pairs of two samples are the most that a statistic makes of them.
  longest = max(len(sample) for sample in samples)
  batch = max(1, _BATCH // (longest * sum(x.size for x in samples)))
  values: list[np.ndarray] = []
  for start in range(0, _NUM_RESAMPLES, batch):
    number = min(batch, _NUM_RESAMPLES - start)
    drawn = [
      sample[rng.integers(len(sample), size=(number, len(sample)))]
      for sample in samples
    ]
    values.append(statistic(*drawn))
  tail = 50 * (1 - _CONFIDENCE)
  low, high = np.percentile(
    np.concatenate(values), [tail, 100 - tail], axis=0
  )
  return statistic(*samples), low, high
