"""Composes what a configuration describes, with nothing left open."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

from qdrl_haiku import (
  checks,
  controllers,
  environments,
  learners,
  specs,
  training,
  trees,
  types,
)
from qdrl_haiku import config as config_lib
from qdrl_haiku.config import Settings
from qdrl_haiku.programs.experiment.agents import make_default_agent
from qdrl_haiku.programs.experiment.config import Config
from qdrl_haiku.programs.runs import repertoire_files
from qdrl_haiku.programs.storage.directory import RunDirectory

# Environment steps per agent and generation, about, with num_generations.
_INTERVAL = 1000
# The most transitions that an agent, and bytes that all together, keep by
# default.
_LARGEST_REPLAY, _LARGEST_REPLAYS = 1_000_000, 2**31


class Plan(NamedTuple):
  """Holds what a configuration describes."""

  # The configuration, with nothing left open that training decides.
  config: Config
  setup: training.Setup  # What is trained.
  search_space: types.Tree  # Ranges of the hyperparameters.


def build(config: Config) -> training.Setup:
  """Composes what a configuration describes.

  Returns:
    The setup, for `training.init` and `training.step`.

  Raises:
    ValueError: if a setting is wrong or has no effect beside the others.
  """
  return plan_experiment(config).setup


def plan_experiment(config: Config) -> Plan:
  """Composes what a configuration describes, and fills in what it leaves open.

  Raises:
    ValueError: if a setting is wrong or has no effect beside the others.
  """
  repertoire, run, settings = config.repertoire, config.run, config.training
  has_members = repertoire is None or repertoire.has_members
  size = settings.population_size
  interval: int = training.TrainingConfig.perturbation_interval
  with checks.Refusals() as refusals:
    with refusals.noted():
      config_lib.check_config_tree(config)
    with refusals.noted():
      _check_sizes(config.learner)
    given = config.hyperparams
    is_ours = not isinstance(config.learner, config_lib.UsersOwn)
    if is_ours and not isinstance(
      getattr(config.learner, "base", None), config_lib.UsersOwn
    ):
      # Also where the environment can't be made.
      with refusals.noted():
        check_hyperparameters(given)
    setup = make_default_agent(config)
    learner = setup.learner
    # A refused part is replaced by its default, to check the other parts.
    search_space = training.search_space(learner.hyperparams)
    with refusals.noted():
      learner = training.with_hyperparameters(learner, given)
      setup = setup._replace(learner=learner)
    named = trees.tree_leaves_by_name(learner.hyperparams)
    with refusals.noted():
      search_space = training.search_space(
        learner.hyperparams, config.search_space,
        given={name: x for name, x in given.items() if name in named},
        declared=learner.declared)
    if has_members:
      with refusals.noted():
        interval = _interval(config, setup.learner)
      if config.controller is not None:
        with refusals.noted():
          setup = setup._replace(controller=controllers.make_controller(
            config.controller, search_space))
    if repertoire is not None:
      size = repertoire.num_members(size)
      if has_members and repertoire.num_replaced_by_samples is None:
        repertoire = dataclasses.replace(
          repertoire, num_replaced_by_samples=min(2, size - 1))
        config = dataclasses.replace(config, repertoire=repertoire)
      if setup.controller is not None and repertoire.parts[0].batch_size:
        with refusals.noted(f"emitter={repertoire.emitter}: "):
          controllers.check_controller(setup.controller, size)
      with refusals.noted():
        setup = setup._replace(map_elites=_map_elites(
          config, repertoire, setup.eval_env, search_space))
  if has_members:
    settings = dataclasses.replace(settings, perturbation_interval=interval)
  setup = setup._replace(config=dataclasses.replace(
    setup.config, population_size=size, perturbation_interval=interval))
  if run.num_generations is not None:
    steps = run.num_generations * setup.steps_per_generation
    run = dataclasses.replace(run, num_timesteps=steps)
  learns = "learning" not in config.missing()
  if settings.replay_capacity is None or not learns:
    capacity = settings.least_capacity
    if learns and not setup.on_policy:
      # A critic that a repertoire shares stores what all agents do.
      number, steps = (size, 1) if has_members else (1, setup.sizes.evaluated)
      capacity = max(capacity, _replay_capacity(
        run.num_timesteps * steps, number, setup))
    settings = dataclasses.replace(settings, replay_capacity=capacity)
    setup = setup._replace(
      config=dataclasses.replace(setup.config, replay_capacity=capacity))
  config = dataclasses.replace(config, training=settings, run=run)
  return Plan(config, setup, search_space)


def _check_sizes(learner: Settings) -> None:
  """Refuses shared layer sizes if each network is given its own."""
  own: list[tuple[int, ...] | None] = []
  if isinstance(learner, learners.SkillAgentConfig):
    own.append(learner.objective.hidden_layer_sizes)
    learner = learner.base
  if not isinstance(learner, learners.AgentConfig):
    return
  network = learner.network
  own += [network.policy_hidden_layer_sizes, network.critic_hidden_layer_sizes]
  default = type(network).hidden_layer_sizes
  if None not in own and network.hidden_layer_sizes != default:
    raise ValueError(
      f"hidden_layer_sizes={network.hidden_layer_sizes} has no effect: each "
      "network is given sizes of its own; leave it out.")


def check_hyperparameters(given: Mapping[str, float]) -> None:
  """Refuses hyperparameters that no learner of ours can have, by name.

  A user's own may have other bounds.
  """
  with checks.Refusals() as refusals:
    for name, of_learners in learners.DECLARATIONS.items():
      if name in given:
        # Their bounds are alike.
        declared = next(iter(of_learners.values()))
        with refusals.noted():
          declared.check(f"--{name}={given[name]}", given[name])


def _replay_capacity(
  num_steps: int, population_size: int, setup: training.Setup
) -> int:
  """Returns how many transitions an agent keeps by default, or the least."""
  # Agents that forget early steps unlearn (`launchers/RESULTS.md`).
  spec = setup.env.observation_spec
  # Images are stored once, by two numbers.
  after = specs.Array((2,)) if specs.has_images(spec) else spec
  seen = specs.shapes((spec, after, setup.env.action_spec))
  stored = seen, jax.eval_shape(setup.learner.memory)
  row = 8 + sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(stored))
  of_each = _LARGEST_REPLAYS // (row * population_size)
  return min(num_steps, _LARGEST_REPLAY, of_each)


def _interval(config: Config, learner: learners.Learner) -> int:
  """Returns the environment steps per agent and generation."""
  settings = config.training
  if settings.perturbation_interval is not None:
    return settings.perturbation_interval
  if config.run.num_generations is None:
    return training.default_training_interval(
      settings, learner, config.run.num_timesteps)
  steps = training.training_iteration_steps(settings, learner)
  return steps * max(1, round(_INTERVAL / steps))


def _explore(
  config: Config, search_space: types.Tree
) -> Callable[[types.Key, types.Hyperparams], types.Hyperparams]:
  """Makes what changes the hyperparameters of variations."""
  exploration = config.controller
  if isinstance(exploration, controllers.RandomSearchConfig):
    return lambda key, hyperparams: hyperparams
  if not isinstance(exploration, controllers.ExplorationConfig):
    exploration = controllers.PBTConfig()
  return controllers.explore(exploration, search_space)


def _map_elites(
  config: Config, repertoire: training.RepertoireConfig,
  env: environments.BatchedEnvironment, search_space: types.Tree,
) -> training.MapElites:
  """Returns what MAP-Elites adds to the setup."""
  descriptor = env.descriptor
  describer = training.make_describer(repertoire.describer, env)
  if descriptor is None and describer is None:
    raise ValueError(
      f"env_name={config.environment.env_name} has no state descriptor, by "
      "which a repertoire is ordered; take one that has, such as point_maze or "
      "halfcheetah_uni, give yours a Descriptor, or take --describer=aurora.")
  described = descriptor
  if describer is not None:
    described = training.learned_descriptor(describer, env)
  assert described is not None
  centroids = None
  if config.run.resume and config.run.logdir:
    centroids = repertoire_files.read_repertoire_centroids(
      RunDirectory(config.run.logdir))
  offset = repertoire.qd_offset
  if offset is None:
    per_step = descriptor.reward_offset if descriptor else 0.0
    offset = per_step * env.episode_length
  repertoire = dataclasses.replace(
    repertoire, qd_offset=offset).with_reference_point(env)
  container = repertoire.make_container(
    described, config.run.seed, config.training.population_size, centroids)
  measured = None
  if descriptor is not None and describer is not None:
    measured = repertoire.make_places(
      descriptor, container.tessellation.num_cells)
  (first, *others) = repertoire.parts
  is_single = not others and first.batch_size is None
  return training.MapElites(
    emitter=(first.emitter or first.name) if is_single else repertoire.parts,
    container=container, describer=describer, measured=measured,
    variation_fn=training.vary_elites(
      repertoire.iso_sigma, repertoire.line_sigma,
      _explore(config, search_space)),
    variation_batch_size=repertoire.num_variations,
    num_initial_genotypes=repertoire.num_initial_genotypes,
    num_replaced_by_samples=repertoire.num_replaced_by_samples or 0,
    qd_offset=offset, shard_repertoire=repertoire.shard_repertoire,
    teaching=repertoire.teaching, cma=repertoire.cma, me_es=repertoire.me_es)
