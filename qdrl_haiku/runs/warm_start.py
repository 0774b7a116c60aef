"""Beginning a run with the agents of another one."""


import jax
import numpy as np

from qdrl_haiku.artifacts.agents import read_agents
from qdrl_haiku.distributed import sharding
from qdrl_haiku.runs.engines import State
from qdrl_haiku.training.setup import Setup


def warm_start(
  setup: Setup, population: State, logdir: str
) -> State:
  """Gives a new population the agents of another run's latest checkpoint.

  Networks, optimisers and statistics are taken over; replay buffers,
  environments and hyperparameters are the new population's own. Members take
  the other run's agents in order of their last returns, best first, and again
  from the best where there are more members than agents.
  """
  members = population.members
  assert members is not None
  agents, record = read_agents(setup.learner, logdir)
  returns = [-np.inf if x is None else x for x in record["returns"]]
  order = np.argsort(returns)[::-1]
  size = setup.config.population_size
  chosen = np.resize(order, size)
  agents = jax.tree.map(
    lambda x, old: sharding.place(
      x[chosen[np.minimum(np.arange(old.shape[0]), size - 1)]], old.sharding
    ),
    agents,
    members.learner,
  )
  return population.with_members(members._replace(learner=agents))
