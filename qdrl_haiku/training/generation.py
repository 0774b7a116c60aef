"""One generation of training, with members, a repertoire, or both."""

from qdrl_haiku import eager
from qdrl_haiku.training import population, quality_diversity
from qdrl_haiku.training import state as state_lib
from qdrl_haiku.training.refusals import check_setup
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import State, Trainer
from qdrl_haiku.types import Key


def prepare(setup: Setup) -> Trainer:
  """Checks a setup, before anything is compiled, and makes what trains it.

  Raises:
    ValueError: if settings don't fit each other, or if an emitter isn't as
      `map_elites.Emitter` says.
  """
  check_setup(setup)
  if setup.map_elites is None:
    return population.make_trainer(setup)
  return quality_diversity.make_trainer(setup)


@eager.compiled_if_eager("setup")
def init(
  setup: Setup, run_key: Key, initial: state_lib.InitialStates | None = None
) -> State:
  """Makes the state before the first generation.

  Args:
    setup: what is trained.
    run_key: the run's key; or keys [P], one for each of the members, if these
      are independent runs without a controller.
    initial: of `Trainer.draw` for generation 0; drawn here by default.

  Returns:
    New members, or a repertoire of random agents with the emitter's state.

  Raises:
    ValueError: if settings don't fit each other, or a learner or an emitter
      isn't as `learners.Learner` or `map_elites.Emitter` says.
  """
  return prepare(setup).init(run_key, initial)


@eager.compiled_if_eager("setup")
def step(
  setup: Setup, state: State, run_key: Key
) -> tuple[State, state_lib.GenerationReport]:
  """Trains for one generation: collect and learn, evaluate, decide, inherit.

  With a repertoire the emitter is asked for offspring, which are evaluated and
  added, and is told of them.

  If no member is finite afterwards (`GenerationReport.finite`), there is no
  parent: `restart_generation` makes new members, as `runs.run` does.

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
  return prepare(setup).step(state, run_key)


@eager.compiled_if_eager("setup")
def restart_generation(setup: Setup, state: State, run_key: Key) -> State:
  """Replaces the members by new ones, when there is no finite parent.

  Args:
    setup: what is trained.
    state: of non-finite members; hyperparameters and repertoire stay, and
      members that an elite has replaced keep its networks.
    run_key: the run's key.
  """
  return prepare(setup).restart(state, run_key)
