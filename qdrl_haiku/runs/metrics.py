"""One flat row of numbers per generation, by the names users know."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qdrl_haiku.controllers import lineage
from qdrl_haiku.training.reports import GenerationReport

Row = dict[str, float | int]


def generation_row(report: GenerationReport) -> Row:
  """Returns the numbers that every population has."""
  row: Row = {
    "generation": int(report.generation),
    "eval/episode_return": float(np.mean(report.evaluation.returns)),
    "eval/episode_length": float(np.mean(report.evaluation.lengths)),
  }
  for name, values in _other_scores(report):
    row[name] = float(np.mean(values))
  for name, values in sorted(report.metrics.items()):
    row[f"training/{name}"] = float(np.mean(values))
  return row


def pbt_row(report: GenerationReport) -> Row:
  """Returns what a controller adds to the row."""
  assert report.decision is not None
  row: Row = {}
  scores: dict[str, Any] = {"return": report.scores["episode_return"]}
  scores |= {name.split("/")[-1]: x for name, x in _other_scores(report)}
  for name, values in scores.items():
    values = values[report.finite]
    for kind, of in (("best", np.max), ("mean", np.mean), ("min", np.min)):
      row[f"pbt/{kind}_{name}"] = float(of(values)) if values.size else np.nan
  parents = report.decision.parents
  replaced = parents != np.arange(parents.shape[0])
  if not report.finite.any():
    replaced[:] = True  # All begin anew in their own places.
  if report.illumination is not None:
    sampled_cells: Any = report.illumination.sampled_cells
    replaced |= sampled_cells >= 0
  row["pbt/num_replaced"] = int(np.sum(replaced))
  row["pbt/num_nonfinite"] = int(np.sum(~report.finite))
  members = lineage.named_hyperparams(report.hyperparams)
  for name in members[0]:
    values = np.array([member[name] for member in members], float)
    row[f"pbt/hyperparams/{name}/mean"] = float(np.mean(values))
    row[f"pbt/hyperparams/{name}/min"] = float(np.min(values))
    row[f"pbt/hyperparams/{name}/max"] = float(np.max(values))
  return row


def qd_row(repertoire_metrics: Mapping[str, Any]) -> Row:
  """Returns what a repertoire adds to the row."""
  return {
    name: np.asarray(value).item()
    for name, value in repertoire_metrics.items()
  }


def emitter_row(emitter_metrics: Mapping[str, Any]) -> Row:
  """Makes of what an emitter says of itself what the row has."""
  return {
    f"emitter/{name}": np.asarray(value).item()
    for name, value in emitter_metrics.items()
  }


def controller_row(controller_metrics: Mapping[str, Any]) -> Row:
  """Makes of what a controller says of itself what the row has."""
  return {
    f"controller/{name}": np.asarray(value).item()
    for name, value in controller_metrics.items()
  }


def seeds_row(report: GenerationReport, seeds: Sequence[int]) -> Row:
  """Returns what several seeds side by side add to the row."""
  from scipy import stats  # Here, since importing it takes long.

  returns: Any = report.scores["episode_return"]
  row: Row = {
    f"{name}/seed_{seed}": float(value)
    for name, values in [
      ("eval/episode_return", returns), *_other_scores(report)
    ]
    for seed, value in zip(seeds, values, strict=True)
  }
  row["eval/episode_return_iqm"] = float(stats.trim_mean(returns, 0.25))
  return row


def _other_scores(report: GenerationReport) -> list[tuple[str, Any]]:
  """Returns all scores but the return, which has names of its own."""
  return [
    (name, values)
    for name, values in sorted(report.scores.items())
    if name != "episode_return"
  ]
