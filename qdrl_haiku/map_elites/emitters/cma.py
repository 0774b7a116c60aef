"""CMA-ME: strategies that go where the repertoire is improved.

Fontaine et al. (2020), "Covariance matrix adaptation for the rapid
illumination of behavior space", arXiv:1912.02400. In a container of soft
thresholds it is CMA-MAE: Fontaine and Nikolaidis (2022), arXiv:2205.10752.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import trees
from qdrl_haiku.map_elites import variation
from qdrl_haiku.map_elites.emitters import rankings
from qdrl_haiku.map_elites.emitters.cma_es import Strategies
from qdrl_haiku.map_elites.emitters.emitter import Emitter, Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Array, Key, Metrics, Tree


class CMAState(NamedTuple):
  """Holds the state of an emitter of K strategies."""

  strategies: Tree  # Theirs, leaves [K, ...].
  elites: Tree  # With which each strategy began, leaves [K, ...].
  fitness: Array  # To be exceeded, when `ask` was called, float32 [C].
  num_restarts: Array  # Of all of them, int32 [].
  directions: Tree  # In which they go, [K, D]; () if that has no effect.


def cma_emitter(
  make_strategies: Callable[[int], Strategies], genotype: Tree,
  is_weight: variation.IsWeightFn | None = None,
  ranking: rankings.Ranking = rankings.improvement,
) -> Emitter:
  """Makes the emitter of offspring that strategies sample around elites.

  By default a strategy's parents are its offspring that fill a cell or improve
  one: first those that fill a cell, the fittest first, then by how much fitter
  they are than the elite that was there at `ask`. A strategy without parents,
  one that is ill-conditioned, and one with a number that isn't finite begin
  anew with an elite drawn uniformly. Weights vary; all else is that of the
  elite with which a strategy began.

  Args:
    make_strategies: (number of weights) -> strategies, such as `cma_es` with
      all else bound.
    genotype: an example of one, or its shapes and dtypes.
    is_weight: which leaves are weights, by default those of `weights_only`.
    ranking: by what offspring are ranked, one of `RANKINGS` or another.

  Returns:
    The emitter, of K * L individuals, where L are each strategy's population,
    in the order of the strategies; its state is a `CMAState`.

  Raises:
    ValueError: from `init`, if the repertoire has no cells.
  """
  weights = variation.flat_weights(genotype, is_weight)
  strategies = make_strategies(weights.size)
  K, L = strategies.num_strategies, strategies.population_size

  def init(key: Key, repertoire: Repertoire) -> CMAState:
    repertoire.tessellation.cells_for("emitter=cma")
    elites = repertoire.sample(key, K)
    return CMAState(
      strategies=strategies.init(weights.read(elites)), elites=elites,
      fitness=rankings.thresholds(repertoire),
      num_restarts=jnp.zeros((), jnp.int32),
      directions=rankings.draw_directions(ranking, key, repertoire, K))

  def ask(
    state: CMAState, repertoire: Repertoire, key: Key
  ) -> tuple[Tree, CMAState]:
    points, states = strategies.ask(state.strategies, key)
    individuals = jax.vmap(jax.vmap(weights.write, (0, None)))(
      points, state.elites)
    individuals = jax.tree.map(
      lambda x: x.reshape(K * L, *x.shape[2:]), individuals)
    return individuals, state._replace(
      strategies=states, fitness=rankings.thresholds(repertoire))

  def tell(
    state: CMAState, repertoire: Repertoire, evaluated: Evaluated, key: Key
  ) -> CMAState:
    evaluated.one_objective("cma")
    ranks, num_parents = rankings.rank_offspring(
      ranking, state.fitness, state.directions, repertoire, evaluated, K)
    points = weights.read(evaluated.genotypes).reshape(K, L, -1)
    told = strategies.tell(
      state.strategies, points, ranks, jnp.maximum(num_parents, 1))
    goes_on = (num_parents > 0) & strategies.can_go_on(told)
    elites = repertoire.sample(key, K)
    return CMAState(
      strategies=trees.choose_rows(
        goes_on, told, strategies.init(weights.read(elites))),
      elites=trees.choose_rows(goes_on, state.elites, elites),
      directions=trees.choose_rows(
        goes_on, state.directions,
        rankings.draw_directions(ranking, key, repertoire, K)),
      fitness=state.fitness,
      num_restarts=state.num_restarts + jnp.sum(~goes_on, dtype=jnp.int32))

  def metrics(state: CMAState) -> Metrics:
    return {
      "step_size": jnp.mean(strategies.step_sizes(state.strategies)),
      "num_restarts": state.num_restarts}

  return Emitter(init, ask, tell, K * L, metrics=metrics)
