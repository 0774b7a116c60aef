"""The state of training, and the records of what a generation did."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from qdrl_haiku import (
  actors,
  controllers,
  environments,
  map_elites,
  replay,
  types,
)
from qdrl_haiku.training.setup import Scores, Setup
from qdrl_haiku.types import Array, Hyperparams, Key, Metrics, Tree


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
  # Where the boundaries of randomised ranges are, a `Curriculum`, or ().
  curriculum: Tree = ()


class Population(NamedTuple):
  """The state of a population that feeds no repertoire."""

  members: Members
  hyperparams: Hyperparams  # The members', float32 leaves [P].
  # [P, fitness_window], by the last evaluations, the latest at the end, NaN
  # before the first; a child has its parent's.
  recent_fitness: Array
  controller: Tree = ()  # The controller's state.


class State(NamedTuple):
  """Everything that training needs in order to go on.

  What a setup lacks (a repertoire) is () here.
  """

  generation: Array  # int32 [], how many have been trained.
  # Of what makes agents: the state of the setup's emitter, or a `Population`.
  emitter: Tree
  # The container's contents, `map_elites.Elite`s; so named in checkpoints.
  repertoire: Tree = ()
  describer: Tree = ()  # The state of what describes agents.
  # int32 [], environment steps that evaluating the first genotypes took.
  initial_steps: Tree = ()

  @property
  def population(self) -> Population | map_elites.PBTEmitterState | None:
    """The state of the agents that train, if there are any."""
    found = jax.tree.leaves(self.emitter, is_leaf=_is_population)
    return next(filter(_is_population, found), None)

  @property
  def members(self) -> Members:
    """The agents that train."""
    assert self.population is not None
    return self.population.members

  @property
  def hyperparams(self) -> Hyperparams:
    """The members' hyperparameters, leaves [P]; () without members."""
    return () if self.population is None else self.population.hyperparams

  def with_members(self, members: Tree) -> "State":
    """Replaces the agents that train."""
    return self._replace(emitter=jax.tree.map(
      lambda x: x._replace(members=members) if _is_population(x) else x,
      self.emitter, is_leaf=_is_population))


def _is_population(x: object) -> bool:
  return isinstance(x, Population | map_elites.PBTEmitterState)


class InitialStates(NamedTuple):
  """Holds the states in which the episodes of a generation begin."""

  # Of those in which agents collect, leaves [S, E, I, ...]; () if none train.
  pool: Tree = ()
  # Of those by which agents are evaluated, leaves [S, N, ...].
  evaluation: Tree = ()


class Trained(NamedTuple):
  """Holds the results of training before agents are evaluated."""

  # Of members without a repertoire, by name, [S]: means over the generation's
  # updates, NaN if there was none. With a repertoire its emitter has them.
  metrics: Tree = ()
  num_updates: Tree = ()  # Of the same members, int32 [S], critic steps.
  # With a repertoire: the `map_elites.Elite`s to be evaluated, leaves [B, ...].
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
    metrics: by name, [P], means over the updates; NaN if there was none.
    num_updates: int32 [P], critic steps of each member.
    finite: bool [P], whether a member's fitness was, and what it acts with.
    decision: the controller's, or None if there is no controller.
    best: the fittest by this evaluation alone.
    evaluation_steps: int32 [B, N], environment steps of each episode by which
      agents were evaluated, elites that are evaluated again among them. Their
      sum may be more than an int32 holds.
    next_hyperparams: leaves [P], with which the members go on.
    sampled_cells: int32 [P], whose elite replaced the member, -1 for none's.
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


class Trainer(NamedTuple):
  """A setup that has been checked, and the pure functions that train it.

  Attributes:
    setup: what is trained.
    draw: (run_key, generation, num_agents) -> the `InitialStates` of a
      generation; generation 0 is for `init`.
    init: (run_key, `InitialStates` or None) -> the state before the first
      generation.
    train: (state, pool, run_key) -> (state, `Trained`), the first part of a
      generation, with `InitialStates.pool`.
    evaluate: (state, trained, env_states, run_key) -> (state, report), the
      second part, with `InitialStates.evaluation`.
    restart: (state, run_key) -> the state with new members in place of all.
    shared: a tree prefix of the state: True for arrays that devices share along
      their first axis, False for those that each has all of.
    needs: names of what is recorded of evaluations, see `map_elites.Emitter`.
  """

  setup: Setup
  draw: Callable[[Key, Array | int, int], InitialStates]
  init: Callable[[Key, InitialStates | None], State]
  train: Callable[[State, Tree, Key], tuple[State, Trained]]
  evaluate: Callable[
    [State, Trained, Tree, Key], tuple[State, GenerationReport]]
  restart: Callable[[State, Key], State]
  shared: State
  needs: tuple[str, ...] = ()

  def step(self, state: State, run_key: Key) -> tuple[State, GenerationReport]:
    """Trains for one generation, see `training.step`."""
    initial = self.draw(
      run_key, state.generation + 1, self.setup.sizes.evaluated)
    state, trained = self.train(state, initial.pool, run_key)
    return self.evaluate(state, trained, initial.evaluation, run_key)
