"""One generation of training, with members, a repertoire, or both.

`step` is one pure function of the state. It has two parts, `train` and
`evaluate`, to be compiled as one call or as two, with the state donated: the
first one can train before the second one is compiled.
"""

from typing import Any

from qdrl_haiku import eager
from qdrl_haiku.training import emitters, population, quality_diversity
from qdrl_haiku.training import setup as setup_lib
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import GenerationReport, InitialStates, State
from qdrl_haiku.types import Key


def generation_method(setup: Setup) -> Any:
  """Returns the module that trains a setup, by functions of the same names.

  init: as `init` in this module.
  draw: (setup, run_key, generation, num_agents) -> the `InitialStates` of a
    generation; generation 0 is for `init`.
  train: (setup, state, pool, run_key) -> (state, `Trained`), the first part of
    `step`, with `InitialStates.pool`.
  evaluate: (setup, state, trained, env_states, run_key) -> (state, report), the
    second part, with `InitialStates.evaluation`.
  restart: as `restart_generation`.
  """
  return population if setup.map_elites is None else quality_diversity


def check_generation(setup: Setup) -> None:
  """Refuses a setup that can't be trained, before anything is compiled."""
  if setup.map_elites is None:
    setup_lib.check_setup(setup)
  else:
    emitters.make_training_emitter(setup)


@eager.compiled_if_eager("setup")
def init(
  setup: Setup, run_key: Key, initial: InitialStates | None = None
) -> State:
  """Makes the state before the first generation.

  Args:
    setup: what is trained.
    run_key: the run's key; or keys [P], one for each of the members, if these
      are independent runs without a controller.
    initial: the result of `draw` for generation 0; drawn here by default.

  Returns:
    New members, or a repertoire of random agents with the emitter's state.

  Raises:
    ValueError: if settings don't fit each other, or if the learner or an
      emitter isn't as `learners.Learner` or `map_elites.Emitter` says.
  """
  return generation_method(setup).init(setup, run_key, initial)


@eager.compiled_if_eager("setup")
def step(
  setup: Setup, state: State, run_key: Key
) -> tuple[State, GenerationReport]:
  """Trains for one generation: collect and learn, evaluate, decide, inherit.

  With a repertoire the emitter is asked for offspring, which are evaluated and
  added, and is told of them.

  If no member is finite afterwards (`GenerationReport.finite`), there is no
  parent to inherit from: `restart_generation` makes new members, as
  `runs.run` does.

  Compiled once per setup: later changes inside the setup, such as to its
  environments, have no effect, so make a new setup. `jax.jit` with a donated
  state needs less memory.

  Args:
    setup: what is trained.
    state: of `init`, then of this function.
    run_key: the same in each generation.

  Returns:
    The state after the controller's decision, and what happened.
  """
  of = generation_method(setup)
  initial = of.draw(
    setup, run_key, state.generation + 1, setup.num_evaluated[1])
  state, trained = of.train(setup, state, initial.pool, run_key)
  return of.evaluate(setup, state, trained, initial.evaluation, run_key)


@eager.compiled_if_eager("setup")
def restart_generation(setup: Setup, state: State, run_key: Key) -> State:
  """Replaces the members by new ones, when there is no finite parent.

  Args:
    setup: what is trained.
    state: of non-finite members; hyperparameters and repertoire stay, and
      members that an elite has replaced keep its networks.
    run_key: the run's key.
  """
  return generation_method(setup).restart(setup, state, run_key)
