"""One generation of a population: collect and learn, evaluate, decide, inherit.

`train_generation` is one pure function of the population. It has two parts, to
be compiled as one call or as two, with the population donated: the first one
can train before the second one is compiled.
"""

from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku import actors, controllers, eager, environments, types
from qdrl_haiku.cpu import one_by_one
from qdrl_haiku.distributed import moving, sharding
from qdrl_haiku.training import initial_states
from qdrl_haiku.training import population as population_lib
from qdrl_haiku.training import setup as setup_lib
from qdrl_haiku.training.learning import train_members
from qdrl_haiku.training.population import Members, Population
from qdrl_haiku.training.reports import Best, GenerationReport, Trained
from qdrl_haiku.training.setup import Scores, Setup


@eager.compiled("setup")
def train_generation(
  setup: Setup, population: Population, run_key: types.Key
) -> tuple[Population, GenerationReport]:
  """Trains a population for one generation.

  If no member is finite afterwards (`GenerationReport.finite`), there is nobody
  to inherit from: `restart_members` begins anew, as `run` does.

  Compiled once for the setup: what changes in its environments, or elsewhere in
  it, later isn't seen, so make a new one. `jax.jit` with a donated population
  needs less memory.

  Args:
    setup: what the population is composed of.
    population: as it is.
    run_key: the run's key, or keys [P], see `population.member_keys`; the
      same in each generation.

  Returns:
    The population after the controller's decision, and what happened.

  Raises:
    ValueError: if the evaluation has no such score as `config.fitness`, or if
      there is a repertoire, see `train_illumination`.
  """
  setup_lib.check_no_repertoire(setup, "train_generation", "train_illumination")
  initial = population_lib.draw_initial_states(
    setup, run_key, population.generation + 1
  )
  population, trained = train(setup, population, initial.pool, run_key)
  return evaluate(setup, population, trained, initial.evaluation, run_key)


def train(
  setup: Setup, population: Population, pool: Any, run_key: types.Key
) -> tuple[Population, Trained]:
  """Does the first part of `train_generation`: members collect and learn."""
  keys = _member_keys(setup, population, run_key)
  members, *trained = sharding.over_members(setup, train_members)(
    population.members._replace(pool=pool),
    population.hyperparams,
    jax.vmap(jax.random.split)(keys)[:, 0],
  )
  return population.with_members(members), Trained(*trained)


def evaluate(
  setup: Setup,
  population: Population,
  trained: Trained,
  env_states: Any,
  run_key: types.Key,
) -> tuple[Population, GenerationReport]:
  """Does the second part of `train_generation`: evaluate, decide, inherit."""
  config = setup.config
  generation = population.generation + 1
  env_states = initial_states.evaluation_states(
    setup,
    initial_states.evaluation_keys(_member_keys(setup, population, run_key)),
    env_states,
  )
  members = population.members
  # A few numbers per member, which every device then knows of all of them.
  (evaluation, scores, finite), trained = sharding.all_gather(
    setup.mesh,
    (
      sharding.over_members(setup, _evaluate_members)(members, env_states),
      trained,
    ),
    config.population_size,
  )
  if config.fitness not in scores:
    raise ValueError(
      f"fitness={config.fitness!r} is no score of this evaluation; give one of "
      f"{', '.join(sorted(scores))}."
    )
  hyperparams, latest = population.hyperparams, scores[config.fitness]
  finite = finite & types.all_finite(
    (hyperparams, latest, scores["episode_return"])
  )
  latest = jnp.where(finite, latest, jnp.nan)
  recent_fitness = jnp.roll(population.recent_fitness, -1, axis=1)
  recent_fitness = recent_fitness.at[:, -1].set(latest)
  fitness = one_by_one.alone(_windowed_mean)(recent_fitness)
  index = jnp.argmax(jnp.where(finite, latest, -jnp.inf))
  best_state, turn = moving.member(setup.mesh, members.learner, index)
  best = Best(
    member=index,
    fitness=latest[index],
    episode_return=scores["episode_return"][index],
    hyperparams=jax.tree.map(lambda x: x[index], hyperparams),
    state=best_state,
  )

  decision, controller = None, population.controller
  if setup.controller is not None:
    decide = one_by_one.alone(setup.controller.update)
    controller, decision = sharding.replicated(setup.mesh, decide)(
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
    members = inherit(setup, members, decision.parents, finite, turn)
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
    evaluation_steps=evaluation.lengths,
  )
  population = Population(
    members, hyperparams, recent_fitness, generation, controller
  )
  return population, report


