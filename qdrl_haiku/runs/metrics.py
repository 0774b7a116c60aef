"""One flat row of numbers per generation, by the names users know."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qdrl_haiku.controllers import lineage
from qdrl_haiku.training.reports import GenerationReport

Row = dict[str, float | int]


def generation_row(report: GenerationReport) -> Row:
  """Returns the numbers that every population has.

  Args:
    report: of one generation, on the host.

  Returns:
    `generation`, and means over the members under `eval/` and `training/` and
    of the other scores; NaN where there is no number.
  """
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
  """Returns what a controller adds to the row.

  Args:
    report: of one generation, on the host.

  Returns:
    `pbt/{best,mean,min}_return` over the finite members, and the same of every
    other score, such as `pbt/best_diversity_return`; `pbt/num_replaced`,
    `pbt/num_nonfinite` and `pbt/hyperparams/<name>/{mean,min,max}`, of the
    hyperparameters with which the members were trained.
  """
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
  """Returns what a repertoire adds to the row.

  Args:
    repertoire_metrics: of `map_elites.metrics`, on the host.

  Returns:
    The same, of plain numbers.
  """
  return {
    name: np.asarray(value).item()
    for name, value in repertoire_metrics.items()
  }


def emitter_row(emitter_metrics: Mapping[str, Any]) -> Row:
  """Makes of what an emitter says of itself what the row has.

  Args:
    emitter_metrics: of `Emitter.metrics`, on the host.

  Returns:
    Plain numbers, `emitter/<name>`.
  """
  return {
    f"emitter/{name}": np.asarray(value).item()
    for name, value in emitter_metrics.items()
  }


def controller_row(controller_metrics: Mapping[str, Any]) -> Row:
  """Makes of what a controller says of itself what the row has.

  Args:
    controller_metrics: of `Decision.metrics`, on the host.

  Returns:
    Plain numbers, `controller/<name>`.
  """
  return {
    f"controller/{name}": np.asarray(value).item()
    for name, value in controller_metrics.items()
  }


def seeds_row(report: GenerationReport, seeds: Sequence[int]) -> Row:
  """Returns what several seeds side by side add to the row.

  Args:
    report: of one generation, on the host; member i is the run of seeds[i].
    seeds: of the members.

  Returns:
    `eval/episode_return/seed_<seed>` of each, and the same of the other
    scores; and `eval/episode_return_iqm`, the returns' interquartile mean
    (Agarwal et al., arXiv 2108.13264).
  """
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
