"""A generation of MAP-Elites: ask, evaluate, add, tell.

Pure functions, to be compiled as one or scanned; on plain arrays as well as on
agents.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from qdrl_haiku.map_elites.containers import Container, fill_container
from qdrl_haiku.map_elites.emitters import Emitter, Evaluated, check_emitter_ask
from qdrl_haiku.prng import OfGeneration
from qdrl_haiku.types import Array, Key, Tree

EvaluateFn = Callable[[Tree, Key], tuple[Array, Array, dict[str, Tree]]]
"""Says how good individuals are: (genotypes [B, ...]; key, consumed) ->
fitness [B], or [B, M] of M objectives; descriptors [B, D]; and by name what the
emitter `needs` and the container `keeps`, leaves [B, ...], {} for most."""


def init(
  emitter: Emitter, container: Container, evaluated: Evaluated, key: Key
) -> tuple[Tree, Tree]:
  """Makes a container's state of first individuals, and the emitter's.

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
  repertoire = fill_container(container, evaluated, {})
  state = emitter.init(
    jax.random.fold_in(key, OfGeneration.ASK), container.show(repertoire))
  # What the emitter says of individuals is known when it has a state.
  if extras := jax.eval_shape(emitter.extras, state):
    extras = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), extras)
    repertoire = fill_container(container, evaluated, extras)
  if emitter.tell_first is not None:
    key = jax.random.fold_in(key, OfGeneration.TELL)
    shown = container.show(repertoire)
    state = emitter.tell_first(state, shown, evaluated, key)
  return repertoire, state


def step(
  emitter: Emitter, container: Container, evaluate: EvaluateFn,
  repertoire: Tree, state: Tree, key: Key,
) -> tuple[Tree, Tree]:
  """Asks an emitter for individuals, evaluates, adds and tells.

  Args:
    emitter: where individuals come from; several are one by `multi_emitter`.
    container: says who stays.
    evaluate: see `EvaluateFn`.
    repertoire: the container's state, which it `show`s.
    state: the emitter's.
    key: consumed.

  Returns:
    The container's state and the emitter's.

  Raises:
    ValueError: if the emitter returns something else than `Emitter` says.
  """
  genotypes, repertoire, state = ask(emitter, container, repertoire, state, key)
  evaluate_key = jax.random.fold_in(key, OfGeneration.EVALUATE)
  evaluated = Evaluated(genotypes, *evaluate(genotypes, evaluate_key))
  return add_and_tell(emitter, container, repertoire, state, evaluated, key)


def ask(
  emitter: Emitter, container: Container, repertoire: Tree, state: Tree,
  key: Key,
) -> tuple[Tree, Tree, Tree]:
  """Makes the individuals to be evaluated in a generation, whose key it takes.

  Returns B + R individuals, the emitter's and then those that the container
  wants to be evaluated again; the container's state and the emitter's.
  """
  shown = container.show(repertoire)
  asked = emitter.ask(state, shown, jax.random.fold_in(key, OfGeneration.ASK))
  genotypes, state = check_emitter_ask(emitter, shown, asked)
  if container.again is not None:
    drawn, repertoire = container.again.ask(
      repertoire, jax.random.fold_in(key, OfGeneration.RESAMPLE))
    genotypes = jax.tree.map(
      lambda *x: jnp.concatenate(x), genotypes, drawn)
  return genotypes, repertoire, state


def add_and_tell(
  emitter: Emitter, container: Container, repertoire: Tree, state: Tree,
  evaluated: Evaluated, key: Key,
) -> tuple[Tree, Tree]:
  """Adds what `ask` made; tells the emitter of the B that are its own.

  Takes and returns what `step` does, and the `Evaluated` [B + R, ...].
  """
  if container.again is not None:
    size = emitter.batch_size
    repertoire = container.again.tell(
      repertoire, evaluated.fitness[size:], evaluated.descriptors[size:])
    evaluated = jax.tree.map(lambda x: x[:size], evaluated)
  kept = {name: evaluated.extra[name] for name in container.keeps}
  kept |= emitter.extras(state)
  repertoire = container.add(repertoire, evaluated._replace(extra=kept))
  tell_key = jax.random.fold_in(key, OfGeneration.TELL)
  state = emitter.tell(state, container.show(repertoire), evaluated, tell_key)
  return repertoire, state
