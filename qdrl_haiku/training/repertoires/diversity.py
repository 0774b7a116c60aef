"""Two critics in the place of one: of rewards, and of what is novel.

QD-PG: Pierrot et al. (2022), "Diversity policy gradient for sample efficient
quality-diversity optimization", arXiv:2006.08505.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import learners, map_elites, platform, types
from qdrl_haiku.types import Array, Hyperparams, Key, Metrics, Transition, Tree

PLACE = "next_descriptor"
"""The extra of transitions that is novel or not, [..., D]."""
# As in QDax, but for a smaller archive, whose descriptors are scaled here.
_NUM_NEIGHBORS, _THRESHOLD, _ARCHIVE_SIZE = 5, 0.1, 1000


class PairState(NamedTuple):
  """Holds an agent that learns from rewards, and one from what is novel."""

  agents: types.State  # Leaves [2, ...].
  archive: map_elites.NoveltyArchive


def two_critics(
  shared: learners.SharedCritic, num_dimensions: int
) -> learners.SharedCritic:
  """Makes a teacher whose state is a `PairState`; a context [1] says of which.

  Transitions have the extra `PLACE`, D = num_dimensions.
  """
  one = shared.learner

  def init(key: Key) -> PairState:
    archive = map_elites.empty_archive(_ARCHIVE_SIZE, num_dimensions)
    return PairState(jax.vmap(one.init)(jax.random.split(key)), archive)

  def update(
    state: PairState, hyperparams: Hyperparams, transitions: Transition,
    key: Key,
  ) -> tuple[PairState, Metrics]:
    novelty = map_elites.novelty(
      state.archive, transitions.extras[PLACE].reshape(-1, num_dimensions),
      _NUM_NEIGHBORS)
    rewards = jnp.stack(
      [transitions.reward, novelty.reshape(transitions.reward.shape)])
    known = hyperparams, transitions._replace(extras={})

    def learn(
      known: Tree, agent: types.State, reward: Array, key: Key
    ) -> tuple[types.State, Metrics]:
      hyperparams, rows = known
      return one.update(agent, hyperparams, rows._replace(reward=reward), key)

    agents, metrics = jax.vmap(platform.member(learn), (None, 0, 0, 0))(
      known, state.agents, rewards, jax.random.split(key))
    return state._replace(agents=agents), {"novelty": jnp.mean(novelty)} | {
      f"{kind}{name}": x[i] for name, x in metrics.items()
      for i, kind in enumerate(("", "diversity/"))}

  def agent_of(state: PairState, context: Array) -> types.State:
    return jax.tree.map(lambda x: x[context[0].astype(jnp.int32)], state.agents)

  def improve(
    state: PairState, genotype: Tree, observations: Tree, context: Array,
    learning_rate: Array | float,
  ) -> Tree:
    return shared.improve(
      agent_of(state, context), genotype, observations, context[1:],
      learning_rate)

  pair = one._replace(
    init=init, update=update, observe=lambda state, seen: state._replace(
      agents=jax.vmap(one.observe, (0, None))(state.agents, seen)))
  return learners.SharedCritic(pair, improve, lambda state, context: (
    shared.genotype_at(agent_of(state, context), context[1:])))


def remember_places(
  state: PairState, rows: Transition, valid: Array
) -> PairState:
  """Archives the places of valid transitions [B] that are novel."""
  return state._replace(archive=map_elites.add_novel(
    state.archive, rows.extras[PLACE], valid, _THRESHOLD))


def halves(size: int) -> Array:
  """Returns contexts [n, 1]: the first half of n agents learns from rewards."""
  return (2 * jnp.arange(size)[:, None] // max(size, 1)).astype(jnp.float32)
