"""Checks a run before anything is compiled or written."""

import os

import jax

from qdrl_haiku import checks, controllers, environments, platform
from qdrl_haiku import config as config_lib
from qdrl_haiku.config import Missing
from qdrl_haiku.distributed import sharding
from qdrl_haiku.programs.artifacts.agents import read_agents
from qdrl_haiku.programs.runs.config import RunConfig
from qdrl_haiku.programs.storage.directory import ROW_FILES, RunDirectory
from qdrl_haiku.training import config as training_lib
from qdrl_haiku.training.generation import prepare
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import Trainer


def prepare_valid_run(setup: Setup, config: RunConfig) -> Trainer:
  """Prepares a setup, or refuses one that the run's settings don't fit."""
  missing: dict[str, Missing] = {}
  if setup.map_elites is None:
    missing["repertoire"] = Missing("there is no repertoire", ())
  elif not setup.trains_members:
    missing["members"] = Missing("without members no agents train", ())
  if setup.map_elites is None and setup.controller is None:
    why = "without a controller no agent is replaced"
    missing["pictures"] = Missing(why, ())
  interval, size = setup.steps_per_generation, setup.config.population_size
  with checks.Refusals() as refusals:
    with refusals.noted():
      trainer = prepare(setup)
    with refusals.noted():
      config_lib.check_config_tree(config, missing)
    with refusals.noted():
      _check_abilities(setup)
    if config.num_timesteps % interval:
      refusals.refuse(
        f"num_timesteps={config.num_timesteps} must be a multiple of the "
        f"{interval} steps of a generation; the nearest: "
        + training_lib.nearest_interval_multiples(
          config.num_timesteps, interval) + ".")
    if setup.controller is not None:
      with refusals.noted():
        controllers.check_controller(setup.controller, size)
    with refusals.noted():
      valid_seeds(setup, config)
    if config.film:
      with refusals.noted("film=True: "):
        environments.scene(setup.eval_env)
    _check_beginning(setup, config)
  return trainer


def _check_beginning(setup: Setup, config: RunConfig) -> None:
  """Refuses what a run can't begin with, or can't be resumed from."""
  interval = setup.steps_per_generation
  if config.resume:
    directory = RunDirectory(valid_logdir(config))
    for name in ROW_FILES:  # Raises if one is damaged.
      directory.rows(name)
    rows = directory.rows("metrics.jsonl")
    if rows and rows[-1]["generation"] * interval > config.num_timesteps:
      raise ValueError(
        f"num_timesteps={config.num_timesteps} is less than the "
        f"{rows[-1]['generation'] * interval} that the run in {config.logdir} "
        "has done; give more, or leave it out.")
  elif config.warm_start is not None:
    try:
      read_agents(setup.learner, config.warm_start)
    except ValueError as error:
      raise ValueError(f"warm_start={config.warm_start}: {error}") from error


def check_valid_mesh(setup: Setup) -> None:
  """Refuses a mesh of devices that can't divide the setup."""
  mesh, plan = setup.mesh, setup.map_elites
  assert mesh is not None
  if jax.process_count() > 1 and mesh.size != jax.device_count():
    raise ValueError(
      f"mesh has {mesh.size} of the {jax.device_count()} devices of "
      f"{jax.process_count()} processes, and each process has to take part "
      "with all of its own; leave the mesh out.")
  if plan is not None and plan.shard_repertoire:
    num_cells = plan.container.tessellation.num_cells
    if num_cells % mesh.size:
      raise ValueError(
        f"shard_repertoire: {mesh.size} devices can't share {num_cells} cells "
        "evenly; the nearest numbers: "
        f"{training_lib.nearest_interval_multiples(num_cells, mesh.size)}.")


def describe_valid_mesh(setup: Setup, is_chosen: bool) -> str:
  """Returns a line about how many devices are used."""
  mesh, size, available = setup.mesh, setup.sizes.batches[0], jax.device_count()
  assert mesh is not None
  line = f"{'devices used':<34}{f'{mesh.size} of {available}':>10}"
  limit = platform.usable_cores().limit
  if given := os.environ.get("JAX_NUM_CPU_DEVICES"):
    limit = f"JAX_NUM_CPU_DEVICES={given}"
  if limit and jax.default_backend() == "cpu":
    line += f" ({limit})"
  if not setup.abilities.spreads:
    return f"{line}, since devices can't share the environment"
  if num_idle := sharding.num_sharded_slots(mesh, size) - size:
    line += f", with {size} agents in {size + num_idle} slots"
  if is_chosen and mesh.size < available:
    # Cells that devices share decide first how many of them there can be.
    unit, count = "agents", size
    if setup.sizes.shared_cells % available:
      unit, count = "cells", setup.sizes.shared_cells
    nearest = training_lib.nearest_interval_multiples(count, available)
    line += f"; {nearest} {unit} would use all"
  return line


def _check_abilities(setup: Setup) -> None:
  """Refuses what the environments can't do."""
  count = 1 if setup.mesh is None else setup.mesh.size
  if not setup.abilities.spreads and max(count, jax.process_count()) > 1:
    raise ValueError(
      f"mesh has {count} devices of {jax.process_count()} processes, but the "
      "environment works on one alone; leave the mesh out, start one process.")
  if setup.abilities.copies_states:
    return
  if setup.config.pool_size != training_lib.TrainingConfig.pool_size:
    raise ValueError(
      f"pool_size={setup.config.pool_size} has no effect: the environment's "
      "states can't be kept; leave it out.")
  train_env, eval_env = (
    getattr(env, "env", env) for env in (setup.env, setup.eval_env))
  if train_env is eval_env:
    raise ValueError(
      "eval_env is env, which can't go on training after it has evaluated; "
      "create another to evaluate in.")


def valid_logdir(config: RunConfig) -> str:
  """Returns the run's directory, which has to be given."""
  if not config.logdir:
    raise ValueError("logdir is missing: where is the run to be?")
  return config.logdir


def valid_seeds(setup: Setup, config: RunConfig) -> range:
  """Returns the run's seed, or a seed per member where each is its own run."""
  is_several = setup.controller is None and setup.map_elites is None
  number = setup.config.population_size if is_several else 1
  numbers = range(config.seed, config.seed + number)
  if numbers[-1] >= 2**32:
    raise ValueError(
      f"seed must be at least 0 and below 2**32, got {numbers[-1]}.")
  return numbers
