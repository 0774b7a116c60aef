"""Variation: how two genotypes of a repertoire make a new one."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import flatten_util

from qdrl_haiku.map_elites.emitters.emitter import Emitter
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Array, Hyperparams, Key, Tree


class Elite(NamedTuple):
  """Holds what a cell stores of an agent."""

  genotype: Tree  # What `Agents.genotypes` says.
  # With which it was trained, or, if it never was, with which it would be.
  hyperparams: Hyperparams


VariationFn = Callable[[Key, Tree, Tree], Tree]
"""Makes offspring of pairs of parents, such as `iso_line` with sigmas: (key,
consumed; first parents, leaves [n, ...]; second parents, which may be the same
individuals) -> the offspring, the same tree and dtypes."""
IsWeightFn = Callable[[jax.tree_util.KeyPath], bool]
"""Whether the leaf at a path is a weight, in place of `weights_only`'s rule."""


def iso_line(
  key: Key, x1: Tree, x2: Tree, iso_sigma: float | Array,
  line_sigma: float | Array,
) -> Tree:
  """Varies genotypes a little at random, and more towards another elite.

  x1 + iso_sigma * N(0, I) + line_sigma * N(0, 1) * (x2 - x1), where the second
  normal is one number per offspring. The operator Iso+LineDD of Vassiliades and
  Mouret (2018), "Discovering the elite hypervolume by leveraging interspecies
  correlation", arXiv:1804.03906.

  Every float leaf varies; see `weights_only` for agents.

  Args:
    key: consumed.
    x1: the first parents, a tree of arrays [n, ...]; n may be 0.
    x2: the second parents, the same tree.
    iso_sigma: [], standard deviation of the noise of each entry, >= 0.
    line_sigma: [], standard deviation of the step along the line, >= 0, in
      units of the distance of the parents.

  Returns:
    The offspring, the same tree; leaves that are not floats are those of x1.
  """
  x1, x2 = jax.tree.map(jnp.asarray, (x1, x2))
  leaves, treedef = jax.tree.flatten(x1)
  if not leaves:
    return x1
  iso_key, line_key = jax.random.split(key)
  line = line_sigma * jax.random.normal(line_key, leaves[0].shape[:1])
  # One draw for all leaves: a draw takes long to compile, and there are many.
  sizes = [
    math.prod(leaf.shape[1:]) if _is_float(leaf) else 0 for leaf in leaves]
  noise = iso_sigma * jax.random.normal(
    iso_key, (leaves[0].shape[0], sum(sizes)))
  noises = jnp.split(noise, list(itertools.accumulate(sizes))[:-1], axis=1)

  def vary(first: Array, second: Array, iso: Array) -> Array:
    if not _is_float(first):
      return first
    along = jnp.expand_dims(line, tuple(range(1, first.ndim)))
    varied = first + iso.reshape(first.shape) + along * (second - first)
    return varied.astype(first.dtype)

  pairs = zip(leaves, jax.tree.leaves(x2), noises, strict=True)
  varied = [vary(*pair) for pair in pairs]
  return jax.tree.unflatten(treedef, varied)


def weights_only(variation_fn: VariationFn) -> VariationFn:
  """Applies a variation to the networks' weights of a genotype only.

  All else (statistics, a log-temperature, hyperparameters) is the first
  parent's. A leaf is a weight if a name on its path ends in
  "params", such as `policy_params`; if none does in the whole genotype, each
  float leaf is. What is below the name `hyperparams` is never a weight, nor is
  a network's running state, see `is_running_state`.

  Args:
    variation_fn: what varies the weights; it sees the genotypes with None in
      place of everything else, and returns the same tree.

  Returns:
    The variation of whole genotypes.
  """

  def vary(key: Key, x1: Tree, x2: Tree) -> Tree:
    chosen = find_varied_weights(x1)
    first, second = (pick_varied_weights(x, chosen) for x in (x1, x2))
    return put_varied_weights(x1, variation_fn(key, first, second))

  return vary


def vary_elites(
  iso_sigma: float, line_sigma: float,
  explore: Callable[[Key, Hyperparams], Hyperparams],
) -> VariationFn:
  """Makes the variation that creates an agent from two of a repertoire.

  `iso_line` varies the networks' weights; statistics and temperature
  are the first parent's, and so are the hyperparameters, which `explore` then
  changes as a controller changes those of a child.

  Args:
    iso_sigma: of the noise on each weight, >= 0.
    line_sigma: of the step along the line through the parents, >= 0.
    explore: such as `controllers.explore` makes.
  """
  vary_weights = weights_only(functools.partial(
    iso_line, iso_sigma=iso_sigma, line_sigma=line_sigma))

  def vary(key: Key, first: Elite, second: Elite) -> Elite:
    weights_key, explore_key = jax.random.split(key)
    return Elite(
      vary_weights(weights_key, first.genotype, second.genotype),
      explore(explore_key, first.hyperparams))

  return vary