def _member_keys(
  setup: Setup, population: Population, run_key: types.Key
) -> types.Key:
  """Returns the members' keys [P] in the generation that follows."""
  return population_lib.member_keys(
    run_key, population.generation + 1, setup.config.population_size
  )


def _evaluate_members(
  setup: Setup, members: Members, env_states: environments.State
) -> tuple[actors.Evaluation, Scores, types.Array]:
  """Evaluates members, P of them, which may be a device's share."""
  evaluation, scores = _evaluate(setup, members.learner, env_states)
  scores |= {"episode_return": jnp.mean(evaluation.returns, axis=1)}
  is_finite = types.all_finite(population_lib.must_be_finite(members))
  return evaluation, scores, is_finite


def _evaluate(
  setup: Setup, states: types.State, env_states: environments.State
) -> tuple[actors.Evaluation, Scores]:
  """As `Setup.evaluate` says, or by greedy episodes."""
  if setup.evaluate is not None:
    return setup.evaluate(setup.learner, states, env_states)
  evaluation = actors.evaluate_from(
    setup.eval_env, setup.learner, states, env_states
  )
  return evaluation, {}


def _sparing(
  spared: types.Array,
  decision: controllers.Decision,
  hyperparams: types.Hyperparams,
) -> controllers.Decision:
  """Returns the decision, but that some survive as they are, by bool [P]."""
  survival = (
    jnp.arange(decision.parents.shape[0], dtype=jnp.int32),
    hyperparams,
    jnp.zeros_like(decision.operator),
  )
  parents, hyperparams, operator = jax.tree.map(
    lambda x, y: jnp.where(spared, x, y),
    survival,
    (decision.parents, decision.hyperparams, decision.operator),
  )
  return decision._replace(
    parents=parents, hyperparams=hyperparams, operator=operator
  )


def inherit(
  setup: Setup,
  members: Members,
  parents: types.Array,
  finite: types.Array,
  turn: types.Array | int = 0,
) -> Members:
  """Gives children what they inherit.

  A non-finite member's buffer may hold what broke it, and its environments
  may be broken too: it takes over its parent's, whatever the settings. Those on
  the host can't be copied, and have been reset already.
  """
  indices = jnp.arange(parents.shape[0], dtype=parents.dtype)
  broken = ~finite & (parents != indices)

  sources = jnp.where(broken, parents, indices)
  mesh = setup.mesh
  learner, buffers, environment, _ = members
  if setup.config.inherit_replay:
    (learner, buffers), turn = moving.inherit(
      mesh, (learner, buffers), parents, turn
    )
  else:
    learner, turn = moving.inherit(mesh, learner, parents, turn)
    # The parents of broken members are finite, and so none of these.
    buffers, turn = moving.inherit(mesh, buffers, sources, turn, in_place=True)
  if setup.on_host:
    return Members(learner, buffers, environment)
  environment, _ = moving.inherit(
    mesh, environment, sources, turn, in_place=True
  )
  return Members(learner, buffers, environment)


def _windowed_mean(recent_fitness: types.Array) -> types.Array:
  """Returns the mean of what the window holds; NaN if the latest return is."""
  return jnp.where(
    jnp.isfinite(recent_fitness[:, -1]),
    jnp.nanmean(recent_fitness, axis=1),
    jnp.nan,
  )
