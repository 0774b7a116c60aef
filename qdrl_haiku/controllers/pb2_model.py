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
  predict,
)
from qdrl_haiku.controllers.ranges import Choice, Fixed, Interval, Range
from qdrl_haiku.types import Array, Key, Tree

_NUM_FIT_STEPS = 8
_LARGEST_CHANGE = 1e15
_NUM_CANDIDATES = 128
_NUM_CLIMBED = 8
_NUM_STEPS = 12
_LEARNING_RATE = 0.1
# Positions within this share of every range count as equal.
_NEAR = 0.01


class Coordinates:
  """Maps hyperparameters to coordinates of the model.

  Attributes:
    num_positions: D, how many are somewhere within an interval.
    num_values: [K], how many values each of the others has.
  """

  def __init__(self, ranges: list[Range]) -> None:
    self._ranges = ranges
    self.num_positions = sum(isinstance(x, Interval) for x in ranges)
    self.num_values = [len(x.values) for x in ranges if isinstance(x, Choice)]

  def to_model(self, values: Array) -> tuple[Array, Array]:
    """Maps values [N, L] to positions [N, D] and categories [N, K].

    All of them are numbers, even where values aren't.
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
    time: float32 [W], at which decision each was seen.
    before: [W], the fitness from which it changed.
    position: [W, D], where in their ranges the hyperparameters were.
    category: [W, K], which of its values each `Choice` had.
    change: [W], by how much fitness changed.
    mask: bool [W], which rows are filled.
    next_row: int32 [], the one that is filled next.
  """

  time: Array
  before: Array
  position: Array
  category: Array
  change: Array
  mask: Array
  next_row: Array


def no_changes(space: Coordinates, window: int) -> Changes:
  """Returns an empty ring."""
  return Changes(
    time=jnp.zeros(window),
    before=jnp.zeros(window),
    position=jnp.zeros((window, space.num_positions)),
    category=jnp.zeros((window, len(space.num_values))),
    change=jnp.zeros(window),
    mask=jnp.zeros(window, bool),
    next_row=jnp.zeros((), jnp.int32),
  )


def record(
  changes: Changes,
  space: Coordinates,
  time: Array,
  before: Array,
  fitness: Array,
  used: Array,
) -> Changes:
  """Adds those changes of fitness that are known."""
  change = fitness - before
  known = jnp.isfinite(change) & jnp.all(jnp.isfinite(used), axis=1)
  window = changes.time.shape[0]
  rows = changes.next_row + jnp.cumsum(known) - 1
  # Rows beyond the last are dropped.
  rows = jnp.where(known, rows % window, window)

  def fill(old: Array, new: Array) -> Array:
    return old.at[rows].set(new, mode="drop")

  position, category = space.to_model(used)
  return Changes(
    time=fill(changes.time, jnp.full(known.shape, time, jnp.float32)),
    before=fill(changes.before, before),
    position=fill(changes.position, position),
    category=fill(changes.category, category),
    change=fill(changes.change, change),
    mask=fill(changes.mask, known),
    next_row=(changes.next_row + jnp.sum(known, dtype=jnp.int32)) % window,
  )


def rewards(changes: Changes, change: Array) -> Array:
  """Scales changes to [0, 1], between the least and the greatest known."""
  # Halves, since the difference of two numbers may overflow.
  halves = 0.5 * changes.change
  least = jnp.min(halves, where=changes.mask, initial=jnp.inf)
  most = jnp.max(halves, where=changes.mask, initial=-jnp.inf)
  width = most - least
  inverse = 1 / jnp.maximum(width, 1e-30)
  reward = jnp.where(width > 0, (0.5 * change - least) * inverse, 0.5)
  return jnp.where(jnp.isfinite(change), jnp.clip(reward, 0.0, 1.0), jnp.nan)