def genetic_emitter(variation_fn: VariationFn, batch_size: int) -> Emitter:
  """Varies pairs of elites, each drawn uniformly from the occupied cells.

  Mouret and Clune (2015), arXiv:1504.04909. While the repertoire is empty all
  parents are zeros.

  Args:
    variation_fn: makes offspring, such as `iso_line` with its sigmas bound. Not
      called if the batch size is 0.
    batch_size: B, >= 0.

  Returns:
    The emitter; its state is ().
  """

  def ask(state: Tree, repertoire: Repertoire, key: Key) -> tuple[Tree, Tree]:
    return emit_offspring(
      key, variation_fn, repertoire.sample, batch_size), state

  return Emitter(
    init=lambda key, repertoire: (), ask=ask,
    tell=lambda state, repertoire, evaluated, key: state, batch_size=batch_size)


def emit_offspring(
  key: Key, variation_fn: VariationFn, sample: Callable[[Key, int], Tree],
  batch_size: int,
) -> Tree:
  """Makes offspring of two sampled parents each.

  Args:
    key: consumed.
    variation_fn: makes offspring, see `VariationFn`.
    sample: (key, n) -> parents, leaves [n, ...].
    batch_size: B, >= 0.

  Returns:
    Genotypes, leaves [B, ...].
  """
  first_key, second_key, variation_key = jax.random.split(key, 3)
  first = sample(first_key, batch_size)
  if not batch_size:
    return first
  return variation_fn(variation_key, first, sample(second_key, batch_size))


def find_varied_weights(
  genotype: Tree, is_weight: IsWeightFn | None = None
) -> Tree:
  """Returns which leaves are weights, a tree of bools, see `weights_only`."""
  flat = jax.tree_util.tree_leaves_with_path(genotype)
  if is_weight is not None:
    chosen = [is_weight(path) for path, _ in flat]
  else:
    may_vary, named = [], []
    for path, leaf in flat:
      names = [jax.tree_util.keystr((entry,), simple=True) for entry in path]
      is_fixed = "hyperparams" in names or is_running_state(path)
      may_vary.append(_is_float(leaf) and not is_fixed)
      is_named = any(name.endswith("params") for name in names)
      named.append(may_vary[-1] and is_named)
    chosen = named if any(named) else may_vary
  if not any(chosen):
    raise ValueError(
      f"there are no weights in the genotype {jax.tree.structure(genotype)}, so"
      " offspring would be copies; name those that may vary `..._params`.")
  return jax.tree.unflatten(jax.tree.structure(genotype), chosen)


def is_running_state(path: jax.tree_util.KeyPath) -> bool:
  """Returns whether a leaf is a network's running state, beside its weights."""
  # `networks.Variables.state`; a field `state` elsewhere may hold anything.
  names = [jax.tree_util.keystr((entry,), simple=True) for entry in path]
  return any(
    name == "state" and above.endswith("params")
    for above, name in itertools.pairwise(names))


def pick_varied_weights(genotype: Tree, chosen: Tree) -> Tree:
  """Returns a genotype with None in place of all but its weights."""
  return jax.tree.map(
    lambda x, is_weight: x if is_weight else None, genotype, chosen)


def put_varied_weights(genotype: Tree, weights: Tree) -> Tree:
  """Returns a genotype with other weights, see `pick_varied_weights`."""
  return jax.tree.map(
    lambda new, old: old if new is None else new, weights, genotype,
    is_leaf=lambda x: x is None)


class FlatWeights(NamedTuple):
  """Reads and writes the N weights of a genotype as one array."""

  size: int  # N.
  read: Callable[[Tree], Array]  # Of individuals [B, ...], float32 [B, N].
  write: Callable[[Array, Tree], Tree]  # (weights [N], individual) -> another.


def flat_weights(
  genotype: Tree, is_weight: IsWeightFn | None = None
) -> FlatWeights:
  """Finds the weights of a genotype, or of its shapes and dtypes."""
  chosen = find_varied_weights(genotype, is_weight)
  example = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), genotype)
  flat, unravel = flatten_util.ravel_pytree(
    pick_varied_weights(example, chosen))

  def read(individual: Tree) -> Array:
    weights = pick_varied_weights(individual, chosen)
    return flatten_util.ravel_pytree(weights)[0].astype(jnp.float32)

  def write(weights: Array, individual: Tree) -> Tree:
    return put_varied_weights(individual, unravel(weights.astype(flat.dtype)))

  return FlatWeights(flat.size, jax.vmap(read), write)


def _is_float(leaf: Array) -> bool:
  return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
