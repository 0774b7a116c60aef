"""Tests of what the returns of some episodes are summarised as."""

import sys

import numpy as np
import pytest

from qdrl_haiku import artifacts

_RETURNS = np.random.default_rng(0).gamma(1.0, 10.0, size=40)


def _iqm(returns):
  """The mean without the quarter of the lowest and that of the highest."""
  cut = int(0.25 * len(returns))
  return np.mean(np.sort(returns)[cut : len(returns) - cut])


def test_numbers_are_those_of_numpy():
  summary = artifacts.summarize(_RETURNS)
  assert list(summary) == [
    "num_episodes", "mean", "std", "iqm", "iqm_low", "iqm_high"
  ]  # fmt: skip
  assert summary["num_episodes"] == 40
  assert summary["mean"] == pytest.approx(np.mean(_RETURNS), rel=1e-12)
  assert summary["std"] == pytest.approx(np.std(_RETURNS), rel=1e-12)
  assert summary["iqm"] == pytest.approx(_iqm(_RETURNS), rel=1e-12)
  assert all(type(x) in (int, float) for x in summary.values())
  assert artifacts.summarize(np.array([1e6, 3.0, -1e6, 1.0]))["iqm"] == 2.0


@pytest.mark.parametrize("num", [1, 2, 3, 5, 7, 9])
def test_any_number_of_episodes_has_an_interquartile_mean(num):
  summary = artifacts.summarize(_RETURNS[:num])
  assert summary["iqm"] == pytest.approx(_iqm(_RETURNS[:num]))
  assert summary["iqm_low"] <= summary["iqm"] <= summary["iqm_high"]


def test_the_interval_is_that_of_resampled_episodes():
  summary = artifacts.summarize(_RETURNS)
  rng = np.random.default_rng(1)
  resampled = [_iqm(rng.choice(_RETURNS, 40)) for _ in range(5_000)]
  low, high = np.percentile(resampled, [2.5, 97.5])
  assert summary["iqm_low"] == pytest.approx(low, abs=0.08 * (high - low))
  assert summary["iqm_high"] == pytest.approx(high, abs=0.08 * (high - low))


def test_the_interval_does_not_depend_on_how_much_is_resampled_at_once(
  monkeypatch,
):
  at_once = artifacts.summarize(_RETURNS)
  module = sys.modules["qdrl_haiku.artifacts.evaluation"]
  monkeypatch.setattr(module, "_RESAMPLED", 123 * len(_RETURNS))
  assert artifacts.summarize(_RETURNS) == at_once


@pytest.mark.parametrize("returns", [[2.5], [-1.0] * 6])
def test_the_interval_of_equal_returns_is_their_value(returns):
  summary = artifacts.summarize(np.array(returns, np.float32))
  for name in ("mean", "iqm", "iqm_low", "iqm_high"):
    assert summary[name] == returns[0]
  assert summary["std"] == 0


def test_float32_returns_are_summed_in_float64():
  returns = np.full(1001, 0.1, np.float32)
  returns[0] = 1e6
  assert artifacts.summarize(returns)["mean"] == pytest.approx(
    np.mean(returns.astype(np.float64)), rel=1e-12
  )
