"""Explore: the hyperparameters of a child, given its parent's."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from qdrl_haiku import prng
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.controllers.base import SURVIVE
from qdrl_haiku.controllers.search_space import SearchSpace
from qdrl_haiku.ranges import Fixed
from qdrl_haiku.types import Array, Hyperparams, Key, Tree

OPERATORS = (SURVIVE, "resample", "perturb", "mixed", "reinitialise", "copy")
"""The operators of `explore_for_replaced`; "copy" where nothing is searched."""


@dataclasses.dataclass(frozen=True)
class ExplorationConfig(Settings):
  """Configures how a child's hyperparameters follow from its parent's."""

  title = "Controller"

  explore: str = setting(
    "perturb",
    "How a child's hyperparameters follow from its parent's: perturb moves "
    "each a step up or down, resample draws each anew, mixed draws each anew "
    "with probability `resample_probability` (0.25) and else moves it.",
    choices=("resample", "perturb", "mixed"), needs="searched")
  resample_probability: float = setting(
    0.25, "Probability that --explore=mixed draws a hyperparameter anew.",
    low=0, high=1, only={"explore": ("mixed",)}, offered=False,
    needs="searched")
  perturbation_factors: tuple[float, float] = setting(
    (0.8, 1.25), "Factors of a step down and of a step up.",
    only={"explore": ("perturb", "mixed")}, offered=False, needs="searched")

  def __post_init__(self) -> None:
    super().__post_init__()
    factors = self.perturbation_factors
    if len(factors) != 2 or not 0 < factors[0] < 1 < factors[1]:
      raise ValueError(
        f"perturbation_factors={factors} are not (down, up) with 0 < down < 1 <"
        " up; use a pair such as (0.8, 1.25).")


def explore(
  config: ExplorationConfig, search_space: Tree
) -> Callable[[Key, Hyperparams], Hyperparams]:
  """Makes the function that perturbs or resamples hyperparameters.

  It is (key, the parents' hyperparameters [n]) -> the children's [n]; a child
  that would equal its parent is resampled.
  """
  space = SearchSpace(search_space)

  def apply(key: Key, hyperparams: Hyperparams) -> Hyperparams:
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(hyperparams)]
    size = leaves[0].shape[0]
    new, _ = explore_for_replaced(
      config, space, prng.fold_in_indices(key, size), parents=jnp.arange(size),
      replaced=jnp.ones(size, bool), lost=jnp.zeros((), bool), leaves=leaves)
    return space.unflatten(new)

  return apply


def explore_for_replaced(
  config: ExplorationConfig, space: SearchSpace, keys: Key, *, parents: Array,
  replaced: Array, lost: Array, leaves: list[Array],
) -> tuple[list[Array], Array]:
  """Returns members' new hyperparameters and operators, given their parents.

  Children that would equal their parent or an earlier sibling are resampled;
  `pbt` says more.

  Args:
    config: says whether children are perturbed or resampled.
    space: the ranges of the L leaves.
    keys: [P], one per member; consumed.
    parents: int32 [P], of each member; a survivor's is itself.
    replaced: bool [P].
    lost: bool [], whether no fitness is finite: then all are resampled.
    leaves: the L hyperparameters, [P] each.

  Returns:
    The leaves [P], and the operator of each member, int32 [P].
  """
  indices = jnp.arange(parents.shape[0])
  earlier_sibling = (
    (replaced[:, None] & replaced[None, :])
    & (parents[:, None] == parents[None, :])
    & (indices[None, :] < indices[:, None]))
  second_of_pair = jnp.sum(earlier_sibling, axis=1) % 2 == 1
  elder = jnp.max(jnp.where(earlier_sibling, indices[None, :], 0), axis=1)

  # One key per leaf, or all leaves would step the same way.
  leaf_keys = jax.vmap(prng.fold_in_each, (None, 0), out_axes=1)(
    keys, jnp.arange(len(space.ranges)))
  split_keys = jax.vmap(jax.vmap(lambda key: jax.random.split(key, 4)))
  coin_keys, sample_keys = jnp.split(split_keys(leaf_keys), 2, axis=-1)

  uniform = jax.vmap(jax.vmap(jax.random.uniform))
  ups = uniform(coin_keys[..., 0]) < 0.5
  ups = jnp.where(second_of_pair[:, None], ~ups[elder], ups)
  resamples = uniform(coin_keys[..., 1]) < config.resample_probability

  children, fresh = [], []
  like_parent = jnp.ones(parents.shape, bool)
  like_sibling = earlier_sibling
  for i, (range_, leaf) in enumerate(zip(space.ranges, leaves, strict=True)):
    parent = leaf[parents]
    perturbed = range_.perturb(parent, ups[:, i], config.perturbation_factors)
    resampled, again = jnp.unstack(
      jax.vmap(jax.vmap(range_.sample))(sample_keys[:, i]), axis=1)
    child = {
      "perturb": perturbed, "resample": resampled,
      "mixed": jnp.where(resamples[:, i], resampled, perturbed)}[config.explore]
    like_parent &= range_.same(child, parent)
    like_sibling &= range_.same(child[:, None], child[None, :])
    children.append(child)
    fresh.append(again)
  is_copy = like_parent | jnp.any(like_sibling, axis=1)
  explored = config.explore
  if all(isinstance(range_, Fixed) for range_ in space.ranges):
    # All members are equal, and a fresh draw would be too.
    is_copy, explored = jnp.zeros_like(is_copy), "copy"

  leaves = [
    jnp.where(replaced, jnp.where(lost | is_copy, again, child), leaf)
    for leaf, child, again in zip(leaves, children, fresh, strict=True)]
  operator = jnp.where(
    is_copy, OPERATORS.index("resample"), OPERATORS.index(explored))
  operator = jnp.where(lost, OPERATORS.index("reinitialise"), operator)
  operator = jnp.where(replaced, operator, OPERATORS.index(SURVIVE))
  return leaves, operator.astype(jnp.int32)
