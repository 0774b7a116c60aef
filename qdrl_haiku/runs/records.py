"""Writes the record, the rows and the files of each generation."""

import importlib.metadata
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from qdrl_haiku.controllers import lineage
from qdrl_haiku.runs import divergence, metrics, skills
from qdrl_haiku.storage.directory import RunDirectory
from qdrl_haiku.training.reports import GenerationReport
from qdrl_haiku.training.setup import Setup

Record = dict[str, Any]
"""Record of a checkpoint, as JSON: progress, and the best agent."""


def initial() -> Record:
  """Returns the record before the first generation."""
  return {
    "version": importlib.metadata.version("qdrl_haiku"),
    "generation": 0,
    "step": 0,
    "walltime": 0.0,
    "initial_env_steps": 0,
    "total_env_steps": 0,
    "returns": None,
    "best": None,
    "diverged": 0,
  }


def begun(record: Record, initial_env_steps: int) -> Record:
  """Returns the record once the first agents are evaluated."""
  return record | {
    "initial_env_steps": initial_env_steps,
    "total_env_steps": record["total_env_steps"] + initial_env_steps,
  }


def updated(
  record: Record, setup: Setup, report: GenerationReport, walltime: float
) -> Record:
  """Returns the record after one more generation."""
  returns = report.scores["episode_return"]
  generation = int(report.generation)
  total_env_steps = record["total_env_steps"] + env_steps(setup, report)
  step = generation * setup.steps_per_generation
  if not setup.trains_members:
    # Episodes may have ended early. Each offspring takes at least one step in
    # a generation, so that this, rounded down, always grows; and at first there
    # may be too few agents to be evaluated again.
    num_agents = report.num_updates.shape[0] + setup.num_resampled
    steps = total_env_steps - record["initial_env_steps"]
    step = max(steps // num_agents, record["step"] + 1)
  best = record["best"]
  if np.isfinite(report.best.fitness) and (
    best is None or report.best.fitness > best["fitness"]
  ):
    # As of a population of one.
    hyperparams = jax.tree.map(lambda x: x[None], report.best.hyperparams)
    best = {
      "step": step,
      "generation": generation,
      "member": int(report.best.member),
      "fitness": float(report.best.fitness),
      "return": float(report.best.episode_return),
      "hyperparams": lineage.named_hyperparams(hyperparams)[0],
    }
  num_diverged = record.get("diverged", 0)
  if setup.trains_members:
    num_diverged = divergence.num_in_a_row(num_diverged, report)
  return record | {
    "generation": generation,
    "step": step,
    "walltime": walltime,
    "total_env_steps": total_env_steps,
    "returns": [x if np.isfinite(x) else None for x in returns.tolist()],
    "best": best,
    "diverged": num_diverged,
  }


def env_steps(setup: Setup, report: GenerationReport) -> int:
  """Counts the environment steps of a generation, however many there are."""
  evaluated = np.sum(report.evaluation_steps, dtype=np.int64)
  return _collected_steps(setup) + int(evaluated)


def row(
  seeds: Sequence[int], report: GenerationReport, record: Record
) -> dict[str, Any]:
  """Returns the row of metrics of one generation."""
  row = metrics.generation_row(report) | {
    "step": record["step"],
    "walltime": record["walltime"],
    "seed": seeds[0],
    "total_env_steps": record["total_env_steps"],
  }
  if report.illumination is not None:
    row |= metrics.qd_row(report.illumination.metrics)
    row |= metrics.emitter_row(report.illumination.emitter_metrics)
  if report.decision is not None:
    row |= metrics.pbt_row(report)
    row |= metrics.controller_row(report.decision.metrics)
  has_members_alone = report.decision is None and report.illumination is None
  if has_members_alone or len(seeds) > 1:
    row |= metrics.seeds_row(report, seeds)
  return row


def rates(
  setup: Setup, report: GenerationReport, seconds: float
) -> dict[str, Any]:
  """Returns what was done per second, summed over the population."""
  steps = _collected_steps(setup) or env_steps(setup, report)
  return {
    "training/env_steps_per_second": steps / seconds,
    "training/updates_per_second": int(report.num_updates.sum()) / seconds,
  }


def _collected_steps(setup: Setup) -> int:
  """Counts the steps that members collect in a generation; 0 without any."""
  if not setup.trains_members:
    return 0
  return setup.config.population_size * setup.config.perturbation_interval


def write(
  directory: RunDirectory, setup: Setup, report: GenerationReport, step: int
) -> None:
  """Writes who was how good with what, and who took over from whom."""
  generation = int(report.generation)
  config = setup.config
  if report.decision is not None:
    is_return = (config.fitness, config.fitness_window) == ("episode_return", 1)
    directory.append(
      "pbt_members.jsonl",
      lineage.member_rows(
        generation,
        step,
        report.scores["episode_return"],
        report.hyperparams,
        None if is_return else report.fitness,
      ),
    )
    assert setup.controller is not None
    old = (report.fitness, report.hyperparams)
    rows = lineage.rows(
      generation, step, report.decision, *old, setup.controller.operators
    )
    if report.illumination is not None:
      sampled_cells: Any = report.illumination.sampled_cells
      sampled = sampled_cells >= 0
      rows = [row for row in rows if not sampled[row["child"]]]
      rows += lineage.sample_rows(
        generation,
        step,
        sampled_cells,
        *old,
        report.illumination.new_hyperparams,
      )
    directory.append("pbt_lineage.jsonl", rows)
  if "skill" in (report.evaluation.trajectory or {}):
    skills.write(
      directory, generation, step, report.evaluation, setup.eval_env.descriptor
    )


def summary(row: dict[str, Any]) -> str:
  """Returns what the progress line says of a generation."""
  if "qd/qd_score" in row:
    return (
      f"QD score {row['qd/qd_score']:.0f} coverage {row['qd/coverage']:.1f} % "
      f"best {row['qd/max_fitness']:.1f}"
    )
  if "pbt/best_return" in row:
    return (
      f"return best {row['pbt/best_return']:.1f} "
      f"mean {row['pbt/mean_return']:.1f}"
    )
  seeds = [
    value for name, value in row.items()
    if name.startswith("eval/episode_return/seed_")
  ]
  text = f"return {row['eval/episode_return']:.1f}"
  if len(seeds) > 1:
    text = f"return best {max(seeds):.1f} mean {row['eval/episode_return']:.1f}"
  information = row.get("diayn/mutual_information_lower_bound")
  return text if information is None else f"{text} nats {information:.2f}"
