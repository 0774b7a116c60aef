"""CMA-ME: strategies that go where the repertoire is improved.

Fontaine et al. (2020), "Covariance matrix adaptation for the rapid
illumination of behavior space", arXiv:1912.02400, the improvement emitter.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku.map_elites import variation
from qdrl_haiku.map_elites.cma_es import Strategies
from qdrl_haiku.map_elites.emitters import Emitter, Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.tessellation import CVT, Grid, Unstructured
from qdrl_haiku.types import Array, Key


class CMAState(NamedTuple):
  """Holds the state of an emitter of K strategies.

  Attributes:
    strategies: theirs, leaves [K, ...].
    elites: leaves [K, ...], with which each strategy began; of them is what
      doesn't vary.
    fitness: float32 [C], the repertoire's when `ask` was called.
    num_restarts: int32 [], of all of them.
  """

  strategies: Any
  elites: Any
  fitness: Array
  num_restarts: Array


def cma_emitter(
  make_strategies: Callable[[int], Strategies],
  genotype: Any,
  is_weight: Callable[[jax.tree_util.KeyPath], bool] | None = None,
) -> Emitter:
  """Makes the emitter of offspring that strategies sample around elites.

  Those of its offspring that fill a cell or improve one, compared with the
  repertoire at `ask`, are a strategy's parents: first those that fill a cell,
  the fittest of them first, then by how much fitter they are than the elite
  that was there. A strategy without any, one that is ill-conditioned, and one
  with a number that isn't finite begin anew with an elite drawn uniformly.

  Weights vary; all else is that of the elite with which a strategy began.
  Where others decide how many of its offspring are evaluated (`multi_emitter`
  of shares that adapt), those that aren't are no parents, so that a strategy
  soon begins anew.

  Args:
    make_strategies: of how many numbers there are to vary, such as `cma_es`
      with all else bound.
    genotype: an example of one, or its shapes and dtypes.
    is_weight: which leaves are weights, see `weights_only`.

  Returns:
    The emitter; B is K times the strategies' population, of which each has its
    own in order, and its state a `CMAState`. `init` raises ValueError if the
    repertoire has no cells that could be improved.

  Raises:
    ValueError: if the genotype has no weights, or more than the strategies can
      search.
  """
  flat = variation.Weights(
    jax.eval_shape(lambda x: x, genotype), is_weight
  )
  strategies = make_strategies(flat.size)
  K, L = strategies.num_strategies, strategies.population_size

  def elites_of(repertoire: Repertoire, key: Key) -> Any:
    return repertoire.sample(key, K)

  def init(key: Key, repertoire: Repertoire) -> CMAState:
    _tessellation_of(repertoire)
    elites = elites_of(repertoire, key)
    return CMAState(
      strategies=strategies.init(jax.vmap(flat.ravel)(elites)),
      elites=elites,
      fitness=jnp.copy(repertoire.fitness),
      num_restarts=jnp.zeros((), jnp.int32),
    )

  def ask(
    state: CMAState, repertoire: Repertoire, key: Key
  ) -> tuple[Any, CMAState]:
    points, states = strategies.ask(state.strategies, key)
    individuals = jax.vmap(
      lambda points, elite: jax.vmap(flat.put, (0, None))(points, elite)
    )(points, state.elites)
    return jax.tree.map(
      lambda x: x.reshape(K * L, *x.shape[2:]), individuals
    ), state._replace(
      strategies=states, fitness=jnp.copy(repertoire.fitness)
    )

  def tell(
    state: CMAState,
    repertoire: Repertoire,
    evaluated: Evaluated,
    key: Key,
  ) -> CMAState:
    fitness = evaluated.fitness
    cells = _tessellation_of(repertoire).cell(evaluated.descriptors)
    before = state.fitness.at[cells].get(mode="fill", fill_value=jnp.inf)
    is_new = before == -jnp.inf
    improvement = jnp.where(is_new, fitness, fitness - before)
    is_parent = jnp.isfinite(fitness) & (fitness > before)
    ranks, num_parents = ranks_of(
      *(x.reshape(K, L) for x in (is_parent, is_new, improvement))
    )
    points = jax.vmap(flat.ravel)(evaluated.genotypes).reshape(K, L, -1)
    told = strategies.tell(
      state.strategies, points, ranks, jnp.maximum(num_parents, 1)
    )
    goes_on = (num_parents > 0) & strategies.can_go_on(told)
    elites = elites_of(repertoire, key)
    return CMAState(
      strategies=_choose(
        goes_on, told, strategies.init(jax.vmap(flat.ravel)(elites))
      ),
      elites=_choose(goes_on, state.elites, elites),
      fitness=state.fitness,
      num_restarts=state.num_restarts
      + jnp.sum(~goes_on, dtype=jnp.int32),
    )

  def metrics(state: CMAState) -> dict[str, Array]:
    return {
      "step_size": jnp.mean(strategies.step_sizes(state.strategies)),
      "num_restarts": state.num_restarts,
    }

  return Emitter(init, ask, tell, K * L, metrics=metrics)


def ranks_of(
  is_parent: Array, is_new: Array, improvement: Array
) -> tuple[Array, Array]:
  """Ranks offspring by what they improved."""
  num = is_parent.shape[1]
  numbers = jnp.broadcast_to(jnp.arange(num), is_parent.shape)
  *_, order = jax.lax.sort(
    (~is_parent, ~is_new, -jnp.where(is_parent, improvement, 0), numbers),
    num_keys=4,
  )
  ranks = jnp.argsort(order, axis=1).astype(jnp.int32)
  return ranks, jnp.sum(is_parent, axis=1, dtype=jnp.int32)


def _tessellation_of(repertoire: Repertoire) -> Grid | CVT:
  """Returns the cells that may be improved."""
  tessellation = repertoire.tessellation
  if isinstance(tessellation, Unstructured):
    raise ValueError(
      "the emitter cma ranks its offspring by the cells that they improve, and "
      "there are none; take --tessellation=grid or cvt, or another --emitter."
    )
  return tessellation


def _choose(condition: Array, new: Any, old: Any) -> Any:
  """Returns new rows where the condition [K] holds, else old ones."""
  return jax.tree.map(
    lambda x, y: jnp.where(
      jnp.expand_dims(condition, tuple(range(1, x.ndim))), x, y
    ),
    new,
    old,
  )
