"""Models changes of fitness by a Gaussian process, as PB2 does."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdrl_haiku.controllers import gaussian_process
from qdrl_haiku.controllers.gaussian_process import (
  Parameters,
  Points,
  Posterior,
)
from qdrl_haiku.controllers.ranges import Choice, Fixed, Interval, Range
from qdrl_haiku.types import Array, Key

_NUM_FIT_STEPS = 8
_LARGEST_CHANGE = 1e15
# The search for the highest upper confidence bound.
_NUM_CANDIDATES = 128
_NUM_CLIMBED = 8
_NUM_CLIMB_STEPS = 12
_LEARNING_RATE = 0.1
# Positions within this share of every range count as equal.
_NEAR = 0.01


class Coordinates:
  """Maps hyperparameters to coordinates of the model.

  Attributes:
    num_positions: D, the number of intervals.
    num_values: [K], the number of values of each `Choice`.
  """

  def __init__(self, ranges: list[Range]) -> None:
    self._ranges = ranges
    self.num_positions = sum(isinstance(x, Interval) for x in ranges)
    self.num_values = [len(x.values) for x in ranges if isinstance(x, Choice)]

  def to_model(self, values: Array) -> tuple[Array, Array]:
    """Maps values [N, L] to positions [N, D] and categories [N, K].

    NaN becomes position 0.
    """
    positions, categories = [], []
    for i, range_ in enumerate(self._ranges):
      if isinstance(range_, Interval):
        positions.append(jnp.nan_to_num(range_.to_unit(values[:, i])))
      elif isinstance(range_, Choice):
        categories.append(range_.index(values[:, i]).astype(jnp.float32))
    empty = jnp.zeros((values.shape[0], 0))
    return (
      jnp.stack(positions, axis=1) if positions else empty,
      jnp.stack(categories, axis=1) if categories else empty,
    )

  def from_model(self, positions: Array, categories: Array) -> list[Array]:
    """Maps positions [N, D] and categories [N, K] to L values [N]."""
    in_intervals = iter(jnp.unstack(positions, axis=1))
    chosen = iter(jnp.unstack(categories, axis=1))
    values = []
    for range_ in self._ranges:
      if isinstance(range_, Interval):
        values.append(range_.from_unit(next(in_intervals)))
      elif isinstance(range_, Choice):
        values.append(range_.at(next(chosen).astype(jnp.int32)))
      else:
        assert isinstance(range_, Fixed)
        values.append(jnp.full(positions.shape[0], range_.value, jnp.float32))
    return values


class Changes(NamedTuple):
  """Holds the latest changes of fitness, in a ring.

  Attributes:
    time: float32 [W], the decision at which the change was seen.
    before: [W], the fitness from which it changed.
    position: [W, D], the positions of hyperparameters in their ranges.
    category: [W, K], the index of the value of each `Choice`.
    change: [W], of fitness.
    mask: bool [W], whether the row is filled.
    next_row: int32 [], the row that is filled next.
  """

  time: Array
  before: Array
  position: Array
  category: Array
  change: Array
  mask: Array
  next_row: Array


def no_changes(coordinates: Coordinates, window: int) -> Changes:
  """Returns an empty ring."""
  return Changes(
    time=jnp.zeros(window),
    before=jnp.zeros(window),
    position=jnp.zeros((window, coordinates.num_positions)),
    category=jnp.zeros((window, len(coordinates.num_values))),
    change=jnp.zeros(window),
    mask=jnp.zeros(window, bool),
    next_row=jnp.zeros((), jnp.int32),
  )


def record(
  changes: Changes,
  coordinates: Coordinates,
  time: Array,
  before: Array,
  fitness: Array,
  used: Array,
) -> Changes:
  """Adds the known changes of fitness."""
  change = fitness - before
  known = jnp.isfinite(change) & jnp.all(jnp.isfinite(used), axis=1)
  window = changes.time.shape[0]
  rows = changes.next_row + jnp.cumsum(known) - 1
  # Rows beyond the last are dropped.
  rows = jnp.where(known, rows % window, window)

  def fill(old: Array, new: Array) -> Array:
    """Writes the known rows."""
    return old.at[rows].set(new, mode="drop")

  position, category = coordinates.to_model(used)
  return Changes(
    time=fill(changes.time, jnp.full(known.shape, time, jnp.float32)),
    before=fill(changes.before, before),
    position=fill(changes.position, position),
    category=fill(changes.category, category),
    change=fill(changes.change, change),
    mask=fill(changes.mask, known),
    next_row=(changes.next_row + jnp.sum(known, dtype=jnp.int32)) % window,
  )


def scaled(values: Array, reference: Array, known: Array) -> Array:
  """Maps values to [0, 1], the least and the greatest known reference."""
  # Halves, since the difference of two numbers may overflow.
  least = jnp.min(0.5 * reference, where=known, initial=jnp.inf)
  most = jnp.max(0.5 * reference, where=known, initial=-jnp.inf)
  width = most - least
  inverse = 1 / jnp.maximum(width, 1e-30)
  position = jnp.where(width > 0, (0.5 * values - least) * inverse, 0.5)
  return jnp.clip(jnp.nan_to_num(position), 0.0, 1.0)


class Suggested(NamedTuple):
  """Holds what `suggest` returns.

  Attributes:
    leaves: L of [P], hyperparameters; survivors' are rounded.
    change: [P], the mean of the predicted change; NaN for survivors.
    deviation: [P], the deviation that goes with it.
    parameters: of the Gaussian process.
  """

  leaves: list[Array]
  change: Array
  deviation: Array
  parameters: Parameters


def suggest(
  keys: Key,
  parameters: Parameters,
  changes: Changes,
  coordinates: Coordinates,
  time: Array,
  fitness: Array,
  parents: Array,
  replaced: Array,
  used: Array,
  drawn: Array,
  optimism: float,
) -> Suggested:
  """Chooses the hyperparameters of replaced members, one after the other."""
  population_size = fitness.shape[0]
  window = changes.mask.shape[0]
  time = time.astype(jnp.float32)
  values, mean, deviation = _standardised(changes)

  fitnesses = jnp.concatenate([changes.before, fitness])
  known = jnp.concatenate([changes.mask, jnp.isfinite(fitness)])
  before = scaled(changes.before, fitnesses, known)[:, None]
  starts = scaled(fitness[parents], fitnesses, known)[:, None]

  observed = Points(
    changes.time,
    jnp.concatenate([before, changes.position], axis=1),
    changes.category,
  )
  parameters = gaussian_process.fit(
    parameters, observed, values, changes.mask, _NUM_FIT_STEPS
  )

  # Members' points follow the observed ones, and are pending once their
  # hyperparameters are known.
  positions, categories = coordinates.to_model(used)
  categories = jnp.where(replaced[:, None], drawn, categories)
  members = Points(
    jnp.full(population_size, time),
    jnp.concatenate([starts, positions], axis=1),
    categories,
  )
  values = jnp.append(values, jnp.zeros(population_size))
  mask = jnp.append(changes.mask, jnp.zeros(population_size, bool))

  def add(
    i: Array, carry: tuple[Points, Array, Array, Array]
  ) -> tuple[Points, Array, Array, Array]:
    """Chooses the hyperparameters of the next child."""
    members, trains, means, deviations = carry
    child = order[i]
    posterior = gaussian_process.condition(
      parameters,
      jax.tree.map(lambda x, y: jnp.concatenate([x, y]), observed, members),
      values,
      mask,
      jnp.append(jnp.zeros(window, bool), trains),
    )
    point = maximise(
      keys[child],
      posterior,
      jax.tree.map(lambda x: x[child], members),
      members,
      trains,
      optimism,
    )
    predicted, uncertain = gaussian_process.predict(posterior, point)
    return (
      jax.tree.map(lambda x, y: x.at[child].set(y), members, point),
      trains.at[child].set(True),
      means.at[child].set(mean + deviation * predicted),
      deviations.at[child].set(deviation * uncertain),
    )

  order = jnp.argsort(~replaced, stable=True)
  unknown = jnp.full(population_size, jnp.nan, jnp.float32)
  members, _, means, deviations = jax.lax.fori_loop(
    0, jnp.sum(replaced), add, (members, ~replaced, unknown, unknown)
  )
  leaves = coordinates.from_model(members.position[:, 1:], members.category)
  return Suggested(leaves, means, deviations, parameters)


def _standardised(changes: Changes) -> tuple[Array, Array, Array]:
  """Returns changes [W] of mean 0 and variance 1, their mean and deviation."""
  # Squares of larger changes would overflow.
  change = jnp.clip(changes.change, -_LARGEST_CHANGE, _LARGEST_CHANGE)
  count = jnp.maximum(jnp.sum(changes.mask), 1)
  mean = jnp.sum(jnp.where(changes.mask, change, 0.0)) / count
  centred = jnp.where(changes.mask, change - mean, 0.0)
  deviation = jnp.sqrt(jnp.sum(centred**2) / count)
  # Equal changes become 0.
  deviation = jnp.where(deviation > 1e-6 * jnp.abs(mean), deviation, 1.0)
  return centred * (1 / deviation), mean, deviation


def maximise(
  key: Key,
  posterior: Posterior,
  child: Points,
  members: Points,
  trains: Array,
  optimism: float,
) -> Points:
  """Searches the position whose upper confidence bound is highest.

    mean(x) + optimism * deviation(x)

  The deviation is that after pending points (Desautels et al., 2014,
  "Parallelizing Exploration-Exploitation Tradeoffs in Gaussian Process Bandit
  Optimization", equation 4). Of random candidates the best climb by Adam. The
  best of all wins that is not near a member that trains already.
  """

  def at(coordinates: Array) -> Points:
    """Returns the child's point with another position [D]."""
    position = jnp.concatenate([child.position[:1], coordinates])
    return child._replace(position=position)

  def bound(coordinates: Array) -> Array:
    """Returns the bound at a position [D]."""
    mean, deviation = gaussian_process.predict(posterior, at(coordinates))
    return mean + optimism * deviation

  bounds = jax.vmap(bound)
  shape = (_NUM_CANDIDATES, child.position.shape[0] - 1)
  candidates = jax.random.uniform(key, shape, jnp.float32)
  values = bounds(candidates)
  _, best = jax.lax.top_k(jnp.nan_to_num(values, nan=-jnp.inf), _NUM_CLIMBED)

  schedule = optax.linear_schedule(_LEARNING_RATE, 0.0, _NUM_CLIMB_STEPS)
  adam = optax.adam(schedule)

  def step(
    carry: tuple[Array, optax.OptState], _: None
  ) -> tuple[tuple[Array, optax.OptState], None]:
    coordinates, state = carry
    gradient = jnp.nan_to_num(jax.vmap(jax.grad(bound))(coordinates))
    updates, state = adam.update(-gradient, state)
    return (jnp.clip(coordinates + updates, 0.0, 1.0), state), None

  (climbed, _), _ = jax.lax.scan(
    step,
    (candidates[best], adam.init(candidates[best])),
    length=_NUM_CLIMB_STEPS,
  )
  candidates = jnp.concatenate([candidates, climbed])
  values = jnp.concatenate([values, bounds(climbed)])
  values = jnp.nan_to_num(values, nan=-jnp.inf)
  offsets = jnp.abs(candidates[:, None] - members.position[:, 1:])
  is_near = jnp.all(offsets <= _NEAR, axis=-1)
  is_near &= jnp.all(child.category == members.category, axis=-1)
  is_new = ~jnp.any(is_near & trains, axis=-1)
  # Where all are near, one of them is taken all the same.
  ranked = jnp.where(jnp.any(is_new) & ~is_new, -jnp.inf, values)
  winner = jnp.argmax(ranked)
  # Where no bound is a number, the first new candidate is taken.
  winner = jnp.where(ranked[winner] > -jnp.inf, winner, jnp.argmax(is_new))
  return at(candidates[winner])
