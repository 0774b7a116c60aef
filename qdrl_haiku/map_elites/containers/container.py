"""Containers: which evaluated individuals stay, and what is shown.

A user's own is one more `Container`: its state, here the contents, is any tree;
a repertoire is what it shows of that to emitters, scores, pictures and files.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import checks, trees
from qdrl_haiku.map_elites import repertoire as repertoire_lib
from qdrl_haiku.map_elites.emitters.emitter import Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.tessellation import Tessellation
from qdrl_haiku.types import Array, Key, Metrics, Tree


class Again(NamedTuple):
  """Asks for individuals to be evaluated again; pure functions."""

  batch_size: int  # R, how many in each generation.
  # (state, key) -> (genotypes, leaves [R, ...], state).
  ask: Callable[[Tree, Key], tuple[Tree, Tree]]
  # (state, fitness [R], descriptors [R, D]) -> state: what was found of these,
  # before new individuals are added.
  tell: Callable[[Tree, Array, Array], Tree]


class Container(NamedTuple):
  """Says who stays, as pure functions of a state that is any tree of arrays.

  Attributes:
    tessellation: of the repertoire that it shows, with C cells or places.
    init: (genotype, extras) -> state, without individuals; for examples of a
      genotype and of what is kept by name beside each, or their shapes.
    add: (state, evaluated) -> state; individuals that aren't finite have to be
      left out (`Repertoire.candidates(*evaluated).valid`). `evaluated.extra`
      has what is kept alone, and fitness may be [B, M], of M objectives.
    show: (state) -> the `Repertoire` [C, ...] from which emitters sample, which
      is measured, drawn and saved. Its fitness is one number per cell.
    name: which a file has, so that it is told from others; the text of
      `--tessellation` where that names the container.
    keeps: names of what is kept of `evaluated.extra`, beside what an emitter
      says of its individuals.
    again: which individuals it wants to be evaluated again; None for none.
    metrics: (state) -> numbers by name, [], `qd/<name>` in a generation's row.
    shared: a tree prefix of the state: True for arrays that devices may share
      along their first axis; False for all others.
  """

  tessellation: Tessellation
  init: Callable[[Tree, Mapping[str, Tree]], Tree]
  add: Callable[[Tree, Evaluated], Tree]
  show: Callable[[Tree], Repertoire]
  name: str = ""
  keeps: tuple[str, ...] = ()
  again: Again | None = None
  metrics: Callable[[Tree], Metrics] = lambda state: {}
  shared: Tree = False


def cells(tessellation: Tessellation) -> Container:
  """Keeps the fittest individual of each cell, as `Repertoire.add` does.

  Mouret and Clune (2015), "Illuminating search spaces by mapping elites",
  arXiv:1504.04909.
  """
  return one_per_place(
    tessellation, repertoire_lib.best_of_cells, repertoire_lib.CELLS)


def one_per_place(
  tessellation: Tessellation, places: repertoire_lib.PlacesFn, name: str = ""
) -> Container:
  """Makes a container that holds one individual in each place.

  Its state is the repertoire that it shows.

  Args:
    tessellation: of C places, such as `Unstructured`.
    places: (repertoire, `Candidates` [B]) -> int32 [B], the place in which
      each is written, no two alike; C + its index for one that isn't kept.
    name: see `Container`.
  """
  return Container(
    tessellation,
    init=lambda genotype, extras: Repertoire.init(
      genotype, tessellation, extras, name),
    add=lambda state, evaluated: state.put(places, *evaluated),
    show=lambda state: state, name=name,
    # What is small stays on every device, where all of it is looked at.
    shared=trees.tree_prefix(
      Repertoire, False, genotypes=True, container=name))


def check_container_functions(container: Container) -> str:
  """Refuses functions with other arguments; returns what errors call it."""
  if not isinstance(container, Container):
    raise ValueError(
      f"a {type(container).__name__} is no map_elites.Container; give one, "
      "such as map_elites.cells(map_elites.Grid(...)).")
  of = f"the container {container.name}".rstrip()
  for name, number in {"init": 2, "add": 2, "show": 1, "metrics": 1}.items():
    if not checks.takes_arguments(getattr(container, name), number):
      raise ValueError(
        f"the {name} of {of} doesn't take {number} arguments; write it as "
        "map_elites.Container says.")
  checks.check_names(f"the keeps of {of}", container.keeps)
  return of


def fill_container(
  container: Container, evaluated: Evaluated, extras: Mapping[str, Tree]
) -> Tree:
  """Makes a container's contents of first individuals; checks the container.

  Args:
    container: whose functions are called.
    evaluated: the first individuals, leaves [B, ...].
    extras: by name, shapes of what it keeps beside its own `keeps`, without the
      axis B; zeros at first.

  Raises:
    ValueError: if a function of the container returns something else than
      `Container` says, or if it keeps what isn't known.
  """
  of = check_container_functions(container)
  if both := ", ".join({*container.keeps} & extras.keys()):
    raise ValueError(
      f"the emitter has extras by names of what {of} keeps ({both}); rename "
      "one of them.")
  if missing := {*container.keeps} - evaluated.extra.keys():
    raise ValueError(
      f"the container keeps {', '.join(sorted(missing))}, which the evaluation "
      f"doesn't tell; it tells {', '.join(evaluated.extra) or 'nothing'}: keep "
      "that alone.")
  size = evaluated.fitness.shape[0]
  extra = {name: evaluated.extra[name] for name in container.keeps}
  extra |= {
    name: jnp.zeros((size, *x.shape), x.dtype) for name, x in extras.items()}
  genotype, kept = jax.eval_shape(
    lambda x: jax.tree.map(lambda x: x[0], x), (evaluated.genotypes, extra))
  empty = container.init(genotype, kept)
  state = container.add(empty, evaluated._replace(extra=extra))
  checks.check_like(
    "the state that the container's add returns", state, empty)
  for name, found in dict(container.metrics(state)).items():
    if jnp.shape(found):
      raise ValueError(
        f"the metrics of {of} have {name!r} with {trees.describe_tree(found)}; "
        "give one number, such as its mean.")
  shown = container.show(state)
  if not isinstance(shown, Repertoire):
    raise ValueError(
      f"the container's show returns a {type(shown).__name__}; return a "
      "map_elites.Repertoire.")
  expected = jax.eval_shape(lambda: Repertoire.init(
    genotype, container.tessellation, kept, shown.container))
  # It may show more than was asked for.
  asked = {name: shown.extras.get(name) for name in kept}
  seen = dataclasses.replace(shown, extras=asked, weights=None)
  if difference := trees.tree_difference(seen, expected):
    raise ValueError(
      "the repertoire that the container's show returns isn't of its "
      f"tessellation: {difference}; return map_elites.Repertoire.init"
      "(genotype, tessellation, extras), filled.")
  return state
