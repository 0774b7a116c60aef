"""Individuals compared by several objectives, all of them maximised.

Axes: N individuals, M objectives. Individuals are compared within groups,
int32 [N] from 0 to N - 1; `present`, bool [N], says which there are.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from qdrl_haiku.types import Array


def dominates(better: Array, worse: Array) -> Array:
  """Returns whether objectives [..., M] are nowhere worse, once better."""
  pairs = zip(
    jnp.unstack(better, axis=-1), jnp.unstack(worse, axis=-1), strict=True)
  is_worse, is_better = jnp.bool_(False), jnp.bool_(False)
  for a, b in pairs:
    is_worse, is_better = is_worse | ~(a >= b), is_better | (a > b)
  return ~is_worse & is_better


def front_ranks(objectives: Array, present: Array) -> Array:
  """Returns how many fronts are before each individual's, N for absent ones.

  In the first front are individuals that none dominates, in the next one those
  that none dominates without the first front, and so on (Deb et al., 2002).
  """
  better = dominates(objectives[:, None], objectives)

  def take_front(
    carry: tuple[Array, Array, Array]
  ) -> tuple[Array, Array, Array]:
    ranks, left, turn = carry
    front = left & ~jnp.any(better & left[:, None], axis=0)
    return jnp.where(front, turn, ranks), left & ~front, turn + 1

  size = present.size
  ranks, *_ = jax.lax.while_loop(
    lambda carry: jnp.any(carry[1]), take_front,
    (jnp.full(size, size, jnp.int32), present, jnp.int32(0)))
  return ranks


def crowding_distances(
  objectives: Array, groups: Array, present: Array
) -> Array:
  """Returns how far the neighbours of each individual in its group are apart.

  Deb et al. (2002), "A fast and elitist multiobjective genetic algorithm:
  NSGA-II": along each objective the distance between the next lower and the
  next higher one, as a share of the group's extent, summed; infinite for the
  least and the greatest of a group. An objective in which a whole group is
  equal counts for nothing.

  Args:
    objectives: [N, M].
    groups: int [N], of each individual, such as its front.
    present: bool [N]; the others are in no group.

  Returns:
    [N], >= 0.
  """
  size = present.size
  groups = jnp.where(present, groups, size)
  ends = jnp.full(1, jnp.inf)
  total = jnp.zeros(size)
  for axis in jnp.unstack(objectives, axis=1):
    group, x, order = jax.lax.sort((groups, axis, jnp.arange(size)), num_keys=3)
    same = group[1:] == group[:-1]
    above = jnp.append(jnp.where(same, x[1:], jnp.inf), ends)
    below = jnp.append(-ends, jnp.where(same, x[:-1], -jnp.inf))
    of_groups = (op(x, group, size + 1, indices_are_sorted=True) for op in (
      jax.ops.segment_max, jax.ops.segment_min))
    high, low = (values[group] for values in of_groups)
    extent = high - low
    shares = jnp.where(
      (extent > 0) & (extent < jnp.inf), (above - below) / extent, 0)
    total = total.at[order].add(shares, unique_indices=True)
  return total


def hypervolumes(
  objectives: Array, groups: Array, present: Array,
  reference: Sequence[float], num_groups: int,
) -> Array:
  """Returns the areas that groups dominate beyond a reference point.

  Args:
    objectives: [N, 2].
    groups: int32 [N].
    present: bool [N].
    reference: [2]; what isn't better than it in both adds nothing.
    num_groups: G.

  Returns:
    [G], 0 for an empty one.
  """
  gains = jnp.maximum(objectives - jnp.float32(tuple(reference)), 0)
  gains = jnp.where(present[:, None], gains, 0)
  group, y, x = jax.lax.sort((groups, -gains[:, 1], gains[:, 0]), num_keys=3)
  # From the highest on, the area grows to the right of all that are higher.
  same = group[1:] == group[:-1]
  is_first = jnp.append(True, ~same)

  def furthest(
    a: tuple[Array, Array], b: tuple[Array, Array]
  ) -> tuple[Array, Array]:
    return a[0] | b[0], jnp.where(b[0], b[1], jnp.maximum(a[1], b[1]))

  _, widths = jax.lax.associative_scan(furthest, (is_first, x))
  heights = jnp.append(jnp.where(same, y[1:], 0), 0) - y
  return jax.ops.segment_sum(
    widths * heights, group, num_groups, indices_are_sorted=True)
