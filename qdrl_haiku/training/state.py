"""The state of training, and the records of what a generation did."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from qdrl_haiku import actors, controllers, environments, replay, types
from qdrl_haiku.training.setup import Scores, Setup


class Members(NamedTuple):
  """The agents and all that belongs to each of them, leaves [S, ...].

  S is P unless devices share them unevenly, see `distributed.sharding`.

  Attributes:
    learner: the learners' states.
    replay: the replay buffers; () where learners learn from rollouts.
    environment: the environments' states, leaves [S, E, ...].
    pool: the states with which their episodes begin in a generation, leaves
      [S, E, I, ...], see `members`; () between generations, and where
      each is drawn when it begins.
  """

  learner: types.State
  replay: replay.ReplayState
  environment: environments.State
  pool: types.Tree = ()


class Population(NamedTuple):
  """The state of a population beside its members.

  Attributes:
    hyperparams: the members', float32 leaves [P].
    recent_fitness: [P, fitness_window], by the last evaluations, the latest at
      the end, NaN before the first; a child has its parent's.
    controller: the controller's state; () where there is none.
  """

  hyperparams: types.Hyperparams
  recent_fitness: types.Array
  controller: types.Tree = ()


class State(NamedTuple):
  """Everything that training needs in order to go on.

  What a setup lacks (agents that train, a repertoire) is () here.

  Attributes:
    generation: int32 [], how many generations have been trained.
    members: the agents, a `Members`.
    population: a `Population`; where it feeds a repertoire, the
      `map_elites.PBTEmitterState` without its members.
    repertoire: of `map_elites.Elite`s.
    emitter: state of the emitter or emitters, beside the population.
    archive: a `map_elites.DeepArchive` beside the repertoire, if agents are
      evaluated again.
    initial_steps: int32 [], environment steps that evaluating the first
      genotypes took.
  """

  generation: types.Array
  members: types.Tree = ()
  population: types.Tree = ()
  repertoire: types.Tree = ()
  emitter: types.Tree = ()
  archive: types.Tree = ()
  initial_steps: types.Tree = ()

  @property
  def hyperparams(self) -> types.Hyperparams:
    """The members' hyperparameters, leaves [P]; () without members."""
    return self.population.hyperparams if self.population else ()


def state_shardings(
  setup: Setup, of_members: jax.sharding.Sharding, replicated: Any
) -> tuple[State, "Trained"]:
  """Returns prefixes of the trees that training returns, for `jax.jit`.

  Args:
    setup: what is trained.
    of_members: the sharding of what devices share.
    replicated: the sharding of what all devices have.

  Returns:
    Those of the state, and of what members learned.
  """
  every: Any = [replicated] * len(State._fields)
  state = State(*every)._replace(members=of_members)
  qd = setup.map_elites
  if qd is not None and qd.shard_repertoire:
    # What is small stays on every device, where all of it is looked at.
    repertoire: Any = qd.tessellation.repertoire_type(*[replicated] * 5)
    repertoire = dataclasses.replace(repertoire, genotypes=of_members)
    state = state._replace(repertoire=repertoire)
  places: Any = (of_members, of_members, replicated)
  return state, Trained(*places)


class InitialStates(NamedTuple):
  """Holds the states in which the episodes of a generation begin.

  Attributes:
    pool: of those in which agents collect, leaves [S, E, I, ...]; () if none
      train.
    evaluation: of those by which agents are evaluated, leaves [S, N, ...].
  """

  pool: types.Tree = ()
  evaluation: types.Tree = ()


class Trained(NamedTuple):
  """Holds the results of training before agents are evaluated.

  Attributes:
    metrics: by name, [S], means over the generation's updates; NaN if there
      was none. () with a repertoire, whose emitter has them.
    num_updates: int32 [S], critic steps of each member; likewise.
    offspring: the `map_elites.Elite`s to be evaluated, leaves [B, ...], the
      members' first; () without a repertoire.
  """

  metrics: types.Tree = ()
  num_updates: types.Tree = ()
  offspring: types.Tree = ()


class Best(NamedTuple):
  """The fittest agent of one evaluation.

  Attributes:
    member: int32 [], its index.
    fitness: [], by this evaluation alone; NaN if no agent is finite.
    episode_return: [].
    hyperparams: leaves [], with which it was trained.
    state: its learner state.
  """

  member: types.Array
  fitness: types.Array
  episode_return: types.Array
  hyperparams: types.Hyperparams
  state: types.State


class GenerationReport(NamedTuple):
  """Holds the results of a generation, from before the decision.

  They are those of the members; where no agents train, of the offspring.

  Attributes:
    generation: int32 [], counted from 1.
    evaluation: returns and lengths [P, N], and descriptors if there are any.
    scores: [P] by name, with `episode_return` among them.
    fitness: [P], as the controller saw it; NaN for a non-finite member.
    hyperparams: leaves [P], with which the members were trained.
    metrics: by name, [P], means over the generation's updates; NaN if there
      was none.
    num_updates: int32 [P], critic steps of each member.
    finite: bool [P], whether all that a member learns from and acts with was,
      see `members.finite_part_of_members`, and its fitness.
    decision: the controller's, or None if there is no controller.
    best: the fittest by this evaluation alone.
    evaluation_steps: int32 [B, N], environment steps of each episode by which
      agents were evaluated, elites that are evaluated again among them. Their
      sum may be more than an int32 holds.
    next_hyperparams: leaves [P], with which the members go on.
    sampled_cells: int32 [P], the cell whose elite replaced the member, -1 where
      none did.
    repertoire_metrics: [] by name, see `map_elites.metrics`; none without one.
    emitter_metrics: the emitter's, [] by name.
  """

  generation: types.Array
  evaluation: actors.Evaluation
  scores: Scores
  fitness: types.Array
  hyperparams: types.Hyperparams
  metrics: types.Metrics
  num_updates: types.Array
  finite: types.Array
  decision: controllers.Decision | None
  best: Best
  evaluation_steps: types.Array
  next_hyperparams: types.Hyperparams
  sampled_cells: types.Array
  repertoire_metrics: types.Metrics = {}
  emitter_metrics: types.Metrics = {}


class Method(NamedTuple):
  """Holds the functions of a generation, with members alone or a repertoire.

  Attributes:
    init: as `generation.init`.
    draw: (setup, run_key, generation, num_agents) -> the states of a
      generation, 0 for the one before the first.
    train: (setup, state, pool, run_key) -> (state, what is evaluated), the
      first part of `generation.step`, with the pool of these.
    evaluate: (setup, state, trained, env_states, run_key) -> (state, report),
      the second part, from their other states.
    restart: as `generation.restart_generation`.
  """

  init: Callable[..., State]
  draw: Callable[..., InitialStates]
  train: Callable[..., tuple[State, Trained]]
  evaluate: Callable[..., tuple[State, GenerationReport]]
  restart: Callable[..., State]
