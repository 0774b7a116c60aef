"""Several critics in the place of one, each of rewards of its own.

QD-PG has one of rewards and one of what is novel: Pierrot et al. (2022),
"Diversity policy gradient for sample efficient quality-diversity optimization",
arXiv:2006.08505. MOME-PGX has one of each objective: Janmohamed et al. (2023),
"Improving the data efficiency of multi-objective quality-diversity through
gradient assistance and crowding exploration", arXiv:2302.12668.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import environments, learners, map_elites, platform, types
from qdrl_haiku.types import Array, Hyperparams, Key, Metrics, Transition, Tree

# As in QDax, but for a smaller archive, whose descriptors are scaled here.
_NUM_NEIGHBORS, _THRESHOLD, _ARCHIVE_SIZE = 5, 0.1, 1000


class Rewards(NamedTuple):
  """Holds what each of K critics is rewarded by."""

  prefixes: tuple[str, ...]  # K, of the names of a critic's metrics.
  # Name of the transitions' extra [..., X] that rewards are made of.
  extra: str
  size: int  # X.
  # () -> archive, a tree of what is remembered of extras.
  init: Callable[[], Tree]
  # (archive, transitions [...]) -> rewards [K, ...].
  of: Callable[[Tree, Transition], Array]
  # (archive, extras [B, X], valid bool [B]) -> archive.
  remember: Callable[[Tree, Array, Array], Tree]


class CriticsState(NamedTuple):
  """Holds K agents with a critic each, and what rewards are told by."""

  agents: types.State  # Leaves [K, ...].
  archive: Tree


def rewards_and_novelty(descriptor: environments.Descriptor) -> Rewards:
  """Returns rewards, and distances of scaled descriptors to an archive."""
  name, size = "next_descriptor", descriptor.size

  def of(archive: Tree, transitions: Transition) -> Array:
    novelty = map_elites.novelty(
      archive, transitions.extras[name].reshape(-1, size), _NUM_NEIGHBORS)
    return jnp.stack(
      [transitions.reward, novelty.reshape(transitions.reward.shape)])

  return Rewards(
    ("", "diversity/"), name, size,
    lambda: map_elites.empty_archive(_ARCHIVE_SIZE, size), of,
    lambda archive, places, valid: map_elites.add_novel(
      archive, places, valid, _THRESHOLD))


def one_per_objective(objectives: environments.Objectives) -> Rewards:
  """Returns a step's objectives as rewards, one for each critic."""
  name, names = "objectives", objectives.names
  return Rewards(
    tuple(f"{x}/" for x in names), name, len(names), tuple,
    lambda archive, rows: jnp.moveaxis(rows.extras[name], -1, 0),
    lambda archive, extras, valid: archive)


def several_critics(
  shared: learners.SharedCritic, rewards: Rewards
) -> learners.SharedCritic:
  """Makes a teacher whose state is a `CriticsState`.

  Transitions have the extra that rewards are made of; a context [1] is the
  number of one of the critics.
  """
  one, num = shared.learner, len(rewards.prefixes)

  def init(key: Key) -> CriticsState:
    agents = jax.vmap(one.init)(jax.random.split(key, num))
    return CriticsState(agents, rewards.init())

  def update(
    state: CriticsState, hyperparams: Hyperparams, transitions: Transition,
    key: Key,
  ) -> tuple[CriticsState, Metrics]:
    of_each = rewards.of(state.archive, transitions)
    known = hyperparams, transitions._replace(extras={})

    def learn(
      known: Tree, agent: types.State, reward: Array, key: Key
    ) -> tuple[types.State, Metrics]:
      hyperparams, rows = known
      return one.update(agent, hyperparams, rows._replace(reward=reward), key)

    agents, metrics = jax.vmap(platform.member(learn), (None, 0, 0, 0))(
      known, state.agents, of_each, jax.random.split(key, num))
    metrics["reward_mean"] = jnp.mean(of_each.reshape(num, -1), axis=1)
    return state._replace(agents=agents), {
      f"{prefix}{name}": x[i] for name, x in metrics.items()
      for i, prefix in enumerate(rewards.prefixes)}

  def agent_of(state: CriticsState, context: Array) -> types.State:
    return jax.tree.map(lambda x: x[context[0].astype(jnp.int32)], state.agents)

  def improve(
    state: CriticsState, genotype: Tree, observations: Tree, context: Array,
    learning_rate: Array | float,
  ) -> Tree:
    return shared.improve(
      agent_of(state, context), genotype, observations, context[1:],
      learning_rate)

  several = one._replace(
    init=init, update=update, observe=lambda state, seen: state._replace(
      agents=jax.vmap(one.observe, (0, None))(state.agents, seen)))
  return learners.SharedCritic(several, improve, lambda state, context: (
    shared.genotype_at(agent_of(state, context), context[1:])))


def even_shares(size: int, num: int) -> Array:
  """Returns contexts [n, 1]: each of the critics has a share of n agents."""
  shares = num * jnp.arange(size)[:, None] // max(size, 1)
  return shares.astype(jnp.float32)
