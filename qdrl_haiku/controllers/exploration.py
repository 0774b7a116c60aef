"""Explore: how the hyperparameters of a child differ from its parent's."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku.config import Settings, setting
from qdrl_haiku.controllers import ranges as ranges_lib
from qdrl_haiku.types import Array, Hyperparams, Key, typed_key


@dataclasses.dataclass(frozen=True)
class ExplorationConfig(Settings):
  """Says how a child's hyperparameters follow from its parent's."""

  title = "Controller"

  explore: str = setting(
    "perturb",
    "How a child's hyperparameters follow from its parent's: perturb moves "
    "each a step up or down, resample draws each anew, mixed draws each anew "
    "with probability `resample_probability` (0.25) and else moves it.",
    choices=("resample", "perturb", "mixed"),
    needs="searched",
  )
  resample_probability: float = setting(
    0.25,
    "Probability that --explore=mixed draws a hyperparameter anew.",
    low=0,
    high=1,
    only={"explore": ("mixed",)},
    offered=False,
    needs="searched",
  )
  perturbation_factors: tuple[float, float] = setting(
    (0.8, 1.25),
    "Factors of a step down and of a step up.",
    only={"explore": ("perturb", "mixed")},
    offered=False,
    needs="searched",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    factors = self.perturbation_factors
    # Beyond 1e30, float32 overflows.
    if len(factors) != 2 or not 0 < factors[0] < 1 < factors[1] < 1e30:
      raise ValueError(
        f"perturbation_factors={factors} are not (down, up) with 0 < down < 1 <"
        " up; use a pair such as (0.8, 1.25)."
      )


def explore(
  config: ExplorationConfig, search_space: Any
) -> Callable[[Key, Hyperparams], Hyperparams]:
  """Makes what changes hyperparameters as a child's, if nobody is replaced.

  A repertoire's offspring inherit hyperparameters by it.

  Args:
    config: the settings.
    search_space: a tree shaped as the hyperparameters, its leaves ranges.

  Returns:
    (key, the parents' hyperparameters [n]) -> the children's [n]. A child that
    would equal its parent is resampled.

  Raises:
    ValueError: if a leaf of the search space is not a range.
  """
  ranges, treedef = flatten(search_space)

  def apply(key: Key, hyperparams: Hyperparams) -> Hyperparams:
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(hyperparams)]
    size = leaves[0].shape[0]
    new, fresh, is_copy = children(
      config,
      ranges,
      member_keys(key, size),
      jnp.arange(size),
      jnp.ones(size, bool),
      leaves,
    )
    return jax.tree.unflatten(
      treedef,
      [jnp.where(is_copy, x, y) for x, y in zip(fresh, new, strict=True)],
    )

  return apply


def flatten(search_space: Any) -> tuple[list[ranges_lib.Range], Any]:
  """Returns the ranges of a search space, and its structure."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(search_space):
    if not isinstance(leaf, ranges_lib.Range):
      raise ValueError(
        f"search_space{jax.tree_util.keystr(path)}={leaf!r} is not a range;"
        " use Uniform, LogUniform, OneMinusLogUniform, Choice or"
        f" Fixed({leaf!r})."
      )
  return jax.tree.flatten(search_space)


def draw(
  ranges: list[ranges_lib.Range], key: Key, population_size: int
) -> list[Array]:
  """Draws the hyperparameters with which a population begins.

  A member's do not depend on P.
  """
  if population_size < 1:
    raise ValueError(
      f"population_size={population_size} has no members; use at least 1."
    )
  keys = member_keys(key, population_size)
  return [
    jax.vmap(range_.sample)(fold_in(keys, i)) for i, range_ in enumerate(ranges)
  ]


def check_shapes(fitness: Array, hyperparams: Any, treedef: Any) -> None:
  """Refuses hyperparameters that do not fit the search space or fitness."""
  if fitness.ndim != 1 or not fitness.shape[0]:
    raise ValueError(
      f"fitness has shape {fitness.shape}; give one number per member, [P]."
    )
  if jax.tree.structure(hyperparams) != treedef:
    raise ValueError(
      f"hyperparameters {jax.tree.structure(hyperparams)} differ from the"
      f" search space {treedef}; give both the same names (Fixed where a"
      " hyperparameter is not searched)."
    )
  for path, leaf in jax.tree_util.tree_leaves_with_path(hyperparams):
    if jnp.shape(leaf) != fitness.shape:
      raise ValueError(
        f"hyperparameters{jax.tree_util.keystr(path)} has shape"
        f" {jnp.shape(leaf)}, but fitness has {fitness.shape}; give every leaf"
        " one value per member, [P]."
      )


def member_keys(key: Key, population_size: int) -> Key:
  """Returns a key for each of P members, [P], by its index alone."""
  indices = jnp.arange(population_size)
  return jax.vmap(jax.random.fold_in, (None, 0))(typed_key(key), indices)


def fold_in(keys: Key, data: int | Array) -> Key:
  """Folds one number into each of some keys [P]."""
  return jax.vmap(jax.random.fold_in, (0, None))(keys, data)


def children(
  config: ExplorationConfig,
  ranges: list[ranges_lib.Range],
  keys: Key,
  parents: Array,
  replaced: Array,
  leaves: list[Array],
) -> tuple[list[Array], list[Array], Array]:
  """Draws what the children of the chosen parents would use."""
  indices = jnp.arange(parents.shape[0])
  earlier_sibling = (
    (replaced[:, None] & replaced[None, :])
    & (parents[:, None] == parents[None, :])
    & (indices[None, :] < indices[:, None])
  )
  second_of_pair = jnp.sum(earlier_sibling, axis=1) % 2 == 1
  elder = jnp.max(jnp.where(earlier_sibling, indices[None, :], 0), axis=1)

  # A key per leaf: with one for all, every leaf would step the same way.
  leaf_keys = jax.vmap(fold_in, (None, 0), out_axes=1)(
    keys, jnp.arange(len(ranges))
  )
  split_keys = jax.vmap(jax.vmap(lambda key: jax.random.split(key, 4)))
  coin_keys, sample_keys = jnp.split(split_keys(leaf_keys), 2, axis=-1)

  def toss(keys: Key, probability: float) -> Array:
    uniform = jax.vmap(jax.vmap(jax.random.uniform))(keys)
    return uniform < probability

  ups = toss(coin_keys[..., 0], 0.5)
  ups = jnp.where(second_of_pair[:, None], ~ups[elder], ups)
  resamples = toss(coin_keys[..., 1], config.resample_probability)

  children, fresh = [], []
  like_parent = jnp.ones(parents.shape, bool)
  like_sibling = earlier_sibling
  for i, (range_, leaf) in enumerate(zip(ranges, leaves, strict=True)):
    parent = leaf[parents]
    perturbed = range_.perturb(parent, ups[:, i], config.perturbation_factors)
    resampled, again = jnp.unstack(
      jax.vmap(jax.vmap(range_.sample))(sample_keys[:, i]), axis=1
    )
    child = {
      "perturb": perturbed,
      "resample": resampled,
      "mixed": jnp.where(resamples[:, i], resampled, perturbed),
    }[config.explore]
    like_parent &= range_.same(child, parent)
    like_sibling &= range_.same(child[:, None], child[None, :])
    children.append(child)
    fresh.append(again)
  is_copy = like_parent | jnp.any(like_sibling, axis=1)
  if all(isinstance(range_, ranges_lib.Fixed) for range_ in ranges):
    # Nothing tells members apart, and no fresh draw would.
    is_copy = jnp.zeros_like(is_copy)
  return children, fresh, is_copy
