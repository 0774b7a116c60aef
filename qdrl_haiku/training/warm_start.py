"""Beginning a run with the agents of another."""

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import types
from qdrl_haiku.training.checkpoints import Checkpoints
from qdrl_haiku.training.logs import RunDirectory
from qdrl_haiku.training.population import Population, Setup


def warm_start(
  setup: Setup, population: Population, logdir: str
) -> Population:
  """Gives a new population the agents of another run's latest checkpoint.

  Networks, optimisers and statistics are taken over; replay buffers,
  environments and hyperparameters are the new population's own. Members take
  the other run's agents in order of their last returns, best first, and again
  from the best where there are more members than agents.

  Args:
    setup: what the new population is composed of.
    population: the new one.
    logdir: directory of the other run.

  Returns:
    The new population with those agents.

  Raises:
    ValueError: if there is no such run, or if its agents are of another kind.
  """
  agents, returns = read_agents(setup, logdir)
  order = np.argsort([-np.inf if x is None else x for x in returns])[::-1]
  chosen = jnp.asarray(np.resize(order, setup.config.population_size))
  agents = jax.tree.map(
    lambda x, old: jax.device_put(x[chosen], old.sharding),
    agents,
    population.members.learner,
  )
  members = population.members._replace(learner=agents)
  return population._replace(members=members)


def read_agents(
  setup: Setup, logdir: str
) -> tuple[types.State, list[float | None]]:
  """Reads the agents in another run's latest checkpoint.

  Args:
    setup: whose learner is to have such agents.
    logdir: directory of the other run.

  Returns:
    The learners' states, leaves [P of that run, ...], and the members' last
    returns, None where a member had diverged.

  Raises:
    ValueError: if there is no such run, or if its agents are of another kind.
  """
  directory = RunDirectory(logdir)
  directory.settings()
  path = directory.path / "checkpoints"
  # A look at another's run must not create the folder.
  checkpoints = Checkpoints(path, 1) if path.is_dir() else None
  step = None if checkpoints is None else checkpoints.latest()
  if checkpoints is None or step is None:
    raise ValueError(
      f"warm_start {logdir} has no checkpoint; name the directory of a run "
      "that finished a generation."
    )
  returns = checkpoints.record(step)["returns"]
  keys = jax.random.split(jax.random.key(0), len(returns))
  like = jax.eval_shape(jax.vmap(setup.learner.init), keys)
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  like = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), like
  )
  try:
    agents = checkpoints.restore(step, {"learner": like})["learner"]
  except (ValueError, KeyError) as error:
    raise ValueError(
      f"warm_start {logdir} holds agents of another kind; use the learner, "
      "the environment and the layer sizes of that run."
    ) from error
  finally:
    checkpoints.close()
  return agents, returns
