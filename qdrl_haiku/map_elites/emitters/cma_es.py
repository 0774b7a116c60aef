"""CMA-ES: several strategies at once, each told the ranks of its points.

Hansen (2016), "The CMA evolution strategy: a tutorial", arXiv:1604.00772. The
update is evosax's, with a number of parents that differs between generations,
as in CMA-ME.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import trees
from qdrl_haiku.types import Array, Key, Tree

# The covariance is [N, N]: with a larger N a generation takes seconds.
MAX_SIZE = 1024
# Largest condition number of the covariance, in float32.
_MAX_CONDITION = 1e6


class Strategies(NamedTuple):
  """K strategies that search [N] numbers, as pure functions; see `cma_es`."""

  # (means [K, N]) -> their states, leaves [K, ...].
  init: Callable[[Array], Tree]
  # (states, key) -> (points [K, L, N], states); the key is consumed.
  ask: Callable[[Tree, Key], tuple[Array, Tree]]
  # (states, points [K, L, N], ranks int32 [K, L], num_parents int32 [K], each
  # >= 1) -> states, moved towards the parents, of the first ranks.
  tell: Callable[[Tree, Array, Array, Array], Tree]
  # (states) -> bool [K]; false where the covariance is ill-conditioned, or
  # anything not finite.
  can_go_on: Callable[[Tree], Array]
  step_sizes: Callable[[Tree], Array]  # (states) -> [K].
  num_strategies: int  # K.
  population_size: int  # L.


def cma_es(
  size: int, num_strategies: int, population_size: int, step_size: float
) -> Strategies:
  """Makes the strategies.

  Args:
    size: N, in [1, `MAX_SIZE`].
    num_strategies: K, >= 1.
    population_size: L, >= 2, points of each.
    step_size: sigma at first, > 0; about as much as the numbers differ.

  Raises:
    ValueError: if `size` is not in its range.
  """
  from evosax.algorithms.distribution_based import cma_es as evosax_lib

  if not 1 <= size <= MAX_SIZE:
    raise ValueError(
      f"size={size} numbers are too many, since CMA-ES adapts the covariance "
      f"of all pairs of them; use at most {MAX_SIZE}, such as a policy with "
      "fewer or smaller hidden layers.")
  # Constants, also while this is traced.
  with jax.ensure_compile_time_eval():
    strategy = evosax_lib.CMA_ES(
      population_size, jnp.zeros(size),
      # Points come with their weights rather than with a fitness.
      fitness_shaping_fn=lambda points, weights, state, params: weights)
    defaults = strategy.default_params.replace(std_init=jnp.float32(step_size))
    unused = jax.random.key(0)

  def init_one(mean: Array) -> Tree:
    return _to_32_bits(strategy.init(unused, mean, defaults))

  def ask(states: Tree, key: Key) -> tuple[Array, Tree]:
    return _one_after_the_other(ask_one)(
      jax.random.split(key, num_strategies), states), states

  def ask_one(key: Key, state: Tree) -> Array:
    # evosax's own would decompose the covariance again.
    noise = jax.random.normal(key, (population_size, size))
    noise = (noise @ jnp.diag(state.D).T) @ state.B.T
    return _to_32_bits(state.mean + state.std * noise)

  def tell_one(
    state: Tree, points: Array, ranks: Array, num_parents: Array
  ) -> Tree:
    weights = cma_es_parents_weights(population_size, num_parents)
    own = jnp.where(ranks < num_parents, weights[ranks], 0)
    # A NaN times a weight of 0 would be a NaN.
    points = jnp.where(own[:, None] > 0, points, state.mean)
    params = defaults.replace(weights=weights, **_learning_rates(size, weights))
    told = strategy.tell(unused, points, own, state, params)[0]
    C, B, D = evosax_lib.eigen_decomposition(told.C)
    return _to_32_bits(told.replace(C=C, B=B, D=D))

  def can_go_on_one(state: Tree) -> Array:
    numbers = (state.mean, state.std, state.p_std, state.p_c, state.C)
    condition = (jnp.max(state.D) / jnp.min(state.D)) ** 2
    return trees.all_finite_leaves(numbers, 0) & (condition < _MAX_CONDITION)

  return Strategies(
    init=jax.vmap(init_one), ask=ask, tell=_one_after_the_other(tell_one),
    can_go_on=jax.vmap(can_go_on_one),
    step_sizes=lambda states: states.std, num_strategies=num_strategies,
    population_size=population_size)


def _to_32_bits(tree: Tree) -> Tree:
  """Returns float32 and int32 where float64 is enabled; none weakly typed."""
  return jax.tree.map(
    lambda x: jnp.array(
      x, jnp.float32 if jnp.issubdtype(jnp.result_type(x), jnp.floating)
      else jnp.int32),
    tree)


def _one_after_the_other(function: Callable[..., Tree]) -> Callable[..., Tree]:
  """Maps a function of one strategy over all of them in a loop, not a batch."""
  # LAPACK's decomposition of a batch waits for compute threads; with several
  # devices it can deadlock, since all compute threads can be waiting.
  return lambda *trees: jax.lax.map(lambda tree: function(*tree), trees)


def cma_es_parents_weights(population_size: int, num_parents: Array) -> Array:
  """Returns log(m + 1/2) - log(i) for the i-th best of m, with sum 1."""
  places = jnp.arange(1, population_size + 1)
  weights = jnp.log(num_parents + 0.5) - jnp.log(places)
  weights = jnp.where(places <= num_parents, weights, 0)
  return weights / jnp.sum(weights)


def _learning_rates(size: int, weights: Array) -> dict[str, Array]:
  """Returns what evosax takes for so many parents, equations 8 and 55 to 58."""
  mu_eff = 1 / jnp.sum(weights**2)
  c_std = (mu_eff + 2) / (size + mu_eff + 5)
  c_1 = 2 / ((size + 1.3) ** 2 + mu_eff)
  c_mu = 2 * (mu_eff - 2 + 1 / mu_eff) / ((size + 2) ** 2 + mu_eff)
  damping = jnp.sqrt(jnp.maximum(mu_eff - 1, 0) / (size + 1)) - 1
  return {
    "mu_eff": mu_eff, "c_std": c_std,
    "d_std": 1 + 2 * jnp.maximum(damping, 0) + c_std,
    "c_c": (4 + mu_eff / size) / (size + 4 + 2 * mu_eff / size),
    "c_1": c_1,
    "c_mu": jnp.clip(c_mu, 0, 1 - c_1)}
