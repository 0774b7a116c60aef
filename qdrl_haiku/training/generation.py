"""One generation of a population: collect and learn, evaluate, decide, inherit.

`train_generation` is one pure function of the population. It has two parts, to
be compiled as one call or as two, with the population donated: the first one
can train before the second one is compiled.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import actors, controllers, types
from qdrl_haiku.cpu import one_by_one
from qdrl_haiku.distributed import moving, sharding
from qdrl_haiku.training import population as population_lib
from qdrl_haiku.training.learning import train_members
from qdrl_haiku.training.population import Members, Population
from qdrl_haiku.training.reports import Best, GenerationReport, Trained
from qdrl_haiku.training.setup import Scores, Setup


def train_generation(
  setup: Setup, population: Population, run_key: types.Key
) -> tuple[Population, GenerationReport]:
  """Trains a population for one generation.

  If no member is finite afterwards (`GenerationReport.finite`), there is nobody
  to inherit from: `restart_members` begins anew, as `run` does.

  Args:
    setup: what the population is composed of.
    population: as it is.
    run_key: the run's key, or keys [P], see `population.member_keys`; the
      same in each generation.

  Returns:
    The population after the controller's decision, and what happened.

  Raises:
    ValueError: if the evaluation has no such score as `config.fitness`.
  """
  population, trained = train(setup, population, run_key)
  return evaluate(setup, population, trained, run_key)


def train(
  setup: Setup, population: Population, run_key: types.Key
) -> tuple[Population, Trained]:
  """Does the first part of `train_generation`: members collect and learn.

  Args:
    setup: what the population is composed of.
    population: as it is.
    run_key: as there.

  Returns:
    The population with trained members, and what is known of them.
  """
  members, *trained = sharding.over_members(setup, train_members)(
    population.members,
    population.hyperparams,
    _keys(setup, population, run_key).train,
  )
  return population.with_members(members), Trained(
    *sharding.of_members(setup.mesh, trained, setup.config.population_size)
  )


def evaluate(
  setup: Setup, population: Population, trained: Trained, run_key: types.Key
) -> tuple[Population, GenerationReport]:
  """Does the second part of `train_generation`: evaluate, decide, inherit.

  Args:
    setup: what the population is composed of.
    population: of `train`.
    trained: of `train`.
    run_key: as there.

  Returns:
    The population after the controller's decision, and what happened.

  Raises:
    ValueError: if the evaluation has no such score as `config.fitness`.
  """
  config = setup.config
  generation = population.generation + 1
  keys = _keys(setup, population, run_key)
  members = population.members
  evaluation, scores, finite = sharding.of_members(
    setup.mesh,
    sharding.over_members(setup, _evaluate_members)(members, keys.evaluate),
    config.population_size,
  )
  if config.fitness not in scores:
    raise ValueError(
      f"fitness={config.fitness!r} is no score of this evaluation; give one of "
      f"{', '.join(sorted(scores))}."
    )
  # A few numbers per member, which every device then knows of all of them.
  latest, returns, hyperparams, finite = sharding.replicate(
    setup.mesh,
    (
      scores[config.fitness],
      scores["episode_return"],
      population.hyperparams,
      finite,
    ),
  )
  finite = finite & all_finite((hyperparams, latest, returns))
  latest = jnp.where(finite, latest, jnp.nan)
  recent_fitness = jnp.roll(population.recent_fitness, -1, axis=1)
  recent_fitness = recent_fitness.at[:, -1].set(latest)
  fitness = one_by_one.alone(_windowed_mean)(recent_fitness)
  index = jnp.argmax(jnp.where(finite, latest, -jnp.inf))
  best = Best(
    member=index,
    fitness=latest[index],
    episode_return=scores["episode_return"][index],
    hyperparams=jax.tree.map(lambda x: x[index], hyperparams),
    state=moving.member(setup.mesh, members.learner, index),
  )

  decision, controller = None, population.controller
  if setup.controller is not None:
    decide = one_by_one.alone(setup.controller.update)
    controller, decision = sharding.everywhere(setup.mesh, decide)(
      controller,
      population_lib.controller_key(run_key, generation),
      fitness,
      hyperparams,
    )
    # In the burn-in period nobody takes over from others, but for who is
    # broken and would stay so. Rounded up; the steps themselves might not fit
    # into an int32.
    burn_in = -(-config.burn_in_period // config.perturbation_interval)
    decision = _sparing(
      finite & (generation < burn_in), decision, hyperparams
    )
    members = inherit(
      setup, members, decision.parents, finite, keys.member
    )
    recent_fitness = recent_fitness[decision.parents]
    hyperparams = decision.hyperparams
  report = GenerationReport(
    generation=generation,
    evaluation=evaluation,
    scores=scores,
    fitness=fitness,
    hyperparams=population.hyperparams,
    metrics=trained.metrics,
    num_updates=trained.num_updates,
    finite=finite,
    decision=decision,
    best=best,
    env_steps=config.population_size * config.perturbation_interval
    + jnp.sum(evaluation.lengths),
  )
  population = Population(
    members, hyperparams, recent_fitness, generation, controller
  )
  return population, report


class _Keys(NamedTuple):
  """The keys [P] of the members in a generation, and their parts."""

  member: types.Key
  train: types.Key
  evaluate: types.Key


def _keys(setup: Setup, population: Population, run_key: types.Key) -> _Keys:
  """Returns the keys of the generation that follows."""
  keys = population_lib.member_keys(
    run_key, population.generation + 1, setup.config.population_size
  )
  train_keys, eval_keys = jnp.unstack(
    jax.vmap(jax.random.split)(keys), axis=1
  )
  return _Keys(keys, train_keys, eval_keys)


def _evaluate_members(
  setup: Setup, members: Members, keys: types.Key
) -> tuple[actors.Evaluation, Scores, types.Array]:
  """Evaluates members, P of them, which may be a device's share."""
  evaluation, scores = _evaluate(setup, members.learner, keys)
  scores |= {"episode_return": jnp.mean(evaluation.returns, axis=1)}
  return evaluation, scores, all_finite(population_lib.must_be_finite(members))


