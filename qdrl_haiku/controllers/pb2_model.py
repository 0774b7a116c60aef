"""Models changes of fitness by a Gaussian process, as PB2 does."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdrl_haiku.controllers import gaussian_process
from qdrl_haiku.controllers.gaussian_process import Parameters, Points
from qdrl_haiku.ranges import Interval, Range
from qdrl_haiku.ranges import bounds as range_bounds
from qdrl_haiku.types import Array, Key, Tree

_NUM_FIT_STEPS = 8
_LARGEST_CHANGE = 1e15
# The search for the highest upper confidence bound.
_NUM_CANDIDATES = 128
_NUM_CLIMBED = 8
_NUM_CLIMB_STEPS = 12
_LEARNING_RATE = 0.1
# Positions within this share of every range count as equal.
_NEAR = 0.01


class Changes(NamedTuple):
  """Holds changes of fitness."""

  time: Array  # [W], the decision at which the change is seen.
  before: Array  # [W], the fitness from which it changes.
  used: Array  # [W, L], the hyperparameters.
  change: Array  # [W], of fitness; not finite where it is unknown.
  is_first: Array  # bool [W], whether it is the first after a replacement.

  @property
  def mask(self) -> Array:
    """Whether the change is known, bool [W]."""
    return jnp.isfinite(self.change)


def empty_pb2_model_changes(window: int, num_hyperparams: int) -> Changes:
  """Returns a record of W changes, all of them unknown."""
  unknown = jnp.full(window, jnp.nan, jnp.float32)
  used = jnp.full((window, num_hyperparams), jnp.nan, jnp.float32)
  is_first = jnp.zeros(window, bool)
  return Changes(unknown, unknown, used, unknown, is_first)


def join_pb2_model_changes(*changes: Changes) -> Changes:
  """Joins records of changes along their first axis."""
  return jax.tree.map(lambda *x: jnp.concatenate(x), *changes)


def record_pb2_model_changes(changes: Changes, new: Changes) -> Changes:
  """Puts new changes, if they are known, in place of the earliest ones."""
  both = join_pb2_model_changes(changes, new)
  latest = jnp.argsort(both.mask, stable=True)[-changes.mask.shape[0] :]
  return jax.tree.map(lambda x: x[latest], both)


def _scale(values: Array, reference: Array, known: Array) -> Array:
  """Maps values to [0, 1], the least and the greatest known reference."""
  # Halves, since the difference of two numbers may overflow.
  least = jnp.min(0.5 * reference, where=known, initial=jnp.inf)
  most = jnp.max(0.5 * reference, where=known, initial=-jnp.inf)
  width = most - least
  inverse = 1 / jnp.maximum(width, 1e-30)
  position = jnp.where(width > 0, (0.5 * values - least) * inverse, 0.5)
  return jnp.clip(jnp.nan_to_num(position), 0.0, 1.0)


def pb2_model_points(ranges: Sequence[Range], changes: Changes) -> Points:
  """Returns points [W]: fitness and intervals are positions, of 0 for NaN."""
  columns = zip(ranges, changes.used.T, strict=True)
  position = [x.to_unit(y) for x, y in columns if isinstance(x, Interval)]
  before = changes.before
  start = _scale(before, before, jnp.isfinite(before))
  return Points(
    jnp.nan_to_num(changes.time[-1] - changes.time),
    jnp.stack([start, *map(jnp.nan_to_num, position)], axis=1),
    changes.is_first.astype(jnp.float32))


def _leaves(ranges: Sequence[Range], position: Array) -> list[Array]:
  """Returns the L hyperparameters of points."""
  positions = iter(position.T[1:])
  return [
    x.from_unit(next(positions))
    if isinstance(x, Interval)
    else jnp.full(len(position), range_bounds(x)[0], jnp.float32)
    for x in ranges]


def _standardised(changes: Changes) -> tuple[Array, Array, Array]:
  """Returns changes [W] of mean 0 and variance 1, their mean and deviation."""
  # Squares of larger changes would overflow.
  change = jnp.clip(changes.change, -_LARGEST_CHANGE, _LARGEST_CHANGE)
  count = jnp.maximum(jnp.sum(changes.mask), 1)
  mean = jnp.sum(change, where=changes.mask) / count
  centred = jnp.where(changes.mask, change - mean, 0.0)
  deviation = jnp.sqrt(jnp.sum(centred**2) / count)
  # Equal changes become 0.
  deviation = jnp.where(deviation > 1e-6 * jnp.abs(mean), deviation, 1.0)
  return centred * (1 / deviation), mean, deviation


def suggest_by_pb2_model(
  ranges: Sequence[Range], keys: Key, parameters: Parameters, changes: Changes,
  replaced: Array, optimism: float,
) -> tuple[list[Array], Array, Array, Parameters]:
  """Chooses the hyperparameters of replaced members, one after the other.

  Args:
    ranges: of the L hyperparameters.
    keys: [P], one per member; consumed.
    parameters: of the Gaussian process, from which the fit starts.
    changes: [W + P], of which the last P are the members', unknown yet.
    replaced: bool [P].
    optimism: deviations by which the bound is above the mean, >= 0.

  Returns:
    Leaves [P], rounded for survivors; the predicted changes and their
    deviations [P], NaN for survivors and before any change is known; and the
    parameters after the fit.
  """
  window = changes.mask.shape[0] - replaced.shape[0]
  values, mean, scale = _standardised(changes)
  points = pb2_model_points(ranges, changes)
  # Without the members' unknown changes: time grows with the cube of the size.
  parameters = gaussian_process.fit_gaussian_process(
    parameters, jax.tree.map(lambda x: x[:window], points), values[:window],
    changes.mask[:window], _NUM_FIT_STEPS)

  def add(i: Array, carry: Tree) -> Tree:
    """Chooses the position of the next child."""
    position, pending, predicted = carry
    place = window + order[i]
    here = points._replace(position=position)
    posterior = gaussian_process.condition_gaussian_process(
      parameters, here, values, changes.mask, pending)
    point = jax.tree.map(lambda x: x[place], here)
    found, *prediction = maximise_pb2_model_bound(
      keys[order[i]], posterior, point, pending, optimism)
    return (
      position.at[place].set(found), pending.at[place].set(True),
      predicted.at[order[i]].set(jnp.stack(prediction)))

  order = jnp.argsort(~replaced, stable=True)
  pending = jnp.append(jnp.zeros(window, bool), ~replaced)
  unknown = jnp.full((*replaced.shape, 2), jnp.nan, jnp.float32)
  position, _, predicted = jax.lax.fori_loop(
    0, jnp.sum(replaced), add, (points.position, pending, unknown))
  leaves = _leaves(ranges, position[window:])
  # Before any change is known, it isn't known in which units they are.
  scale = jnp.where(jnp.any(changes.mask), scale, jnp.nan)
  means, deviations = predicted.T
  deviations = jnp.sqrt(deviations**2 + parameters.noise)
  return leaves, mean + scale * means, scale * deviations, parameters


def maximise_pb2_model_bound(
  key: Key, posterior: gaussian_process.Posterior, child: Points, taken: Array,
  optimism: float,
) -> tuple[Array, Array, Array]:
  """Searches the position whose upper confidence bound is highest.

    mean(x) + optimism * deviation(x)

  The deviation is conditioned on pending points too (Desautels et al., 2014,
  "Parallelizing Exploration-Exploitation Tradeoffs in Gaussian Process Bandit
  Optimization", equation 4). The best random candidates climb by Adam. Of all
  on their way, the best that isn't near a taken point is returned.

  Args:
    key: consumed.
    posterior: given N points.
    child: a point, whose first coordinate, the fitness, is fixed.
    taken: bool [N], which points may not be suggested again.
    optimism: >= 0.

  Returns:
    The position [D], and mean and deviation there.
  """
  points = posterior.points

  def bound(coordinates: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    """Returns the bound, position, mean and deviation at coordinates [D]."""
    position = jnp.append(child.position[:1], coordinates)
    mean, deviation = gaussian_process.predict_gaussian_process(
      posterior, child._replace(position=position))
    return mean + optimism * deviation, (position, mean, deviation)

  def ranked(bounds: Array, position: Array) -> Array:
    """Returns bounds, with NaN and taken positions below all others."""
    offsets = jnp.abs(position[:, None] - points.position)[..., 1:]
    is_near = jnp.all(offsets <= _NEAR, axis=-1)
    is_taken = jnp.any(is_near & taken, axis=-1)
    return jnp.where(is_taken, -2e30, jnp.nan_to_num(bounds, nan=-1e30))

  shape = (_NUM_CANDIDATES, child.position.shape[0] - 1)
  candidates = jax.random.uniform(key, shape, jnp.float32)
  bounds, (position, _, _) = jax.vmap(bound)(candidates)
  _, best = jax.lax.top_k(ranked(bounds, position), _NUM_CLIMBED)
  schedule = optax.linear_schedule(_LEARNING_RATE, 0.0, _NUM_CLIMB_STEPS)
  adam = optax.adam(schedule)
  slopes = jax.vmap(jax.value_and_grad(bound, has_aux=True))

  def step(carry: Tree, _: None) -> tuple[Tree, Tree]:
    coordinates, state = carry
    found, gradient = slopes(coordinates)
    updates, state = adam.update(-jnp.nan_to_num(gradient), state)
    return (jnp.clip(coordinates + updates, 0.0, 1.0), state), found

  start = candidates[best]
  _, visited = jax.lax.scan(
    step, (start, adam.init(start)), length=_NUM_CLIMB_STEPS)
  bounds, found = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), visited)
  winner = jnp.argmax(ranked(bounds, found[0]))
  return jax.tree.map(lambda x: x[winner], found)