class Suggested(NamedTuple):
  """Holds the hyperparameters that `suggest` returns.

  Attributes:
    leaves: L of [P], the hyperparameters; survivors' are rounded.
    change: [P], the mean of the predicted change; NaN for survivors.
    deviation: [P], that goes with it.
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
  space: Coordinates,
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
  mask = changes.mask
  time = time.astype(jnp.float32)

  # To mean 0 and variance 1; equal ones to 0. Squares of larger changes would
  # overflow, and what is known of all others be nothing.
  change = jnp.clip(changes.change, -_LARGEST_CHANGE, _LARGEST_CHANGE)
  count = jnp.maximum(jnp.sum(mask), 1)
  mean = jnp.sum(jnp.where(mask, change, 0.0)) / count
  centred = jnp.where(mask, change - mean, 0.0)
  deviation = jnp.sqrt(jnp.sum(centred**2) / count)
  deviation = jnp.where(deviation > 1e-6 * jnp.abs(mean), deviation, 1.0)
  values = centred * (1 / deviation)

  # To between 0 and 1, of those that are there and those to start from.
  known = jnp.concatenate([mask, jnp.isfinite(fitness)])
  fitnesses = jnp.concatenate([changes.before, fitness])
  least = jnp.min(fitnesses, where=known, initial=jnp.inf)
  most = jnp.max(fitnesses, where=known, initial=-jnp.inf)
  # Halves, since the difference of two numbers may overflow.
  width = jnp.maximum(0.5 * most - 0.5 * least, 1e-30)

  def scaled(fitness: Array) -> Array:
    position = (0.5 * fitness - 0.5 * least) * (1 / width)
    return jnp.clip(jnp.nan_to_num(position), 0.0, 1.0)[:, None]

  observed = Points(
    changes.time,
    jnp.concatenate([scaled(changes.before), changes.position], axis=1),
    changes.category,
  )
  parameters = gaussian_process.fit(
    parameters, observed, values, mask, _NUM_FIT_STEPS
  )

  # Members follow the observed points. Those that survive are pending.
  window = mask.shape[0]
  positions, categories = space.to_model(used)
  starts = scaled(fitness[parents])
  now = Points(
    jnp.full(population_size, time),
    jnp.concatenate([starts, positions], axis=1),
    categories,
  )
  posterior = gaussian_process.condition(
    parameters,
    jax.tree.map(lambda *x: jnp.concatenate(x), observed, now),
    jnp.append(values, jnp.zeros(population_size)),
    jnp.append(mask, jnp.zeros(population_size, bool)),
    jnp.append(jnp.zeros(window, bool), ~replaced),
  )

  def suggest(i: Array, carry: Tree) -> Tree:
    posterior, trains, means, deviations = carry
    child = order[i]
    point = maximise(
      keys[child],
      posterior,
      time,
      starts[child],
      drawn[child],
      (
        posterior.points.position[window:, 1:],
        posterior.points.category[window:],
        trains,
      ),
      optimism,
    )
    only = jax.tree.map(lambda x: x[None], point)
    predicted, uncertain = gaussian_process.predict(posterior, only)
    return (
      gaussian_process.with_pending(posterior, window + child, point),
      trains.at[child].set(True),
      means.at[child].set(mean + deviation * predicted[0]),
      deviations.at[child].set(deviation * uncertain[0]),
    )

  # Replaced members come first.
  order = jnp.argsort(~replaced, stable=True)
  unknown = jnp.full(population_size, jnp.nan, jnp.float32)
  posterior, _, means, deviations = jax.lax.fori_loop(
    0, jnp.sum(replaced), suggest, (posterior, ~replaced, unknown, unknown)
  )
  return Suggested(
    space.from_model(
      posterior.points.position[window:, 1:],
      posterior.points.category[window:],
    ),
    means,
    deviations,
    parameters,
  )


def bound(posterior: Posterior, points: Points, optimism: float) -> Array:
  """Returns the upper confidence bound of some points.

    mean(x) + optimism * deviation(x)

  The deviation is that after pending points (Desautels et al., 2014,
  "Parallelizing Exploration-Exploitation Tradeoffs in Gaussian Process Bandit
  Optimization", equation 4, as in PB2).
  """
  mean, deviation = predict(posterior, points)
  return mean + optimism * deviation


def maximise(
  key: Key,
  posterior: Posterior,
  time: Array,
  fixed: Array,
  category: Array,
  taken: tuple[Array, Array, Array],
  optimism: float,
) -> Points:
  """Searches the position whose upper confidence bound is highest.

  Of random candidates the best climb for some steps of Adam. The best of all
  wins that is not near a position that is taken already.
  """
  others, other_categories, counts = taken
  num_coordinates = others.shape[-1]

  def points(coordinates: Array) -> Points:
    size = coordinates.shape[0]
    position = jnp.concatenate(
      [jnp.broadcast_to(fixed, (size, fixed.shape[0])), coordinates], axis=1
    )
    return Points(
      jnp.full(size, time),
      position,
      jnp.broadcast_to(category, (size, category.shape[0])),
    )

  def value(coordinates: Array) -> Array:
    return bound(posterior, points(coordinates), optimism)

  shape = (_NUM_CANDIDATES, num_coordinates)
  candidates = jax.random.uniform(key, shape, jnp.float32)
  values = value(candidates)
  # NaN is not the best.
  _, best = jax.lax.top_k(jnp.nan_to_num(values, nan=-jnp.inf), _NUM_CLIMBED)
  climbing = candidates[best]

  # Smaller and smaller steps.
  adam = optax.adam(optax.linear_schedule(_LEARNING_RATE, 0.0, _NUM_STEPS))

  def step(
    carry: tuple[Array, optax.OptState], _: None
  ) -> tuple[tuple[Array, optax.OptState], None]:
    coordinates, state = carry
    gradient = jax.grad(lambda x: -jnp.sum(value(x)))(coordinates)
    updates, state = adam.update(jnp.nan_to_num(gradient), state)
    return (jnp.clip(coordinates + updates, 0.0, 1.0), state), None

  (climbed, _), _ = jax.lax.scan(
    step, (climbing, adam.init(climbing)), length=_NUM_STEPS
  )
  candidates = jnp.concatenate([candidates, climbed])
  values = jnp.concatenate([values, value(climbed)])
  values = jnp.nan_to_num(values, nan=-jnp.inf)
  apart = jnp.any(jnp.abs(candidates[:, None] - others) > _NEAR, axis=-1)
  apart |= jnp.any(category != other_categories, axis=-1)
  is_new = jnp.all(apart | ~counts, axis=-1)
  # Where all are taken, one of them has to do.
  ranked = jnp.where(jnp.any(is_new) & ~is_new, -jnp.inf, values)
  winner = jnp.argmax(ranked)
  # Where none is a number, the first new one.
  winner = jnp.where(ranked[winner] > -jnp.inf, winner, jnp.argmax(is_new))
  chosen = points(candidates[winner][None])
  return jax.tree.map(lambda x: x[0], chosen)
