"""Emitters: where the individuals come from that are tried in a repertoire."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from qdrl_haiku import checks, trees
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Array, Key, Metrics, Tree


class Evaluated(NamedTuple):
  """Individuals, and what their evaluation found."""

  genotypes: Tree  # Leaves [B, ...], of the repertoire's kind.
  # [B]; or [B, M], of M objectives, where the container takes it.
  fitness: Array
  descriptors: Array  # [B, D].
  # By name what an emitter `needs`, and what a container keeps beside them,
  # leaves [B, ...].
  extra: dict[str, Tree]

  def one_objective(self, emitter: str) -> Array:
    """Returns fitness [B]; refuses [B, M] for an emitter that compares it."""
    if (fitness := self.fitness).ndim > 1:
      raise ValueError(
        f"the emitter {emitter} compares individuals by one number, and their "
        f"fitness is {fitness.shape}, of {fitness.shape[1]} objectives; take "
        "another emitter, such as genetic_emitter, or let `evaluate` return "
        "one number of each.")
    return fitness


TellFn = Callable[[Tree, Repertoire, Evaluated, Key], Tree]


class Emitter(NamedTuple):
  """A way to make individuals, as pure functions; `check` tests a user's own.

  Keys are consumed; the state is any tree of arrays.

  Attributes:
    init: (key, repertoire) -> state, before the first generation; the
      repertoire may be empty.
    ask: (state, repertoire, key) -> (genotypes, state): new individuals, leaves
      [B, ...] of the repertoire's kind.
    tell: (state, repertoire, evaluated, key) -> state: takes the `Evaluated`
      individuals of `ask`, after they were added to the repertoire.
    batch_size: B, how many individuals `ask` makes.
    needs: names of what `tell` is to find in `evaluated.extra`. Of agents there
      are "transitions", which come with their "lengths"; what no emitter needs
      isn't recorded.
    metrics: (state) -> numbers by name, [], for the row of a generation.
    tell_first: as `tell`, for the first individuals of a repertoire, whose
      number may differ from B.
    shared: a tree prefix of the state: True for arrays that devices share along
      their first axis, which is of agents that train; False for all others.
    extras: (state) -> by name what the container keeps with each individual of
      the last `ask`, leaves [B, ...]; zeros for those that it didn't make.
    keep: (evaluated) -> by name what the container keeps with each `Evaluated`
      individual, whoever made it, the first ones included.
  """

  init: Callable[[Key, Repertoire], Tree]
  ask: Callable[[Tree, Repertoire, Key], tuple[Tree, Tree]]
  tell: TellFn
  batch_size: int
  needs: tuple[str, ...] = ()
  metrics: Callable[[Tree], Metrics] = lambda state: {}
  tell_first: TellFn = lambda state, repertoire, evaluated, key: state
  shared: Tree = False
  extras: Callable[[Tree], dict[str, Tree]] = lambda state: {}
  keep: Callable[[Evaluated], dict[str, Tree]] = lambda evaluated: {}

  def asked(
    self, state: Tree, repertoire: Repertoire, key: Key
  ) -> tuple[Tree, Tree]:
    """Returns what `ask` does, unless that has to be refused.

    Args:
      state: the emitter's.
      repertoire: whose kind the genotypes have to be of.
      key: consumed.

    Raises:
      ValueError: if it's no pair, or if the genotypes aren't B of that kind.
    """
    asked = self.ask(state, repertoire, key)
    if not isinstance(asked, tuple) or len(asked) != 2:
      raise ValueError(
        f"the emitter's ask returns a {type(asked).__name__}; return a pair, "
        "the genotypes and the emitter's new state.")
    size = self.batch_size
    if difference := trees.tree_difference(asked[0], repertoire.shapes(size)):
      raise ValueError(
        f"the genotypes that the emitter's ask returns aren't {size} of the "
        f"repertoire's kind: {difference}; return batch_size={size} genotypes "
        "like the repertoire's, and then the emitter's new state.")
    return asked


def check(
  emitter: Emitter, repertoire: Repertoire, extra: dict[str, Tree] | None = None
) -> None:
  """Refuses an emitter whose functions don't do what `Emitter` says.

  Args:
    emitter: such as a user's own; it isn't compiled.
    repertoire: for which it makes individuals; it may be empty.
    extra: what it `needs` of an evaluation, leaves [B, ...]; where that is
      missing, `tell` isn't looked at.

  Raises:
    ValueError: if something that it has or returns isn't as described.
  """
  checks.check_count("batch_size", emitter.batch_size, 0)
  checks.check_names("the emitter's needs", emitter.needs)
  key = jax.eval_shape(lambda: jax.random.key(0))
  state = jax.eval_shape(emitter.init, key, repertoire)
  try:
    jax.tree.map(lambda *_: (), emitter.shared, state)
  except ValueError as error:
    raise ValueError(
      f"the emitter's shared={emitter.shared} is no tree prefix of the state "
      "that its init returns; give the same records, with True or False in "
      "place of arrays.") from error
  genotypes, asked = jax.eval_shape(emitter.asked, state, repertoire, key)
  checks.check_like("the state that the emitter's ask returns", asked, state)
  extra = extra or {}
  if not {*emitter.needs} <= extra.keys():
    return
  fitness, descriptors = trees.row_shapes(
    (repertoire.fitness, repertoire.descriptors), emitter.batch_size)
  evaluated = Evaluated(genotypes, fitness, descriptors, extra)
  told = jax.eval_shape(emitter.tell, asked, repertoire, evaluated, key)
  checks.check_like("the state that the emitter's tell returns", told, state)
