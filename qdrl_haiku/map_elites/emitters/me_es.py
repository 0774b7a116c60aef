"""ME-ES: an evolution strategy that explores and exploits in turns.

Colas, Madhavan, Huizinga and Clune (2020), "Scaling MAP-Elites to deep
neuroevolution", arXiv:2003.01825; the strategy is that of Salimans et al.
(2017), arXiv:1703.03864, with mirrored samples, centred ranks, and Adam.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdrl_haiku.config import Settings, setting
from qdrl_haiku.map_elites import variation
from qdrl_haiku.map_elites.emitters.emitter import Emitter, Evaluated
from qdrl_haiku.map_elites.novelty import NoveltyArchive, empty_archive, novelty
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Array, Key, Tree

# The paper's: cells of which a parent is one, cells seen lately, neighbours.
_FITTEST, _MOST_NOVEL, _LATEST, _NEIGHBORS = 2, 5, 5, 10
_L2 = 0.02  # Coefficient of the weights' squares.
# Centres to which others are compared.
_REMEMBERED = 1024


@dataclasses.dataclass(frozen=True)
class EvolutionStrategy(Settings):
  """Says how the evolution strategy of ME-ES searches (--emitter=me_es)."""

  title = "Emitters"

  goal: str = setting(
    "both",
    "What --emitter=me_es goes for: exploit, returns; explore, descriptors "
    "unlike those of its own former agents; or both in turns.",
    choices=("both", "exploit", "explore"), flag="me_es_goal", needs="me_es")
  num_steps: int = setting(
    10, "Generations after which --emitter=me_es begins at another elite.",
    low=1, flag="me_es_num_steps", needs="me_es")
  noise: float = setting(
    0.02, "Standard deviation of the samples' weights, with --emitter=me_es.",
    above=0, flag="me_es_noise", offered=False, needs="me_es")
  learning_rate: float = setting(
    0.01, "Adam's learning rate with --emitter=me_es.", above=0,
    flag="me_es_learning_rate", offered=False, needs="me_es")

  def explores(self, turn: Array) -> Array:
    """Returns whether a generation goes for novelty."""
    return jnp.where(
      self.goal == "both", turn // self.num_steps % 2 == 0,
      self.goal == "explore")


class MEESState(NamedTuple):
  """Holds the state of an emitter of ME-ES."""

  centre: Array  # The weights around which it samples, float32 [N].
  adam: Tree
  elite: Tree  # At which it began.
  turn: Array  # How many generations there were, int32 [].
  known: NoveltyArchive  # Descriptors of the latest centres.
  latest: Array  # Cells of the latest centres, int32 [5]; C for none.


def me_es_emitter(
  config: EvolutionStrategy, batch_size: int, genotype: Tree,
  is_weight: variation.IsWeightFn | None = None,
  everywhere: Callable[[Callable], Callable[..., Tree]] = lambda f: f,
) -> Emitter:
  """Makes the emitter of samples around an agent that moves along a gradient.

  After `num_steps` generations it begins anew: to exploit at one of the two
  fittest elites, half of the time of the cells of the last five centres; to
  explore at one of the five most novel, by the ten nearest former centres.

  Args:
    config: how it searches.
    batch_size: B >= 3: the centre, twice if B is even, and pairs of samples.
    genotype: an example of one, or its shapes and dtypes.
    is_weight: which leaves are weights, by default those of `weights_only`.
    everywhere: makes all devices compute a function by themselves.
  """
  num_pairs = (batch_size - 1) // 2
  if num_pairs < 1:
    raise ValueError(
      f"ME-ES can't make {batch_size} agents, its centre and pairs of samples; "
      "give 3 or more as variation_batch_size, or after me_es.")
  num_centres = batch_size - 2 * num_pairs
  weights = variation.flat_weights(genotype, is_weight)
  adam = optax.scale_by_adam()

  def begin(elite: Tree) -> tuple[Array, Tree, Tree]:
    centre = weights.read(jax.tree.map(lambda x: x[None], elite))[0]
    # Each a buffer of its own, so that the state can be donated.
    return jnp.copy(centre), adam.init(jnp.zeros_like(centre)), elite

  def init(key: Key, repertoire: Repertoire) -> MEESState:
    repertoire.tessellation.cells_for("emitter=me_es")
    num_cells, num_dimensions = repertoire.descriptors.shape
    return MEESState(
      *begin(jax.tree.map(lambda x: x[0], repertoire.sample(key, 1))),
      turn=jnp.zeros((), jnp.int32),
      known=empty_archive(_REMEMBERED, num_dimensions),
      latest=jnp.full(_LATEST, num_cells, jnp.int32))

  def ask(
    state: MEESState, repertoire: Repertoire, key: Key
  ) -> tuple[Tree, MEESState]:
    noise = config.noise * jax.random.normal(
      key, (num_pairs, weights.size), jnp.float32)
    still = jnp.zeros((num_centres, weights.size), jnp.float32)
    points = state.centre + jnp.concatenate([still, noise, -noise])
    return jax.vmap(weights.write, (0, None))(points, state.elite), state

  def scores_of(
    state: MEESState, fitness: Array, descriptors: Array
  ) -> Array:
    new = novelty(state.known, descriptors, _NEIGHBORS, power=1)
    return jnp.where(config.explores(state.turn), new, fitness)

  @everywhere
  def move(
    state: MEESState, points: Array, fitness: Array, descriptors: Array
  ) -> tuple[Array, Tree]:
    scores = scores_of(state, fitness, descriptors)
    ranks = centred_ranks(jnp.where(jnp.isfinite(fitness), scores, -jnp.inf))
    gradient = ranks @ (points - state.centre) / (ranks.size * config.noise**2)
    update, moved = adam.update(_L2 * state.centre - gradient, state.adam)
    return state.centre - config.learning_rate * update, moved

  @everywhere
  def choose(
    state: MEESState, fitness: Array, descriptors: Array, key: Key
  ) -> Array:
    coin_key, key = jax.random.split(key)
    explores, is_there = config.explores(state.turn), fitness > -jnp.inf
    seen = jnp.zeros_like(is_there).at[state.latest].set(True, mode="drop")
    seen &= is_there & ~explores & jax.random.bernoulli(coin_key)
    is_there &= seen | ~jnp.any(seen)
    scores = scores_of(state, fitness, descriptors)
    best, cells = jax.lax.top_k(
      jnp.where(is_there, scores, -jnp.inf), min(_MOST_NOVEL, scores.size))
    number = jnp.where(explores, _MOST_NOVEL, _FITTEST)
    number = jnp.clip(jnp.sum(best > -jnp.inf), 1, number)
    return cells[jax.random.randint(key, (), 0, number)]

  def tell(
    state: MEESState, repertoire: Repertoire, evaluated: Evaluated, key: Key
  ) -> MEESState:
    fitness, seen = evaluated.one_objective("me_es"), evaluated.descriptors
    cells = repertoire.tessellation.cells_for("emitter=me_es")
    is_finite = jnp.all(jnp.isfinite(seen[0]))
    points, num_added = state.known
    row = num_added % _REMEMBERED
    state = state._replace(
      known=NoveltyArchive(
        points.at[row].set(jnp.where(is_finite, seen[0], points[row])),
        num_added + is_finite),
      latest=state.latest.at[state.turn % _LATEST].set(
        jnp.where(is_finite, cells.cell(seen[:1])[0], cells.num_cells)))
    samples = (weights.read(evaluated.genotypes), fitness, seen)
    point, moved = move(state, *(x[num_centres:] for x in samples))
    state = state._replace(turn=state.turn + 1)
    cell = choose(state, repertoire.fitness, repertoire.descriptors, key)
    ends = state.turn % config.num_steps == 0
    ends |= ~jnp.all(jnp.isfinite(point))
    centre, moved, elite = jax.tree.map(
      lambda anew, known: jnp.where(ends, anew, known),
      begin(jax.tree.map(lambda x: x[cell], repertoire.genotypes)),
      (point, moved, state.elite))
    return state._replace(centre=centre, adam=moved, elite=elite)

  return Emitter(init, ask, tell, batch_size)


def centred_ranks(scores: Array) -> Array:
  """Returns ranks [B] from -1/2 to 1/2, the best; equal ones get their mean."""
  in_order = jnp.sort(scores.astype(jnp.float32))
  less = jnp.searchsorted(in_order, scores)
  not_more = jnp.searchsorted(in_order, scores, side="right")
  ranks = (less + not_more - 1).astype(jnp.float32)
  return ranks / (2 * scores.size - 2) - 0.5
