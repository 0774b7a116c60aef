"""The emitter of ASCII-MAP-Elites: policies that take over others' steps.

Mitsides, Faldor and Cully (2025), "Scaling policy gradient quality-diversity
with massive parallelization via behavioral variations", arXiv:2501.18723. A
parent's episode is compared, step by step, with another of late, and its policy
moves towards the actions that led to more, and away from those that led to
less. No critic is trained.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import trees
from qdrl_haiku.map_elites.emitters.emitter import Emitter, Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.variation import VariationFn, emit_offspring
from qdrl_haiku.types import Array, Key, Tree

_EPISODE = "episode"


class Episodes(NamedTuple):
  """Holds an episode of each of B individuals, of at most T steps."""

  observation: Tree  # Leaves [B, T, ...]; after an episode's end its last one.
  # [B, T, A], with the last one after the end; None where an elite acts by its
  # own policy.
  action: Array | None
  # [B, T], the discounted sum of rewards from a step on, 0 after the end.
  to_go: Array
  length: Array  # int32 [B]; 0 if not all of an episode is finite.


CrossFn = Callable[[Tree, Episodes, Array], Tree]
"""(parents [n, ...], others' episodes [n, ...], `ascii_weights` [n, T]) ->
offspring, whose policies have descended `ascii_loss`."""


def ascii_emitter(
  cross: CrossFn, variation_fn: VariationFn, example: Tree, *,
  discount: float, gradient_batch_size: int, variation_batch_size: int,
) -> Emitter:
  """Makes the emitter of ASCII-MAP-Elites.

  The container keeps an episode of each elite. Parents are drawn uniformly from
  the occupied cells, and for each parent one of the episodes that the emitter
  was told of last.

  Args:
    cross: makes offspring of parents and episodes.
    variation_fn: makes the others, see `VariationFn`.
    example: shapes and dtypes of an individual's `Episodes`, without axis B.
    discount: of later rewards, in [0, 1].
    gradient_batch_size: G, offspring by `cross`, >= 0.
    variation_batch_size: V, variations, >= 0.

  Returns:
    The emitter, of G + V individuals in that order; its state is the
    `Episodes` of as many.
  """
  size = gradient_batch_size + variation_batch_size

  def init(key: Key, repertoire: Repertoire) -> Episodes:
    return jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), example)

  def ask(
    state: Episodes, repertoire: Repertoire, key: Key
  ) -> tuple[Tree, Episodes]:
    parents_key, others_key, key = jax.random.split(key, 3)
    offspring = emit_offspring(
      key, variation_fn, repertoire.sample, variation_batch_size)
    if gradient_batch_size:
      cells = repertoire.sample_cells(parents_key, gradient_batch_size)
      parents, own = jax.tree.map(
        lambda x: x[cells], (repertoire.genotypes, repertoire.extras[_EPISODE]))
      rows = jax.random.randint(others_key, (gradient_batch_size,), 0, size)
      others = jax.tree.map(lambda x: x[rows], state)
      crossed = cross(parents, others, ascii_weights(own, others))
      offspring = jax.tree.map(
        lambda *x: jnp.concatenate(x), crossed, offspring)
    return offspring, state

  def tell(
    state: Episodes, repertoire: Repertoire, evaluated: Evaluated, key: Key
  ) -> Episodes:
    episodes = record_episodes(evaluated, discount)
    # Those that there are, over and over until they are enough.
    is_empty = episodes.length == 0
    order = jnp.argsort(is_empty, stable=True)
    rows = order[jnp.arange(size) % jnp.maximum(jnp.sum(~is_empty), 1)]
    return jax.tree.map(lambda x: x[rows], episodes)

  return Emitter(
    init, ask, tell, size, needs=("transitions",), tell_first=tell,
    keep=lambda evaluated: {
      _EPISODE: record_episodes(evaluated, discount)._replace(action=None)})


def record_episodes(evaluated: Evaluated, discount: float) -> Episodes:
  """Returns the first of each individual's N episodes [B, N, T, ...]."""
  rows, length = jax.tree.map(
    lambda x: x[:, 0],
    (evaluated.extra["transitions"], evaluated.extra["lengths"]))
  steps = jnp.arange(rows.reward.shape[1])
  places = jnp.minimum(steps, jnp.maximum(length - 1, 0)[:, None])
  observation, action = jax.tree.map(
    lambda x: jax.vmap(lambda row, at: row[at])(x, places),
    (rows.observation, rows.action))
  reward = jnp.where(steps < length[:, None], rows.reward, 0)

  _, to_go = jax.lax.scan(
    lambda later, reward: (reward + discount * later,) * 2,
    jnp.zeros(length.shape, reward.dtype), reward.T, reverse=True)
  found = Episodes(observation, action, to_go.T, length)
  return trees.choose_rows(
    trees.all_finite_leaves(found), found, jax.tree.map(jnp.zeros_like, found))


def ascii_weights(own: Episodes, others: Episodes) -> Array:
  """Returns by how much other agents' steps beat parents', Z of the paper.

  cos(s_t, s'_t) (G'_t - G_t) for observations s and rewards to go G at step t
  of the n parents and the others: what these gained more, so far as both saw
  the same; 0 after their end. Returns [n, T].
  """
  x, y = (
    jnp.concatenate([
      x.reshape(*x.shape[:2], -1).astype(jnp.float32)
      for x in jax.tree.leaves(episodes.observation)], axis=-1)
    for episodes in (own, others))
  norms = jnp.linalg.norm(x, axis=-1) * jnp.linalg.norm(y, axis=-1)
  cosine = jnp.sum(x * y, axis=-1) / jnp.where(norms > 0, norms, 1)
  is_there = jnp.arange(cosine.shape[1]) < others.length[:, None]
  return jnp.where(is_there, cosine * (others.to_go - own.to_go), 0)


def ascii_loss(
  action: Array, taken: Array, weights: Array, scale: float, clip: float
) -> Array:
  """Returns the loss of a policy that takes over another's actions.

  -mean_t min(r_t w_t, max(r_t, 1 - clip) w_t), where r_t is
  exp(-|a_t - mu_t|^2 / (2 scale^2)): it leaves an action until r is 1 - clip.

  Args:
    action: mu, [T, A], the policy's.
    taken: a, [T, A], the other's.
    weights: w, [T].
    scale: deviation of the actions, > 0.
    clip: in [0, 1].
  """
  squares = jnp.sum(jnp.square(taken - action), axis=-1)
  ratio = jnp.exp(-squares / (2 * scale**2))
  clipped = jnp.maximum(ratio, 1 - clip)
  return -jnp.mean(jnp.minimum(ratio * weights, clipped * weights))
