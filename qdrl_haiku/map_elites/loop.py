"""A generation of MAP-Elites, in pure functions: ask, evaluate, add, tell."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from qdrl_haiku import checks, platform
from qdrl_haiku.map_elites.containers.container import Container, fill_container
from qdrl_haiku.map_elites.describers import EPISODES, Describer
from qdrl_haiku.map_elites.emitters.emitter import Emitter, Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.prng import OfGeneration
from qdrl_haiku.types import Array, Key, Metrics, Tree

EvaluateFn = Callable[[Tree, Key], tuple[Array, Array, dict[str, Tree]]]
"""Says how good individuals are: (genotypes [B, ...]; key, consumed) ->
fitness [B], or [B, M] of M objectives; descriptors [B, D]; and by name what the
emitter `needs` and the container `keeps`, leaves [B, ...], {} for most."""


def init(
  emitter: Emitter, container: Container, evaluated: Evaluated, key: Key
) -> tuple[Tree, Tree]:
  """Makes a container's contents of first individuals, and an emitter's state.

  Args:
    emitter: where later ones come from.
    container: such as `cells(tessellation)`.
    evaluated: the first individuals, leaves [B, ...], B >= 1; what of `extra`
      the container doesn't keep is for `Emitter.tell_first` alone.
    key: consumed.

  Raises:
    ValueError: if a function of the container returns something else than
      `Container` says.
  """
  if kept := emitter.keep(evaluated):
    evaluated = evaluated._replace(extra=evaluated.extra | kept)
    container = container._replace(keeps=(*container.keeps, *kept))
  contents = fill_container(container, evaluated, {})
  state = emitter.init(
    jax.random.fold_in(key, OfGeneration.ASK), container.show(contents))
  # What the emitter says of individuals is known when it has a state.
  if extras := jax.eval_shape(emitter.extras, state):
    extras = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), extras)
    contents = fill_container(container, evaluated, extras)
  if evaluated.fitness.ndim > 1 and {*emitter.needs} <= evaluated.extra.keys():
    some = jnp.zeros(emitter.batch_size, int)
    some = jax.tree.map(lambda x: x[some], evaluated)
    # An emitter that compares one number refuses several here.
    jax.eval_shape(emitter.tell, state, container.show(contents), some, key)
  return contents, emitter.tell_first(
    state, container.show(contents), evaluated,
    jax.random.fold_in(key, OfGeneration.TELL))


def step(
  emitter: Emitter, container: Container, evaluate: EvaluateFn,
  contents: Tree, state: Tree, key: Key,
) -> tuple[Tree, Tree]:
  """Asks an emitter for individuals, evaluates, adds and tells.

  Args:
    emitter: where individuals come from; several are one by `multi_emitter`.
    container: says who stays.
    evaluate: see `EvaluateFn`.
    contents: the container's state, of which it `show`s a repertoire.
    state: the emitter's.
    key: consumed.

  Returns:
    The container's contents and the emitter's state.

  Raises:
    ValueError: if the emitter returns something else than `Emitter` says.
  """
  genotypes, contents, state = ask(emitter, container, contents, state, key)
  genotypes = platform.computed_once(genotypes)
  evaluate_key = jax.random.fold_in(key, OfGeneration.EVALUATE)
  evaluated = Evaluated(genotypes, *evaluate(genotypes, evaluate_key))
  return add_and_tell(emitter, container, contents, state, evaluated, key)


def ask(
  emitter: Emitter, container: Container, contents: Tree, state: Tree,
  key: Key,
) -> tuple[Tree, Tree, Tree]:
  """Makes the individuals to be evaluated in a generation.

  Args:
    emitter: makes B of them.
    container: may want R to be evaluated again.
    contents: the container's state.
    state: the emitter's.
    key: of the generation, for all its parts; not consumed.

  Returns:
    Genotypes [B + R, ...], and the new states of container and emitter.
  """
  genotypes, state = emitter.asked(
    state, container.show(contents), jax.random.fold_in(key, OfGeneration.ASK))
  if container.again is not None:
    drawn, contents = container.again.ask(
      contents, jax.random.fold_in(key, OfGeneration.RESAMPLE))
    genotypes = jax.tree.map(lambda *x: jnp.concatenate(x), genotypes, drawn)
  return genotypes, contents, state


def add_and_tell(
  emitter: Emitter, container: Container, contents: Tree, state: Tree,
  evaluated: Evaluated, key: Key,
) -> tuple[Tree, Tree]:
  """Adds what `ask` made; tells the emitter of the B that are its own.

  Args:
    emitter: as of `step`, like `container`, `contents` and `state`.
    container: says who stays.
    contents: the container's state, as `ask` returned it.
    state: the emitter's, as `ask` returned it.
    evaluated: what `ask` made, leaves [B + R, ...].
    key: of the generation, as for `ask`.

  Returns:
    The container's contents and the emitter's state.
  """
  if container.again is not None:
    size = emitter.batch_size
    contents = container.again.tell(
      contents, evaluated.fitness[size:], evaluated.descriptors[size:])
    evaluated = jax.tree.map(lambda x: x[:size], evaluated)
  kept = {name: evaluated.extra[name] for name in container.keeps}
  kept |= emitter.extras(state) | emitter.keep(evaluated)
  contents = container.add(contents, evaluated._replace(extra=kept))
  tell_key = jax.random.fold_in(key, OfGeneration.TELL)
  state = emitter.tell(state, container.show(contents), evaluated, tell_key)
  return contents, state


def improve_describer(
  describer: Describer, container: Container, state: Tree, contents: Tree,
  key: Key,
) -> tuple[Tree, Tree]:
  """Lets a describer improve, and places elites anew where it has.

  Args:
    describer: whose `improve` is called, if it has one.
    container: keeps "episodes", by which elites are described again.
    state: the describer's.
    contents: the container's.
    key: consumed.

  Returns:
    The describer's state and the container's contents.

  Raises:
    ValueError: if the describer's new state is another tree.
  """
  if describer.improve is None:
    return state, contents
  shown = container.show(contents)
  improved, differs = describer.improve(state, shown, key)
  checks.check_like(
    "the state that the describer's improve returns", improved, state)

  def place() -> Tree:
    describe = jax.vmap(jax.vmap(describer.describe, (None, 0)), (None, 0))
    elites = Evaluated(
      shown.genotypes,
      # What isn't finite isn't added.
      jnp.where(shown.occupied, shown.fitness, jnp.nan),
      jnp.mean(describe(improved, shown.extras[EPISODES]), axis=1),
      shown.extras)
    example = jax.eval_shape(
      lambda: jax.tree.map(lambda x: x[0], (elites.genotypes, elites.extra)))
    return container.add(container.init(*example), elites)

  return improved, jax.lax.cond(differs, place, lambda: contents)


def metrics(repertoire: Repertoire, offset: float = 0.0) -> Metrics:
  """Returns the measures of a repertoire by the names in a run's logs.

  Args:
    repertoire: any; one without cells is seen in those of its grid, if any.
    offset: added to the fitness of each individual; minus the least return
      that an episode can have, so that filling a cell never lowers the score.

  Returns:
    `qd/qd_score`, the sum of fitness + offset over the occupied cells (Pugh et
    al., 2015); `qd/coverage`, their share in percent; `qd/max_fitness`, NaN if
    there are none; and `qd/num_outside`, how many descriptors were outside the
    bounds so far; without cells `qd/num_elites` too.
  """
  cells = repertoire.in_cells()
  occupied = cells.occupied
  numbers = {
    "qd/qd_score": jnp.sum(jnp.where(occupied, cells.fitness + offset, 0)),
    "qd/coverage": 100 * jnp.sum(occupied) / occupied.size,
    "qd/max_fitness": jnp.where(
      jnp.any(repertoire.occupied), jnp.max(repertoire.fitness), jnp.nan),
    "qd/num_outside": repertoire.num_outside}
  if not repertoire.has_cells:
    numbers["qd/num_elites"] = jnp.sum(repertoire.occupied)
  return numbers
