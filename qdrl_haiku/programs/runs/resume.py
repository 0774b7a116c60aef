"""Begins a run by a new population, or by its last checkpoint."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from qdrl_haiku import types
from qdrl_haiku.controllers import lineage
from qdrl_haiku.distributed import moving, sharding
from qdrl_haiku.programs.artifacts.agents import read_agents
from qdrl_haiku.programs.runs import records
from qdrl_haiku.programs.runs.compilation import Programs
from qdrl_haiku.programs.runs.config import RunConfig
from qdrl_haiku.programs.storage.checkpoints import (
  Checkpoints,
  DamagedCheckpoint,
)
from qdrl_haiku.programs.storage.directory import ROW_FILES, RunDirectory
from qdrl_haiku.programs.storage.strict_json import Record
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import Members, State


def begin_or_resume(
  setup: Setup, config: RunConfig, directory: RunDirectory,
  checkpoints: Checkpoints, best: Checkpoints, programs: Programs,
  run_key: types.Key,
) -> tuple[State, Record]:
  """Returns the state to go on with, and the record of what has been done.

  Rows and best agents of generations that will be done again are dropped. A
  damaged checkpoint is set aside with a warning, and the one before it is
  taken.

  Args:
    setup: what is trained.
    config: says whether to resume, and from whose agents to start.
    directory: the run's.
    checkpoints: of the run.
    best: the best agents, kept apart.
    programs: compiled of the setup.
    run_key: the run's.

  Raises:
    ValueError: if no checkpoint can be read, or it is of another setup.
  """

  def forget_after(step: int, generation: int) -> None:
    for name in ROW_FILES:
      directory.forget_after(name, generation)
    best.keep([found for found in best.steps() if found <= step])

  for step in checkpoints.steps() if config.resume else []:
    try:
      state, record = _restored(
        setup, config, checkpoints, step, programs, run_key)
    except DamagedCheckpoint as error:
      logging.warning(
        "%s; it is set aside as %s", error, checkpoints.set_aside(step))
      continue
    forget_after(step, record["generation"])
    return state, record
  if config.resume and checkpoints.has_set_aside():
    raise ValueError(
      f"no checkpoint in {directory.path} can be read; begin a new run in "
      "another logdir.")
  state = programs.init(run_key)
  forget_after(-1, -1)
  if config.warm_start is not None:
    state = _warm_start(setup, state, config.warm_start)
  if setup.controller is not None:
    directory.append(
      "pbt_lineage.jsonl", lineage.initial_lineage_rows(state.hyperparams))
  return state, records.initial_record()


def forget_unneeded_for_resume(
  checkpoints: Checkpoints, best: Checkpoints, max_checkpoints: int
) -> None:
  """Deletes older checkpoints, and best agents that aren't needed to resume.

  The latest `max_checkpoints` of `checkpoints` stay, and of `best` the latest
  agent, now and as of each of them.
  """
  checkpoints.keep(checkpoints.steps()[:max_checkpoints])
  best.keep(needed_to_resume(best.steps(), checkpoints.steps()))


def needed_to_resume(
  best: Sequence[int], checkpoints: Sequence[int]
) -> set[int]:
  """Returns the steps of the best agents, now and as of each checkpoint."""
  until = [[x for x in best if x <= step] for step in checkpoints]
  return {max(steps) for steps in (best, *until) if steps}


def trees_to_resume(config: RunConfig, state: State) -> dict[str, types.Tree]:
  """Returns the parts of a state that a checkpoint keeps, each by itself."""
  if state.population is None:
    return {"population": state}
  trees = state.members._asdict()
  if not config.checkpoint_replay:
    trees.pop("replay", None)
  if not trees["curriculum"]:  # Checkpoints of older versions have none.
    del trees["curriculum"]
  return trees | {"population": state.with_members(())}


def _restored(
  setup: Setup, config: RunConfig, checkpoints: Checkpoints, step: int,
  programs: Programs, run_key: types.Key,
) -> tuple[State, Record]:
  """Returns the state and the record of a checkpoint."""
  record = checkpoints.record(step)
  wanted = trees_to_resume(config, programs.state)
  trees = checkpoints.restore(step, wanted, wanted.keys() - {"population"})
  state = trees.pop("population")
  if not trees:
    return state, record
  # On other devices there may be another number of slots.
  slots = jax.tree.leaves(programs.state.members)[0].shape[0]
  if checkpoints.num_rows(step, "learner") != slots:
    trees = moving.move_into_spare_slots(
      setup.mesh, trees, setup.config.population_size)
  if "replay" not in trees:
    trees["replay"] = programs.init(run_key).members.replay
  if not setup.abilities.copies_states:
    env: Any = setup.env
    env.restore(trees["environment"])
  return state.with_members(Members(**trees)), record


def _warm_start(setup: Setup, state: State, logdir: str) -> State:
  """Gives a new population the learners of another run's latest checkpoint."""
  # Members take its agents in order of their last returns, best first, and
  # again from the best where there are more members than agents.
  agents, record = read_agents(setup.learner, logdir)
  returns = [-np.inf if x is None else x for x in record["returns"]]
  size = setup.config.population_size
  chosen = np.resize(np.argsort(returns)[::-1], size)
  agents = jax.tree.map(
    lambda x, old: sharding.put_sharded(
      x[chosen[np.minimum(np.arange(old.shape[0]), size - 1)]], old.sharding),
    agents, state.members.learner)
  return state.with_members(state.members._replace(learner=agents))
