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

  # Without a repertoire, whose emitter has them otherwise: by name, [S], means
  # over the generation's updates, NaN if there was none.
  metrics: Tree = ()
  num_updates: Tree = ()  # int32 [S], critic steps; likewise.
  # With one: the `map_elites.Elite`s to be evaluated, leaves [B, ...].
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
  """

  generation: Array  # int32 [], counted from 1.
  # Returns and lengths [P, N], and descriptors if there are any.
  evaluation: actors.Evaluation
  scores: Scores  # [P] by name, with `episode_return` among them.
  fitness: Array  # [P], as the controller saw it; NaN for a non-finite member.
  hyperparams: Hyperparams  # Leaves [P], with which the members were trained.
  metrics: Metrics  # By name, [P], means over updates; NaN if there was none.
  num_updates: Array  # int32 [P], critic steps of each member.
  finite: Array  # bool [P], whether fitness was, and what a member acts with.
  decision: controllers.Decision | None  # None if there is no controller.
  best: Best  # The fittest by this evaluation alone.
  # int32 [B, N], environment steps of each episode by which agents were
  # evaluated, elites that are evaluated again among them. Their sum may be more
  # than an int32 holds.
  evaluation_steps: Array
  next_hyperparams: Hyperparams  # Leaves [P], with which the members go on.
  sampled_cells: Array  # int32 [P], whose elite replaced it, -1 for none's.
  # [] by name, see `map_elites.metrics`; none without a repertoire.
  repertoire_metrics: Metrics = {}
  emitter_metrics: Metrics = {}  # The emitter's, [] by name.


class Trainer(NamedTuple):
  """A setup that has been checked, and the pure functions that train it."""

  setup: Setup  # What is trained.
  # (run_key, generation, 0 for `init`, num_agents) -> states to begin in.
  draw: Callable[[Key, Array | int, int], InitialStates]
  # (run_key, states or None) -> the state before the first generation.
  init: Callable[[Key, InitialStates | None], State]
  # (state, `InitialStates.pool`, run_key): the first part of a generation.
  train: Callable[[State, Tree, Key], tuple[State, Trained]]
  # (state, trained, `InitialStates.evaluation`, run_key): the second part.
  evaluate: Callable[
    [State, Trained, Tree, Key], tuple[State, GenerationReport]]
  # (state, run_key) -> the state with new members in place of all.
  restart: Callable[[State, Key], State]
  # A tree prefix of the state: True for arrays that devices share along their
  # first axis, False for those that each has all of.
  shared: State
  # Names of what is recorded of evaluations, see `map_elites.Emitter`.
  needs: tuple[str, ...] = ()

  def step(self, state: State, run_key: Key) -> tuple[State, GenerationReport]:
    """Trains for one generation, see `training.step`."""
    initial = self.draw(
      run_key, state.generation + 1, self.setup.sizes.evaluated)
    state, trained = self.train(state, initial.pool, run_key)
    return self.evaluate(state, trained, initial.evaluation, run_key)