def _evaluate(
  setup: Setup, states: types.State, keys: types.Key
) -> tuple[actors.Evaluation, Scores]:
  """As `Setup.evaluate` says, or by greedy episodes."""
  if setup.evaluate is not None:
    return setup.evaluate(setup.learner, states, keys)
  num_episodes = setup.config.num_eval_episodes
  evaluation = actors.evaluate(
    setup.eval_env, setup.learner, states, keys, num_episodes
  )
  return evaluation, {}


def _sparing(
  spared: types.Array,
  decision: controllers.Decision,
  hyperparams: types.Hyperparams,
) -> controllers.Decision:
  """Returns the decision, but that some survive as they are, by bool [P]."""
  survival = controllers.Decision(
    parents=jnp.arange(decision.parents.shape[0], dtype=jnp.int32),
    hyperparams=hyperparams,
    operator=jnp.zeros_like(decision.operator),
  )
  return jax.tree.map(
    lambda x, y: jnp.where(spared, x, y), survival, decision
  )


def inherit(
  setup: Setup,
  members: Members,
  parents: types.Array,
  finite: types.Array,
  keys: types.Key,
) -> Members:
  """Gives children what they inherit.

  A non-finite member's buffer may hold what broke it, and its environments
  may be broken too: it takes over its parent's, whatever the settings. Those on
  the host can't be copied, and have been reset already.

  Args:
    setup: what the population is composed of.
    members: before the decision, in their slots.
    parents: int32 [P], of the decision.
    finite: bool [P], which members are finite.
    keys: [P], the members' in this generation.

  Returns:
    The members after it.
  """
  indices = jnp.arange(parents.shape[0], dtype=parents.dtype)
  broken = ~finite & (parents != indices)

  sources = jnp.where(broken, parents, indices)
  mesh = setup.mesh
  learner, buffers, environment = members
  if setup.config.inherit_replay:
    learner, buffers = moving.inherit(mesh, (learner, buffers), parents)
  else:
    learner = moving.inherit(mesh, learner, parents)
    # The parents of broken members are finite, and so none of these.
    buffers = moving.inherit(mesh, buffers, sources, in_place=True)
  if setup.on_host:
    return Members(learner, buffers, environment)
  environment = moving.inherit(mesh, environment, sources, in_place=True)
  # Not its parent's resets again.
  reset_keys = jax.vmap(jax.random.split, (0, None))(
    population_lib.reset_keys(keys), setup.config.num_envs
  )
  info = environment.info
  broken, reset_keys = sharding.in_slots(mesh, (broken, reset_keys))
  reset_keys = jnp.where(broken[:, None], reset_keys, info["key"])
  environment = environment.replace(info=info | {"key": reset_keys})
  return Members(learner, buffers, environment)


def _windowed_mean(recent_fitness: types.Array) -> types.Array:
  """Returns the mean of what the window holds; NaN if the latest return is."""
  return jnp.where(
    jnp.isfinite(recent_fitness[:, -1]),
    jnp.nanmean(recent_fitness, axis=1),
    jnp.nan,
  )


def all_finite(tree: Any) -> types.Array:
  """Returns whether all floats of each member are finite.

  Args:
    tree: leaves [P, ...].

  Returns:
    bool [P].
  """
  floats = [
    x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)
  ]
  per_leaf = [
    jnp.all(jnp.isfinite(x), axis=tuple(range(1, x.ndim))) for x in floats
  ]
  return jnp.all(jnp.stack(per_leaf), axis=0)
