"""The state of training, and the records of what a generation did."""

import dataclasses
from typing import Any, NamedTuple

import jax

from qdrl_haiku import actors, controllers, environments, replay, types
from qdrl_haiku.training.setup import Scores, Setup
from qdrl_haiku.types import Array, Hyperparams, Metrics, Tree


class Members(NamedTuple):
  """The agents and all that belongs to each of them, leaves [S, ...].

  S is P unless devices share them unevenly, see `distributed.sharding`.
  """

  learner: types.State
  replay: replay.ReplayState  # () where learners learn from rollouts.
  environment: environments.State  # Leaves [S, E, ...].
  # The initial states of the episodes of a generation, leaves [S, E, I, ...],
  # see `members`; () between generations, and where episodes draw their own.
  pool: Tree = ()


class Population(NamedTuple):
  """The state of a population beside its members."""

  hyperparams: Hyperparams  # The members', float32 leaves [P].
  # [P, fitness_window], by the last evaluations, the latest at the end, NaN
  # before the first; a child has its parent's.
  recent_fitness: Array
  controller: Tree = ()  # The controller's state.


class State(NamedTuple):
  """Everything that training needs in order to go on.

  What a setup lacks (agents that train, a repertoire) is () here.
  """

  generation: Array  # int32 [], how many have been trained.
  members: Tree = ()  # A `Members`.
  # A `Population`; where it feeds a repertoire, the
  # `map_elites.PBTEmitterState` without its members.
  population: Tree = ()
  repertoire: Tree = ()  # Of `map_elites.Elite`s.
  emitter: Tree = ()  # Of the emitters, beside the population.
  # A `map_elites.DeepArchive`, if agents are evaluated again.
  archive: Tree = ()
  # int32 [], environment steps that evaluating the first genotypes took.
  initial_steps: Tree = ()

  @property
  def hyperparams(self) -> Hyperparams:
    """The members' hyperparameters, leaves [P]; () without members."""
    return self.population.hyperparams if self.population else ()


def state_shardings(
  setup: Setup, of_members: jax.sharding.Sharding, replicated: Any
) -> tuple[State, "Trained"]:
  """Returns the shardings of the state and of `Trained`, for `jax.jit`.

  They are tree prefixes: `of_members` where devices share an array along its
  first axis, `replicated` where each device has all of it.
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
  """Holds the states in which the episodes of a generation begin."""

  # Of those in which agents collect, leaves [S, E, I, ...]; () if none train.
  pool: Tree = ()
  # Of those by which agents are evaluated, leaves [S, N, ...].
  evaluation: Tree = ()


class Trained(NamedTuple):
  """Holds the results of training before agents are evaluated."""

  # By name, [S], means over the generation's updates; NaN if there was none.
  # () with a repertoire, whose emitter has them.
  metrics: Tree = ()
  num_updates: Tree = ()  # int32 [S], critic steps; likewise.
  # The `map_elites.Elite`s to be evaluated, leaves [B, ...], the members'
  # first; () without a repertoire.
  offspring: Tree = ()


class Best(NamedTuple):
  """The fittest agent of one evaluation."""

  member: Array  # int32 [], its index.
  fitness: Array  # [], by this evaluation alone; NaN if none is finite.
  episode_return: Array  # [].
  hyperparams: Hyperparams  # Leaves [], with which it was trained.
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
    finite: bool [P], whether the fitness of a member was finite, and all that
      it learns and acts with, see `members.finite_part_of_members`.
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

  generation: Array
  evaluation: actors.Evaluation
  scores: Scores
  fitness: Array
  hyperparams: Hyperparams
  metrics: Metrics
  num_updates: Array
  finite: Array
  decision: controllers.Decision | None
  best: Best
  evaluation_steps: Array
  next_hyperparams: Hyperparams
  sampled_cells: Array
  repertoire_metrics: Metrics = {}
  emitter_metrics: Metrics = {}
