"""Begins a run by a new population, or by its last checkpoint."""

from collections.abc import Sequence
from typing import Any

import jax
from absl import logging

from qdrl_haiku import types
from qdrl_haiku.controllers import lineage
from qdrl_haiku.distributed import moving
from qdrl_haiku.runs import records
from qdrl_haiku.runs.config import RunConfig
from qdrl_haiku.runs.engines import State
from qdrl_haiku.runs.programs import Programs
from qdrl_haiku.runs.warm_start import warm_start
from qdrl_haiku.storage import row_files
from qdrl_haiku.storage.checkpoints import Checkpoints, DamagedCheckpoint
from qdrl_haiku.storage.directory import RunDirectory
from qdrl_haiku.training.population import Members
from qdrl_haiku.training.setup import Setup


def begin(
  setup: Setup,
  config: RunConfig,
  directory: RunDirectory,
  checkpoints: Checkpoints,
  best: Checkpoints,
  programs: Programs,
  run_key: types.Key,
) -> tuple[State, records.Record]:
  """Returns the population to go on with, and the record of what has been done.

  Rows and best agents of generations that will be done again are dropped. A
  damaged checkpoint is set aside with a warning, and the one before it is
  taken.
  """
  steps = checkpoints.steps() if config.resume else []
  if steps or (config.resume and checkpoints.has_set_aside()):
    for step in steps:
      try:
        population, record = _restored(
          setup, config, checkpoints, step, programs, run_key
        )
      except DamagedCheckpoint as error:
        logging.warning(
          "%s; it is set aside as %s", error, checkpoints.set_aside(step)
        )
        continue
      for name in row_files.FILES:
        directory.forget_after(name, record["generation"])
      best.keep([found for found in best.steps() if found <= step])
      return population, record
    raise ValueError(
      f"no checkpoint in {directory.path} can be read; begin a new run in "
      "another logdir."
    )
  population = programs.init(run_key)
  for name in row_files.FILES:
    directory.forget_after(name, -1)
  best.keep([])
  if config.warm_start is not None:
    population = warm_start(setup, population, config.warm_start)
  if setup.controller is not None:
    directory.append(
      "pbt_lineage.jsonl", lineage.initial_rows(population.hyperparams)
    )
  return population, records.initial()


def forget_unneeded(
  checkpoints: Checkpoints, best: Checkpoints, max_checkpoints: int
) -> None:
  """Deletes older checkpoints, and best agents that nobody can go back to."""
  checkpoints.keep(checkpoints.steps()[:max_checkpoints])
  best.keep(needed(best.steps(), checkpoints.steps()))


def needed(best: Sequence[int], checkpoints: Sequence[int]) -> set[int]:
  """Returns which best agents are the best of now or of a checkpoint."""
  until = [[x for x in best if x <= step] for step in checkpoints]
  return {max(steps) for steps in (best, *until) if steps}


def to_trees(config: RunConfig, population: State) -> dict[str, Any]:
  """Returns the parts of a population that a checkpoint keeps.

  Each can be read without the others.
  """
  if population.members is None:
    return {"population": population}
  trees = population.members._asdict()
  if not config.checkpoint_replay:
    del trees["replay"]
  return trees | {"population": population.with_members(())}


def _restored(
  setup: Setup,
  config: RunConfig,
  checkpoints: Checkpoints,
  step: int,
  programs: Programs,
  run_key: types.Key,
) -> tuple[State, records.Record]:
  """Returns the population and the record of a checkpoint."""
  record = checkpoints.record(step)
  written, this = record.get("version"), records.initial()["version"]
  if written != this:
    raise ValueError(
      f"checkpoint {step} in {config.logdir} was written by qdrl_haiku "
      f"{written}, and this is {this}, which may compute "
      "something else; install that version, or begin a new run with "
      f"warm_start={config.logdir}."
    )
  like = programs.population
  wanted = to_trees(config, like)
  of_members = wanted.keys() - {"population"}
  trees = checkpoints.restore(step, wanted, of_members)
  population = trees.pop("population")
  if not trees:
    return population, record
  # On other devices there may be another number of slots.
  slots = jax.tree.leaves(like.members)[0].shape[0]
  if checkpoints.num_rows(step, "learner") != slots:
    trees = moving.refill(setup.mesh, trees, setup.config.population_size)
  if "replay" not in trees:
    trees["replay"] = programs.init(run_key).members.replay
  return population.with_members(Members(**trees)), record
