"""Offspring that branch off along gradients, for functions that have them.

CMA-MEGA and OMG-MEGA: Fontaine and Nikolaidis (2021), "Differentiable quality
diversity", arXiv:2106.03894. As `Strategies` they are for `cma_emitter`; with
`soft_cells` the first is CMA-MAEGA.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdrl_haiku.map_elites.emitters import cma_es
from qdrl_haiku.map_elites.emitters.cma_es import Strategies
from qdrl_haiku.types import Array, Key, Tree

GradientsFn = Callable[[Array], Array]
"""Returns the gradients of the fitness and D descriptors at weights [N], as
[1 + D, N], such as `jax.jacrev` of a function that returns these numbers."""


class Arborescences(NamedTuple):
  """Holds K points, and strategies that search coefficients of gradients."""

  strategies: Tree  # Theirs, leaves [K, ...].
  points: Array  # From which offspring branch off, [K, N].
  optimizer: Tree  # Of the points, leaves [K, ...].
  coefficients: Array  # Of the last `ask`, [K, L, 1 + D].


def cma_mega(
  strategies: Strategies, gradients_fn: GradientsFn,
  optimizer: optax.GradientTransformation,
) -> Strategies:
  """Makes the strategies of CMA-MEGA.

  Args:
    strategies: such as `cma_es` of size 1 + D.
    gradients_fn: see `GradientsFn`; gradients are scaled to length 1.
    optimizer: takes a point towards the mean of its parents, such as
      `optax.sgd(1.0)`, which takes it there.
  """
  K, L = strategies.num_strategies, strategies.population_size

  def init(points: Array) -> Arborescences:
    size = jax.eval_shape(gradients_fn, points[0]).shape[0]
    zeros = jnp.zeros((K, L, size), jnp.float32)
    # A buffer of its own, so that the state can be donated.
    return Arborescences(
      strategies.init(zeros[:, 0]), jnp.copy(points),
      jax.vmap(optimizer.init)(points), zeros)

  def ask(states: Arborescences, key: Key) -> tuple[Array, Arborescences]:
    coefficients, asked = strategies.ask(states.strategies, key)
    branches = _branches(gradients_fn, states.points, coefficients)
    return branches, states._replace(
      strategies=asked, coefficients=coefficients)

  def tell(
    states: Arborescences, points: Array, ranks: Array, num_parents: Array
  ) -> Arborescences:
    by_rank = jax.vmap(cma_es.cma_es_parents_weights, (None, 0))(
      L, num_parents)
    weights = jnp.take_along_axis(by_rank, ranks, axis=1)[:, :, None]
    steps = jnp.where(weights > 0, points - states.points[:, None], 0)
    updates, optimizer_states = jax.vmap(optimizer.update)(
      -jnp.sum(weights * steps, axis=1), states.optimizer, states.points)
    return states._replace(
      strategies=strategies.tell(
        states.strategies, states.coefficients, ranks, num_parents),
      points=optax.apply_updates(states.points, updates),
      optimizer=optimizer_states)

  return Strategies(
    init, ask, tell,
    can_go_on=lambda states: strategies.can_go_on(states.strategies)
    & jnp.all(jnp.isfinite(states.points), axis=1),
    step_sizes=lambda states: strategies.step_sizes(states.strategies),
    num_strategies=K, population_size=L)


def omg_mega(
  batch_size: int, gradients_fn: GradientsFn, step_size: float
) -> Strategies:
  """Makes the strategies of OMG-MEGA: B offspring of newly drawn elites.

  Args:
    batch_size: B.
    gradients_fn: as in `cma_mega`.
    step_size: standard deviation of coefficients; that of fitness is positive.
  """

  def ask(points: Array, key: Key) -> tuple[Array, Array]:
    size = jax.eval_shape(gradients_fn, points[0]).shape[0]
    drawn = step_size * jax.random.normal(key, (batch_size, 1, size))
    drawn = drawn.at[..., 0].set(jnp.abs(drawn[..., 0]))
    return _branches(gradients_fn, points, drawn), points

  return Strategies(
    init=jnp.copy, ask=ask,
    tell=lambda points, *_: points,
    can_go_on=lambda points: jnp.zeros(batch_size, bool),
    step_sizes=lambda points: jnp.full(batch_size, step_size),
    num_strategies=batch_size, population_size=1)


def _branches(
  gradients_fn: GradientsFn, points: Array, coefficients: Array
) -> Array:
  """Returns offspring [K, L, N] of points [K, N]."""
  gradients = jax.vmap(gradients_fn)(points)
  length = jnp.linalg.norm(gradients, axis=2, keepdims=True)
  gradients /= jnp.where(length > 0, length, 1)
  return points[:, None] + jnp.einsum("kld,kdn->kln", coefficients, gradients)
