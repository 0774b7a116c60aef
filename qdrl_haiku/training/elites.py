"""The agents in a repertoire: made at random, varied, evaluated."""

import functools
from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp

from qdrl_haiku import actors, environments, map_elites, prng
from qdrl_haiku.distributed import sharding
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.types import Hyperparams, Key, Tree


def random_elites(setup: Setup, keys: Key) -> map_elites.Elite:
  """Returns new agents, their hyperparameters drawn by the controller."""
  size = keys.shape[0]
  genotypes = jax.vmap(setup.learner.genotype)(
    jax.vmap(setup.learner.init)(keys))
  controller = setup.controller
  if controller is None:
    hyperparams = setup.default_hyperparams(size)
  else:
    # By as many as members are, which is what the controller may depend on.
    population_size = setup.config.population_size
    key = jax.random.fold_in(keys[0], prng.OfMember.HYPERPARAMS)
    draw = jax.vmap(
      lambda key: controller.init(key, population_size)[1])
    populations = draw(jax.random.split(key, -(-size // population_size)))
    hyperparams = jax.tree.map(
      lambda x: x.reshape(-1, *x.shape[2:])[:size], populations)
  return map_elites.Elite(genotypes, hyperparams)


def vary_elites(
  iso_sigma: float, line_sigma: float,
  explore: Callable[[Key, Hyperparams], Hyperparams],
) -> map_elites.VariationFn:
  """Makes the variation that creates an agent from two of a repertoire.

  `map_elites.iso_line` varies the networks' weights; statistics and temperature
  are the first parent's, and so are the hyperparameters, which `explore` then
  changes as a controller changes those of a child.

  Args:
    iso_sigma: of the noise on each weight, >= 0.
    line_sigma: of the step along the line through the parents, >= 0.
    explore: such as `controllers.explore` makes.
  """
  vary_weights = map_elites.weights_only(functools.partial(
    map_elites.iso_line, iso_sigma=iso_sigma, line_sigma=line_sigma))

  def vary(
    key: Key, first: map_elites.Elite, second: map_elites.Elite
  ) -> map_elites.Elite:
    weights_key, explore_key = jax.random.split(key)
    return map_elites.Elite(
      vary_weights(weights_key, first.genotype, second.genotype),
      explore(explore_key, first.hyperparams))

  return vary


def evaluate_elites(
  setup: Setup, elites: map_elites.Elite, env_states: environments.State,
  needs: Collection[str] = (),
) -> actors.Evaluation:
  """Runs greedy episodes of agents made of elites, on all devices."""
  descriptor = setup.eval_env.descriptor
  assert descriptor is not None

  def evaluate(
    setup: Setup, genotypes: Tree, env_states: environments.State
  ) -> actors.Evaluation:
    return actors.evaluate_from_states(
      setup.eval_env, setup.learner,
      jax.vmap(setup.learner.from_genotype)(genotypes), env_states,
      descriptor.function, keep_transitions="transitions" in needs)

  return sharding.all_gather(
    setup.mesh, setup.over_members(evaluate)(elites.genotype, env_states),
    jax.tree.leaves(elites.genotype)[0].shape[0])


def judge_elites(
  setup: Setup, elites: map_elites.Elite, env_states: environments.State,
  needs: Collection[str],
) -> tuple[actors.Evaluation, map_elites.Evaluated]:
  """Evaluates elites, and says of them what an emitter needs."""
  evaluation = evaluate_elites(setup, elites, env_states, needs)
  assert evaluation.descriptors is not None
  extra: dict[str, Tree] = {}
  if "transitions" in needs:
    extra = {
      "transitions": evaluation.transitions,
      "lengths": evaluation.lengths}
  evaluated = map_elites.Evaluated(
    elites, jnp.mean(evaluation.returns, axis=1),
    jnp.mean(evaluation.descriptors, axis=1), extra)
  return evaluation._replace(transitions=None), evaluated
