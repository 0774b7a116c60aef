"""Composes what a configuration describes, with nothing left open."""

import dataclasses
from typing import Any, NamedTuple

from qdrl_haiku import config as config_lib
from qdrl_haiku import controllers, environments, learners, training
from qdrl_haiku.experiment.agents import make_agent
from qdrl_haiku.experiment.config import Config
from qdrl_haiku.runs import repertoire_files
from qdrl_haiku.storage.directory import RunDirectory

# Environment steps per agent and generation, about, with num_generations.
_INTERVAL = 1000


class Plan(NamedTuple):
  """Holds what a configuration describes.

  Attributes:
    config: the configuration, with nothing left open that training decides.
    setup: what is trained.
    search_space: ranges of the hyperparameters.
  """

  config: Config
  setup: training.Setup
  search_space: Any


def plan(config: Config) -> Plan:
  """Composes what a configuration describes, and fills in what it leaves open.

  Args:
    config: of the run.

  Returns:
    The plan.

  Raises:
    ValueError: if a setting is wrong or has no effect beside the others.
  """
  config_lib.check_effects(config)
  agent = make_agent(config)
  search_space = training.search_space(
    agent.learner.hyperparams,
    config.search_space,
    given=config.hyperparams,
    declared=agent.learner.declared,
  )
  repertoire = config.repertoire
  has_members = repertoire is None or repertoire.has_members
  controller = None
  if config.controller is not None and has_members:
    controller = controllers.make(config.controller, search_space)
  settings = config.training
  interval: int = training.TrainingConfig.perturbation_interval
  if has_members:
    interval = _interval(config, agent.learner)
  size = settings.population_size
  if repertoire is not None:
    size = repertoire.num_members(size)
  settings = dataclasses.replace(
    settings,
    population_size=size,
    perturbation_interval=interval,
    num_eval_episodes=settings.num_eval_episodes or agent.num_eval_episodes,
    fitness=agent.fitness,
    replay_extras=agent.replay_extras,
  )
  setup = training.Setup(
    env=agent.env,
    eval_env=agent.eval_env,
    learner=agent.learner,
    controller=controller,
    config=settings,
    evaluate=agent.evaluate,
    map_elites=None
    if repertoire is None
    else _map_elites(config, repertoire, agent.eval_env, search_space),
  )
  run = config.run
  if run.num_generations is not None:
    steps = run.num_generations * setup.steps_per_generation
    run = dataclasses.replace(run, num_timesteps=steps)
  if has_members:
    config = dataclasses.replace(
      config,
      training=dataclasses.replace(
        config.training, perturbation_interval=interval
      ),
    )
  return Plan(dataclasses.replace(config, run=run), setup, search_space)


def _interval(config: Config, learner: learners.Learner) -> int:
  """Returns the environment steps per agent and generation."""
  settings = config.training
  if settings.perturbation_interval is not None:
    return settings.perturbation_interval
  rates: dict[str, Any] = {
    "num_envs": settings.num_envs,
    "grad_updates_per_step": settings.grad_updates_per_step,
    "batches_per_update": learner.batches_per_update,
  }
  if config.run.num_generations is None:
    return training.default_interval(config.run.num_timesteps, **rates)
  steps = training.iteration_steps(**rates)
  return steps * max(1, round(_INTERVAL / steps))


def _map_elites(
  config: Config,
  repertoire: training.RepertoireConfig,
  env: environments.BatchedEnvironment,
  search_space: Any,
) -> training.MapElites:
  """Returns what MAP-Elites adds to the setup."""
  descriptor = env.descriptor
  if descriptor is None:
    raise ValueError(
      f"env_name={config.environment.env_name} has no state descriptor, by "
      "which a repertoire is ordered; take one that has, such as point_maze or "
      "halfcheetah_uni, or give yours a Descriptor."
    )
  centroids = None
  if config.run.resume and config.run.logdir:
    centroids = repertoire_files.read_centroids(RunDirectory(config.run.logdir))
  offset = repertoire.qd_offset
  if offset is None:
    offset = descriptor.reward_offset * env.episode_length
  exploration = config.controller
  if not isinstance(exploration, controllers.ExplorationConfig):
    exploration = controllers.PBTConfig()
  (first, *others) = repertoire.parts
  is_single = not others and first.batch_size is None
  return training.MapElites(
    emitter=(first.emitter or first.name) if is_single else repertoire.parts,
    tessellation=repertoire.make_tessellation(
      descriptor, config.run.seed, centroids
    ),
    variation_fn=training.vary_agents(
      repertoire.iso_sigma,
      repertoire.line_sigma,
      controllers.explore(exploration, search_space),
    ),
    variation_batch_size=repertoire.num_variations,
    num_initial_genotypes=repertoire.num_initial_genotypes,
    num_replaced_by_samples=repertoire.num_replaced_by_samples
    if repertoire.has_members
    else 0,
    qd_offset=offset,
    shard_repertoire=repertoire.shard_repertoire,
    teaching=repertoire.teaching,
    resampling=repertoire.resampling
    if repertoire.adding == "adaptive"
    else None,
    cma=repertoire.cma,
  )
