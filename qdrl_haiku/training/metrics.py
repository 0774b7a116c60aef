"""One flat row of numbers per generation, by the names users know."""

from collections.abc import Sequence

import numpy as np

from qdrl_haiku.controllers import lineage
from qdrl_haiku.training.generation import GenerationReport

Row = dict[str, float | int]


def generation_row(report: GenerationReport) -> Row:
  """The numbers that every population has.

  Args:
    report: of one generation, on the host.

  Returns:
    `generation`, and means over the members under `eval/` and `training/`;
    NaN where there is no number.
  """
  row: Row = {
    "generation": int(report.generation),
    "eval/episode_return": float(np.mean(report.evaluation.returns)),
    "eval/episode_length": float(np.mean(report.evaluation.lengths)),
  }
  for name, values in sorted(report.metrics.items()):
    row[f"training/{name}"] = float(np.mean(values))
  return row


def pbt_row(report: GenerationReport) -> Row:
  """What a controller adds to the row.

  Args:
    report: of one generation, on the host.

  Returns:
    `pbt/{best,mean,min}_return` over the finite members, `pbt/num_replaced`,
    `pbt/num_nonfinite` and `pbt/hyperparams/<name>/{mean,min,max}`, of the
    hyperparameters with which the members were trained.
  """
  returns = np.mean(report.evaluation.returns, axis=1)[report.finite]
  if not returns.size:
    returns = np.full(1, np.nan)
  assert report.decision is not None
  row: Row = {
    "pbt/best_return": float(np.max(returns)),
    "pbt/mean_return": float(np.mean(returns)),
    "pbt/min_return": float(np.min(returns)),
    "pbt/num_replaced": int(np.sum(report.decision.operator != 0)),
    "pbt/num_nonfinite": int(np.sum(~report.finite)),
  }
  members = lineage.named_hyperparams(report.hyperparams)
  for name in members[0]:
    values = np.array([member[name] for member in members], float)
    row[f"pbt/hyperparams/{name}/mean"] = float(np.mean(values))
    row[f"pbt/hyperparams/{name}/min"] = float(np.min(values))
    row[f"pbt/hyperparams/{name}/max"] = float(np.max(values))
  return row


def seeds_row(report: GenerationReport, seeds: Sequence[int]) -> Row:
  """What several seeds side by side add to the row.

  Args:
    report: of one generation, on the host; member i is the run of seeds[i].
    seeds: of the members.

  Returns:
    `eval/episode_return/seed_<seed>` of each, and `eval/episode_return_iqm`,
    their interquartile mean (Agarwal et al., arXiv 2108.13264).
  """
  from scipy import stats  # Here, since importing it takes long.

  returns = np.mean(report.evaluation.returns, axis=1)
  row: Row = {
    f"eval/episode_return/seed_{seed}": float(value)
    for seed, value in zip(seeds, returns, strict=True)
  }
  row["eval/episode_return_iqm"] = float(stats.trim_mean(returns, 0.25))
  return row

