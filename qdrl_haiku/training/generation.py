"""One generation of training, with members, a repertoire, or both.

`step` is one pure function of the state. It has two parts, `train` and
`evaluate`, to be compiled as one call or as two, with the state donated: the
first one can train before the second one is compiled.
"""

from types import ModuleType

from qdrl_haiku import eager, types
from qdrl_haiku.training import population, quality_diversity
from qdrl_haiku.training.members import InitialStates
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import GenerationReport, State, Trained


def _method(setup: Setup) -> ModuleType:
  """Returns the module with the functions of what a setup trains."""
  return population if setup.map_elites is None else quality_diversity


def check(setup: Setup) -> None:
  """Refuses a setup that can't be trained, before anything is compiled.

  Args:
    setup: what is to be trained.

  Raises:
    ValueError: as `init` does.
  """
  _method(setup).check(setup)


@eager.compiled("setup")
def init(
  setup: Setup, run_key: types.Key, initial: InitialStates | None = None
) -> State:
  """Makes the state before the first generation.

  Args:
    setup: what is trained.
    run_key: the run's key; of members that are runs of their own, without a
      controller, keys [P].
    initial: of `draw` for generation 0; drawn by default.

  Returns:
    New members, or a repertoire of random agents with the emitter's state.

  Raises:
    ValueError: if the settings don't fit each other, if one has no effect, or
      if the learner or an emitter isn't as `learners.Learner` or
      `map_elites.Emitter` says.
  """
  return _method(setup).init(setup, run_key, initial)


@eager.compiled("setup")
def step(
  setup: Setup, state: State, run_key: types.Key
) -> tuple[State, GenerationReport]:
  """Trains for one generation: collect and learn, evaluate, decide, inherit.

  With a repertoire the emitter is asked for offspring, which are evaluated and
  added, and is told of them.

  If no member is finite afterwards (`GenerationReport.finite`), there is no
  parent to inherit from: `restart` makes new members, as `runs.run` does.

  Compiled once for the setup: what changes in its environments, or elsewhere in
  it, later isn't seen, so make a new one. `jax.jit` with a donated state needs
  less memory.

  Args:
    setup: what is trained.
    state: of `init`, then of this function.
    run_key: the same in each generation.

  Returns:
    The state after the controller's decision, and what happened.

  Raises:
    ValueError: if the evaluation has no such score as `config.fitness`.
  """
  generation = state.generation + 1
  initial = draw(setup, run_key, generation, setup.num_evaluated[1])
  state, trained = train(setup, state, initial.pool, run_key)
  return evaluate(setup, state, trained, initial.evaluation, run_key)


def draw(
  setup: Setup,
  run_key: types.Key,
  generation: types.Array | int,
  num_agents: int,
) -> InitialStates:
  """Draws the states in which the episodes of a generation begin.

  Args:
    setup: what is trained.
    run_key: the run's key.
    generation: 0 for the one before the first.
    num_agents: that are evaluated in it, see `Setup.num_evaluated`.

  Returns:
    The states.
  """
  return _method(setup).draw(setup, run_key, generation, num_agents)


def train(
  setup: Setup, state: State, pool: types.Tree, run_key: types.Key
) -> tuple[State, Trained]:
  """Does the first part of `step`: members collect and learn.

  Args:
    setup: what is trained.
    state: before the generation.
    pool: of its `InitialStates`.
    run_key: the run's key.

  Returns:
    The state with trained members, and what is to be evaluated.
  """
  return _method(setup).train(setup, state, pool, run_key)


def evaluate(
  setup: Setup,
  state: State,
  trained: Trained,
  env_states: types.Tree,
  run_key: types.Key,
) -> tuple[State, GenerationReport]:
  """Does the second part of `step`: evaluate, add, decide, inherit.

  Args:
    setup: what is trained.
    state: of `train`.
    trained: of `train`.
    env_states: `evaluation` of the generation's `InitialStates`.
    run_key: the run's key.

  Returns:
    The state after the generation, and what happened.
  """
  return _method(setup).evaluate(setup, state, trained, env_states, run_key)


@eager.compiled("setup")
def restart(setup: Setup, state: State, run_key: types.Key) -> State:
  """Replaces the members by new ones, when there is no finite parent.

  Args:
    setup: what is trained.
    state: of non-finite members; hyperparameters and repertoire stay, and
      members that an elite has replaced keep its networks.
    run_key: the run's key.

  Returns:
    The state with new members, which have no fitness yet.
  """
  return _method(setup).restart(setup, state, run_key)
