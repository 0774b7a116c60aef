"""Selects the functions of a population or of a repertoire for a run."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from qdrl_haiku import map_elites, types
from qdrl_haiku.runs import reevaluation, repertoires
from qdrl_haiku.runs.config import RunConfig
from qdrl_haiku.runs.metrics import Row
from qdrl_haiku.storage.directory import RunDirectory
from qdrl_haiku.training import emitters, generation, illumination, population
from qdrl_haiku.training.config import iterations
from qdrl_haiku.training.illumination import Illumination
from qdrl_haiku.training.initial_states import InitialStates
from qdrl_haiku.training.population import Population
from qdrl_haiku.training.reports import GenerationReport
from qdrl_haiku.training.setup import MapElites, Setup

State = Population | Illumination
"""State of training, or its shapes or shardings."""


class SecondLook(NamedTuple):
  """Holds the result of reevaluating a repertoire's elites.

  Attributes:
    row: what it adds to the row of the generation.
    found: what was found; None where nobody looked.
  """

  row: Row
  found: reevaluation.Reevaluation | None = None


class Engine(NamedTuple):
  """Holds the functions that a run calls, whatever it trains.

  Attributes:
    draw: (run_key, generation, num_agents) -> `InitialStates` of a generation
      in which so many agents are evaluated; 0 is the one before the first.
    num_agents: how many are in generation 0, and how many in later ones.
    init: (run_key, initial) -> the state before its first generation.
    train: (state, pool, run_key) -> (state, trained), the first part of a
      generation.
    evaluate: (state, trained, env_states, run_key) -> (state, report), the
      second.
    restart: (state, run_key) -> the state with new members.
    init_evaluates: whether `init` evaluates agents, and so should run fast.
    shardings: (that of members, that of all else) -> trees of them, prefixes of
      the state and of what `train` says.
    check: refuses settings of a run that don't fit, with ValueError.
    begin: writes what a run's directory has from its start.
    first_row: (state before its first generation, seed) -> a row of metrics of
      it; None where nothing is known yet.
    second_look: (num_reevaluations) -> a function (state, run_key, is_due) ->
      `SecondLook`, which looks if it's due and there is anything to look at.
    write: (directory, state, step, settings, found) writes what there is to
      look at, and what a second look found, at intervals and in the end.
  """

  draw: Callable[[types.Key, Any, int], InitialStates]
  num_agents: tuple[int, int]
  init: Callable[[types.Key, InitialStates], Any]
  train: Callable[[Any, Any, types.Key], tuple[Any, Any]]
  evaluate: Callable[[Any, Any, Any, types.Key], tuple[Any, GenerationReport]]
  restart: Callable[[Any, types.Key], Any]
  init_evaluates: bool
  shardings: Callable[[Any, Any], tuple[Any, Any]]
  check: Callable[[RunConfig], None]
  begin: Callable[[RunDirectory], None]
  first_row: Callable[[Any, int], Row | None]
  second_look: Callable[[int], Callable[[Any, types.Key, bool], SecondLook]]
  write: Callable[
    [
      RunDirectory,
      Any,
      int,
      dict[str, Any],
      reevaluation.Reevaluation | None,
    ],
    None,
  ]


def make_engine(setup: Setup) -> Engine:
  """Makes the engine of what a setup is composed of."""
  if setup.map_elites is None:
    return _of_population(setup)
  return _of_repertoire(setup, setup.map_elites)


def _of_population(setup: Setup) -> Engine:
  """Returns the engine of members alone."""

  def shardings(members: Any, replicated: Any) -> tuple[Any, Any]:
    state: Any = Population(*[replicated] * len(Population._fields))
    return state.with_members(members), members

  def check(config: RunConfig) -> None:
    iterations(setup.config, setup.learner.batches_per_update)
    for name in (
      "num_reevaluations", "reevaluation_interval", "repertoire_interval"
    ):  # fmt: skip
      value, default = getattr(config, name), getattr(RunConfig, name)
      if value != default:
        raise ValueError(
          f"{name} is {value}, but there is no repertoire; leave it at "
          f"{default}."
        )

  return Engine(
    draw=lambda run_key, generation, num_agents: (
      population.draw_initial_states(setup, run_key, generation)
    ),
    num_agents=(setup.config.population_size, setup.config.population_size),
    init=lambda run_key, initial: population.init_population(
      setup, run_key, initial.pool
    ),
    train=functools.partial(generation.train, setup),
    evaluate=functools.partial(generation.evaluate, setup),
    restart=functools.partial(population.restart_members, setup),
    init_evaluates=False,
    shardings=shardings,
    check=check,
    begin=lambda directory: None,
    first_row=lambda state, seed: None,
    second_look=lambda num_reevaluations: (
      lambda state, run_key, is_due: SecondLook({})
    ),
    write=lambda directory, state, step, settings, found: None,
  )


def _of_repertoire(setup: Setup, qd: MapElites) -> Engine:
  """Returns the engine of a repertoire and its emitter."""

  def shardings(members: Any, replicated: Any) -> tuple[Any, Any]:
    emitter: Any = replicated
    if setup.trains_members:
      fields = map_elites.PBTEmitterState._fields
      emitter = map_elites.PBTEmitterState(*[replicated] * len(fields))
      emitter = emitter._replace(members=members)
    if isinstance(qd.emitter, tuple):
      others = [replicated] * (len(qd.emitter) - 1)
      num_fields = len(map_elites.MultiEmitterState._fields)
      emitter = map_elites.MultiEmitterState(
        (emitter, *others), *[replicated] * (num_fields - 1)
      )
    repertoire: Any = replicated
    if qd.shard_repertoire:
      # What is small stays on every device, where all of it is looked at.
      repertoire = map_elites.Repertoire(
        genotypes=members,
        fitness=replicated,
        descriptors=replicated,
        num_outside=replicated,
        tessellation=replicated,
      )
    state = Illumination(
      emitter, repertoire, replicated, replicated, contenders=replicated
    )
    return state, replicated

  def check(config: RunConfig) -> None:
    if setup.eval_env.descriptor is None:
      raise ValueError(
        "a repertoire needs an environment with state descriptors; take one "
        "that has, or give yours a Descriptor."
      )
    if setup.trains_members:
      iterations(setup.config, setup.learner.batches_per_update)
    elif config.warm_start is not None:
      raise ValueError(
        f"warm_start={config.warm_start} has no effect: without members no "
        "agents train; leave it out."
      )
    emitters.make_emitter(setup)

  def second_look(
    num_reevaluations: int,
  ) -> Callable[[Any, types.Key, bool], SecondLook]:
    reevaluate: reevaluation.ReevaluateFn | None = None
    if num_reevaluations:
      reevaluate = reevaluation.make_reevaluate(setup, num_reevaluations)

    def look(state: Any, run_key: types.Key, is_due: bool) -> SecondLook:
      found = None
      if is_due and reevaluate is not None:
        key = reevaluation.reevaluation_key(run_key, int(state.generation))
        found = reevaluate(state.repertoire, key)
      row = reevaluation.row(state.repertoire, found, qd.qd_offset)
      return SecondLook(row, found)

    return look

  def write(
    directory: RunDirectory,
    state: Any,
    step: int,
    settings: dict[str, Any],
    found: reevaluation.Reevaluation | None,
  ) -> None:
    finders = None
    if isinstance(state.emitter, map_elites.MultiEmitterState):
      finders = repertoires.Finders(qd.emitter_names, state.emitter.found_by)
    repertoires.write(
      directory,
      state.repertoire,
      setup.eval_env.descriptor,
      step,
      settings,
      finders,
      found,
    )
    if found is not None:
      repertoires.write_reevaluation(directory, found, step, qd.qd_offset)

  return Engine(
    draw=functools.partial(illumination.draw_initial_states, setup),
    num_agents=(qd.num_initial_genotypes, setup.batch_sizes[-1]),
    init=functools.partial(illumination.init_illumination, setup),
    train=functools.partial(illumination.train, setup),
    evaluate=functools.partial(illumination.evaluate, setup),
    restart=functools.partial(illumination.restart_members, setup),
    init_evaluates=True,
    shardings=shardings,
    check=check,
    begin=functools.partial(
      repertoires.write_centroids, tessellation=qd.tessellation
    ),
    first_row=functools.partial(repertoires.first_row, setup),
    second_look=second_look,
    write=write,
  )
