"""CMA-ME: strategies that go where the repertoire is improved.

Fontaine et al. (2020), "Covariance matrix adaptation for the rapid
illumination of behavior space", arXiv:1912.02400, the improvement emitter.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import flatten_util

from qdrl_haiku import trees
from qdrl_haiku.map_elites import variation
from qdrl_haiku.map_elites.cma_es import Strategies
from qdrl_haiku.map_elites.emitters import Emitter, Evaluated, one_objective
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.tessellation import Unstructured
from qdrl_haiku.types import Array, Key, Metrics, Tree


class CMAState(NamedTuple):
  """Holds the state of an emitter of K strategies."""

  strategies: Tree  # Theirs, leaves [K, ...].
  elites: Tree  # With which each strategy began, leaves [K, ...].
  fitness: Array  # The repertoire's when `ask` was called, float32 [C].
  num_restarts: Array  # Of all of them, int32 [].


def cma_emitter(
  make_strategies: Callable[[int], Strategies], genotype: Tree,
  is_weight: variation.IsWeightFn | None = None,
) -> Emitter:
  """Makes the emitter of offspring that strategies sample around elites.

  A strategy's parents are its offspring that fill a cell or improve one: first
  those that fill a cell, the fittest first, then by how much fitter they are
  than the elite that was there at `ask`. A strategy without parents, one that
  is ill-conditioned, and one with a number that isn't finite begin anew with an
  elite drawn uniformly. Weights vary; all else is that of the elite with which
  a strategy began.

  Args:
    make_strategies: (number of weights) -> strategies, such as `cma_es` with
      all else bound.
    genotype: an example of one, or its shapes and dtypes.
    is_weight: which leaves are weights, by default those of `weights_only`.

  Returns:
    The emitter, of K * L individuals, where L are each strategy's population,
    in the order of the strategies; its state is a `CMAState`.

  Raises:
    ValueError: from `init`, if the repertoire has no cells.
  """
  chosen = variation.find_varied_weights(genotype, is_weight)
  example = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), genotype)
  flat, unravel = flatten_util.ravel_pytree(
    variation.pick_varied_weights(example, chosen))
  strategies = make_strategies(flat.size)
  K, L = strategies.num_strategies, strategies.population_size

  def points_of(individuals: Tree) -> Array:
    def ravel(individual: Tree) -> Array:
      weights = variation.pick_varied_weights(individual, chosen)
      return flatten_util.ravel_pytree(weights)[0].astype(jnp.float32)

    return jax.vmap(ravel)(individuals)

  def individual(point: Array, elite: Tree) -> Tree:
    weights = unravel(point.astype(flat.dtype))
    return variation.put_varied_weights(elite, chosen, weights)

  def init(key: Key, repertoire: Repertoire) -> CMAState:
    if not repertoire.has_cells:
      raise ValueError(
        "the emitter cma ranks its offspring by the cells that they improve, "
        "and there are none; take --tessellation=grid or cvt, or another "
        "--emitter.")
    elites = repertoire.sample(key, K)
    return CMAState(
      strategies=strategies.init(points_of(elites)), elites=elites,
      fitness=jnp.copy(repertoire.fitness),
      num_restarts=jnp.zeros((), jnp.int32))

  def ask(
    state: CMAState, repertoire: Repertoire, key: Key
  ) -> tuple[Tree, CMAState]:
    points, states = strategies.ask(state.strategies, key)
    individuals = jax.vmap(jax.vmap(individual, (0, None)))(
      points, state.elites)
    individuals = jax.tree.map(
      lambda x: x.reshape(K * L, *x.shape[2:]), individuals)
    return individuals, state._replace(
      strategies=states, fitness=jnp.copy(repertoire.fitness))

  def tell(
    state: CMAState, repertoire: Repertoire, evaluated: Evaluated, key: Key
  ) -> CMAState:
    fitness = one_objective("cma", evaluated.fitness)
    assert not isinstance(repertoire.tessellation, Unstructured)
    cells = repertoire.tessellation.cell(evaluated.descriptors)
    before = state.fitness.at[cells].get(mode="fill", fill_value=jnp.inf)
    is_new = before == -jnp.inf
    improvement = jnp.where(is_new, fitness, fitness - before)
    is_parent = jnp.isfinite(fitness) & (fitness > before)
    ranks, num_parents = cma_emitter_ranks(
      *(x.reshape(K, L) for x in (is_parent, is_new, improvement)))
    points = points_of(evaluated.genotypes).reshape(K, L, -1)
    told = strategies.tell(
      state.strategies, points, ranks, jnp.maximum(num_parents, 1))
    goes_on = (num_parents > 0) & strategies.can_go_on(told)
    elites = repertoire.sample(key, K)
    return CMAState(
      strategies=trees.choose_rows(
        goes_on, told, strategies.init(points_of(elites))),
      elites=trees.choose_rows(goes_on, state.elites, elites),
      fitness=state.fitness,
      num_restarts=state.num_restarts + jnp.sum(~goes_on, dtype=jnp.int32))

  def metrics(state: CMAState) -> Metrics:
    return {
      "step_size": jnp.mean(strategies.step_sizes(state.strategies)),
      "num_restarts": state.num_restarts}

  return Emitter(init, ask, tell, K * L, metrics=metrics)


def cma_emitter_ranks(
  is_parent: Array, is_new: Array, improvement: Array
) -> tuple[Array, Array]:
  """Ranks offspring by what they improved."""
  num = is_parent.shape[1]
  numbers = jnp.broadcast_to(jnp.arange(num), is_parent.shape)
  *_, order = jax.lax.sort(
    (~is_parent, ~is_new, -jnp.where(is_parent, improvement, 0), numbers),
    num_keys=4)
  ranks = jnp.argsort(order, axis=1).astype(jnp.int32)
  return ranks, jnp.sum(is_parent, axis=1, dtype=jnp.int32)
