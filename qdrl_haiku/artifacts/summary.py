"""Summarises the returns of episodes, with intervals."""

import numpy as np

_CONFIDENCE = 0.95
# Numbers that are resampled at a time.
_BATCH = 10_000_000


def summarize(returns: np.ndarray) -> dict[str, float]:
  """Summarises episodes.

  Args:
    returns: [N], of the episodes.

  Returns:
    `num_episodes`, `mean`, `std`, `iqm` (interquartile mean) and `iqm_low`,
    `iqm_high`, its 95 % bootstrap interval (Agarwal et al., arXiv 2108.13264);
    the interval is the value itself where all returns are equal.
  """
  from scipy import stats  # Here, since importing it takes long.

  def iqm(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return stats.trim_mean(x, 0.25, axis=axis)

  returns = np.asarray(returns, np.float64)
  low = high = float(iqm(returns))
  if np.ptp(returns) > 0:
    interval = stats.bootstrap(
      (returns,),
      iqm,
      confidence_level=_CONFIDENCE,
      batch=max(1, _BATCH // len(returns)),
      method="percentile",
      rng=np.random.default_rng(0),
    ).confidence_interval
    low, high = float(interval.low), float(interval.high)
  return {
    "num_episodes": len(returns),
    "mean": float(np.mean(returns)),
    "std": float(np.std(returns)),
    "iqm": float(iqm(returns)),
    "iqm_low": low,
    "iqm_high": high,
  }
